import { setPriority } from 'node:os';
import type { ServerHealth } from '../base/health.ts';
import type { StorageWatch } from '../books/storage-watch.ts';
import { ownArguments } from '../files/own-command.ts';
import { startProgram } from '../files/programs.ts';
import { newFault } from '../ledger/audit.ts';
import { currentEpoch, lowerAcceptedFaults } from '../ledger/installation.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { readVerdict, type Verification } from '../ledger/verify.ts';
import type { Events } from '../telemetry/events.ts';

/**
 * Delay of the first examination. Small books are examined completely at the start; large ones soon after, and all of
 * them daily.
 */
const FIRST_MILLISECONDS = 60_000;
const AGAIN_MILLISECONDS = 24 * 60 * 60 * 1000;
/** Time limit: a hundred million entries take less, so anything longer hangs. */
const LIMIT_MILLISECONDS = 60 * 60 * 1000;
/** The lowest priority but one: requests come first. */
const NICENESS = 18;

export type BooksWatch = {
  start(): void;
  /** Resolves when no examination is running. */
  stop(): Promise<void>;
  /** Examines the books now. Rejects when the examination could not be carried out. */
  runOnce(): Promise<Verification>;
};

/**
 * Runs `purser ledger verify` on the books periodically, in a separate process, which needs its memory for minutes only. A new
 * fault turns `readyz` red and stops service, as a broken chain does; an accepted fault that is gone is no longer accepted.
 */
export function watchBooks(
  directory: string,
  { read, write }: Pick<Ledger, 'read' | 'write'>,
  health: ServerHealth,
  storage: Pick<StorageWatch, 'confirm'>,
  events: Pick<Events, 'failed' | 'booksExamined'>,
): BooksWatch {
  let timer: NodeJS.Timeout | undefined;
  let stopping = new AbortController();
  let running: Promise<unknown> | undefined;

  async function runOnce(): Promise<Verification> {
    const from = performance.now();
    const verdict = await verifyElsewhere(directory, stopping.signal);
    events.booksExamined(verdict, performance.now() - from);
    const fault = newFault(read, verdict);
    if (fault) {
      await storage.confirm(); // Books on a disk that is gone cannot be read, either.
      health.fault ??= fault;
      events.failed('books', new Error(fault));
    } else if (!health.fault && verdict.faults < currentEpoch(read).acceptedFaults)
      await write(lowerAcceptedFaults, { remaining: verdict.faults });
    return verdict;
  }

  function schedule(milliseconds: number) {
    timer = setTimeout(() => {
      running = runOnce()
        .catch((error) => {
          if (!stopping.signal.aborted) events.failed('books', error);
        })
        .then(() => {
          running = undefined;
          if (!stopping.signal.aborted) schedule(AGAIN_MILLISECONDS);
        });
    }, milliseconds);
    timer.unref();
  }

  return {
    runOnce,
    start() {
      stopping = new AbortController();
      schedule(FIRST_MILLISECONDS);
    },
    async stop() {
      clearTimeout(timer);
      stopping.abort();
      await running;
    },
  };
}

/**
 * Returns the verdict of `purser ledger verify` on this data directory. Its environment is empty: it needs no secrets.
 */
function verifyElsewhere(directory: string, signal: AbortSignal): Promise<Verification> {
  const child = startProgram(process.execPath, ownArguments(['--data', directory, '--json', 'ledger', 'verify']), {
    env: {},
    stdio: ['ignore', 'pipe', 'pipe'],
    signal: AbortSignal.any([signal, AbortSignal.timeout(LIMIT_MILLISECONDS)]),
    killSignal: 'SIGKILL',
  });
  const output = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const)
    child[name].setEncoding('utf8').on('data', (text: string) => {
      output[name] += text;
    });
  return new Promise((resolve, reject) => {
    child.on('error', reject); // A process that was not started may be aborted, too.
    child.once('spawn', () => {
      try {
        setPriority(child.pid as number, NICENESS);
      } catch {} // It may have ended already.
    });
    child.once('close', (code, killed) => {
      try {
        resolve(readVerdict(output.stdout));
      } catch {
        reject(
          new Error(`the books could not be examined (${killed ?? `exit ${code}`}): ${output.stderr.slice(0, 500)}`),
        );
      }
    });
  });
}
