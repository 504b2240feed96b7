import { attachReserve, type DiskReserve } from '../db/disk-reserve.ts';
import type { Database } from '../db/open.ts';
import { createWriter, type Writer } from '../db/writer.ts';
import { type CommitMark, findHead } from './head.ts';
import { countQuietCommit } from './installation.ts';
import { headIn, journalHead, rememberHead } from './journal.ts';
import { attachMemory } from './memory.ts';
import { attachOutbox, type Outbox } from './outbox.ts';

export type WriterOptions = {
  /** Disk space reserved for settlements; starting new work requires more than that. */
  diskReserve?: Pick<DiskReserve, 'shortage' | 'release'>;
  /** Receivers of events. Without it no events are written. */
  outbox?: Outbox | undefined;
  /**
   * Called after each commit, before its promises resolve; with the content of the head file, unless nothing is installed yet, and
   * the time that it took.
   */
  committed?: (newest: CommitMark | undefined, milliseconds: number) => void;
  /** Called when the callers of a batch's writes have their results. */
  answered?: () => void;
  /** Called when a COMMIT or fsync failed: what was written is unknown, and the process must end (docs/decisions/0078). */
  fatal: (error: unknown) => void;
};

/** Opens the one writer of the books: every commit posts an entry or is counted (docs/decisions/0013). */
export function openWriter({ client, read, tx }: Database, options: WriterOptions): Writer {
  const { diskReserve, outbox } = options;
  if (diskReserve) attachReserve(tx, diskReserve);
  if (outbox) attachOutbox(tx, outbox);
  const forgetHead = rememberHead(tx);
  const memory = attachMemory(tx);
  const { seq } = journalHead(read); // Valid until there is a newer mark.
  let [newest, next]: (CommitMark | undefined)[] = [];
  return createWriter(client, tx, {
    fatal: options.fatal,
    ...(options.answered ? { answered: options.answered } : {}),
    ...(diskReserve ? { releaseReserve: diskReserve.release } : {}),
    begun() {
      if (memory.wasOvertaken()) forgetHead();
      next = undefined; // A batch that writes nothing leaves the earlier mark.
    },
    undone() {
      memory.forget();
      forgetHead();
    },
    committing() {
      if (headIn(tx).seq === (newest?.seq ?? seq)) countQuietCommit(tx);
      next = findHead(tx); // Read in this transaction: a transaction of its own would cost more than the read.
    },
    committed(milliseconds) {
      newest = next ?? newest;
      options.committed?.(newest, milliseconds);
    },
  });
}
