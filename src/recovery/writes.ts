import { endAllBrowserSessions } from '../access/browser-sessions.ts';
import { defineWrite } from '../db/write.ts';
import { beginReportOnly } from '../lease/report-only.ts';
import { beginEpoch } from '../ledger/installation.ts';
import { journalHead } from '../ledger/journal.ts';
import { keepRestrictions, type Restrictions } from './restrictions.ts';

type RestoredEpoch = {
  reason: string;
  acceptedFaults: number;
  above: number;
  restrictions: Restrictions | undefined;
  now: number;
};

/**
 * Begins the epoch of restored books, which only report. Ends all browser sessions, as some may have ended since the backup, and
 * carries over later restrictions. Returns the counts of those; null where they are unknown.
 */
export const beginRestored = defineWrite(
  'restore.begin',
  (tx, { reason, acceptedFaults, above, restrictions, now }: RestoredEpoch) => {
    beginEpoch(tx, { afterSeq: journalHead(tx).seq, reason, acceptedFaults, above }, now);
    beginReportOnly(tx, reason, now);
    endAllBrowserSessions(tx);
    return restrictions ? keepRestrictions(tx, restrictions, now) : null;
  },
);
