import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { addPasskey, openBrowserSession, removePasskey } from '../../src/access/writes.ts';
import { newId } from '../../src/base/id.ts';
import { Nanos } from '../../src/base/money.ts';
import type { Tx } from '../../src/db/handle.ts';
import { openCheckout, reportPayment, settleCreation } from '../../src/ledger/checkout.ts';
import { placeHold } from '../../src/ledger/hold.ts';
import { beginStep, changeKeep, endKeep } from '../../src/ledger/keep.ts';
import { keepLearnedBound } from '../../src/ledger/learned-bound.ts';
import type { Ledger } from '../../src/ledger/ledger.ts';
import { settle } from '../../src/ledger/operation.ts';
import { setFeed } from '../../src/ledger/payment-events.ts';
import { insertResource, updateResource } from '../../src/ledger/resource.ts';
import { reversePayment } from '../../src/ledger/reversal.ts';
import { insertSandbox } from '../../src/ledger/sandbox.ts';
import { endSnapshot, insertSnapshot, paidDay, settleTake } from '../../src/ledger/snapshot.ts';
import { writeWith } from '../helper/closures.ts';
import { copyDirectory, openTestServer } from '../helper/server.ts';
import { failure } from '../helper/upstream.ts';

/**
 * These promise nothing: when a key was last used, what the cleanup of a wallet met, what was told of its budget, when a
 * migration ran.
 */
export const NOTES: Record<string, string[]> = {
  key: ['last_used_at'],
  wallet: ['cleanup_attempts', 'cleanup_error', 'period_spent_nanos', 'next_threshold_nanos'],
  delivery: ['due_at', 'attempts', 'last_error'],
  passkey: ['last_used_at'],
  browser_session: ['last_used_at'],
  migration: ['at'],
};

/** Where nobody listens: what is told stays in the outbox. */
const events = { receivers: [{ url: 'http://127.0.0.1:1/', secret: 'a signing secret of a test' }] };

/** A purser in which everything has a row: copied while it serves, as kill -9 would leave it, and after it closed. */
export async function openStory(t: TestContext): Promise<{ killed: string; closed: string }> {
  const purser = await openTestServer(t, { settings: { events } });
  await purser.app.reaper.stop();
  await purser.app.notifier.stop();
  const { token, id } = await purser.openWallet({ name: 'the first' });
  for (let i = 0; i < 20; i++) await purser.chat(token, { model: i % 4 ? 'chat' : 'free' });
  await purser.ask('POST', '/v1/router/key', { token, key: 'gateway', body: { models: ['chat'] } });
  await purser.run('wallet.budget', { id, add_cents: 100, key: 'raised' });
  await purser.run('wallet.extend', { id, seconds: 60 });
  await purser.run('wallet.refill', { id, refill: { cents: 100, every: 'day' } });
  await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body: { name: 'child', budget_usd: '0.5' } });
  purser.upstream.handle = failure(400);
  await purser.chat(token);
  purser.upstream.handle = failure(502);
  await purser.chat(token);
  const { id: closed, token: closing } = await purser.openWallet({ name: 'closed' });
  await purser.ask('POST', '/v1/run/close', { token: closing });
  assert.equal(purser.wallet(closed).status, 'closed');
  const other = await purser.run('account.create', { name: 'other', creditCents: 7000 });
  await purser.run('account.suspend', { id: other.id });
  await purser.run('account.create', { name: 'without anything' });
  await purser.run('account.debit', { id: purser.accountId, cents: 55, reason: 'a correction' });
  const key = await purser.run('key.create', { account: purser.accountId, name: 'old' });
  await purser.run('key.revoke', { id: key.id });
  await endLease(purser.app.ledger, id, purser.app.clock.now());
  await purser.run('account.link', { id: other.id, issuer: 'https://id.example.org', subject: 'user-1' });
  await payAndDispute(purser.app.ledger, other.id, purser.app.clock.now());
  const session = { kind: 'operator' as const, tokenHash: randomBytes(32) };
  const now = purser.app.clock.now();
  const order = { name: 'laptop', origin: 'http://localhost:7420' };
  const credential = { credentialId: randomBytes(32), publicKey: randomBytes(91), useCount: 3 };
  const passkey = await purser.app.ledger.write(addPasskey, { order: { ...order, ...credential }, now });
  await purser.app.ledger.write(removePasskey, { id: passkey.id, now });
  await purser.app.ledger.write(openBrowserSession, { order: session, earlierId: undefined, now });
  await purser.run('freeze', {});
  await purser.run('unfreeze', {}); // The newest commits move no money: losing them must be seen too.

  const copy = (name: string) => {
    const to = mkdtempSync(join(tmpdir(), `purser-${name}-`));
    t.after(() => rmSync(to, { recursive: true, force: true }));
    copyDirectory(purser.directory, to);
    return to;
  };
  const killed = copy('killed');
  await purser.close();
  return { killed, closed: copy('closed') };
}

/** A lease that was never had: no backend is asked for it. */
async function endLease(ledger: Ledger, walletId: string, now: number): Promise<void> {
  const operationId = newId('op');
  const id = newId('res');
  await writeWith(ledger, (tx) => {
    placeHold(
      tx,
      {
        id: operationId,
        walletId,
        kind: 'compute_create',
        route: 'compute/create',
        idempotencyKey: 'lease',
        fingerprint: randomBytes(32),
        requestId: 'req_1',
        hold: Nanos(5_000_000n),
        price: '{}',
        subject: 'provider_one',
        resourceId: id,
      },
      now,
    );
    const spec = '{"cpus":1,"memory_gib":1,"max_seconds":60}';
    const price = { priceHourly: Nanos(300_000_000n), charged: Nanos(0n), purchasedSeconds: 60, maxSeconds: 60 };
    const times = { createdAt: now, readyBy: now + 60, expiresAt: now + 120, dueAt: now, attempts: 1, absentCount: 0 };
    const lease = { id, walletId, operationId, slot: 'provider_one', backend: 'container', tag: `purser-${id}`, spec };
    insertResource(tx, { ...lease, ...price, ...times, status: 'provisioning' });
    const sandbox = { template: 'base', metadata: '{}', environment: randomBytes(64), seconds: 60, deliveredAt: now };
    insertSandbox(tx, id, sandbox);
    const keep = { walletId, resourceId: id, idempotencyKey: 'keep', fingerprint: randomBytes(32), requestId: 'req_1' };
    const order = { ...keep, tags: null, extendSeconds: 60, maxSeconds: 60 };
    const { keep: kept } = changeKeep.run(tx, { order, now });
    beginStep(tx, kept?.id as string, operationId);
    endKeep.run(tx, { id: kept?.id as string, reason: 'lease_ended', message: 'The lease is over.', now });
    settle(tx, operationId, { kind: 'done', charge: Nanos(5_000_000n), usage: null, answer: null }, 'answer', now);
    keepSnapshot(tx, { walletId, resourceId: id }, now);
    const end = { endedAt: now, endReason: 'create_failed', lastError: 'no machine' } as const;
    updateResource(tx, id, { ...end, status: 'failed', charged: Nanos(5_000_000n) });
    const learned = { upstream: 'mock', upstreamModel: 'chat', basis: '{}', permille: 1500, contextTokens: 0 };
    const seen = { factorAt: now, overheadTokens: 200, overheadAt: now };
    keepLearnedBound.run(tx, { ...learned, ...seen, operationId, learnedAt: now });
  });
}

/** A snapshot that was paid for a day and is gone. */
function keepSnapshot(tx: Tx, { walletId, resourceId }: { walletId: string; resourceId: string }, now: number): void {
  const [id, operationId] = [newId('snap'), newId('op')];
  const price = Nanos(1_000_000n);
  const keys = { idempotencyKey: 'snapshot', fingerprint: randomBytes(32), requestId: 'req_1' };
  const order = { id: operationId, walletId, kind: 'snapshot' as const, route: 'compute/snapshot', ...keys };
  const operation = placeHold(tx, { ...order, hold: price, price: '{}', subject: 'provider_one' }, now);
  const where = { slot: 'provider_one', backend: 'container', engine: null, tag: `purser-${id}` } as const;
  insertSnapshot(tx, { id, resourceId, ...where, limitGib: 1, price }, operation, now);
  settleTake.run(tx, { id, outcome: paidDay({ price }, 10), now });
  endSnapshot.run(tx, { id, now });
}

/** A checkout that was paid and disputed, and one that waits: nobody is asked for their sessions. */
async function payAndDispute(ledger: Ledger, accountId: string, now: number): Promise<void> {
  const once = { fingerprint: randomBytes(32), requestId: 'req_1', expiresAt: now + 3600 };
  const order = { accountId, amountCents: 2000, ...once };
  const [sessionId, paymentIntent] = ['cs_test_1', 'pi_1'];
  await writeWith(ledger, (tx) => {
    openCheckout.run(tx, { order: { ...order, idempotencyKey: 'waiting' }, now });
    const { id: checkoutId } = openCheckout.run(tx, { order: { ...order, idempotencyKey: 'paid' }, now });
    const creation = { kind: 'created', sessionId, url: 'https://pay.example.org/1' } as const;
    settleCreation.run(tx, { id: checkoutId, creation, now });
    const paid = { outcome: 'paid', currency: 'usd', amountCents: 2000 } as const;
    const event = { id: 'evt_stripe_1', type: 'checkout.session.completed', subject: sessionId };
    reportPayment.run(tx, { report: { ...paid, sessionId, checkoutId, paymentIntent }, event, now });
    const dispute = { id: 'dp_1', kind: 'dispute', state: 'taken', amountCents: 2000 } as const;
    const told = { id: 'evt_stripe_2', type: 'charge.dispute.created', subject: 'dp_1' };
    reversePayment.run(tx, { reversal: { ...dispute, paymentIntent, asOf: now }, event: told, now });
    setFeed.run(tx, { readTo: now, dueAt: now + 3600 });
  });
}
