import type { Readable } from 'node:stream';
import type { ServerChannel, Session as ServerSession } from 'ssh2';
import { contained } from '../base/fault.ts';
import type { GuestSession, SessionOrder } from '../compute/backend.ts';
import { ScriptLost } from '../compute/machine/sftp-client.ts';
import { SftpFault } from '../compute/machine/sftp-fault.ts';
import { SFTP_SCRIPT } from '../compute/machine/sftp-script.ts';
import { MalformedPacket } from '../compute/machine/sftp-wire.ts';
import { codeOfSignal } from '../compute/machine/shell.ts';
import { contain, containCall } from '../net/contain.ts';
import { breakOff } from './break-off.ts';
import { CLOSE_MILLISECONDS, type SshClient } from './clients.ts';
import type { MemoryShare } from './memory.ts';
import { createOutlet, type Outlet } from './outlet.ts';
import { serveSftp } from './sftp.ts';

/** Time limit for the sftp script to end after its input has; one that hangs is killed. */
const EXIT_MILLISECONDS = 5000;
/** A client may change the size of its window at every pixel: of the sizes within this time, only the last is sent to the machine. */
const RESIZE_MILLISECONDS = 100;
/** The signals that kill the session; a client's other signals are ignored. */
const KILLING = ['TERM', 'KILL', 'INT', 'HUP', 'QUIT'];

/** Errors caused by the client or its machine; they are reported to the client and not to the operator. */
const CLIENT_ERRORS = [SftpFault, MalformedPacket, ScriptLost];
/** No session could be opened. The cause is for the operator only, as it describes the backend. */
class Unopened extends Error {}

export type SessionHost = {
  /** Opens a session in the client's resource. Throws when that fails. */
  open(client: SshClient, order: SessionOrder): Promise<GuestSession>;
  /** Returns a message that the client's lease is over, with the reason; undefined while it can be used. */
  endMessage(client: SshClient): string | undefined;
  /** Reports to the operator that a session of a lease that can be used could not be opened or broke off. */
  failed(client: SshClient, error: unknown): void;
  /** Returns a counter of the client's memory against its wallet's quota. */
  memory(client: SshClient): MemoryShare;
  /**
   * Returns a number as long as the client's one session is all that is open into its resource, and another one once anything else
   * was.
   */
  alone(client: SshClient): number | undefined;
  /** Unix seconds. */
  now(): number;
  idleMilliseconds: number;
};

/**
 * Serves one session channel of an authenticated client: a shell, a command or sftp in its resource. All other requests on
 * the channel are refused. `endMessage` is called once, when the session and its process have ended.
 */
export function serveSession(host: SessionHost, client: SshClient, session: ServerSession, onEnd: () => void): void {
  const leaving = new AbortController();
  const { signal } = leaving;
  const leave = (why: string) => leaving.abort(new Error(why));
  const lost = () => leave('the connection is gone');
  let terminal: SessionOrder['terminal'];
  let live: GuestSession | undefined;
  let running: Promise<void> | undefined;
  let isKilled = false;
  const size = createResizer();

  client.gone.addEventListener('abort', lost, { once: true });
  session.on('close', () => leave('the client has closed the channel'));
  signal.addEventListener(
    'abort',
    () => {
      size.stop();
      client.gone.removeEventListener('abort', lost);
      void Promise.resolve(running).then(onEnd);
    },
    { once: true },
  );
  session.on('pty', (accept, _reject, info) => {
    terminal = { term: (info as { term?: string }).term || 'xterm', columns: info.cols, rows: info.rows };
    accept?.();
  });
  session.on('window-change', (accept, _reject, info) => {
    if (live) size.set(live, info.cols, info.rows);
    accept?.();
  });
  session.on('signal', (accept, _reject, { name }) => {
    if (live && !isKilled && KILLING.includes(name)) {
      isKilled = true; // A second kill would be another command in the machine.
      live.kill();
    }
    accept?.();
  });
  for (const kind of ['env', 'x11', 'auth-agent'] as const) session.on(kind as 'env', (_accept, reject) => reject?.());

  /** Runs a session to its end. However it ends, no process of it remains in the machine. */
  async function run(channel: ServerChannel, order: SessionOrder, serve: typeof join): Promise<void> {
    const outlet = createOutlet(channel, client.socket, signal);
    const idle = setTimeout(() => {
      leave('the session was silent for too long');
      containCall(() => breakOff(channel, 'the session was silent for too long'), client.broken);
    }, host.idleMilliseconds);
    client.channels.add(channel);
    channel.on('error', () => {}); // A channel with an error also closes.
    try {
      live = await openSession(host, client, order);
      await serve({ host, client, channel, session: live, outlet, signal, active: () => void idle.refresh() });
      channel.end();
    } catch (thrown) {
      const error = thrown as Error;
      live?.kill(); // No process of the session outlives its client.
      if (signal.aborted) return;
      await outlet.err(Buffer.from(`purser: ${wordsFor(host, client, error)}\n`)).catch(() => {}); // The client may be gone.
      channel.exit(255);
      channel.end();
    } finally {
      clearTimeout(idle);
      discardRest(channel);
      forgetOnceClosed(client, channel);
    }
  }
  /** Begins the session. `channel` is undefined when the client wants no reply, or has a channel on this session already. */
  function begin(channel: ServerChannel | undefined, order: SessionOrder, serve: typeof join) {
    if (!channel) return;
    for (const it of [channel, channel.stderr]) contain(it, client.broken);
    running = run(channel, order, serve).catch(client.broken);
  }
  session.on('shell', (accept) => begin(accept(), { command: undefined, terminal }, join));
  session.on('exec', (accept, _reject, { command }) => begin(accept(), { command, terminal }, join));
  session.on('subsystem', (accept, reject, { name }) => {
    if (name === 'sftp') begin(accept(), { command: SFTP_SCRIPT, terminal: undefined }, transfer);
    else reject();
  });
}

/** Opens a session in the client's resource. Throws Unopened. */
async function openSession(host: SessionHost, client: SshClient, order: SessionOrder): Promise<GuestSession> {
  const session = await host.open(client, order).catch((error) => {
    throw new Unopened('no session can be opened in the resource at the moment', { cause: error });
  });
  session.ended.catch(() => {}); // The error reaches those who await it.
  for (const it of [session.stdin, session.stdout, session.stderr]) it?.on('error', () => {}); // `ended` reports it.
  return session;
}

/**
 * Returns the message to a client about the error that ended its session, and reports one that it did not cause to the operator.
 */
function wordsFor(host: SessionHost, client: SshClient, error: Error): string {
  if (CLIENT_ERRORS.some((kind) => error instanceof kind)) return error.message;
  const endMessage = host.endMessage(client);
  if (endMessage !== undefined) return endMessage;
  host.failed(client, error);
  return error instanceof Unopened ? error.message : 'the session was lost';
}

/** Passes on the size of a client's window: the first one at once, and of those that follow the last one a moment later. */
function createResizer() {
  let wanted: (() => void) | undefined;
  let resized: NodeJS.Timeout | undefined;
  function resize(): void {
    if (resized || !wanted) return;
    wanted();
    wanted = undefined;
    resized = setTimeout(resizeAgain, RESIZE_MILLISECONDS);
  }
  const resizeAgain = contained('timer', () => {
    resized = undefined;
    resize();
  });
  return {
    set(session: GuestSession, columns: number, rows: number) {
      wanted = () => session.resize(columns, rows);
      resize();
    },
    stop: () => clearTimeout(resized),
  };
}

/** Forgets a channel that has ended once its client has closed it too: until then the client may have output to print. */
function forgetOnceClosed({ channels }: SshClient, channel: ServerChannel): void {
  const forget = () => void channels.delete(channel);
  channel.once('close', forget);
  setTimeout(forget, CLOSE_MILLISECONDS).unref();
}

/**
 * Drops further data of a client on a channel that is over. It has no reader any more, and ssh2 accepts data until the client
 * closes the channel, which it need not do.
 */
export function discardRest(channel: ServerChannel): void {
  channel.unpipe();
  for (const event of ['data', 'readable']) channel.removeAllListeners(event);
  channel.resume();
}

type SessionExchange = {
  host: SessionHost;
  client: SshClient;
  channel: ServerChannel;
  session: GuestSession;
  outlet: Outlet;
  /** Aborted when the client has disconnected. */
  signal: AbortSignal;
  /** Restarts the idle timer. */
  active(): void;
};

/** Connects the streams with back-pressure, and sends the exit status of the command. */
async function join({ host, client, channel, session, outlet, signal, active }: SessionExchange): Promise<void> {
  channel.on('data', active);
  // As in OpenSSH's server, end of input is not passed to a terminal: some engines would end the session.
  const isTerminal = session.stderr === undefined;
  channel.pipe(session.stdin as NodeJS.WritableStream, { end: !isTerminal });
  const flows = [flow(session.stdout, outlet.out, active)];
  if (session.stderr) flows.push(flow(session.stderr, outlet.err, active));
  // Also wait for the remaining output.
  const [end] = await unless(signal, Promise.all([session.ended, ...flows]));
  const endMessage = host.endMessage(client); // Its machine may have ended the command by ending itself.
  if (endMessage !== undefined) await outlet.err(Buffer.from(`purser: ${endMessage}\n`));
  // The protocol's own message for a signal is not used: engines report only a code, and `ssh` would turn the message into 255.
  channel.exit('code' in end ? end.code : codeOfSignal(end.signal));
}

/** Serves sftp: the gateway is the server, and the files are on the machine. */
async function transfer({ host, client, channel, session, outlet, signal, active }: SessionExchange): Promise<void> {
  const send = (bytes: Buffer) => {
    active();
    return outlet.out(bytes);
  };
  channel.on('readable', active);
  const ofWallet = host.memory(client);
  const memory: MemoryShare = { ...ofWallet, tryTake: (bytes) => !signal.aborted && ofWallet.tryTake(bytes) };
  const sftpClient = { source: channel, send, software: client.software, memory, alone: () => host.alone(client) };
  await unless(signal, serveSftp(sftpClient, session, host.now)).finally(memory.close);
  session.stdin.end();
  const hangs = setTimeout(() => session.kill(), EXIT_MILLISECONDS);
  // The client has had an answer to each request: the end of the script adds nothing to them.
  const ended = session.ended.catch(() => {});
  await unless<unknown>(signal, ended).finally(() => clearTimeout(hangs));
  channel.exit(0);
}

/** Forwards a stream chunk by chunk. Resolves when it has ended. */
export function flow(source: Readable, put: (bytes: Buffer) => Promise<void>, active: () => void): Promise<void> {
  return new Promise((resolve, reject) => {
    let last: Promise<void> = Promise.resolve();
    source.on('data', (bytes: Buffer) => {
      active();
      source.pause();
      last = put(bytes).then(() => void source.resume());
      last.catch(reject);
    });
    for (const event of ['end', 'close']) source.once(event, () => last.then(resolve, reject));
    if (source.readableEnded || source.destroyed) resolve();
  });
}

/** Awaits a promise, but throws the signal's reason as soon as it is aborted. */
async function unless<T>(signal: AbortSignal, wanted: Promise<T>): Promise<T> {
  wanted.catch(() => {}); // It may reject after the wait has ended.
  signal.throwIfAborted();
  const aborted = Promise.withResolvers<never>();
  const abort = () => aborted.reject(signal.reason);
  signal.addEventListener('abort', abort, { once: true });
  try {
    return await Promise.race([wanted, aborted.promise]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}
