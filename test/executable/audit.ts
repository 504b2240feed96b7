import assert from 'node:assert/strict';
import type { Installation } from '../helper/executable.ts';
import { nanos, readBooks, sum } from './books.ts';
import type { Chaos } from './chaos.ts';
import { BUDGET_CENTS, type openClients } from './clients.ts';

export const CREDIT_CENTS = 100_000_000;
const NANOS_PER_CENT = 10_000_000n;

/** Creates an installation's books, with credit and a key for the clients. */
export async function fund(purser: Installation): Promise<{ accountId: string; key: string }> {
  const server = await purser.serve();
  const { id: accountId } = await purser.operate('account.credit', { id: 'default', cents: CREDIT_CENTS });
  const { key } = await purser.operate('key.create', { account: accountId, name: 'clients' });
  await server.stop();
  return { accountId, key };
}

/**
 * Compares the clients' journal and the model server's with the books: nothing acknowledged is lost, nothing charged twice, and
 * no call rests on a row that is not there. Each of the `servers` of a pool may
 * refuse an operation. Wallets of other clients (`others`) are left out.
 */
export async function audit(
  purser: Installation,
  { wallets, chats }: ReturnType<typeof openClients>,
  chaos: Chaos,
  { servers, others = [] }: { servers: number; others?: readonly string[] },
): Promise<void> {
  const verdict = await purser.json('ledger', 'verify');
  assert.deepEqual(verdict.problems, []);
  const { stdout } = await purser.cli('ledger', 'export');
  const { entries, operations, opened } = readBooks(stdout);
  assert.equal(verdict.entries, entries.length);
  for (const id of others) opened.delete(id);
  for (const [id, { walletId }] of operations) if (others.includes(walletId)) operations.delete(id);

  const once = new Map(wallets.map((it) => [it.id, 1]));
  assert.deepEqual(opened, once, 'every wallet that was asked for is there exactly once');
  assert.equal(once.size, wallets.length);
  for (const [id, { refused, taken }] of chaos.seen) {
    assert(operations.has(id), `the servers saw ${id}, which no row knows`);
    assert(taken <= 1, `the servers took ${id} on ${taken} times`);
    assert(refused + taken <= servers, `the servers saw ${id} ${refused + taken} times`);
  }

  for (const [id, { holds, charges, releases }] of operations) {
    assert.equal(holds.length, 1, id);
    assert(charges.length <= 1 && releases.length <= 1, id);
    assert.equal(sum([...charges, ...releases]), holds[0], `what ${id} held is settled`);
  }
  for (const id of chaos.answered)
    assert.equal(operations.get(id)?.charges.length, 1, `${id} was answered, and given back`);
  const charged = new Map([...operations].filter(([, { charges }]) => charges.length));
  for (const { key, text, wallet } of chats.filter((it) => it.outcome === 'charged')) {
    const { id, usage } = JSON.parse(text);
    const booked = charged.get(id);
    assert(booked, `the answer to ${key} was acknowledged, and its charge is lost`);
    const price = BigInt(usage.prompt_tokens) * 1000n + BigInt(usage.completion_tokens) * 2000n + 100_000n;
    assert.deepEqual([booked.walletId, booked.charges], [wallet.id, [price]]);
    assert(chaos.answered.has(id));
    assert(charged.delete(id), `the operation ${id} answered two keys`);
  }
  // What is left was charged by policy: its whole hold, once for each key whose answer was lost.
  for (const [id, { holds, charges }] of charged) assert.deepEqual(charges, holds, id);
  const lost = chats.filter((it) => it.outcome === 'lost').map((it) => it.wallet.id);
  assert.deepEqual([...charged.values()].map((it) => it.walletId).sort(), lost.sort());

  for (const { id, closed } of wallets) {
    const used = sum([...operations.values()].filter((it) => it.walletId === id).flatMap((it) => it.charges));
    assert.equal(nanos(closed.used_usd), used, id);
    assert.equal(BigInt(closed.returned_cents), BigInt(BUDGET_CENTS) - (used + NANOS_PER_CENT - 1n) / NANOS_PER_CENT);
  }
  for (const { id } of wallets.slice(-3)) {
    const { steps } = await purser.json('wallet', 'timeline', id);
    const own = entries.filter((it) => it.cause_id === id || operations.get(it.cause_id)?.walletId === id);
    const told = steps.map((it: { seq: number; amount_usd: string }) => [it.seq, it.amount_usd]);
    assert.deepEqual(
      told,
      own.map((it) => [it.seq, it.amount_usd]),
    );
  }
}
