import { constants } from 'node:os';
import { type Duplex, PassThrough } from 'node:stream';
import { finished } from 'node:stream/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import type { LineSession } from '../../../egress/line.ts';
import type { Ref } from '../../backend.ts';
import { egressCommand, egressSession } from '../../kit/egress.ts';
import { newMark, WITH_EXIT_MARK, withoutMark } from '../../kit/exit-mark.ts';
import { RUNNING_WATCHDOG } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { argvOf, finish, type Program, type ProgramOrder } from '../../machine/program.ts';
import { WAITING } from '../../machine/waiting.ts';
import { type LxdApi, succeeded } from './api.ts';
import type { MessageStream } from './websocket.ts';

const OWN_OUTPUT_BYTES = 4096;
const LOST = 'the connection to a command was lost';

/** The user and the directory of tenants' commands. */
type TenantUser = { user: number; directory: string };

type LxdExec = Pick<ProgramOrder, 'terminal'> & {
  user: number;
  /** The directory that it runs in, if it exists. */
  directory?: string;
  /** Runs the program directly, without a shell of the image: a tenant may have replaced that. */
  isBare?: boolean;
  /** Makes an end without all of the output an error. */
  needsAll?: boolean;
};

/**
 * Starts the program of an order as the tenant's user. A file is written by a shell, too: LXD's own files API acts as root, follows
 * links and does not replace a file as a whole.
 */
export function beginIn(lxd: LxdApi, ref: Ref, order: ProgramOrder, tenant: TenantUser): Promise<Program> {
  const { purpose, terminal } = order;
  if (purpose === 'kill') return begin(lxd, ref, argvOf(order), { user: tenant.user, isBare: true });
  const needsAll = purpose !== 'upload';
  return begin(lxd, ref, argvOf(order), { ...tenant, terminal, needsAll });
}

/**
 * The silence after which the output counts as complete: output still in transit arrives within it, and background processes may
 * keep the stream open.
 */
const QUIET_MILLISECONDS = 200;

/** Starts a command. It does not run before all its streams are connected, and LXD gives up waiting for them after some seconds. */
async function begin(
  lxd: LxdApi,
  ref: Ref,
  argv: string[],
  { user, directory = '/', terminal, isBare = false, needsAll = false }: LxdExec,
): Promise<Program> {
  const mark = `purser-${newMark()} `;
  const { id, streams, leave } = await connectAll(lxd, ref, {
    command: isBare ? argv : ['/bin/sh', '-c', WITH_EXIT_MARK, 'purser', directory, mark, ...argv],
    environment: { HOME: directory, ...(terminal ? { TERM: terminal.term } : {}) },
    ...{ user, group: user, cwd: '/', interactive: terminal !== undefined, 'wait-for-websocket': true },
    ...(terminal ? { width: terminal.columns, height: terminal.rows } : {}),
  });
  const [control, stdin, out = stdin, err = stdin] = streams as [MessageStream, MessageStream, MessageStream?];
  control.resume();
  const abandoned = new AbortController();
  const reported = lxd.wait(id, abandoned.signal).then((it) => {
    // LXD also marks the operation as failed for the exit codes 126 and 127.
    const code = it.metadata?.return;
    if (typeof code === 'number' && code >= 0) return code;
    succeeded(it);
    throw new Error('LXD did not say how the command ended');
  });
  const marked = Promise.withResolvers<number>();
  const marking = withoutMark(mark, marked.resolve);
  const stdout = terminal ? marking : new PassThrough(WAITING);
  const pipes: Pipe[] = terminal
    ? [{ from: out, to: marking }]
    : [
        { from: out, to: stdout },
        { from: err, to: marking },
      ];
  for (const { from, to } of pipes) from.pipe(to);
  /** Streams that were silent and are no longer awaited. One that broke before is not among them. */
  const cut = new Set<MessageStream>();
  const markedExit = marked.promise.then(async (code) => {
    await quiet(pipes);
    for (const { from, to } of pipes) {
      if (from.readableEnded) continue;
      cut.add(from);
      from.unpipe(to);
      to.end();
    }
    return code;
  });
  reported.catch(() => {}); // The rejection may come too late.
  const givenUp = Promise.withResolvers<never>();
  abandoned.signal.addEventListener('abort', () => givenUp.reject(abandoned.signal.reason), { once: true });
  const killed = new AbortController();
  const sendControl = (what: object) => control.say(JSON.stringify(what));
  const isWhole = () => pipes.every(({ from }) => from.isWhole || cut.has(from));
  const passedOn = AbortSignal.any([killed.signal, abandoned.signal]);
  async function whole(): Promise<{ code: number }> {
    const code = await Promise.race([reported, markedExit, givenUp.promise]);
    if (!needsAll) return { code };
    // After a kill the output need not have been read.
    const reading = [stdout, marking].map((it) => finished(it, { readable: false, signal: passedOn }));
    await Promise.all(reading).catch(() => {});
    abandoned.signal.throwIfAborted();
    if (!killed.signal.aborted && !isWhole()) throw new Error(LOST);
    return { code };
  }
  const ended = whole();
  ended.catch(() => void leave());
  return {
    ...{ stdin, stdout, stderr: marking, ended },
    resize: (columns, rows) =>
      sendControl({ command: 'window-resize', args: { width: String(columns), height: String(rows) } }),
    leave(reason) {
      abandoned.abort(reason);
      void leave();
    },
    kill() {
      killed.abort();
      sendControl({ command: 'signal', signal: constants.signals.SIGKILL });
      void leave();
    },
  };
}

/** Asks LXD to start a command, and connects all its streams: the control channel first. `leave` closes them. */
async function connectAll(lxd: LxdApi, ref: Ref, command: { interactive: boolean } & Record<string, unknown>) {
  const { id, metadata } = await lxd.ask<{ id: string; metadata: { fds: Record<string, string> } }>(
    'POST',
    `/1.0/instances/${ref}/exec`,
    command,
  );
  const names = ['control', ...(command.interactive ? ['0'] : ['0', '1', '2'])];
  const connecting = names.map((name) => lxd.connect(id, metadata.fds[name] ?? ''));
  const leave = async () => {
    for (const it of await Promise.allSettled(connecting)) if (it.status === 'fulfilled') it.value.destroy();
  };
  const streams = await Promise.all(connecting).catch((error) => {
    void leave();
    throw error;
  });
  return { id, streams, leave };
}

type Pipe = { from: MessageStream; to: Duplex };

/** Resolves when nothing has come for a moment although there was room for it. */
async function quiet(pipes: Pipe[]): Promise<void> {
  let noteOutput = 0;
  const count = () => {
    noteOutput += 1;
  };
  for (const { from } of pipes) from.on('data', count);
  for (let before = -1; before !== noteOutput || pipes.some(({ to }) => to.writableNeedDrain); ) {
    before = noteOutput;
    await sleep(QUIET_MILLISECONDS);
  }
  for (const { from } of pipes) from.off('data', count);
}

/** Starts the program of the way out as the watchdog's user: no tenant can signal or trace it. */
export async function beginEgress(lxd: LxdApi, ref: Ref): Promise<LineSession> {
  const how = { user: WATCHDOG_USER, isBare: true };
  return egressSession(await begin(lxd, ref, egressCommand(RUNNING_WATCHDOG), how));
}

/** Runs one program as `user`, and nothing else, and waits at most `milliseconds` for it. */
export async function runProgram(
  lxd: LxdApi,
  ref: Ref,
  user: number,
  argv: string[],
  milliseconds: number,
): Promise<{ exitCode: number; stdout: string }> {
  const program = await begin(lxd, ref, argv, { user, isBare: true });
  const limits = { streamBytesMax: OWN_OUTPUT_BYTES, milliseconds };
  const { exitCode, stdout } = await finish(program, undefined, limits);
  return { exitCode, stdout: stdout.toString() };
}
