import assert from 'node:assert/strict';
import test from 'node:test';
import { length } from '../helper/random.ts';
import { longestTurn } from '../helper/turns.ts';
import { listingsOf, openListServer } from './engines/lists.ts';

// The limit is that of test/http/long-turns.soak.test.ts; parsed at once, each of these takes hundreds of milliseconds, or seconds.
const TURN_MILLISECONDS_MAX = 150;
const MIB = 1024 * 1024;
/** Just what is parsed at once. */
const VALUE_BYTES = 127 * 1024;

let number = 0;
const fill = (piece: () => string, bytes: number) => {
  const pieces: string[] = [];
  for (let size = 0; size < bytes; size += (pieces.at(-1) as string).length) pieces.push(piece());
  return pieces;
};
/** Values of so many bytes that take long to parse. */
const VALUES: Record<string, (bytes: number) => string> = {
  'empty lists': (bytes) => `[${fill(() => '[],', bytes).join('')}0]`,
  'names that differ': (bytes) => `[${fill(() => `{"n${(number++).toString(36)}":0}`, bytes - bytes / 10).join()}]`,
  'an object of names': (bytes) => `{${fill(() => `"n${(number++).toString(36)}":0`, bytes - bytes / 10).join()}}`,
  levels: (bytes) => '['.repeat(bytes / 2) + ']'.repeat(bytes / 2),
  escapes: (bytes) => `"${fill(() => '\\n\\"', bytes).join('')}"`,
};

test('no list of an engine keeps the others waiting', async (t) => {
  const server = await openListServer(t);
  const bytes = length(8, 60) * MIB;
  for (const [name, { list, around, machine }] of Object.entries(listingsOf(t, server))) {
    const size = name === 'Vast' ? Math.min(bytes, 15 * MIB) : bytes;
    const count = Math.floor(size / (JSON.stringify(machine(10_000)).length + 1));
    const machines = Array.from({ length: Math.min(count, 10_000) }, (_, i) => JSON.stringify(machine(i)));
    const lists: Record<string, [string[], isRefused: boolean | undefined]> = {
      machines: [machines, false],
      'small machines': [
        Array.from({ length: 10_000 }, () => '{"name":"","metadata":{},"Labels":{},"Names":[]}'),
        undefined,
      ],
    };
    for (const [kind, make] of Object.entries(VALUES))
      lists[kind] = [fill(() => `{"metadata":{"Labels":{"config":${make(VALUE_BYTES)}}}}`, size), undefined];
    for (const [kind, [items, isRefused]] of Object.entries(lists)) {
      await server.answer(Buffer.from(`${around[0]}${items.join()}${around[1]}`));
      let answer: unknown[] | undefined;
      let turn = Number.POSITIVE_INFINITY;
      for (let i = 0; i < 3 && turn > TURN_MILLISECONDS_MAX / 3; i++)
        turn = Math.min(
          turn,
          await longestTurn(async () => {
            answer = await list().catch(() => undefined);
          }),
        );
      t.diagnostic(`${name}, ${kind}: ${turn.toFixed(0)} ms, ${answer ? `${answer.length} machines` : 'refused'}`);
      assert(turn < TURN_MILLISECONDS_MAX, `${name}, ${kind}: ${turn.toFixed(0)} ms in one turn`);
      if (isRefused === false) assert(answer && answer.length > 60, name);
    }
  }
});
