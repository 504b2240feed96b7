import type { Reader, Tx } from '../db/handle.ts';
import { type ReportOnly, reportOnlyOf, setReportOnly } from '../ledger/installation.ts';
import { quarantinedResources, quarantineResources, releaseResources } from '../ledger/resource.ts';

/** What everybody is told who wants a lease in question to end. */
export const REPORT_ONLY = 'this installation only reports until the operator runs `purser resource reconcile --apply`';

/**
 * From now on nothing is destroyed that these books may not own: after a restore, an accepted loss or a move to another
 * machine they may be a copy, and the machines production's (docs/decisions/0010). Leases that live are in question;
 * those made later are ours beyond doubt. A second reason does not replace the first.
 */
export function beginReportOnly(tx: Tx, reason: string, now: number): void {
  if (!reportOnlyOf(tx)) setReportOnly(tx, { since: now, reason });
  quarantineResources(tx, now);
}

/** The operator has looked: what the rows say is to be done again, and at once. */
export function endReportOnly(tx: Tx, now: number): void {
  setReportOnly(tx, null);
  releaseResources(tx, now);
}

/** The state in a sentence, or undefined when nothing is in question. */
export function describeReportOnly(read: Reader): (ReportOnly & { leases: number; sentence: string }) | undefined {
  const state = reportOnlyOf(read);
  if (!state) return undefined;
  const leases = quarantinedResources(read).length;
  const count = `${leases} live ${leases === 1 ? 'lease' : 'leases'} of before`;
  const sentence = `report only: ${state.reason}; ${count} and every orphan are left alone until \`purser resource reconcile --apply\``;
  return { ...state, leases, sentence };
}
