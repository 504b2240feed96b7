import { constants, fstatSync, openSync, writeSync } from 'node:fs';
import { isatty } from 'node:tty';
import { format } from 'node:util';
import { type LevelWithSilent, type Logger, pino } from 'pino';
import { parseJson } from './parse-json.ts';
import { visible } from './visible.ts';

export type Log = Logger;
export type LogLevel = LevelWithSilent;
/** A line as a person reads it, or as a JSON object. */
export type LogFormat = 'text' | 'json';

// Our own tokens, and prefixes of a payment provider's secrets: a person may paste one in the wrong place.
const TOKEN = /(cnv_live_|cnv_operator_|svc_agent_|svc_router_|[rs]k_(?:live|test)_|whsec_)[0-9A-Za-z]{8,}/g;
// Excludes the backslash: in a line of JSON it may escape the quote behind it.
const BEARER = /(bearer\s+)[^\s"',\\]+/gi;

/** A signed token of an identity provider, or as much of it as a truncated sentence has left. */
const JWT = /\beyJ[\w-]{8,}(?:\.[\w-]*){0,2}/g;

/** Redacts our own tokens and all signed tokens. */
export function redactTokens(text: string): string {
  return text.replace(TOKEN, '$1[redacted]').replace(JWT, '[redacted]');
}

/** Redacts like `redactTokens`, and also whatever follows the word bearer. */
export function redact(text: string): string {
  return redactTokens(text).replace(BEARER, '$1[redacted]');
}

/**
 * Creates the logger: lines on stderr, buffered (`LineBuffer`). Tokens are redacted here, for all its callers. `secrets` are
 * literal strings that must never appear, such as upstream keys and the master key; more may be added later.
 */
export function createLog(
  level: LogLevel,
  secrets: readonly string[] = [],
  write?: (text: string) => void,
  format: LogFormat = 'json',
): Log {
  const writeLine = write ?? stderrWriter(format);
  function hide(line: string): string {
    let text = visible(redact(line));
    for (const secret of secrets)
      if (secret.length >= 4 && text.includes(secret)) text = text.replaceAll(secret, '[redacted]');
    return text;
  }
  return pino(
    { level, base: null, timestamp: () => `,"time":"${new Date().toISOString()}"` },
    {
      // Twice for text: what JSON has escaped is written out in it.
      write: (line: string) => writeLine(format === 'text' ? hide(asText(hide(line))) : hide(line)),
    },
  );
}

const LEVEL_NAMES: Record<string, string> = Object.fromEntries(
  Object.entries(pino.levels.labels).map(([number, name]) => [number, name.padEnd(5)]),
);
/** A value that needs no quotes. */
const PLAIN = /^[^\s"=]+$/;

/** Returns a line of JSON of the log as a line of text: when, how bad, which event, what happened, and the facts. */
function asText(line: string): string {
  let entry: Record<string, unknown>;
  try {
    entry = parseJson(line) as Record<string, unknown>;
  } catch {
    return line;
  }
  const { level, time, event, msg, ...facts } = entry;
  const when = String(time)
    .replace('T', ' ')
    .replace(/\.\d+Z$/, 'Z');
  const message = String(msg ?? '').replaceAll('\n', '\n  '); // Only a line of the log begins with a time.
  const what = event === msg || event === undefined ? message : `${event}: ${message}`;
  const more = Object.entries(facts).map(([name, value]) => {
    const text = typeof value === 'string' ? value : JSON.stringify(value);
    return `  ${name}=${PLAIN.test(text) ? text : JSON.stringify(text)}`;
  });
  return `${when} ${LEVEL_NAMES[String(level)] ?? level} ${what}${more.join('')}\n`;
}

const MESSAGE_LENGTH_MAX = 4000;

/**
 * Redirects the console to the log: libraries print whole errors to it, with any secrets in them, in lines that do not have
 * the log's form. Hono's server does so where it cannot write the answer to a request.
 */
export function logConsole(log: Pick<Log, 'warn'>, console = globalThis.console): void {
  for (const name of ['debug', 'error', 'info', 'log', 'trace', 'warn'] as const)
    console[name] = (...printed: unknown[]) =>
      log.warn(
        { event: 'console', said: format(...printed).slice(0, MESSAGE_LENGTH_MAX) },
        'a library printed something',
      );
}

/** The most bytes of lines that wait for a slow reader: some thousands of lines. */
const WAITING_BYTES_MAX = 1024 * 1024;
/** The interval at which writing to a slow reader is tried again. */
const RETRY_MILLISECONDS = 50;
/** The time that the end of the process waits for a slow reader. */
const END_MILLISECONDS = 1000;
const WARN = 40;

/**
 * Lines on their way to a file descriptor that does not block. The lines of one turn of the event loop are one write. Lines that
 * the reader does not take wait within a bound; further ones are lost and counted, and a line reports their number once the reader
 * has caught up.
 */
type LineBuffer = {
  write(line: string): void;
  /** Writes the waiting lines, for at most `milliseconds`. Blocks: for the end of the process only. */
  flush(milliseconds: number): void;
  /** Returns how many lines were lost so far. */
  lostCount(): number;
};

export function createLineBuffer(fd: number, format: LogFormat = 'json'): LineBuffer {
  let lines: string[] = [];
  let rest = Buffer.alloc(0); // The rest of a write that the reader has not taken entirely.
  let waitingBytes = 0;
  let lost = 0;
  let unreported = 0;
  let scheduled = false;

  function add(line: string) {
    lines.push(line);
    waitingBytes += Buffer.byteLength(line);
  }
  function reportLost() {
    if (!unreported) return;
    const time = new Date().toISOString();
    const msg = 'log lines were lost: the reader of stderr did not keep up';
    const line = `${JSON.stringify({ level: WARN, time, event: 'log.lost', lines: unreported, msg })}\n`;
    add(format === 'text' ? asText(line) : line);
    unreported = 0;
  }
  /** Returns whether everything is written. */
  function drain(): boolean {
    try {
      for (let isTaken = false; ; isTaken = true) {
        if (!rest.length) {
          if (!lines.length && isTaken) reportLost();
          if (!lines.length) return true;
          rest = Buffer.from(lines.join(''));
          lines = [];
        }
        const written = writeSync(fd, rest);
        rest = rest.subarray(written);
        waitingBytes -= written;
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return false;
      // The reader is gone, or its disk is full: there is nowhere to report it.
      const count = lines.length + rest.toString('latin1').split('\n').length - 1;
      lost += count;
      unreported += count;
      rest = Buffer.alloc(0);
      lines = [];
      waitingBytes = 0;
      return true;
    }
  }
  function drainLater() {
    scheduled = false;
    if (drain()) return;
    scheduled = true;
    setTimeout(drainLater, RETRY_MILLISECONDS).unref();
  }

  return {
    write(line) {
      if (waitingBytes + Buffer.byteLength(line) > WAITING_BYTES_MAX) {
        lost++;
        unreported++;
        return;
      }
      add(line);
      if (scheduled) return;
      scheduled = true;
      setImmediate(drainLater);
    },
    flush(milliseconds) {
      const deadline = performance.now() + milliseconds;
      const never = new Int32Array(new SharedArrayBuffer(4));
      while (!drain() && performance.now() < deadline) Atomics.wait(never, 0, 0, 5);
    },
    lostCount: () => lost,
  };
}

/**
 * Returns a file descriptor for stderr that does not block when its reader stops reading. A file has no reader. A terminal
 * is opened once more, because its own descriptor is shared with the shell.
 */
function openStderr(): number {
  if (isatty(2)) {
    try {
      return openSync('/proc/self/fd/2', constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
    } catch {
      return 2; // A terminal of another user.
    }
  }
  const kind = fstatSync(2);
  if (kind.isFIFO() || kind.isSocket()) void process.stderr; // Node makes it non-blocking when it first uses it.
  return 2;
}

let stderr: LineBuffer | undefined;

/** Returns what writes to the one buffer of stderr, which the first call opens. */
const stderrWriter = (format: LogFormat) => (text: string) => {
  if (!stderr) {
    const buffer = createLineBuffer(openStderr(), format);
    process.on('exit', () => buffer.flush(END_MILLISECONDS));
    stderr = buffer;
  }
  stderr.write(text);
};

/** Returns how many lines of the log were lost so far because the reader of stderr did not keep up. */
export const lostLineCount = (): number => stderr?.lostCount() ?? 0;
