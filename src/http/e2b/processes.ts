import { Refusal } from '../../base/refusal.ts';
import type { Backend } from '../../compute/backend.ts';
import { type Attached, type AttachedOrder, attach } from '../../compute/machine/attached.ts';
import { codeOfSignal } from '../../compute/machine/shell.ts';
import type { Resource } from '../../ledger/resource.ts';
import { inTime, noLongerThan } from '../../net/deadline.ts';
import { createConcurrency } from '../concurrency.ts';
import type { HttpApp } from '../endpoint.ts';
import type { Allowance } from '../memory-quota.ts';
import { encodeMessage } from './connect.ts';

/**
 * The programs that E2B's SDKs have started in sandboxes. One survives its client, as E2B's do, and ends with its own limit, with
 * its sandbox, or with this server.
 */

/** Each keeps a connection to its machine. */
const COUNT_MAX = { resource: 64, wallet: 256 };
/** The clients that follow a program which runs already. */
const FOLLOWER_COUNT_MAX = { resource: 64, wallet: 256 };
/** The memory of what is on its way between a program and a client. */
const BYTES = 64 * 1024;
/** The most bytes, as JSON, of the arguments, variables and names of a program: they are kept while it runs, and listed. */
const ORDER_BYTES_MAX = 256 * 1024;
/** The SDKs give up after 60 s. */
const INPUT_MILLISECONDS_MAX = 30_000;

/** Receives output as it comes, each piece as a message of a stream. Resolves when its client has room for more. */
type ProcessListener = (message: Buffer) => Promise<void> | undefined;
type OutputName = 'stdout' | 'stderr' | 'pty';

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
   * `operation_uncertain` where it does not take this in time, or not all of it before it ends. What its machine keeps for it may stay
   * unread all the same.
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
  /** Passes its output from now on to one more client. Returns a function that ends that. Throws `rate_limited`. */
  join(resource: Resource, process: SandboxProcess, listener: ProcessListener): () => void;
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

const unreadAtEnd = () =>
  new Refusal('operation_uncertain', 'The program has ended or closed its input, and has not read all of this.');

const SIGNALS = new Map([
  [codeOfSignal('KILL'), 'killed'],
  [codeOfSignal('TERM'), 'terminated'],
]);

function sizeOf({ argv, env, cwd = '', tag = '' }: ProcessOrder): number {
  const bytes = Buffer.byteLength(JSON.stringify([argv, env, cwd, tag]));
  if (bytes <= ORDER_BYTES_MAX) return bytes;
  throw new Refusal(
    'invalid_request',
    `process: its arguments, variables and tag have more than ${ORDER_BYTES_MAX} bytes of JSON together.`,
  );
}

/** Creates the register of running programs. */
export function createProcesses(
  app: Pick<HttpApp, 'activity' | 'memory' | 'tenantOf' | 'stallMilliseconds'>,
): Processes {
  const inputMilliseconds = Math.min(INPUT_MILLISECONDS_MAX, app.stallMilliseconds);
  const running = new Map<string, Set<SandboxProcess>>();
  const concurrency = createConcurrency(COUNT_MAX, 'programs');
  const followers = createConcurrency(FOLLOWER_COUNT_MAX, 'connections to programs');

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
    join(resource, process, listener) {
      const leave = followers.enter(resource.id, resource.walletId);
      const memory = app.memory.open(app.tenantOf(resource.walletId).treeId);
      try {
        memory.take(BYTES);
      } catch (error) {
        leave();
        throw error;
      }
      const forget = process.listen(listener);
      return () => {
        forget();
        memory.close();
        leave();
      };
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

  async function pass(name: OutputName, stream: AsyncIterable<Buffer>): Promise<void> {
    try {
      for await (const bytes of stream) {
        if (!listeners.size) continue;
        const message = encodeMessage({ event: { data: { [name]: bytes.toString('base64') } } });
        await Promise.all([...listeners].map((it) => it(message)));
      }
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

/** Returns the function that writes pieces to a program, in order. Each is to be read in `milliseconds`. */
function createInput(
  { stdin }: Attached,
  order: ProcessOrder,
  memory: Allowance,
  ended: Promise<End>,
  milliseconds: number,
): SandboxProcess['write'] {
  let hasEnded = false;
  const orEnd = noLongerThan(
    ended
      .catch(() => {})
      .then(() => {
        hasEnded = true;
      }),
  );
  /** Resolves with whether the program has read what was written last; undefined while nothing waits. */
  let reading: Promise<boolean> | undefined;
  const inputTime = (waiting: Promise<boolean>, refusal: () => Refusal) =>
    inTime(orEnd(waiting), milliseconds, 'The input of a program').catch(() => {
      throw refusal();
    });
  function refuseClosed() {
    if (('writableEnded' in stdin && stdin.writableEnded) || ('destroyed' in stdin && stdin.destroyed))
      throw new Refusal('invalid_request', 'process: its standard input was closed.');
  }
  return async (bytes) => {
    if (!order.hasInput && !order.terminal)
      throw new Refusal('invalid_request', 'process: it was started without standard input.');
    refuseClosed();
    let isWritten = false;
    if (!hasEnded) memory.take(bytes.length);
    try {
      while (reading && !hasEnded) await inputTime(reading, unread);
      if (hasEnded) throw noProcess();
      refuseClosed(); // Again, after the wait.
      isWritten = true;
      const written = Promise.withResolvers<boolean>();
      // No `drain` comes once the input was closed.
      const hasRoom = stdin.write(bytes, (error) => {
        memory.release(bytes.length);
        written.resolve(!error);
      });
      if (hasRoom) return;
      reading = written.promise.finally(() => {
        reading = undefined;
      });
      if (!(await inputTime(reading, unreadYet))) throw unreadAtEnd();
    } finally {
      if (!isWritten) memory.release(bytes.length);
    }
  };
}
