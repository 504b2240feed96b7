import assert from 'node:assert/strict';
import { desc, eq, sql } from 'drizzle-orm';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { epochs, installation, masterKeys } from '../db/schema.ts';
import { newId } from '../id.ts';

export type Installation = typeof installation.$inferSelect;

const reads = prepare((read: Reader) => ({
  one: read.select().from(installation).prepare(),
  epoch: read.select().from(epochs).orderBy(desc(epochs.number)).limit(1).prepare(),
  masterKey: read
    .select()
    .from(masterKeys)
    .where(eq(masterKeys.id, sql.placeholder('id')))
    .prepare(),
}));

/** What this installation is, or undefined before the first start has finished. */
export function findInstallation(read: Reader): Installation | undefined {
  return reads(read).one.get();
}

/** What this installation is. */
export function installationOf(read: Reader): Installation {
  const found = findInstallation(read);
  assert(found, 'the first start writes it');
  return found;
}

/** Writes what a new installation is, with its first epoch. */
export function install(tx: Tx, masterKeyId: string, now: number): Installation {
  tx.insert(masterKeys).values({ id: masterKeyId, createdAt: now }).run();
  tx.insert(epochs).values({ number: 1, afterSeq: 0, startedAt: now, reason: 'installed' }).run();
  tx.insert(installation)
    .values({ id: 1, installationId: newId('inst'), createdAt: now, masterKeyId })
    .run();
  return installationOf(tx);
}

export function setDefaultAccount(tx: Tx, accountId: string): void {
  tx.update(installation).set({ defaultAccountId: accountId }).run();
}

/** Whether the operator has stopped all new holds. */
export function isFrozen(read: Reader): boolean {
  return installationOf(read).frozenAt !== null;
}

/** Stops new holds from `frozenAt` on (Unix seconds), or allows them again with null. */
export function setFrozen(tx: Tx, frozenAt: number | null): Installation {
  const before = installationOf(tx);
  if ((before.frozenAt === null) === (frozenAt === null)) return before;
  tx.update(installation).set({ frozenAt }).run();
  return { ...before, frozenAt };
}

export function currentEpoch(read: Reader): typeof epochs.$inferSelect {
  const epoch = reads(read).epoch.get();
  assert(epoch, 'the first start writes the first epoch');
  return epoch;
}

/** Begins a stretch of the journal that makes no promise about what was before it (design, section 6). */
export function beginEpoch(tx: Tx, afterSeq: number, reason: string, now: number): void {
  const number = currentEpoch(tx).number + 1;
  tx.insert(epochs).values({ number, afterSeq, startedAt: now, reason }).run();
}

/** Why leases of before are only reported, and since when (Unix seconds); undefined when nothing is in question. */
export type ReportOnly = { since: number; reason: string };

export function reportOnlyOf(read: Reader): ReportOnly | undefined {
  const { reportOnlySince: since, reportOnlyReason: reason } = installationOf(read);
  return since === null || reason === null ? undefined : { since, reason };
}

export function setReportOnly(tx: Tx, state: ReportOnly | null): void {
  tx.update(installation)
    .set({ reportOnlySince: state?.since ?? null, reportOnlyReason: state?.reason ?? null })
    .run();
}

/** Notes on which machine this installation runs. */
export function setMachineHash(tx: Tx, machineHash: Buffer): void {
  tx.update(installation).set({ machineHash }).run();
}
