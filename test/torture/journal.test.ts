import assert from 'node:assert/strict';
import test from 'node:test';
import { periodAt } from '../../src/base/calendar.ts';
import { type Failure, newJournal, note, type OrderEntry, type WalletEntry } from '../../torture/journal.ts';
import { expiryOf, type MoveEntry, noteMove, zoneOfNextMidnight } from '../../torture/move.ts';
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
  const tell = (answer: Answer, alone = true, frozen: 'yes' | 'no' | 'maybe' = 'maybe') =>
    note(journal, order as OrderEntry, order.outcome as OrderEntry['outcome'], answer, alone, frozen);
  const failures = () => journal.findings.map(({ failure }): Failure => failure);
  return { journal, order: order as OrderEntry, tell, failures };
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

test('a wrong clock that was accepted explains what expires early or late by as much, if the wallet was open then', () => {
  for (const [endedAt, seconds, failures] of [
    [Number.POSITIVE_INFINITY, 900, []],
    [Number.POSITIVE_INFINITY, 9, ['unexpected answers']],
    [Date.now() - 1_000_000, 900, ['unexpected answers']],
  ] as const) {
    const [early, late] = [asked(900, 30), asked(120, 200)];
    for (const it of [early, late]) it.journal.futures.push({ endedAt, seconds });
    early.tell(refused('wallet_expired'));
    late.tell(done);
    assert.deepEqual([early.failures(), late.failures()], [failures, failures]);
  }
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

test('a frozen wallet that is spent from is noticed, and one that refuses though nobody froze it', () => {
  const spent = asked();
  spent.tell(done, true, 'yes');
  assert.deepEqual(spent.failures(), ['unexpected answers']);
  const refusing = asked();
  refusing.tell(refused('wallet_frozen', 403), true, 'no');
  assert.deepEqual([refusing.order.outcome, refusing.failures()], ['refused', ['unexpected answers']]);
  const timely = asked();
  timely.tell(refused('wallet_frozen', 403), true, 'yes');
  timely.tell(done, true, 'maybe');
  assert.deepEqual(timely.failures(), []);
});

test('a move is final once it is acknowledged, and refused only if it was alone', () => {
  const journal = newJournal();
  const wallet = { id: 'wal_1' } as WalletEntry;
  const move: MoveEntry = { kind: 'raise', key: 'k', wallet, by: 5, outcome: 'unknown', flying: 0 };
  const tell = (answer: Answer, alone = true) => noteMove(journal, move, move.outcome, answer, alone);
  tell(refused('read_only', 503));
  tell(refused('insufficient_funds', 402), false);
  assert.equal(move.outcome, 'unknown');
  tell(answered(200, { budget_usd: '1.05' }));
  assert.deepEqual([move.outcome, journal.findings], ['done', []]);
  tell(refused('wallet_closed'));
  tell(refused('internal_error', 500));
  assert.deepEqual(
    journal.findings.map(({ failure }) => failure),
    ['acknowledged and lost', 'unexpected answers'],
  );
});

test('an extension moves the expiry of a wallet, and a child expires with its parent', () => {
  const journal = newJournal();
  const at = { askedAt: 0, madeAt: 1000 };
  const parent = { ...at, expiresInSeconds: 60 } as WalletEntry;
  const child = { ...at, expiresInSeconds: 0, parent, parentExpiredAt: 60_000 } as WalletEntry;
  assert.deepEqual(expiryOf(journal, child), { earliest: 60_000, latest: 61_000 });
  const extend = (wallet: WalletEntry, outcome: MoveEntry['outcome']) =>
    journal.moves.push({ kind: 'extend', key: 'k', wallet, by: 30, outcome, flying: 0 });
  extend(parent, 'unknown');
  assert.deepEqual(expiryOf(journal, parent), { earliest: 60_000, latest: 91_000 });
  extend(parent, 'done');
  assert.deepEqual(expiryOf(journal, parent), { earliest: 90_000, latest: 121_000 });
  assert.equal(expiryOf(journal, child).earliest, 60_000); // It was opened when its parent still ended then.
});

test('the zone of a refill has its midnight at the next whole minute', () => {
  for (const time of ['00:00:00', '03:59:50', '11:59:59', '12:00:30', '12:59:56', '23:58:00', '23:59:57']) {
    const now = Date.parse(`2026-03-04T${time}Z`);
    const { next } = periodAt('day', zoneOfNextMidnight(now), now / 1000);
    assert.ok(next * 1000 - now >= 5000 && next * 1000 - now <= 65_000, `${time}: ${next * 1000 - now} ms ahead`);
  }
});
