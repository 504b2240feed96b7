import { randomBytes } from 'node:crypto';
import { PassThrough, type Readable, Transform } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { Refusal } from '../../base/refusal.ts';
import { inTime } from '../../net/deadline.ts';
import type { Backend, GuestSession, OutputBudget, Ref } from '../backend.ts';
import { collectBoth } from './collect.ts';
import { hasTimedOut } from './program.ts';
import { codeOfSignal, KILL_MARKED, LIMITED, quoted } from './shell.ts';
import { WAITING } from './waiting.ts';

/**
 * Runs a shell script in a machine, over a session of any backend. The script (a text) and its input go over standard input, so
 * that no list of processes shows them, on any machine on the way.
 */

/** Waits this long for output left in the pipes; a background process that keeps them open is not awaited. */
const QUIET_MILLISECONDS = 500;
/** The most bytes that a shell may print by itself before the text begins. */
const NOISE_BYTES_MAX = 64 * 1024;

/**
 * Reads a line with a token and the length of the text, then the text, and runs it. The text ends with the token: one that was cut
 * is not run. `say` prints the line with the token and the first word of the text; then the input comes on standard input, which is
 * descriptor 7 here, as a shell gives its background processes none. The text may set its tenant's variables, whose names do not
 * begin with PURSER_, before it calls `say`.
 */
const READ_AND_RUN = `exec <&7 7<&-
read -r PURSER_TOKEN length
say() { printf '%s %s\\n' "$PURSER_TOKEN" "$*"; }
if command -v head >/dev/null; then
  text=$(head -c "$length")
  case $text in *"$PURSER_TOKEN") eval "$text" ;; *) say cut ;; esac
else say headless; fi`;

/** Returns the line of a session that runs a text for at most this many seconds, marked with `marker`. */
const lineOf = (marker: string, seconds: number) => `exec 7<&0 </dev/null
set -- ${marker} ${seconds} ${quoted(READ_AND_RUN)}
${LIMITED}`;
/** The time limit for killing the processes of a text. */
const KILL_SECONDS = 30;

type RunOrder = {
  /** The script. It prints its first word with `say`, at once or after its checks. */
  text: string;
  /** The standard input; `fed` if the caller writes it to `stdin` of the run, after the first word. */
  input?: Buffer | 'fed' | undefined;
  /** After this time all processes of the text are killed inside the machine. */
  timeoutSeconds: number;
};

export type Run = Pick<GuestSession, 'stdin'> & {
  /** The first word of the text. Rejects when it ended without one. */
  word: Promise<string>;
  /** The output after the first word. It has to be read: it is taken from the machine no faster. */
  stdout: Readable;
  stderr: Readable;
  /** The exit code. Resolves when both streams have been passed on, too. Rejects when the session was lost. */
  ended: Promise<number>;
  /** Ends the session, and kills all processes of the text. */
  kill(): void;
};

/** Starts a text. Throws when the backend opens no session. */
export async function startRun(
  { guest }: Pick<Backend, 'guest'>,
  ref: Ref,
  { text, input, timeoutSeconds }: RunOrder,
): Promise<Run> {
  const token = randomBytes(16).toString('hex');
  const bytes = Buffer.from(`${text}\n# ${token}`);
  const marker = randomBytes(12).toString('hex');
  const session = await guest.session(ref, { command: lineOf(marker, timeoutSeconds), terminal: undefined });
  const from = { stdout: session.stdout, stderr: session.stderr as Readable };
  for (const stream of [session.stdin, from.stdout, from.stderr]) stream.on('error', () => {}); // `ended` reports it.
  const word = Promise.withResolvers<string>();
  const [stdout, stderr] = [afterToken(token, word.resolve), new PassThrough(WAITING)];
  const output = passOutput([
    [from.stdout, stdout],
    [from.stderr, stderr],
  ]);
  session.stdin.write(Buffer.concat([Buffer.from(`${token} ${bytes.length}\n`), bytes]));
  if (input === undefined) session.stdin.end();
  else if (input !== 'fed')
    void word.promise
      .then(() => session.stdin.end(input)) // Not earlier: the `head` of busybox reads ahead.
      .catch(() => {}); // It ended without a first word.

  const ended = session.ended
    .then(async (end) => {
      await output.quiet();
      return 'code' in end ? end.code : codeOfSignal(end.signal);
    })
    .finally(() => {
      output.end();
      // A connection of its own is closed with it; background processes continue.
      if ('destroy' in session.stdin) session.stdin.destroy();
    });
  rejectAtEnd(word, ended);
  function kill(): void {
    session.kill();
    output.dropUnread();
    // The text has a mark of its own: that of the session also marks the guard, which must not end itself.
    const command = `set -- ${marker}\n${KILL_MARKED}`;
    guest.exec(ref, { command, timeoutSeconds: KILL_SECONDS, streamBytesMax: 0 }).catch(() => {}); // The lease may be gone.
  }
  return { word: word.promise, stdin: session.stdin, stdout, stderr, ended, kill };
}

/**
 * Rejects a first word that has not come when its session ends. It is not known what a lost one ran: the word may have been on its
 * way.
 */
export function rejectAtEnd(word: PromiseWithResolvers<string>, ended: Promise<number>): void {
  ended.then(() => word.reject(new Error('the machine ran nothing of what it was sent')), word.reject);
  word.promise.catch(() => {}); // Callers get the rejection; this only avoids an unhandled one.
}

/** Passes on the output after the line with the token, and resolves its first word. */
export function afterToken(token: string, say: (word: string) => void): Transform {
  let before: Buffer | undefined = Buffer.alloc(0);
  return new Transform({
    ...WAITING,
    transform(chunk: Buffer, _, done) {
      if (!before) return done(null, chunk);
      before = Buffer.concat([before, chunk]);
      const at = before.indexOf(`${token} `);
      const end = at < 0 ? -1 : before.indexOf('\n', at);
      if (end < 0) {
        before = before.subarray(-NOISE_BYTES_MAX);
        return done();
      }
      say(before.subarray(at + token.length + 1, end).toString());
      const rest = before.subarray(end + 1);
      before = undefined;
      return rest.length ? done(null, rest) : done();
    },
  });
}

/**
 * Passes the output of a session on, each stream to another that outlives it. Output that waits for a slow reader is no silence; a
 * background process that keeps the streams open is not awaited.
 */
export function passOutput(streams: readonly (readonly [from: Readable, to: Transform])[]) {
  let heardAt = performance.now();
  let open = streams.length;
  for (const [from, to] of streams) {
    from.on('data', () => {
      heardAt = performance.now();
    });
    let isOpen = true;
    const closed = () => {
      if (isOpen) open -= 1;
      isOpen = false;
    };
    from.once('end', closed).once('close', closed).pipe(to, { end: false });
  }
  return {
    /** Waits until no more output comes. */
    async quiet(): Promise<void> {
      heardAt = performance.now();
      while (open > 0) {
        const isRead = streams.every(([, to]) => !to.writableNeedDrain);
        if (isRead && performance.now() - heardAt >= QUIET_MILLISECONDS) return;
        await sleep(QUIET_MILLISECONDS / 20);
      }
    },
    /** Passes on nothing more. */
    end(): void {
      for (const [from, to] of streams) {
        from.unpipe(to);
        to.end();
      }
    },
    /** Discards what nobody reads: `quiet` would wait for a reader for ever. */
    dropUnread(): void {
      for (const [, to] of streams) if (!to.listenerCount('data') && !to.listenerCount('readable')) to.resume();
    },
  };
}

/** Waits for the first word of a text. Refuses errors that lie in the machine's image; throws when the text was lost on its way. */
export async function firstWord(run: Run): Promise<string> {
  const word = await run.word;
  if (word === 'headless')
    throw new Refusal('invalid_request', 'The image of this resource has no `head`, which this request needs.');
  if (word === 'cut') throw new Error('the connection was lost before the machine had all of the request');
  return word;
}

/**
 * Starts a text that has to say its first word within a time. One that opens too late, or says none, is killed. Its standard error
 * is dropped.
 */
export async function beginRun(
  backend: Pick<Backend, 'guest'>,
  ref: Ref,
  order: RunOrder,
  milliseconds: number,
): Promise<{ run: Run; word: string }> {
  const starting = startRun(backend, ref, order);
  const beginning = starting.then(async (run) => {
    run.stderr.resume();
    return { run, word: await firstWord(run) };
  });
  return inTime(beginning, milliseconds, 'The beginning of a call').catch((error) => {
    starting.then(
      (late) => late.kill(),
      () => {},
    );
    throw error;
  });
}

/** Says that a text took longer than its limit, and was killed. */
export class TooLong extends Error {}

/** Runs a text to its end and keeps its output. Throws unless it exits with 0, and `TooLong` where its limit ended it. */
export async function runText(
  backend: Pick<Backend, 'guest'>,
  ref: Ref,
  order: RunOrder & { streamBytesMax: number; budget?: OutputBudget | undefined },
): Promise<{ word: string; stdout: Buffer; stderr: Buffer }> {
  const started = performance.now();
  const run = await startRun(backend, ref, order);
  const output = collectBoth(run.stdout, run.stderr, order);
  output.catch(() => {}); // `ended` rejects as well.
  const code = run.ended.then((it) => {
    if (hasTimedOut(it, order.timeoutSeconds, started))
      throw new TooLong(`it took more than ${order.timeoutSeconds} s`);
    return it;
  });
  code.catch(() => {}); // Its first word may be refused.
  const word = await firstWord(run).catch(async (error) => {
    if (!(error instanceof Refusal)) await code; // It may have been killed before it had said one.
    throw error;
  });
  if ((await code) !== 0) throw new Error(`the machine ended with ${await code}`); // A shell's own words may quote the text.
  const { stdout, stderr } = await output;
  return { word, stdout, stderr };
}
