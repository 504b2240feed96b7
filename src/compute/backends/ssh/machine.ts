import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { PassThrough } from 'node:stream';
import { Client, type ClientChannel, type ConnectConfig } from 'ssh2';
import { contain } from '../../../net/contain.ts';
import { SSH_ALGORITHMS, takesPackets } from '../../../net/ssh-algorithms.ts';
import type { ExecOrder, ExecResult, Session, SessionOrder } from '../../backend.ts';
import { collectBoth } from '../collect.ts';
import {
  codeOfSignal,
  judgeUpload,
  KILL_MARKED,
  LIMITED,
  nameOfSignal,
  RECEIVE,
  refuseCommand,
  refusePath,
} from '../shell.ts';

/** exec, upload and session on a machine that is reached over SSH. Each takes one connection and ends it. */

const CONNECT_MILLISECONDS = 10_000;
const UPLOAD_MILLISECONDS = 120_000;
/** The machine's own guard ends a command at its limit. A connection silent for this long after it is given up. */
const GRACE_MILLISECONDS = 30_000;
const KEEPALIVE_MILLISECONDS = 10_000;
const KEEPALIVE_COUNT_MAX = 3;
/** Waits this long for output left in the pipes; a background process that keeps them open is not waited for. */
const IDLE_MILLISECONDS = 500;
const KILLED = codeOfSignal('KILL');

/** How to reach a machine. `isHost` tells whether a host key is the machine's. */
export type SshAddress = {
  host: string;
  port: number;
  username: string;
  privateKey: string;
  algorithms?: NonNullable<ConnectConfig['algorithms']>;
};
export type SshFault = Error & { level?: string; code?: string };

/** Opens a connection, or throws; `level` is `client-authentication` where the key was refused. */
export function connectSsh(
  address: SshAddress,
  isHost: (key: Buffer) => boolean,
  milliseconds = CONNECT_MILLISECONDS,
): Promise<Client> {
  const client = new Client();
  const { host, port, algorithms, ...login } = address;
  const sock = connect({ host, port });
  contain(sock, (error) => client.emit('error', error));
  const settings: ConnectConfig = {
    ...login,
    sock,
    algorithms: { ...SSH_ALGORITHMS, ...algorithms },
    hostVerifier: isHost,
    readyTimeout: milliseconds,
    keepaliveInterval: KEEPALIVE_MILLISECONDS,
    keepaliveCountMax: KEEPALIVE_COUNT_MAX,
  };
  return new Promise((resolve, reject) => {
    client.on('error', (error) => {
      client.destroy();
      reject(error);
    });
    client.once('close', () => reject(new Error('the machine closed the connection')));
    client.once('ready', () => resolve(client));
    client.connect(settings);
  });
}

type Begun = { channel: ClientChannel; ended: Promise<{ code: number } | { signal: string }> };

function begin(client: Client, line: string, terminal?: SessionOrder['terminal']): Promise<Begun> {
  const pty = terminal && { term: terminal.term, cols: terminal.columns, rows: terminal.rows, width: 0, height: 0 };
  return new Promise((resolve, reject) => {
    let fault: Error | undefined;
    client.once('error', (error) => {
      fault = error;
    });
    const gone = () => new Error('the connection to the machine was lost', { cause: fault });
    const lost = () => reject(gone());
    client.once('close', lost);
    client.exec(line, pty ? { pty } : {}, (error, channel) => {
      client.off('close', lost);
      if (error) return reject(error);
      if (!takesPackets(channel)) {
        client.destroy();
        return reject(new Error('the machine takes no packets of a usable size'));
      }
      for (const it of [channel, channel.stderr]) contain(it, (thrown) => client.emit('error', thrown));
      const end = Promise.withResolvers<{ code: number } | { signal: string }>();
      end.promise.catch(() => {}); // Whoever waits hears of it.
      channel.on('error', (thrown: Error) => end.reject(thrown));
      channel.once('exit', (code: number | null, signal?: string) =>
        end.resolve(typeof code === 'number' ? { code } : { signal: nameOfSignal(signal ?? 'KILL') }),
      );
      for (const it of [client, channel]) it.once('close', () => end.reject(gone()));
      resolve({ channel, ended: end.promise });
    });
  });
}

type LineOrder = Pick<ExecOrder, 'streamBytesMax' | 'budget'> & { input: Buffer; milliseconds: number };

/** Runs one line of shell with `input` on standard input and reads its output. Throws when the connection is lost. */
export async function runOver(
  client: Client,
  line: string,
  { input, milliseconds, ...most }: LineOrder,
): Promise<Omit<ExecResult, 'timedOut'>> {
  const over = setTimeout(() => client.destroy(), milliseconds);
  try {
    const { channel, ended } = await begin(client, line);
    let heardAt = performance.now();
    const heard = () => {
      heardAt = performance.now();
    };
    const [stdout, stderr] = [new PassThrough(), new PassThrough()];
    channel.on('data', heard).pipe(stdout);
    channel.stderr.on('data', heard).pipe(stderr);
    const said = collectBoth(stdout, stderr, most);
    said.catch(() => {}); // A line that is lost says so itself.
    channel.on('close', () => {
      stdout.end();
      stderr.end();
    });
    channel.end(input);
    const end = await ended;
    heard();
    while (!stdout.writableEnded && performance.now() - heardAt < IDLE_MILLISECONDS)
      await new Promise((resolve) => setTimeout(resolve, 10));
    for (const [from, to] of [[channel, stdout] as const, [channel.stderr, stderr] as const]) {
      from.unpipe(to);
      to.end();
    }
    const exitCode = 'code' in end ? end.code : codeOfSignal(end.signal);
    return { exitCode, ...(await said) };
  } finally {
    clearTimeout(over);
  }
}

/** Wraps a line of shell so that it runs as the tenant and not as the login user. */
export type Within = (line: string) => string;
const asIs: Within = (line) => line;

/** Runs a command as the machine's guard runs it, and ends the connection. */
export async function execOver(
  client: Client,
  { command, timeoutSeconds, ...most }: ExecOrder,
  within = asIs,
): Promise<ExecResult> {
  try {
    const input = Buffer.from(command);
    refuseCommand(command);
    const marker = randomBytes(12).toString('hex');
    const started = performance.now();
    // The command goes over standard input: as part of the line, its quotes could make it too long.
    const line = `exec /bin/sh -c ${quoted(LIMITED)} purser ${marker} ${timeoutSeconds} "$(head -c ${input.length})"`;
    const milliseconds = timeoutSeconds * 1000 + GRACE_MILLISECONDS;
    const ran = await runOver(client, within(line), { input, ...most, milliseconds });
    return { ...ran, timedOut: ran.exitCode === KILLED && performance.now() - started >= timeoutSeconds * 1000 };
  } finally {
    client.end();
  }
}

/** Writes a file whole or not at all, and ends the connection. */
export async function uploadOver(client: Client, path: string, content: Buffer, within = asIs): Promise<void> {
  try {
    refusePath(path);
    const line = `exec /bin/sh -c ${quoted(RECEIVE)} purser ${quoted(path)} ${content.length}`;
    const order = { input: content, streamBytesMax: 4096, milliseconds: UPLOAD_MILLISECONDS };
    const { exitCode, stderr } = await runOver(client, within(line), order);
    judgeUpload(exitCode, stderr);
  } finally {
    client.end();
  }
}

/** A live session on a connection of its own; `another` opens one more, to kill what the session started. */
export async function sessionOver(
  client: Client,
  { command, terminal }: SessionOrder,
  another: () => Promise<Client>,
  within = asIs,
): Promise<Session> {
  const marker = randomBytes(12).toString('hex');
  const shell =
    command === undefined
      ? `export PURSER_EXEC=${marker}; exec "\${SHELL:-/bin/sh}" -l`
      : `export PURSER_EXEC=${marker}; exec /bin/sh -c ${quoted(command)}`;
  let begun: Begun;
  try {
    begun = await begin(client, within(shell), terminal);
  } catch (error) {
    client.end();
    throw error;
  }
  const { channel, ended } = begun;
  channel.once('close', () => client.end());
  return {
    stdin: channel,
    stdout: channel,
    stderr: terminal ? undefined : channel.stderr,
    resize: (columns, rows) => channel.setWindow(rows, columns, 0, 0),
    ended,
    kill() {
      client.end();
      void another()
        .then((it) =>
          runOver(it, within(`exec /bin/sh -c ${quoted(KILL_MARKED)} purser ${marker}`), {
            input: Buffer.alloc(0),
            streamBytesMax: 0,
            milliseconds: GRACE_MILLISECONDS,
          }).finally(() => it.end()),
        )
        .catch(() => {}); // The lease may be gone: then so is what it ran.
    },
  };
}

/** Quotes a text as one word of a POSIX shell. */
export const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;
