import { Worker } from 'node:worker_threads';

/** The time after which a spinner appears: shorter work shows none. */
const PATIENCE_MILLISECONDS = 1000;
/** Clears the line of the cursor (ECMA-48). */
const CLEAR_LINE = '\r\u001b[K';

/** Runs in a thread of its own, so that the spinner also turns while the main thread computes. */
const DRAWING = `
const { workerData } = require('node:worker_threads');
const { writeSync } = require('node:fs');
const { what, patience, shown } = workerData;
const began = performance.now();
const frames = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
let turn = 0;
setTimeout(() => setInterval(() => {
  Atomics.store(shown, 0, 1);
  const seconds = Math.floor((performance.now() - began) / 1000);
  try { writeSync(2, '\\r' + frames[turn++ % frames.length] + ' ' + what + ', ' + seconds + ' s\\u001b[K'); } catch {}
}, 100), patience);
`;

/**
 * Runs `work`, and turns a spinner on stderr once it takes longer than a second, if stderr is a terminal. `what` describes the
 * work, such as "verifying the books". The line is cleared at the end. `work` may block this thread; for work that only waits there
 * is `whileWaiting`, which starts no thread before a second has passed.
 */
export async function whileWorking<T>(what: string, work: () => T | Promise<T>): Promise<T> {
  if (!process.stderr.isTTY) return work();
  const spinner = startSpinner(what, PATIENCE_MILLISECONDS);
  try {
    return await work();
  } finally {
    await spinner.stop();
  }
}

/** Waits for `work`, which does not block this thread, like `whileWorking`. */
export async function whileWaiting<T>(what: string, work: Promise<T>): Promise<T> {
  if (!process.stderr.isTTY) return work;
  let spinner: ReturnType<typeof startSpinner> | undefined;
  const timer = setTimeout(() => {
    spinner = startSpinner(what, 0);
  }, PATIENCE_MILLISECONDS);
  try {
    return await work;
  } finally {
    clearTimeout(timer);
    await spinner?.stop();
  }
}

function startSpinner(what: string, patience: number) {
  const shown = new Int32Array(new SharedArrayBuffer(4));
  const worker = new Worker(DRAWING, { eval: true, env: {}, workerData: { what, patience, shown } });
  worker.unref();
  worker.on('error', () => {}); // The work continues without the spinner.
  return {
    async stop() {
      await worker.terminate();
      if (Atomics.load(shown, 0)) process.stderr.write(CLEAR_LINE);
    },
  };
}
