import type { Reader, Tx } from '../db/handle.ts';
import { defineWrite } from '../db/write.ts';
import {
  type BooksLocation,
  beginEpoch,
  type ReportOnly,
  reportOnlyOf,
  setLocation,
  setReportOnly,
  trust,
} from '../ledger/installation.ts';
import { journalHead } from '../ledger/journal.ts';
import type { BooksMove } from '../ledger/notices.ts';
import { allLiveResources, quarantinedResources, quarantineResources, releaseResources } from '../ledger/resource.ts';

/** The reason why a quarantined lease is neither ended nor extended. */
export const REPORT_ONLY = 'this installation only reports until the operator runs `purser resource reconcile --apply`';

/**
 * Begins the report-only state: no machine is destroyed that these books may not own. After a restore, an accepted loss or on
 * another machine they may be a copy, and the machines production's (docs/decisions/0010). Live leases are quarantined; later ones
 * are certainly ours. A second reason does not replace the first.
 */
export function beginReportOnly(tx: Tx, reason: string, now: number): void {
  if (!reportOnlyOf(tx)) setReportOnly(tx, { since: now, reason });
  quarantineResources(tx, now);
}

/** Begins the report-only state while the server runs. */
export const doubtBooks = defineWrite('report_only.begin', (tx, { because, now }: { because: string; now: number }) =>
  beginReportOnly(tx, because, now),
);

/** Ends the report-only state after the operator's check: leases and orphans are acted on again, at once. */
export const endReportOnly = defineWrite('report_only.end', (tx, { now }: { now: number }) => {
  setReportOnly(tx, null);
  trust(tx, now);
  releaseResources(tx, now);
});

type NewEpoch = { reason: string; acceptedFaults: number; above: number; because: string; now: number };
/** Begins a new epoch after the newest entry, and the report-only state for the reason `because`. */
export const beginNewEpoch = defineWrite(
  'epoch.begin',
  (tx, { reason, acceptedFaults, above, because, now }: NewEpoch) => {
    beginEpoch(tx, { afterSeq: journalHead(tx).seq, reason, acceptedFaults, above }, now);
    beginReportOnly(tx, because, now);
  },
);

type RecordedLocation = {
  location: BooksLocation;
  move: BooksMove | undefined;
  because: string | undefined;
  now: number;
};
/** Records where this installation runs. Begins the report-only state for the reason `because`, if there is one. */
export const recordLocation = defineWrite(
  'installation.place',
  (tx, { location, move, because, now }: RecordedLocation) => {
    setLocation(tx, location, move, now);
    if (because !== undefined) beginReportOnly(tx, because, now);
  },
);

/**
 * Returns why books on another machine than at the last start may only report, or undefined. A disk that moved has the same file; a
 * copy has another one, and the original may have been served since. Another engine would make leases whose engine is not known
 * appear gone.
 */
export function whyReportMoved(read: Reader, known: BooksLocation, now: BooksLocation): string | undefined {
  const moved = 'this is another machine than at the last start';
  if (known.fileMark === null || known.fileMark !== now.fileMark)
    return `${moved}, and the database is another file: it may be a copy`;
  const count = allLiveResources(read).filter((it) => it.engine === null).length;
  return count === 0 ? undefined : `${moved}, and the books do not know the engine of ${count} live leases`;
}

/** Describes the report-only state in a sentence; undefined when it is off. */
export function describeReportOnly(read: Reader): (ReportOnly & { leases: number; sentence: string }) | undefined {
  const state = reportOnlyOf(read);
  if (!state) return undefined;
  const leases = quarantinedResources(read).length;
  const count = `${leases} live ${leases === 1 ? 'lease' : 'leases'} from before`;
  const sentence = `report only: ${state.reason}; ${count} and every orphan are left alone until \`purser resource reconcile --apply\``;
  return { ...state, leases, sentence };
}
