import { randomBytes } from 'node:crypto';
import { constants } from 'node:os';
import { type Duplex, PassThrough, type Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import type { ExecOrder, ExecResult, Ref, Session, SessionOrder } from '../../backend.ts';
import { collect, collectBoth } from '../collect.ts';
import { WITH_EXIT_MARK, withoutMark } from '../exit-mark.ts';
import { judgeUpload, KILL_MARKED, KILLED, LIMITED, RECEIVE, refusePath, sessionArgv } from '../shell.ts';
import { WAITING } from '../waiting.ts';
import { type LxdApi, succeeded } from './api.ts';
import type { MessageStream } from './websocket.ts';

const UPLOAD_MILLISECONDS = 120_000;
/** The guard inside ends a command at its limit; one that LXD says still runs so long after it is given up. */
const GRACE_MILLISECONDS = 30_000;
const KILL_MILLISECONDS = 60_000;
const OWN_OUTPUT_BYTES = 4096;
const LOST = 'the connection to a command was lost';

/** As whom and where the commands of tenants run. */
export type Tenant = { user: number; directory: string };

type Beginning = {
  user: number;
  /** The directory that it runs in, if that is there. */
  directory?: string;
  terminal?: SessionOrder['terminal'] | undefined;
  /** Ends the wait for the command, and the command. */
  giveUp?: AbortSignal;
  /** Runs the program alone, without a shell of the image: a tenant may have put something else in its place. */
  isBare?: boolean;
};

type Begun = {
  stdin: MessageStream;
  stdout: Readable;
  /** With a terminal it is `stdout`. */
  stderr: Readable;
  /** Says something about the command itself: a signal, or the size of its terminal. */
  tell(what: object): void;
  /** The exit code. Rejects when it cannot be known. */
  ended: Promise<number>;
  /** Whether all of its output has arrived. To be asked when it has ended and its output was read. */
  isWhole(): boolean;
  /** Closes its connections. LXD kills a command that still runs. */
  leave(): void;
};

/** What a process left behind still arrives; what something in the background keeps open is not waited for. */
const QUIET_MILLISECONDS = 200;

/** Starts a command. It does not run before all its streams are connected, and LXD gives up on them after seconds. */
async function begin(
  lxd: LxdApi,
  ref: Ref,
  argv: string[],
  { user, directory = '/', terminal, giveUp, isBare = false }: Beginning,
): Promise<Begun> {
  const mark = `purser-${randomBytes(12).toString('hex')} `;
  const operation = await lxd.ask<{ id: string; metadata: { fds: Record<string, string> } }>(
    'POST',
    `/1.0/instances/${ref}/exec`,
    {
      command: isBare ? argv : ['/bin/sh', '-c', WITH_EXIT_MARK, 'purser', directory, mark, ...argv],
      environment: { HOME: directory, ...(terminal ? { TERM: terminal.term } : {}) },
      ...{ user, group: user, cwd: '/', interactive: terminal !== undefined, 'wait-for-websocket': true },
      ...(terminal ? { width: terminal.columns, height: terminal.rows } : {}),
    },
  );
  const { id, metadata } = operation;
  const names = ['control', ...(terminal ? ['0'] : ['0', '1', '2'])];
  const connecting = names.map((name) => lxd.connect(id, metadata.fds[name] ?? ''));
  const leave = async () => {
    for (const it of await Promise.allSettled(connecting)) if (it.status === 'fulfilled') it.value.destroy();
  };
  const streams = await Promise.all(connecting).catch((error) => {
    void leave();
    throw error;
  });
  const [control, stdin, out = stdin, err = stdin] = streams as [MessageStream, MessageStream, MessageStream?];
  control.resume();
  const lxdSays = lxd.wait(id, giveUp).then((it) => {
    // An operation fails for the exit codes 126 and 127 as well.
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
  /** Those that were quiet and are not waited for. One that broke before is none of them. */
  const cut = new Set<MessageStream>();
  const markSays = marked.promise.then(async (code) => {
    await quiet(pipes);
    for (const { from, to } of pipes) {
      if (from.readableEnded) continue;
      cut.add(from);
      from.unpipe(to);
      to.end();
    }
    return code;
  });
  lxdSays.catch(() => {}); // It may be said too late.
  const givenUp = Promise.withResolvers<never>();
  giveUp?.addEventListener('abort', () => givenUp.reject(giveUp.reason), { once: true });
  const ended = Promise.race([lxdSays, markSays, givenUp.promise]);
  ended.catch(() => void leave());
  return {
    ...{ stdin, stdout, stderr: marking, ended },
    tell: (what) => control.say(JSON.stringify(what)),
    isWhole: () => pipes.every(({ from }) => from.isWhole || cut.has(from)),
    leave: () => void leave(),
  };
}

type Pipe = { from: MessageStream; to: Duplex };

/** Resolves when nothing has come for a moment although there was room for it. */
async function quiet(pipes: Pipe[]): Promise<void> {
  let heard = 0;
  const count = () => {
    heard += 1;
  };
  for (const { from } of pipes) from.on('data', count);
  for (let before = -1; before !== heard || pipes.some(({ to }) => to.writableNeedDrain); ) {
    before = heard;
    await new Promise((resolve) => setTimeout(resolve, QUIET_MILLISECONDS));
  }
  for (const { from } of pipes) from.off('data', count);
}

/** Runs one program as `user`, and nothing else, and waits at most `milliseconds` for it. */
export async function runProgram(
  lxd: LxdApi,
  ref: Ref,
  user: number,
  argv: string[],
  milliseconds: number,
): Promise<{ exitCode: number; stdout: string }> {
  const giveUp = AbortSignal.timeout(milliseconds);
  const { stdin, stdout, stderr, ended, leave } = await begin(lxd, ref, argv, { user, giveUp, isBare: true });
  stdin.end();
  try {
    const said = collectBoth(stdout, stderr, { streamBytesMax: OWN_OUTPUT_BYTES });
    const exitCode = await ended;
    return { exitCode, stdout: (await said).stdout.toString() };
  } finally {
    leave();
  }
}

/** Runs a command with a limit that holds inside the container. */
export async function runInside(
  lxd: LxdApi,
  ref: Ref,
  { command, timeoutSeconds, ...most }: ExecOrder,
  tenant: Tenant,
  graceMilliseconds = GRACE_MILLISECONDS,
): Promise<ExecResult> {
  const marker = randomBytes(12).toString('hex');
  const started = performance.now();
  const giveUp = AbortSignal.timeout(timeoutSeconds * 1000 + graceMilliseconds);
  const argv = ['/bin/sh', '-c', LIMITED, 'purser', marker, String(timeoutSeconds), command];
  const { stdin, stdout, stderr, ended, isWhole, leave } = await begin(lxd, ref, argv, { ...tenant, giveUp });
  stdin.end();
  try {
    const [exitCode, said] = await Promise.all([ended, collectBoth(stdout, stderr, most)]);
    if (!isWhole()) throw new Error(LOST);
    const timedOut = exitCode === KILLED && performance.now() - started >= timeoutSeconds * 1000;
    return { exitCode, ...said, timedOut };
  } finally {
    leave();
  }
}

/**
 * Writes a file through a shell inside, as the tenant's user: LXD's own files API is root there, follows links and replaces
 * nothing as a whole. A tenant may have stopped that shell: it is waited for so long at most.
 */
export async function uploadInto(
  lxd: LxdApi,
  ref: Ref,
  path: string,
  content: Buffer,
  tenant: Tenant,
  milliseconds = UPLOAD_MILLISECONDS,
): Promise<void> {
  refusePath(path);
  const argv = ['/bin/sh', '-c', RECEIVE, 'purser', path, String(content.length)];
  const giveUp = AbortSignal.timeout(milliseconds);
  const { stdin, stdout, stderr, ended, leave } = await begin(lxd, ref, argv, { ...tenant, giveUp });
  try {
    stdout.resume();
    const said = collect(stderr, OWN_OUTPUT_BYTES);
    stdin.end(content);
    const code = await ended;
    judgeUpload(code, (await said).bytes);
  } finally {
    leave();
  }
}

/** One live session; `kill` also kills what it started. */
export async function openSession(
  lxd: LxdApi,
  ref: Ref,
  { command, terminal }: SessionOrder,
  tenant: Tenant,
): Promise<Session> {
  const marker = randomBytes(12).toString('hex');
  const argv = sessionArgv(marker, command);
  const { stdin, stdout, stderr, tell, ended, isWhole, leave } = await begin(lxd, ref, argv, { ...tenant, terminal });
  const killed = new AbortController();
  const { signal } = killed;
  async function whole(): Promise<{ code: number }> {
    const code = await ended;
    // Nobody waits for what is killed to say the rest.
    await Promise.all([stdout, stderr].map((it) => finished(it, { readable: false, signal }))).catch(() => {});
    if (!signal.aborted && !isWhole()) throw new Error(LOST);
    return { code };
  }
  return {
    stdin,
    stdout,
    stderr: terminal ? undefined : stderr,
    resize: (columns, rows) =>
      tell({ command: 'window-resize', args: { width: String(columns), height: String(rows) } }),
    ended: whole(),
    kill() {
      killed.abort();
      tell({ command: 'signal', signal: constants.signals.SIGKILL });
      leave();
      void runProgram(lxd, ref, tenant.user, ['/bin/sh', '-c', KILL_MARKED, 'purser', marker], KILL_MILLISECONDS).catch(
        () => {}, // The lease may be gone: then so is what it ran.
      );
    },
  };
}
