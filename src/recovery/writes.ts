import { endAllBrowserSessions } from '../access/browser-sessions.ts';
import { defineWrite } from '../db/write.ts';
import { beginReportOnly } from '../lease/report-only.ts';
import { beginEpoch } from '../ledger/installation.ts';
import { journalHead } from '../ledger/journal.ts';

type RestoredEpoch = { reason: string; acceptedFaults: number; above: number; now: number };

/** Begins the epoch of restored books, which only report. They may know browser sessions that have ended since. */
export const beginRestored = defineWrite(
  'restore.begin',
  (tx, { reason, acceptedFaults, above, now }: RestoredEpoch) => {
    beginEpoch(tx, { afterSeq: journalHead(tx).seq, reason, acceptedFaults, above }, now);
    beginReportOnly(tx, reason, now);
    endAllBrowserSessions(tx);
  },
);
