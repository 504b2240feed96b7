import { constants } from 'node:os';
import type { Readable } from 'node:stream';
import type { ServerChannel, Session as ServerSession } from 'ssh2';
import type { Session, SessionOrder } from '../compute/backend.ts';
import { contain, containCall } from '../net/contain.ts';
import { breakOff } from './break-off.ts';
import type { Client } from './clients.ts';
import type { Memory } from './memory.ts';
import { createOutlet, type Outlet } from './outlet.ts';
import { serveSftp } from './sftp.ts';
import { SftpFault } from './sftp-fault.ts';
import { InsideLost } from './sftp-inside.ts';
import { SFTP_SCRIPT } from './sftp-script.ts';
import { MalformedPacket } from './sftp-wire.ts';

/** After the client has said its last the script inside ends by itself; this is for one that hangs. */
const LEAVE_MILLISECONDS = 5000;
/** What a client asks to be done to what it started; there is one way to do it. */
const DEADLY = ['TERM', 'KILL', 'INT', 'HUP', 'QUIT'];
/** The protocol has names for these (RFC 4254, section 6.10); of others the shell's number is told. */
const SIGNALS = new Set([
  'ABRT',
  'ALRM',
  'FPE',
  'HUP',
  'ILL',
  'INT',
  'KILL',
  'PIPE',
  'QUIT',
  'SEGV',
  'TERM',
  'USR1',
  'USR2',
]);
const SIGNAL_EXIT = 128;

/** What the client or its own machine is the cause of is told to the client, and nobody else needs to know. */
const THEIRS = [SftpFault, MalformedPacket, InsideLost];
/** Why is for the operator: it speaks of what is behind the gateway. */
class Unopened extends Error {}

export type Host = {
  /** Opens a session inside the visitor's resource. Throws when it cannot be had. */
  open(visitor: Client, order: SessionOrder): Promise<Session>;
  /** Says that a session could not be opened or broke off, and why, to whom it concerns. */
  failed(visitor: Client, error: unknown): void;
  /** Counts what is kept in memory for a visitor, in the budget of its wallet. */
  memory(visitor: Client): Memory;
  /** Unix seconds. */
  now(): number;
  idleMilliseconds: number;
};

/**
 * One session channel of a client that may be here: a shell, a command or sftp inside its resource. Everything else that
 * can be asked for on a session is refused. `over` is called once, when nothing is left of it.
 */
export function serveSession(host: Host, visitor: Client, session: ServerSession, over: () => void): void {
  const leaving = new AbortController();
  const { signal } = leaving;
  const leave = (why: string) => leaving.abort(new Error(why));
  const lost = () => leave('the connection is gone');
  let terminal: SessionOrder['terminal'];
  let live: Session | undefined;
  let running: Promise<void> | undefined;

  visitor.gone.addEventListener('abort', lost, { once: true });
  session.on('close', () => leave('the client has closed the channel'));
  signal.addEventListener(
    'abort',
    () => {
      visitor.gone.removeEventListener('abort', lost);
      void Promise.resolve(running).then(over);
    },
    { once: true },
  );
  session.on('pty', (accept, _reject, info) => {
    terminal = { term: (info as { term?: string }).term || 'xterm', columns: info.cols, rows: info.rows };
    accept?.();
  });
  session.on('window-change', (accept, _reject, info) => {
    live?.resize(info.cols, info.rows);
    accept?.();
  });
  session.on('signal', (accept, _reject, { name }) => {
    if (DEADLY.includes(name)) live?.kill();
    accept?.();
  });
  for (const kind of ['env', 'x11', 'auth-agent'] as const) session.on(kind as 'env', (_accept, reject) => reject?.());

  /** Runs it to its end; whatever that is, nothing is left of it in the machine. */
  async function run(channel: ServerChannel, order: SessionOrder, speak: typeof join): Promise<void> {
    const outlet = createOutlet(channel, visitor.socket, signal);
    const idle = setTimeout(() => {
      leave('the session was silent for too long');
      containCall(() => breakOff(channel, 'the session was silent for too long'), visitor.broken);
    }, host.idleMilliseconds);
    visitor.channels.add(channel);
    channel.on('error', () => {}); // A channel that breaks off closes.
    try {
      live = await host.open(visitor, order).catch((error) => {
        throw new Unopened('no session can be had in the resource at the moment', { cause: error });
      });
      live.ended.catch(() => {}); // Whoever waits hears of it.
      for (const stream of [live.stdin, live.stdout, live.stderr]) stream?.on('error', () => {}); // `ended` tells.
      await speak({ host, visitor, channel, inside: live, outlet, signal, stir: () => void idle.refresh() });
      channel.end();
    } catch (thrown) {
      const error = thrown as Error;
      live?.kill(); // What a client leaves behind does not run on.
      if (signal.aborted) return;
      const isTheirs = THEIRS.some((kind) => error instanceof kind);
      if (!isTheirs) host.failed(visitor, error);
      const words = isTheirs || error instanceof Unopened ? error.message : 'the session was lost';
      await outlet.err(Buffer.from(`purser: ${words}\n`)).catch(() => {}); // It need not be heard.
      channel.exit(255);
      channel.end();
    } finally {
      clearTimeout(idle);
      visitor.channels.delete(channel);
    }
  }
  /** `channel` is undefined where the client did not wait for the answer, or has one on this session already. */
  function begin(channel: ServerChannel | undefined, order: SessionOrder, speak: typeof join) {
    if (!channel) return;
    for (const it of [channel, channel.stderr]) contain(it, visitor.broken);
    running = run(channel, order, speak).catch(visitor.broken);
  }
  session.on('shell', (accept) => begin(accept(), { command: undefined, terminal }, join));
  session.on('exec', (accept, _reject, { command }) => begin(accept(), { command, terminal }, join));
  session.on('subsystem', (accept, reject, { name }) => {
    if (name === 'sftp') begin(accept(), { command: SFTP_SCRIPT, terminal: undefined }, transfer);
    else reject();
  });
}

type Meeting = {
  host: Host;
  visitor: Client;
  channel: ServerChannel;
  inside: Session;
  outlet: Outlet;
  /** Aborted when the client has gone. */
  signal: AbortSignal;
  /** Something has happened. */
  stir(): void;
};

/** Passes the streams through, each at the pace of whoever takes it, and tells how the command ended. */
async function join({ channel, inside, outlet, signal, stir }: Meeting): Promise<void> {
  channel.on('data', stir);
  // A terminal has no end of input, as with OpenSSH's server: some engines would end the session with it.
  const isTerminal = inside.stderr === undefined;
  channel.pipe(inside.stdin as NodeJS.WritableStream, { end: !isTerminal });
  const flows = [flow(inside.stdout, outlet.out, stir)];
  if (inside.stderr) flows.push(flow(inside.stderr, outlet.err, stir));
  // What it wrote last still has to pass.
  const [end] = await unless(signal, Promise.all([inside.ended, ...flows]));
  if ('code' in end) channel.exit(end.code);
  else if (SIGNALS.has(end.signal)) channel.exit(end.signal, false, '');
  else channel.exit(SIGNAL_EXIT + (constants.signals[`SIG${end.signal}` as NodeJS.Signals] ?? 0));
}

/** Sftp: the gateway is the server, the machine has the files. */
async function transfer({ host, visitor, channel, inside, outlet, signal, stir }: Meeting): Promise<void> {
  const send = (bytes: Buffer) => {
    stir();
    return outlet.out(bytes);
  };
  channel.on('readable', stir);
  const ofWallet = host.memory(visitor);
  const memory: Memory = { ...ofWallet, tryTake: (bytes) => !signal.aborted && ofWallet.tryTake(bytes) };
  const client = { source: channel, send, software: visitor.software, memory };
  await unless(signal, serveSftp(client, inside, host.now)).finally(memory.close);
  inside.stdin.end();
  const hangs = setTimeout(() => inside.kill(), LEAVE_MILLISECONDS);
  await unless(signal, inside.ended).finally(() => clearTimeout(hangs));
  channel.exit(0);
}

/** Hands a stream on, piece by piece. Resolves when it is over. */
function flow(source: Readable, put: (bytes: Buffer) => Promise<void>, stir: () => void): Promise<void> {
  return new Promise((resolve, reject) => {
    let last: Promise<void> = Promise.resolve();
    source.on('data', (bytes: Buffer) => {
      stir();
      source.pause();
      last = put(bytes).then(() => void source.resume());
      last.catch(reject);
    });
    for (const event of ['end', 'close']) source.once(event, () => last.then(resolve, reject));
    if (source.readableEnded || source.destroyed) resolve();
  });
}

/** What is waited for, or an exception as soon as the signal is aborted. */
async function unless<T>(signal: AbortSignal, wanted: Promise<T>): Promise<T> {
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
