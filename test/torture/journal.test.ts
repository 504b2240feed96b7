import assert from 'node:assert/strict';
import test from 'node:test';
import { type Failure, newJournal, note, type OrderEntry, type WalletEntry } from '../../torture/journal.ts';
import type { Answer } from '../helper/server.ts';

const body = { id: 'op_1', usage: { prompt_tokens: 3, completion_tokens: 2 } };
const answered = (status: number, body: object): Answer => ({ status, headers: {}, body, text: JSON.stringify(body) });
const done = answered(200, body);
const refused = (code: string, status = 409, message = 'no') => answered(status, { error: { code, message } });

function asked(expiresInSeconds = 0, secondsAgo = 0) {
  const at = Date.now() - secondsAgo * 1000;
  const wallet = { kind: 'wallet', id: 'wal_1', expiresInSeconds, askedAt: at, madeAt: at, known: 0n };
  const order = {
    kind: 'chat',
    key: 'a',
    wallet: wallet as WalletEntry,
    what: 'flat',
    outcome: 'unknown',
    isNew: true,
  };
  const journal = newJournal();
  const tell = (answer: Answer, alone = true) =>
    note(journal, order as OrderEntry, order.outcome as OrderEntry['outcome'], answer, alone);
  const failures = () => journal.findings.map(({ failure }): Failure => failure);
  return { order: order as OrderEntry, tell, failures };
}

test('what is acknowledged costs what its usage says, and is told again in the same words', () => {
  const { order, tell, failures } = asked();
  tell(refused('operation_uncertain', 503));
  assert.equal(order.outcome, 'unknown');
  tell(done);
  assert.deepEqual(
    [order.outcome, order.charged, order.operationId, order.wallet.known],
    ['done', 10_000_000n, 'op_1', 10_000_000n],
  );
  tell(done);
  assert.deepEqual(failures(), []);
  tell(answered(200, { ...body, id: 'op_2' }));
  tell(refused('answer_lost', 409, 'It was lost and 0.01 USD were charged for it.'));
  tell(refused('wallet_closed'));
  assert.deepEqual(failures(), Array(3).fill('acknowledged and lost'));
});

test('a charge by policy is the last word too', () => {
  const { order, tell, failures } = asked();
  tell(refused('answer_lost', 409, 'The answer was lost and 0.01 USD were charged for it.'));
  assert.deepEqual([order.outcome, order.charged], ['lost', 10_000_000n]);
  tell(done);
  assert.deepEqual(failures(), ['acknowledged and lost']);
});

test('one of several requests with a key that is refused says nothing of the others', () => {
  const { order, tell } = asked();
  tell(refused('rate_limited', 429), false);
  assert.equal(order.outcome, 'unknown');
  tell(refused('read_only', 503));
  assert.equal(order.outcome, 'unknown');
  tell(refused('rate_limited', 429));
  assert.equal(order.outcome, 'refused');
});

test('a wallet that expires too early or too late is noticed', () => {
  const early = asked(120, 30);
  early.tell(refused('wallet_expired'));
  assert.deepEqual(early.failures(), ['unexpected answers']);
  const never = asked(0, 1000);
  never.tell(refused('wallet_expired'));
  assert.deepEqual(never.failures(), ['unexpected answers']);
  const late = asked(120, 200);
  late.tell(done);
  assert.deepEqual(late.failures(), ['unexpected answers']);
  const timely = asked(120, 130);
  timely.tell(refused('wallet_expired'));
  assert.deepEqual(timely.failures(), []);
});

test('an answer that no fault explains is noticed', () => {
  const { tell, failures } = asked();
  for (const [code, status] of [
    ['internal_error', 500],
    ['unauthenticated', 401],
    ['idempotency_conflict', 409],
  ] as const)
    tell(refused(code, status));
  assert.deepEqual(failures(), Array(3).fill('unexpected answers'));
});
