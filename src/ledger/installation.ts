import assert from 'node:assert/strict';
import { desc, eq } from 'drizzle-orm';
import { newId } from '../base/id.ts';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { epochs, installation, masterKeys } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { type BooksMove, tellFrozen, tellMoved } from './notices.ts';

export type Installation = typeof installation.$inferSelect;

const reads = prepare((read: Reader) => ({
  one: read.select().from(installation).prepare(),
  epoch: read.select().from(epochs).orderBy(desc(epochs.number)).limit(1).prepare(),
}));

/** Returns the installation row, or undefined before the first start has finished. */
export function findInstallation(read: Reader): Installation | undefined {
  return reads(read).one.get();
}

/** Returns the installation row. Asserts that the first start has written it. */
export function installationOf(read: Reader): Installation {
  const installation = findInstallation(read);
  assert(installation, 'the first start writes it');
  return installation;
}

type Install = { masterKeyId: string; now: number };
/** Writes the row of a new installation, with its master key and first epoch. */
export const install = defineWrite('installation.install', (tx, { masterKeyId, now }: Install): Installation => {
  const first = { number: 1, afterSeq: 0, startedAt: now, reason: 'installed', acceptedFaults: 0 };
  const row = { id: 1, installationId: newId('inst'), createdAt: now, masterKeyId, quietCommits: 0 };
  tx.insert(masterKeys)
    .values(withChecksum(masterKeys, { id: masterKeyId, createdAt: now }))
    .run();
  tx.insert(epochs).values(withChecksum(epochs, first)).run();
  tx.insert(installation).values(withChecksum(installation, row)).run();
  return installationOf(tx);
});

function change(tx: Tx, what: Partial<Omit<Installation, 'id' | 'seal'>>): Installation {
  const before = installationOf(tx);
  const after = withNewChecksum(installation, before, what);
  tx.update(installation).set(after).run();
  return { ...before, ...after };
}

/** Records the account of new account keys for which no other account is named. */
export function setDefaultAccount(tx: Tx, accountId: string): void {
  change(tx, { defaultAccountId: accountId });
}

/** Records which master key, by its fingerprint, new wallets use. */
export function setMasterKey(tx: Tx, masterKeyId: string): void {
  change(tx, { masterKeyId });
}

/** Returns whether the operator has stopped all new holds. */
export function isFrozen(read: Reader): boolean {
  return installationOf(read).frozenAt !== null;
}

/** Throws `read_only` while the operator has stopped all new holds. */
export function refuseFrozenInstallation({ frozenAt }: Installation): void {
  if (frozenAt !== null)
    throw new Refusal('read_only', 'The operator has frozen this installation: no new holds.', {
      retryAfterSeconds: 60,
    });
}

type Freeze = Pick<Installation, 'frozenAt' | 'freezeReason'>;

/**
 * Returns the freeze after an order to freeze at `frozenAt` (Unix seconds), or to unfreeze (null); undefined if nothing changes. An
 * existing freeze keeps its time and takes the new reason, if one is given.
 */
export function freezeAfter(before: Freeze, frozenAt: number | null, reason: string | null): Freeze | undefined {
  const isSame = (before.frozenAt === null) === (frozenAt === null);
  if (isSame && (reason === null || reason === before.freezeReason)) return undefined;
  return { frozenAt: isSame ? before.frozenAt : frozenAt, freezeReason: reason };
}

type FreezeOrder = { at: number | null; reason: string | null };
/** Stops new holds from `at` on (Unix seconds), for this reason; null allows them again. */
export const freeze = defineWrite('installation.freeze', (tx, { at, reason }: FreezeOrder): Installation => {
  const before = installationOf(tx);
  const after = freezeAfter(before, at, reason);
  if (!after) return before;
  if (at !== null && before.frozenAt === null) tellFrozen(tx, { installation: before.installationId }, reason, at);
  return change(tx, after);
});

type Epoch = typeof epochs.$inferSelect;

/** Returns the newest epoch. */
export function currentEpoch(read: Reader): Epoch {
  const epoch = reads(read).epoch.get();
  assert(epoch, 'the first start writes the first epoch');
  return epoch;
}

/**
 * Begins a new epoch: the journal from `afterSeq` on, without a guarantee for earlier entries (design, section 6). Its number is
 * above every number used before, in the database and, through `above`, in the files beside it.
 */
export function beginEpoch(
  tx: Tx,
  order: { afterSeq: number; reason: string; acceptedFaults: number; above?: number },
  now: number,
): Epoch {
  const { above = 0, ...rest } = order;
  const epoch = { number: Math.max(currentEpoch(tx).number, above) + 1, startedAt: now, ...rest };
  return tx.insert(epochs).values(withChecksum(epochs, epoch)).returning().get();
}

/**
 * Lowers the number of faults that the operator has accepted to those that remain: an accepted fault that is gone, together with
 * its row, must not make room for a new one.
 */
export const lowerAcceptedFaults = defineWrite('faults.lower', (tx, { remaining }: { remaining: number }) => {
  const epoch = currentEpoch(tx);
  if (remaining >= epoch.acceptedFaults) return;
  tx.update(epochs)
    .set(withNewChecksum(epochs, epoch, { acceptedFaults: remaining }))
    .where(eq(epochs.number, epoch.number))
    .run();
});

/** Counts a commit that posts no entry, so that the loss of any commit can be detected (docs/decisions/0013). */
export function countQuietCommit(tx: Tx): void {
  const before = findInstallation(tx);
  if (before) change(tx, { quietCommits: before.quietCommits + 1 });
}

/** Makes a commit that changes nothing: it shows that the disk still takes one. */
export const beat = defineWrite(
  'beat',
  (tx) => {
    const before = findInstallation(tx);
    if (before) change(tx, { quietCommits: before.quietCommits }); // The commit itself is counted.
  },
  { isPaid: true }, // No credential changes, so none has to be read again.
);

/** The report-only state: why existing leases are only reported and not acted on, and since when (Unix seconds). */
export type ReportOnly = { since: number; reason: string };

/** Returns the report-only state, or undefined when the installation acts on its leases. */
export function reportOnlyOf(read: Reader): ReportOnly | undefined {
  const { reportOnlySince: since, reportOnlyReason: reason } = installationOf(read);
  return since === null || reason === null ? undefined : { since, reason };
}

/** Begins the report-only state, or ends it with null. */
export function setReportOnly(tx: Tx, state: ReportOnly | null): void {
  change(tx, { reportOnlySince: state?.since ?? null, reportOnlyReason: state?.reason ?? null });
}

/** Records that the operator has looked, and that these books are the right ones. */
export function trust(tx: Tx, now: number): void {
  change(tx, { trustedAt: now });
}

/** The machine and the file of a start. */
export type BooksLocation = Pick<Installation, 'machineHash' | 'host' | 'fileMark'>;

/** Records where this installation runs, and with `move` that it comes from another machine. */
export function setLocation(tx: Tx, place: BooksLocation, move: BooksMove | undefined, now: number): void {
  const moved = move && { movedFrom: move.from, movedAt: now, movedWrittenAt: move.writtenAt };
  change(tx, { ...place, ...moved });
  if (move) tellMoved(tx, move, now);
}
