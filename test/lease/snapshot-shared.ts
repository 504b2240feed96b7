import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { TestContext } from 'node:test';
import { findSnapshot, type Snapshot } from '../../src/ledger/snapshot.ts';
import type { Answer, TestServerOptions } from '../helper/server.ts';
import { openMemoryServer, SPEC } from './leases.ts';

export const DAY = 86_400;
/** A wallet that outlives its leases by days. */
export const MONTH = { budget_cents: 500, expires_in_seconds: 30 * DAY };
export const GIB = 1024 ** 3;

type Snaps = {
  snapshot(token: string, id: string, key?: string): Promise<Answer>;
  forget(token: string, id: string): Promise<Answer>;
  snapshots(token: string): Promise<any[]>;
  leaseFrom(token: string, id: string, key?: string): Promise<Answer>;
};

/** Adds the calls that take, list and delete snapshots, and that lease from one. */
export const snapshotting = <P extends { ask: Awaited<ReturnType<typeof openMemoryServer>>['ask'] }>(
  purser: P,
): P & Snaps =>
  Object.assign(purser, {
    snapshot: (token: string, id: string, key: string = randomUUID()) =>
      purser.ask('POST', '/v1/compute/snapshot', { token, key, body: { id } }),
    forget: (token: string, id: string) =>
      purser.ask('POST', '/v1/compute/snapshot/delete', { token, body: { snapshot_id: id } }),
    snapshots: async (token: string) => (await purser.ask('GET', '/v1/compute/snapshots', { token })).body.snapshots,
    leaseFrom: (token: string, id: string, key: string = randomUUID()) =>
      purser.ask('POST', `/v1/compute/create?snapshot=${id}`, {
        token,
        key,
        body: { provider: 'provider_one', spec: SPEC },
      }),
  });

/** A lease of 600 s whose disk takes a quarter of a GiB, and its wallet. */
export async function openLeased(t: TestContext, options: TestServerOptions = {}) {
  const purser = snapshotting(await openMemoryServer(t, options));
  const wallet = await purser.openWallet(MONTH);
  const { id } = (await purser.lease(wallet.token)).body;
  return { purser, token: wallet.token, wallet: wallet.id, id: id as string };
}

/** The same, with a snapshot of it: 0.025 USD a day. */
export async function openSnapshot(t: TestContext, options: TestServerOptions = {}) {
  const { purser, ...leased } = await openLeased(t, options);
  const { status, body, text } = await purser.snapshot(leased.token, leased.id);
  assert.equal(status, 200, text);
  const snapshot = body.snapshot_id as string;
  const row = () => findSnapshot(purser.app.ledger.read, snapshot) as Snapshot;
  /** The nano-dollars that its days have cost. */
  const paid = () =>
    Number(
      purser.app.ledger.client
        .prepare("select coalesce(sum(charge_nanos), 0) from operation where kind = 'snapshot'")
        .pluck()
        .get(),
    );
  return { purser, ...leased, snapshot, row, paid };
}
