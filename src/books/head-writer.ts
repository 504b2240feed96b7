import type { ServerHealth } from '../base/health.ts';
import { type CommitMark, headOf, openTipFile, writeHeadFile } from '../ledger/head.ts';
import type { Ledger } from '../ledger/ledger.ts';
import type { Events } from '../telemetry/events.ts';

const HEAD_MILLISECONDS = 1000;

/**
 * Keeps `ledger.tip` at the newest commit and `ledger.head` at most a second behind it; both are exact after `flush`
 * (design, section 6).
 */
type HeadWriter = {
  /** Records a commit: the tip is written now, the head within a second. */
  committed(newest: () => CommitMark): void;
  flush(): Promise<void>;
  stop(): Promise<void>;
};

/** Creates the writer of the head and tip files. It writes nothing while `health.fault` is set, and reports failures as events. */
export function createHeadWriter(
  at: { head: string; tip: string },
  ledger: () => Pick<Ledger, 'read'>,
  events: Pick<Events, 'failed'>,
  health: Readonly<ServerHealth>,
): HeadWriter {
  let timer: NodeJS.Timeout | undefined;
  let stopped = false;
  let written = '';
  let writing = Promise.resolve();
  let tip: ReturnType<typeof openTipFile> | undefined;
  let isFailing = false; // On a full disk it fails every second, which is logged once.

  async function write() {
    if (health.fault) return; // A head that the database may be behind is evidence.
    const head = headOf(ledger().read);
    const state = `${head.seq} ${head.epoch} ${head.quietCommits}`;
    if (state === written) return;
    await writeHeadFile(at.head, head);
    written = state;
    isFailing = false;
    writeTip(headOf(ledger().read)); // Written only now: before, the old content of the tip may still be needed.
  }
  /** Writes the tip. Without one, the head is at most a second older. A failed tip is opened again with the next head. */
  function writeTip(head: CommitMark) {
    try {
      tip ??= openTipFile(at.tip);
      tip.write(head);
    } catch (error) {
      events.failed('tip', error);
      tip?.close();
      tip = undefined;
    }
  }
  function flush() {
    writing = writing.then(write);
    return writing;
  }
  const writer: HeadWriter = {
    committed(newest) {
      if (tip && !health.fault) writeTip(newest());
      if (stopped || timer) return;
      timer = setTimeout(() => {
        timer = undefined;
        flush().catch((error) => {
          writing = Promise.resolve();
          if (!isFailing) events.failed('head', error);
          isFailing = true;
          writer.committed(() => headOf(ledger().read)); // Try again in a second.
        });
      }, HEAD_MILLISECONDS);
      timer.unref();
    },
    flush,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      timer = undefined;
      // If the disk has no space for the head, it stays at most a second behind and the tip is exact, so shutdown does
      // not fail.
      await flush().catch((error) => events.failed('head', error));
      tip?.close();
      tip = undefined;
    },
  };
  return writer;
}
