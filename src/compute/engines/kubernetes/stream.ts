import { randomBytes } from 'node:crypto';
import { PassThrough, Writable } from 'node:stream';
import { finished } from 'node:stream/promises';
import type { RawData, WebSocket } from 'ws';
import type { SessionOrder } from '../../backend.ts';
import { between, MARKED } from '../../kit/between.ts';
import { onOneLine } from '../../kit/one-line.ts';
import { type Program, unreadInput } from '../../machine/program.ts';
import { WAITING } from '../../machine/waiting.ts';
import type { KubernetesApi } from './api.ts';
import { ApiError } from './api-error.ts';
import { CONTAINER } from './describe.ts';
import { parseStatus } from './status.ts';

/**
 * A process in a pod through the API's exec: one WebSocket with a channel in the first byte of each message (k8s.io/apimachinery,
 * remotecommand). Protocol v5 can end the standard input. v4 cannot, and only the real cluster of the tests (1.20) has nothing
 * newer: there the input is sent in pieces, each after a line with its length, and a small shell script reassembles it.
 */

const V5 = 'v5.channel.k8s.io';
const V4 = 'v4.channel.k8s.io';
const [STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE] = [0, 1, 2, 3, 4, 255];
const PIECE_BYTES_MAX = 32 * 1024;
/** A server's status is a few lines. The rest of a longer one is not kept, so it cannot be read. */
const STATUS_CHARACTERS_MAX = 64 * 1024;
const BEGIN_MILLISECONDS = 30_000;
/**
 * The server ends the socket a moment after the command, unless a background process keeps its streams open: then output of the
 * command may still be in transit, and counts as complete after this much silence.
 */
const QUIET_MILLISECONDS = 2_000;
/** The time in which output that has arrived passes through the streams of a command that Purser has left. */
const DRAIN_MILLISECONDS = 1_000;
const SIGNAL_EXIT = 128;

/** Runs `$@` with the content of the pieces on standard input. A piece of 0 bytes is its end. */
const RELAYED = `/bin/sh -c 'echo $$
while IFS= read -r size && [ "$size" -gt 0 ]; do dd bs="$size" count=1 iflag=fullblock 2>/dev/null; done' |
{ read -r relay; "$@"; code=$?; kill "$relay" 2>/dev/null; exit "$code"; }`;

/** Begins processes in the pods of a namespace. The protocol that the server spoke last is tried first. */
export function createStreams(api: KubernetesApi, pods: string) {
  let known = V5;

  async function connect(pod: string, argv: (protocol: string) => string[], terminal: boolean): Promise<WebSocket> {
    // Read once: a call that was begun beside this one may know better before this one is refused.
    const first = known;
    const open = async (protocol: string) => {
      const query = new URLSearchParams({
        container: CONTAINER,
        stdin: 'true',
        stdout: 'true',
        stderr: String(!terminal),
        tty: String(terminal),
      });
      for (const it of argv(protocol)) query.append('command', it);
      const socket = await api.connect(`${pods}/${pod}/exec?${query}`, protocol);
      known = protocol;
      return socket;
    };
    try {
      return await open(first);
    } catch (error) {
      if (refusesProtocol(error)) return open(first === V5 ? V4 : V5);
      throw error;
    }
  }

  return {
    /** Begins a program. Resolves when it has begun, or with a terminal when the server has taken it. */
    async begin(pod: string, argv: readonly string[], terminal?: SessionOrder['terminal']): Promise<Program> {
      const mark = randomBytes(16).toString('hex');
      const marked = terminal ? [...argv] : ['/bin/sh', '-c', MARKED, 'purser', mark, ...argv];
      const isFramed = (protocol: string) => protocol === V4 && !terminal;
      const relayed = (protocol: string) =>
        isFramed(protocol) ? ['/bin/sh', '-c', RELAYED, 'purser', ...marked] : marked;
      const socket = await connect(pod, relayed, terminal !== undefined);
      const stream = follow(socket, terminal ? undefined : mark, isFramed(socket.protocol));
      if (terminal) stream.program.resize(terminal.columns, terminal.rows);
      const slow = setTimeout(() => stream.program.leave(), BEGIN_MILLISECONDS);
      await stream.begun.finally(() => clearTimeout(slow));
      return stream.program;
    },
  };
}
export type Streams = ReturnType<typeof createStreams>;

/**
 * Returns whether the server knows the pod and the client, but did not begin because it does not know this protocol. Its answer is
 * then no Status.
 */
const refusesProtocol = (error: unknown) =>
  error instanceof ApiError && [400, 403, 501].includes(error.status) && error.reason === '';

/** Follows one socket to its end. Without a mark, as on a terminal, only the server's status has the exit code. */
function follow(
  socket: WebSocket,
  mark: string | undefined,
  isFramed: boolean,
): { program: Program; begun: Promise<void> } {
  const [stdout, rawStderr] = [new PassThrough(WAITING), new PassThrough(WAITING)];
  const [begun, ended] = [Promise.withResolvers<void>(), Promise.withResolvers<{ code: number }>()];
  for (const it of [begun, ended]) it.promise.catch(() => {}); // Callers get the rejections; this only avoids unhandled ones.
  const seen: SeenCommand = { hasMark: mark !== undefined, hasBegun: mark === undefined, noise: '', status: '' };
  const drainEnd = new AbortController();
  let quiet: NodeJS.Timeout | undefined;
  if (seen.hasBegun) begun.resolve();

  const facts = noteIn(seen, begun.resolve, () => {
    input.endUnread();
    quiet ??= setTimeout(finish, QUIET_MILLISECONDS);
  });
  const stderr = mark === undefined ? rawStderr : rawStderr.pipe(between(mark, facts));

  const input = createInput(socket, isFramed);
  const output = passOn(socket, () => quiet?.refresh());
  socket.on('message', (data: RawData) => {
    const bytes = data as Buffer;
    const rest = bytes.subarray(1);
    if (rest.length === 0) return; // Each channel begins with an empty message.
    if (bytes[0] === STDOUT) output.push(stdout, rest);
    else if (bytes[0] === STDERR) output.push(rawStderr, rest);
    else if (bytes[0] === STATUS) seen.status += rest.toString('utf8', 0, STATUS_CHARACTERS_MAX - seen.status.length);
  });
  socket.once('close', finish);

  /** Closes everything: the socket is closed, or the command has ended and its background processes are silent. */
  function finish() {
    if (output.isPaused()) return void quiet?.refresh(); // Its reader is slow.
    clearTimeout(quiet);
    socket.terminate();
    stdout.end();
    rawStderr.end();
    void settle();
  }

  async function settle() {
    // The mark may still be on its way through the streams, behind output that waits for a slow reader.
    if (mark !== undefined) await finished(stderr, { readable: false, signal: drainEnd.signal }).catch(() => {});
    const { code, fault } = outcomeOf(seen);
    begun.reject(fault);
    if (code === undefined) ended.reject(fault);
    else ended.resolve({ code });
  }

  function leave() {
    setTimeout(() => drainEnd.abort(), DRAIN_MILLISECONDS).unref();
    socket.terminate();
  }

  return {
    begun: begun.promise,
    program: {
      stdin: input.stdin,
      stdout,
      stderr,
      ended: ended.promise,
      resize: (columns, rows) => sendSize(socket, columns, rows),
      leave,
      kill: leave,
    },
  };
}

function sendSize(socket: WebSocket, columns: number, rows: number): void {
  if (socket.readyState !== socket.OPEN) return;
  sendOn(socket, RESIZE, Buffer.from(JSON.stringify({ Width: columns, Height: rows })), () => {});
}

/** The facts of a command that were seen on its socket. */
type SeenCommand = {
  hasMark: boolean;
  hasBegun: boolean;
  /** The code that the machine printed after the mark. */
  exitCode?: number;
  /** The output before the mark. */
  noise: string;
  /** The server's own status. */
  status: string;
};

/** Notes in `seen` what is found between the marks; calls `begun` and `exited` as it comes. */
const noteIn = (seen: SeenCommand, begun: () => void, exited: () => void): Parameters<typeof between>[1] => ({
  begun() {
    seen.hasBegun = true;
    begun();
  },
  exitCode(code) {
    seen.exitCode ??= code;
    exited();
  },
  noise(text) {
    seen.noise = text;
  },
});

/** Returns the exit code of a command whose socket is closed, if it is known, else the reason. */
function outcomeOf({ hasMark, hasBegun, exitCode, noise, status }: SeenCommand): {
  code: number | undefined;
  fault: Error;
} {
  const { code, fault } = parseStatus(status);
  // If the command was killed with its machine, the process that would have printed the code was killed too.
  const isServers = hasBegun && (!hasMark || (code ?? 0) > SIGNAL_EXIT);
  return { code: exitCode ?? (isServers ? code : undefined), fault: faultOf(hasBegun, [onOneLine(noise), fault]) };
}

/** Returns the error of a command without an exit code, with its reported reason. */
function faultOf(hasBegun: boolean, said: (string | undefined)[]): Error {
  const words = said.filter(Boolean).join('; ');
  if (words !== '' && !hasBegun) return new Error(`nothing can be run in the pod: ${words}`);
  const lost = hasBegun
    ? 'the connection to the command was lost, and nobody knows how it ended'
    : 'the connection was lost, and nobody knows whether the command has begun';
  return new Error(words === '' ? lost : `${lost}: ${words}`);
}

/** Passes on output. Unread output stays with the command: the socket is read no further while a stream waits for its reader. */
function passOn(socket: WebSocket, active: () => void) {
  /** The streams that wait for their readers. */
  const full = new Set<PassThrough>();
  function push(stream: PassThrough, bytes: Buffer) {
    active();
    if (stream.writableEnded || stream.destroyed || stream.write(bytes)) return;
    if (full.has(stream)) return; // A command that writes single bytes sends thousands of messages before the pause takes effect.
    full.add(stream);
    socket.pause();
    const go = () => {
      stream.off('drain', go).off('close', go);
      full.delete(stream);
      if (full.size === 0 && socket.readyState === socket.OPEN) socket.resume();
      active();
    };
    stream.on('drain', go).on('close', go);
  }

  return { push, isPaused: () => full.size > 0 && socket.readyState === socket.OPEN };
}

const sendOn = (socket: WebSocket, channel: number, bytes: Uint8Array, done?: (error?: Error | null) => void) =>
  socket.send(Buffer.concat([Buffer.of(channel), bytes]), done);

/** Creates the standard input of a program. `endUnread` ends it when the command has ended: what is written then fails. */
function createInput(socket: WebSocket, isFramed: boolean): { stdin: Writable; endUnread(): void } {
  let hasEnded = false;
  function end(done: (error?: Error | null) => void): void {
    const wasOpen = !hasEnded;
    hasEnded = true;
    if (wasOpen && isFramed) sendOn(socket, STDIN, Buffer.from('0\n'), done);
    else if (wasOpen && socket.protocol === V5) socket.send(Buffer.of(CLOSE, STDIN), done);
    else done();
  }
  const stdin = new Writable({
    highWaterMark: PIECE_BYTES_MAX,
    write(chunk: Buffer, _, done) {
      void sendPieces(chunk).then(() => done(), done);
    },
    final: end,
  });
  stdin.on('error', () => {}); // The command may leave input unread; `ended` reports a lost connection.
  async function sendPieces(chunk: Buffer): Promise<void> {
    if (hasEnded) throw unreadInput();
    for (let at = 0; at < chunk.length; at += PIECE_BYTES_MAX) {
      const piece = chunk.subarray(at, at + PIECE_BYTES_MAX);
      const whole = isFramed ? Buffer.concat([Buffer.from(`${piece.length}\n`), piece]) : piece;
      await new Promise<void>((done, fail) => sendOn(socket, STDIN, whole, (error) => (error ? fail(error) : done())));
      if (hasEnded && at + piece.length < chunk.length) throw unreadInput();
    }
  }
  return { stdin, endUnread: () => end(() => {}) };
}
