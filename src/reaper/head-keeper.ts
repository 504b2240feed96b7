import type { Events } from '../events.ts';
import type { Health } from '../health.ts';
import { headOf, writeHeadFile } from '../ledger/head.ts';
import type { Ledger } from '../ledger/ledger.ts';

const HEAD_MILLISECONDS = 1000;

/** Keeps `ledger.head` at most a second behind the journal, and exact after `flush` (design, section 6). */
export type HeadKeeper = {
  /** After a commit: the file is due within a second. */
  committed(): void;
  flush(): Promise<void>;
  stop(): Promise<void>;
};

export function createHeadKeeper(
  file: string,
  ledger: () => Pick<Ledger, 'read'>,
  events: Pick<Events, 'failed'>,
  health: () => Health,
): HeadKeeper {
  let timer: NodeJS.Timeout | undefined;
  let stopped = false;
  let written = '';
  let writing = Promise.resolve();

  async function write() {
    if (health().fault) return; // A head that the database may be behind is evidence.
    const head = headOf(ledger().read);
    const state = `${head.seq} ${head.epoch}`;
    if (state === written) return;
    await writeHeadFile(file, head);
    written = state;
  }
  function flush() {
    writing = writing.then(write);
    return writing;
  }
  const keeper: HeadKeeper = {
    committed() {
      if (stopped || timer) return;
      timer = setTimeout(() => {
        timer = undefined;
        flush().catch((error) => {
          writing = Promise.resolve();
          events.failed('head', error);
          keeper.committed(); // Again in a second.
        });
      }, HEAD_MILLISECONDS);
      timer.unref();
    },
    flush,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      timer = undefined;
      await flush();
    },
  };
  return keeper;
}
