import { Refusal } from '../../base/refusal.ts';
import type { Backend } from '../../compute/backend.ts';
import { type Attached, type AttachedOrder, attach } from '../../compute/machine/attached.ts';
import { codeOfSignal } from '../../compute/machine/shell.ts';
import type { Resource } from '../../ledger/resource.ts';
import { inTime } from '../../net/deadline.ts';
import { createConcurrency } from '../concurrency.ts';
import type { HttpApp } from '../endpoint.ts';
import type { Allowance } from '../memory-quota.ts';

/**
 * The programs that E2B's SDKs have started in sandboxes. One survives its client, as E2B's do, and ends with its own limit, with
 * its sandbox, or with this server.
 */

/** Each keeps a connection to its machine. */
const COUNT_MAX = { resource: 64, wallet: 256 };
/** The memory of what is on its way between a program and its clients. */
const BYTES = 64 * 1024;
/** The most bytes of the arguments, variables and names of a program: they are kept for as long as it runs. */
const ORDER_BYTES_MAX = 256 * 1024;
/** The SDKs give up after 60 s. */
const INPUT_MILLISECONDS_MAX = 30_000;

/** Receives output as it comes. Resolves when its client has room for more. */
export type Output = { name: 'stdout' | 'stderr' | 'pty'; bytes: Buffer };
type ProcessListener = (output: Output) => Promise<void> | undefined;

/** The end of a program. `signal` is the signal of this wire that ended it. */
export type End = { exitCode: number; signal?: string } | { isLate: true };

export type SandboxProcess = {
  pid: number;
  tag: string | undefined;
  order: AttachedOrder;
  /** Subscribes to its output from now on. Returns a function that ends that. */
  listen(listener: ProcessListener): () => void;
  /** Rejects when the connection to the machine was lost. Resolves after the last output was passed on. */
  ended: Promise<End>;
  /**
   * Writes to its standard input or terminal. Throws `rate_limited` where it has not read what came before, and
   * `operation_uncertain` where it does not read this in time.
   */
  write(bytes: Buffer): Promise<void>;
  closeInput(): void;
  resize(columns: number, rows: number): void;
  kill(): void;
  /** Notes that a signal was sent, which its exit code is then read by. */
  noteSignal(name: string): void;
};

type ProcessOrder = AttachedOrder & {
  tag: string | undefined;
  /** Milliseconds after which it is killed; undefined without a limit. */
  limit: number | undefined;
};

export type Processes = {
  /** Starts a program; `listener` gets all of its output. Throws the refusals of `attach`, and `rate_limited`. */
  start(
    at: { resource: Resource; backend: Backend; ref: string },
    order: ProcessOrder,
    listener: ProcessListener,
  ): Promise<{ process: SandboxProcess; leave: () => void }>;
  /** Returns the running programs of a sandbox. */
  list(resourceId: string): SandboxProcess[];
  /** Returns one by its process id or its tag. Throws `not_found`. */
  find(resourceId: string, which: { pid?: number | undefined; tag?: string | undefined }): SandboxProcess;
};

const noProcess = () => new Refusal('not_found', 'There is no such process in the sandbox.');
const unread = () =>
  new Refusal('rate_limited', 'The program has not read its earlier input. Nothing of this was written.');
const unreadYet = () =>
  new Refusal('operation_uncertain', 'The program has not read this input in time. It gets it when it reads on.');

const SIGNALS = new Map([
  [codeOfSignal('KILL'), 'killed'],
  [codeOfSignal('TERM'), 'terminated'],
]);

function sizeOf({ argv, env, cwd = '', tag = '' }: ProcessOrder): number {
  const bytes = [...argv, ...Object.entries(env).flat(), cwd, tag].reduce((sum, it) => sum + Buffer.byteLength(it), 0);
  if (bytes <= ORDER_BYTES_MAX) return bytes;
  throw new Refusal(
    'invalid_request',
    `process: its arguments, variables and tag have more than ${ORDER_BYTES_MAX} bytes together.`,
  );
}

/** Creates the register of running programs. */
export function createProcesses(
  app: Pick<HttpApp, 'activity' | 'memory' | 'tenantOf' | 'stallMilliseconds'>,
): Processes {
  const inputMilliseconds = Math.min(INPUT_MILLISECONDS_MAX, app.stallMilliseconds);
  const running = new Map<string, Set<SandboxProcess>>();
  const concurrency = createConcurrency(COUNT_MAX, 'programs');

  function register(resourceId: string, process: SandboxProcess): void {
    const all = running.get(resourceId) ?? new Set();
    running.set(resourceId, all.add(process));
    const over = () => {
      all.delete(process);
      if (!all.size) running.delete(resourceId);
    };
    process.ended.then(over, over);
  }

  return {
    async start({ resource, backend, ref }, { tag, limit, ...order }, listener) {
      const bytes = sizeOf({ tag, limit, ...order });
      const leave = concurrency.enter(resource.id, resource.walletId);
      const idle = app.activity.begin(resource.id);
      const memory = app.memory.open(app.tenantOf(resource.walletId).treeId);
      const release = () => {
        memory.close();
        idle();
        leave();
      };
      try {
        memory.take(BYTES + bytes);
        const process = follow(await attach(backend, ref, order), { tag, limit, ...order }, memory, inputMilliseconds);
        const forget = process.listen(listener);
        register(resource.id, process);
        process.begin();
        process.ended.then(release, release);
        return { process, leave: forget };
      } catch (error) {
        release();
        throw error;
      }
    },
    list: (resourceId) => [...(running.get(resourceId) ?? [])],
    find(resourceId, { pid, tag }) {
      const all = [...(running.get(resourceId) ?? [])];
      const found = all.find((it) => (pid === undefined ? tag !== undefined && it.tag === tag : it.pid === pid));
      if (!found) throw noProcess();
      return found;
    },
  };
}

/**
 * Reads the streams of a program and passes them on. Call `begin` once the first listener is there. `memory` counts what waits for
 * the program to read it, for at most `inputMilliseconds`.
 */
function follow(
  attached: Attached,
  order: ProcessOrder,
  memory: Allowance,
  inputMilliseconds: number,
): SandboxProcess & { begin(): void } {
  const { pid, stdin, stdout, stderr, resize } = attached;
  const listeners = new Set<ProcessListener>();
  const ended = Promise.withResolvers<End>();
  ended.promise.catch(() => {}); // Listeners get the rejection; there may be none.
  let signal: string | undefined;
  let isLate = false;
  const timer =
    order.limit === undefined
      ? undefined
      : setTimeout(() => {
          isLate = true;
          attached.kill();
        }, order.limit);

  const write = createInput(attached, order, memory, ended.promise, inputMilliseconds);

  async function pass(name: Output['name'], stream: AsyncIterable<Buffer>): Promise<void> {
    try {
      for await (const bytes of stream) await Promise.all([...listeners].map((it) => it({ name, bytes })));
    } catch {} // `ended` reports it.
  }
  function endOf(code: number): End {
    if (isLate) return { isLate: true };
    const named = signal !== undefined && SIGNALS.get(code) === signal ? { signal } : {};
    return { exitCode: code, ...named };
  }

  return {
    pid,
    tag: order.tag,
    order,
    ended: ended.promise,
    begin() {
      const passed = [pass(order.terminal ? 'pty' : 'stdout', stdout), ...(stderr ? [pass('stderr', stderr)] : [])];
      attached.ended
        .then(async (code) => {
          await Promise.all(passed);
          return endOf(code);
        })
        .catch((error) => {
          if (isLate) return { isLate: true } as const; // Killing breaks some connections.
          throw error;
        })
        .finally(() => clearTimeout(timer))
        .then(ended.resolve, ended.reject);
    },
    listen(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    write,
    closeInput: () => void stdin.end(),
    resize,
    kill: attached.kill,
    noteSignal(name) {
      signal = name;
    },
  };
}

/**
 * Returns the function that writes pieces to a program, in order. It resolves when the program has read the piece. It throws
 * `invalid_request` without an input, for a closed or ended one, and for one not read in `milliseconds`.
 */
function createInput(
  { stdin }: Attached,
  order: ProcessOrder,
  memory: Allowance,
  ended: Promise<End>,
  milliseconds: number,
): SandboxProcess['write'] {
  let hasEnded = false;
  const whenEnded = ended
    .catch(() => {})
    .then(() => {
      hasEnded = true;
    });
  /** Resolves when the program has read what was written last; undefined while it has. */
  let drained: Promise<void> | undefined;
  const inputTime = (waiting: Promise<void>, refusal: () => Refusal) =>
    inTime(Promise.race([waiting, whenEnded]), milliseconds, 'The input of a program').catch(() => {
      throw refusal();
    });
  function refuseClosed() {
    if ('writableEnded' in stdin && stdin.writableEnded)
      throw new Refusal('invalid_request', 'process: its standard input was closed.');
  }
  return async (bytes) => {
    if (!order.hasInput && !order.terminal)
      throw new Refusal('invalid_request', 'process: it was started without standard input.');
    refuseClosed();
    let isWritten = false;
    if (!hasEnded) memory.take(bytes.length);
    try {
      while (drained && !hasEnded) await inputTime(drained, unread);
      if (hasEnded) throw noProcess();
      refuseClosed(); // Again, after the wait.
      isWritten = true;
      const written = Promise.withResolvers<void>();
      const isRead = stdin.write(bytes, () => memory.release(bytes.length));
      if (isRead) return;
      stdin.once('drain', written.resolve);
      drained = written.promise.then(() => {
        drained = undefined;
      });
      await inputTime(drained, unreadYet);
    } finally {
      if (!isWritten) memory.release(bytes.length);
    }
  };
}
