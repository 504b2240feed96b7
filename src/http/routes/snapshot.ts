import * as v from 'valibot';
import { fingerprint } from '../../base/fingerprint.ts';
import { removeSnapshot, takeSnapshot } from '../../lease/snapshot.ts';
import { resourceOf } from '../../ledger/resource.ts';
import { listSnapshotsBelow, snapshotOf } from '../../ledger/snapshot.ts';
import { PAID_REFUSALS } from '../../spend/spend.ts';
import { ResourceId } from '../../wire/compute.ts';
import {
  SnapshotId,
  SnapshotList,
  SnapshotSummary,
  SnapshotTaken,
  snapshotSummary,
  takenOf,
} from '../../wire/snapshot.ts';
import { endpoint } from '../endpoint.ts';
import { PAGE_QUERY, pageOf } from '../page.ts';
import { PAID_HEADERS, paidHeaders } from '../paid.ts';
import { tagsOf } from '../tags.ts';
import { ID } from './compute.ts';

const SNAPSHOT_ID = 'snap_01k9v3c2mq8r5t7w1x4z6b0d2f';
const EXAMPLE = {
  snapshot_id: SNAPSHOT_ID,
  id: ID,
  wallet_id: 'wal_01k9v3c2mq8r5t7w1x4z6b0d2f',
  provider: 'provider_one',
  status: 'ready',
  size_gib: 0.12,
  day_usd: '0.0012',
  created_at: 1795000300,
  paid_until: 1795086700,
  ended_at: null,
  end_reason: null,
};

export const takeComputeSnapshot = endpoint({
  summary: 'Keep the disk of a resource that runs or is paused, paid by the day; create?snapshot=ID starts from it',
  scope: 'wallet',
  idempotent: true,
  body: ResourceId,
  answer: SnapshotTaken,
  headers: PAID_HEADERS,
  refusals: [
    ...PAID_REFUSALS,
    'not_found',
    'provider_not_configured',
    'offer_not_found',
    'resource_not_active',
    'lease_limit_exceeded',
    'provider_unavailable',
    'capacity_unavailable',
  ],
  example: { body: { id: ID }, answer: { snapshot_id: SNAPSHOT_ID, size_gib: 0.12 } },
  async run(app, { principal, body, raw, idempotencyKey, requestId, headers }) {
    const order = {
      walletId: principal.wallet.id,
      route: 'compute/snapshot',
      idempotencyKey,
      fingerprint: fingerprint(raw),
      requestId,
      tags: tagsOf(headers),
      traceparent: headers.traceparent,
      resource: resourceOf(app.ledger.read, principal.wallet.id, body.id),
    };
    const { answer, replayed, paid } = await takeSnapshot(app, order);
    return { body: takenOf(answer), replayed, headers: paidHeaders(app, order, paid) };
  },
});

export const listComputeSnapshots = endpoint({
  summary:
    'List the snapshots of the wallet and of its children, newest first, at most 100; `before` gives the next page',
  scope: 'wallet',
  query: v.strictObject(PAGE_QUERY),
  answer: SnapshotList,
  refusals: ['invalid_cursor'],
  example: { answer: { snapshots: [EXAMPLE] } },
  async run(app, { principal: { wallet }, query }) {
    const page = await listSnapshotsBelow(app.ledger.read, wallet.id, pageOf(query, 'snap'));
    return { body: { snapshots: page.map(snapshotSummary) } };
  },
});

export const deleteComputeSnapshot = endpoint({
  summary: 'Delete a snapshot; it is gone once no resource that was made from it runs, and costs no further day',
  scope: 'wallet',
  body: SnapshotId,
  answer: SnapshotSummary,
  refusals: ['not_found', 'read_only'],
  example: {
    body: { snapshot_id: SNAPSHOT_ID },
    answer: { ...EXAMPLE, status: 'deleted', ended_at: 1795000600, end_reason: 'requested' },
  },
  async run(app, { principal, body }) {
    const { id } = snapshotOf(app.ledger.read, principal.wallet.id, body.snapshot_id);
    return { body: snapshotSummary(await removeSnapshot(app, id)) };
  },
});
