import { PIECE_BYTES } from '../base/json-strings.ts';
import { collectChunks } from '../net/pieces.ts';

/**
 * A server-sent event: its bytes, and its data lines (undefined for a comment), read on access. Those of a long event are not
 * decoded.
 */
export type SseEvent = {
  readonly raw: Buffer;
  readonly data: string | Buffer | undefined;
  /** The value of the data, once it has been parsed (answer-data.ts). */
  parsed?: { value: unknown } | undefined;
};

/** Maximum size of an event; no model server sends longer ones. */
const EVENT_BYTES_MAX = 8 * 1024 * 1024;
const [LF, CR, SPACE, COLON] = [10, 13, 32, 58];
/** The end of an event has at most four bytes, so up to three of them may be in the previous chunk. */
const TAIL_BYTES = 3;
const EMPTY = Buffer.alloc(0);

/** A server-sent event, or several of plain text in a row, which need not be parsed. */
export type SseRun = SseEvent & {
  /** The bytes of the text in them, if known without further parsing; `data` is then meaningless. */
  readonly textBytes?: number;
};

type EventSplitter = {
  push(chunk: Buffer): SseRun[];
  /** Returns the last event if its final blank line is missing. That event may be incomplete. */
  end(): SseEvent | undefined;
};

/** Returns the end of the events of plain text that begin at `at`, and the bytes of their text; undefined if there are none. */
export type PlainText = (latin1: string, at: number) => { end: number; textBytes: number } | undefined;

/**
 * Splits a byte stream into server-sent events at their blank lines (WHATWG HTML, 9.2.6; lines end in LF or CRLF), for any
 * chunking. Runs that `plain` recognises are not split. Throws when an event is longer than 8 MiB.
 */
export function createEventSplitter(plain?: PlainText): EventSplitter {
  // The pieces of an unfinished event, joined once when its end has arrived.
  const pieces = collectChunks();
  let length = 0;
  let tail: Buffer = EMPTY;
  let isFirst = true;

  function toEvent(raw: Buffer): SseEvent {
    const hasMark = isFirst;
    isFirst = false;
    return {
      raw,
      get data() {
        return dataOf(hasMark ? withoutMark(raw) : raw);
      },
      parsed: undefined,
    };
  }

  function keep(rest: Buffer): void {
    pieces.add(rest);
    length += rest.length;
    tail = Buffer.concat([tail, rest.subarray(-TAIL_BYTES)]).subarray(-TAIL_BYTES);
    if (length > EVENT_BYTES_MAX) throw new Error('an event is longer than any model server sends');
  }

  /** Returns the offset in the chunk after the end of the unfinished event; -1 if it has not arrived. */
  function endOfUnfinished(chunk: Buffer): number {
    const end = endOfEvent(Buffer.concat([tail, chunk.subarray(0, TAIL_BYTES)]), 0);
    return end === -1 ? endOfEvent(chunk, 0) : end - tail.length;
  }

  function takeUnfinished(end: Buffer): SseEvent {
    pieces.add(end);
    const raw = pieces.take();
    length = 0;
    tail = EMPTY;
    return toEvent(raw);
  }

  return {
    push(chunk) {
      const events: SseRun[] = [];
      let at = 0;
      if (length) {
        const end = endOfUnfinished(chunk);
        if (end === -1) {
          keep(chunk);
          return events;
        }
        events.push(takeUnfinished(chunk.subarray(0, end)));
        at = end;
      }
      // One character per byte. A connection is read in no longer pieces.
      const text = plain && chunk.length <= PIECE_BYTES ? chunk.toString('latin1') : undefined;
      while (at < chunk.length) {
        const run = text === undefined ? undefined : plain?.(text, at);
        const end = run?.end ?? endOfEvent(chunk, at);
        if (end === -1) {
          keep(chunk.subarray(at));
          break;
        }
        const raw = at === 0 && end === chunk.length ? chunk : chunk.subarray(at, end);
        if (run) {
          events.push({ raw, data: undefined, textBytes: run.textBytes });
          isFirst = false;
        } else events.push(toEvent(raw));
        at = end;
      }
      return events;
    },
    end() {
      const raw = pieces.take();
      return isBlank(raw) ? undefined : toEvent(Buffer.concat([raw, Buffer.from('\n\n')]));
    },
  };
}

/** Returns whether the bytes are only line ends and spaces. */
const isBlank = (bytes: Buffer) => bytes.every((it) => it === LF || it === CR || it === SPACE);

/** Returns the event in these bytes. A byte order mark, which may begin the first of a stream, is not part of it. */
export const eventIn = (raw: Buffer): SseEvent => ({ raw, data: dataOf(withoutMark(raw)) });

const MARK = Buffer.from('\ufeff');
const withoutMark = (bytes: Buffer) =>
  bytes.subarray(0, MARK.length).equals(MARK) ? bytes.subarray(MARK.length) : bytes;

/** Returns the offset after the blank line that ends the event, searching from `from`; -1 if it has not arrived. */
function endOfEvent(bytes: Buffer, from: number): number {
  for (let at = bytes.indexOf(LF, from); at !== -1; at = bytes.indexOf(LF, at + 1)) {
    if (bytes[at + 1] === LF) return at + 2;
    if (bytes[at + 1] === CR && bytes[at + 2] === LF) return at + 3;
  }
  return -1;
}

function dataOf(event: Buffer): string | Buffer | undefined {
  if (event.length > PIECE_BYTES) return longDataOf(event);
  let data: string | undefined;
  for (const line of event.toString('utf8').split(/\r?\n/)) {
    if (line !== 'data' && !line.startsWith('data:')) continue;
    const value = line.slice('data:'.length).replace(/^ /, '');
    data = data === undefined ? value : `${data}\n${value}`;
  }
  return data?.trim() === DONE ? DONE : data;
}

/** Returns the data lines of a long event in their bytes. */
function longDataOf(event: Buffer): Buffer | undefined {
  const lines: Buffer[] = [];
  for (let start = 0; start <= event.length; ) {
    const feed = event.indexOf(LF, start);
    const next = feed === -1 ? event.length + 1 : feed + 1;
    const end = feed > start && event[feed - 1] === CR ? feed - 1 : next - 1;
    const line = event.subarray(start, end);
    start = next;
    if (!line.subarray(0, NAME.length).equals(NAME)) continue;
    if (line.length > NAME.length && line[NAME.length] !== COLON) continue;
    const value = line.subarray(NAME.length + 1);
    lines.push(value[0] === SPACE ? value.subarray(1) : value, LINE_END);
  }
  return lines.length ? Buffer.concat(lines.slice(0, -1)) : undefined;
}
const NAME = Buffer.from('data');
const LINE_END = Buffer.from('\n');

/** Returns an event that carries a JSON value. */
export const eventOf = (value: unknown): Buffer => Buffer.from(`data: ${JSON.stringify(value)}\n\n`);
/** The end marker of an OpenAI stream. */
export const DONE = '[DONE]';
export const DONE_EVENT = Buffer.from(`data: ${DONE}\n\n`);

/**
 * Returns the error in place of an answer or a chunk, in the shapes that model servers use: OpenAI's, a bare sentence
 * in `error` (Text Generation Inference), and an object of the type "error" (vLLM).
 */
export function errorIn(json: unknown): object | undefined {
  if (typeof json !== 'object' || json === null) return undefined;
  const { error, object } = json as { error?: unknown; object?: unknown };
  return error || object === 'error' ? json : undefined;
}
