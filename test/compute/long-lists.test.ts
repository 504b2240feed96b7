import assert from 'node:assert/strict';
import test from 'node:test';
import { listingsOf, openListServer } from './engines/lists.ts';

// A machine that is not in a list is gone, and what it used is settled. So part of a list is never taken for a list.

/** Lists that are none, by what stands around one, with the bytes that were announced. */
const HOSTILE: Record<string, (before: string, after: string, machine: string) => [body: string, announced?: number]> =
  {
    'that breaks off': (before, after, machine) => [before + machine + after, 5000],
    'that breaks off between two machines': (before, _, machine) => [`${before}${machine},`, 5000],
    'that ends too early': (before, _, machine) => [before + machine],
    'that is empty': () => [''],
    'that is null': () => ['null'],
    'that is a text': () => ['ok'],
    'with a machine of megabytes': (before, after) => [`${before}{"a":[[["${'x'.repeat(2_000_000)}"]]]}${after}`],
    'with too many machines': (before, after) => [`${before}${'{},'.repeat(10_000)}{}${after}`],
    'with too many values': (before, after) => [
      `${before}${Array.from({ length: 60 }, () => `[[[[${'0,'.repeat(40_000)}0]]]]`)}${after}`,
    ],
  };

test('a list that is not whole, or more than is read, says nothing of what is not in it', async (t) => {
  const server = await openListServer(t);
  for (const [name, { list, around, machine }] of Object.entries(listingsOf(t, server))) {
    const [before, after] = around;
    await server.answer(Buffer.from(`${before}${JSON.stringify(machine(1))}${after}`));
    assert.equal((await list()).length, 1, name);
    for (const [kind, make] of Object.entries(HOSTILE)) {
      const [body, announced] = make(before, after, JSON.stringify(machine(1)));
      await server.answer(Buffer.from(body), announced);
      await assert.rejects(list(), `${name}: a list ${kind}`);
    }
  }
});
