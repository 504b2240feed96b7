import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { formatUsd, Nanos } from '../../src/base/money.ts';
import { openGateway } from '../helper/gateway.ts';
import type { Answer } from '../helper/server.ts';
import { breakOff, completionStream, DONE, event, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, failure, gate, type Handler, halfBody, reset } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { openPool, PRICE, total, turnsOf } from './pools-shared.ts';

// Whichever servers of a pool are tried, and wherever a request ends, its hold is settled once.

const DEAR = { prompt: '0.00001', completion: '0.00002' };
const USD_OF = { a: '0.00002', b: '0.0002' };
type Name = keyof typeof USD_OF;

/** A pool of two servers, of which the first that a request asks answers by `first`, and the second by `second`. */
async function open(t: TestContext) {
  const pool = await openPool(
    t,
    { upstreams: ['a', { upstream: 'b', pricing: DEAR }], pricing: PRICE },
    {},
    { unknownCountMax: 100 },
  );
  const { purser } = pool;
  let asked: Name[] = [];
  /** Returns the servers that are asked from here on, in order. */
  const answer = (first: Handler, second: Handler): Name[] => {
    const mine: Name[] = [];
    asked = mine;
    for (const name of ['a', 'b'] as const)
      pool[name].handle = (call, response) => (asked.push(name) === 1 ? first : second)(call, response);
    return mine;
  };
  /** Returns the movements of a wallet's operations in order, each as the kinds of the books it goes from and to. */
  const movements = (walletId: string) => {
    const rows = purser.app.ledger.client
      .prepare(
        'select debit, credit from entry where cause_id in (select id from operation where wallet_id = ?) order by seq',
      )
      .all(walletId) as { debit: string; credit: string }[];
    return rows.map(({ debit, credit }) => `${debit.split(':')[0]} to ${credit.split(':')[0]}`);
  };
  return { pool, purser, answer, movements };
}

type End = 'charged' | 'released' | 'uncertain' | 'cut';
type Case = [what: string, first: Handler, stream: boolean, end: End, askedCount: 1 | 2];

const both = (what: string, first: Handler, end: End, count: 1 | 2): Case[] =>
  [false, true].map((stream) => [what, first, stream, end, count]);
const CASES: Case[] = [
  // A clear refusal that is not about the request, before anything was delivered: the other server is asked.
  ...[401, 403, 404, 429, 500, 503].flatMap((it) => both(`answers ${it}`, failure(it), 'charged', 2)),
  ...both('answers 200 with an error', failure(200, { error: { message: 'no', code: 502 } }), 'charged', 2),
  ['tells of an error before any text', streaming(event({ error: { message: 'no', code: 503 } })), true, 'charged', 2],
  // One about the request, and an unknown outcome: no other server is asked.
  ...both('answers 400', failure(400), 'released', 1),
  ...both('resets the connection', reset, 'uncertain', 1),
  ...both('ends in the middle of its answer', halfBody, 'uncertain', 1),
  ...both('answers 504', failure(504), 'uncertain', 1),
  ['ends before any text', streaming(DONE), true, 'uncertain', 1],
  // The client has a part of this answer, which no other server could go on with.
  ['breaks off after its first text', streaming(said('a'), breakOff), true, 'cut', 1],
  ['tells of an error after its first text', streaming(said('a'), event({ error: { code: 503 } })), true, 'cut', 1],
  ['ends without an end', streaming(said('a'), FINISHED.slice(0, 20)), true, 'cut', 1],
];

const CHARGED = ['wallet to hold', 'hold to sales', 'hold to wallet'];
const MOVEMENTS: Record<End, string[]> = {
  charged: CHARGED,
  cut: CHARGED,
  uncertain: ['wallet to hold', 'hold to sales'],
  released: ['wallet to hold', 'hold to wallet', ...CHARGED],
};

const well: Handler = (call, response) => (call.body.stream ? completionStream() : completion())(call, response);

test('a request to a pool is settled once, by whichever server was tried', async (t) => {
  const { purser, answer, movements } = await open(t);
  for (const [what, first, stream, end, count] of CASES)
    await t.test(`${stream ? 'a stream whose' : 'its'} first server ${what}`, async () => {
      const gateway = await openGateway(purser);
      const body = { model: 'pool', max_tokens: 10, messages: turnsOf(what, 1) };
      const send = (): Promise<Answer> => (stream ? gateway.streamed(body, 'k') : gateway.chat(body, 'k'));
      const asked = answer(first, well);
      const { status, text, body: told } = await send();
      assert.equal(asked.length, count);
      assert.equal(new Set(asked).size, count, 'each server once');
      const { holds, used_usd: used, held_usd: held } = await purser.budget(gateway.token);
      const [operation] = (await purser.run('operation.list', { wallet: gateway.walletId, limit: 1 })).operations;
      const last = asked.at(-1) as Name;

      const later = answer(well, well);
      const again = await send();
      if (end === 'charged') {
        assert.deepEqual([status, used, operation?.usage?.upstream], [200, USD_OF[last], last], text);
        assert.equal(again.text, text, 'the stored answer');
      } else if (end === 'released') {
        assert.deepEqual([status, used, again.status, later.length], [400, '0.00', 200, 1]);
      } else if (end === 'uncertain') {
        assert.deepEqual([told.error.code, again.body.error.code], ['operation_uncertain', 'operation_uncertain']);
        assert.equal(operation?.usage?.upstream, last);
        purser.clock.advance(901);
        assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
        assert.equal((await purser.budget(gateway.token)).used_usd, held, 'the whole hold, by the policy');
      } else {
        assert.match(text, /"code":"answer_lost"/);
        assert.deepEqual([again.status, again.body.error.code], [409, 'answer_lost']);
        const { upstream, prompt_tokens: prompt, completion_tokens: tokens } = operation?.usage ?? {};
        assert.deepEqual([upstream, tokens], [last, 1]);
        const nanos = (BigInt(prompt as number) * 1000n + 2000n) * (last === 'b' ? 10n : 1n);
        assert.equal(used, formatUsd(Nanos(nanos)), 'at the price of the server that was asked');
      }
      assert.equal(holds.length, end === 'uncertain' ? 1 : 0);
      if (end !== 'released') assert.equal(later.length, 0, 'the same key asks none');
      assert.deepEqual(movements(gateway.walletId), MOVEMENTS[end]);
      assert.deepEqual(purser.problems(), []);
    });
});

test('a crash while a server of a pool works leaves one hold, which is settled once and asks no other', async (t) => {
  const { pool, purser, answer, movements } = await open(t);
  for (const count of [1, 2] as const)
    for (const stream of [false, true]) {
      const gateway = await openGateway(purser);
      const body = { model: 'pool', max_tokens: 10, messages: turnsOf(`${count}`, 1), stream };
      const send = () => gateway.chat(body, 'k');
      const held = gate();
      const asked = answer(count === 1 ? held.handler : failure(503), held.handler);
      const before = total(pool);
      send().catch(() => {}); // Its connection ends with the test.
      await until('the last server works', () => total(pool) === before + count);
      await purser.crash(held.open);

      const later = answer(well, well);
      assert.equal((await send()).body.error.code, 'operation_uncertain');
      const { holds, held_usd: amount } = await purser.budget(gateway.token);
      assert.equal(holds.length, 1);
      purser.clock.advance(901);
      assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
      assert.equal((await send()).body.error.code, 'answer_lost');
      assert.equal((await purser.budget(gateway.token)).used_usd, amount);
      assert.deepEqual(movements(gateway.walletId), MOVEMENTS.uncertain);
      assert.deepEqual([asked.length, new Set(asked).size, later.length], [count, count, 0]);
      assert.deepEqual(purser.problems(), []);
    }
});
