import * as v from 'valibot';
import { formatUsd } from '../base/money.ts';
import { SLOTS, type Slot } from '../compute/backend.ts';
import { SNAPSHOT_STATUSES } from '../db/enums.ts';
import { priceOfDay, type Snapshot } from '../ledger/snapshot.ts';
import { Id, Time, Usd } from './parts.ts';

/** Names a snapshot in a body. */
export const SnapshotId = v.strictObject({ snapshot_id: Id });

const SizeGib = v.pipe(
  v.number(),
  v.description('what it keeps beyond the template’s image, in hundredths of a GiB, rounded up'),
);

export const SnapshotTaken = v.object({ snapshot_id: v.string(), size_gib: SizeGib });

export const SnapshotSummary = v.object({
  snapshot_id: v.string(),
  /** The lease that it was taken of. */
  id: v.string(),
  wallet_id: v.string(),
  provider: v.picklist(SLOTS),
  status: v.picklist(SNAPSHOT_STATUSES),
  size_gib: v.nullable(SizeGib),
  day_usd: v.pipe(v.nullable(Usd), v.description('the price of a day')),
  created_at: Time,
  paid_until: v.nullable(Time),
  ended_at: v.nullable(Time),
  end_reason: v.pipe(
    v.nullable(v.string()),
    v.description('requested, wallet_closed, lost, or the code of the refusal of a day or of the snapshot itself'),
  ),
});
export const SnapshotList = v.object({ snapshots: v.array(SnapshotSummary) });

const sizeOf = ({ size }: Snapshot) => (size === null ? null : size / 100);

/** Renders a snapshot that was taken. */
export const takenOf = (it: Snapshot): v.InferOutput<typeof SnapshotTaken> => ({
  snapshot_id: it.id,
  size_gib: sizeOf(it) ?? 0,
});

/** Renders the row of a snapshot. */
export const snapshotSummary = (it: Snapshot): v.InferOutput<typeof SnapshotSummary> => ({
  snapshot_id: it.id,
  id: it.resourceId,
  wallet_id: it.walletId,
  provider: it.slot as Slot,
  status: it.status,
  size_gib: sizeOf(it),
  day_usd: it.size === null ? null : formatUsd(priceOfDay(it.price, it.size)),
  created_at: it.createdAt,
  paid_until: it.paidUntil,
  ended_at: it.endedAt,
  end_reason: it.endReason,
});
