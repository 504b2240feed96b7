/** One server-sent event: as it came, and what its data lines say (undefined for a comment), read when it is asked for. */
export type SseEvent = { readonly raw: Buffer; readonly data: string | undefined };

/** A longer event is no event of a model server. */
const EVENT_BYTES_MAX = 8 * 1024 * 1024;
const [LF, CR] = [10, 13];
/** The end of an event has at most four bytes: three of them may have come with the chunk before. */
const SEAM_BYTES = 3;

export type EventSplitter = {
  push(chunk: Buffer): SseEvent[];
  /** What the stream ended with, where the last blank line is missing. Throws when that is half an event. */
  end(): SseEvent | undefined;
};

/**
 * Cuts a stream of bytes into server-sent events at their blank lines (WHATWG HTML, 9.2.6; lines end in LF or CRLF),
 * whatever the chunks. Throws when one is longer than 8 MiB.
 */
export function createEventSplitter(): EventSplitter {
  // What has come of an event, in pieces: joined once, when its end is there.
  let pieces: Buffer[] = [];
  let length = 0;
  let seam: Buffer = Buffer.alloc(0);
  let isFirst = true;

  function toEvent(raw: Buffer): SseEvent {
    const hasMark = isFirst;
    isFirst = false;
    return {
      raw,
      get data() {
        const text = raw.toString('utf8');
        return dataOf(hasMark ? text.replace(/^\uFEFF/, '') : text);
      },
    };
  }

  return {
    push(chunk) {
      const events: SseEvent[] = [];
      pieces.push(chunk);
      length += chunk.length;
      const ahead = Buffer.concat([seam, chunk]);
      seam = ahead.subarray(-SEAM_BYTES);
      if (endOfEvent(ahead, 0) !== -1) {
        const bytes = pieces.length === 1 ? chunk : Buffer.concat(pieces, length);
        let start = 0;
        // What was there before had no end in it.
        for (let from = Math.max(0, length - ahead.length); ; from = start) {
          const end = endOfEvent(bytes, from);
          if (end === -1) break;
          events.push(toEvent(bytes.subarray(start, end)));
          start = end;
        }
        const rest = bytes.subarray(start);
        pieces = [rest];
        length = rest.length;
        seam = rest.subarray(-SEAM_BYTES);
      }
      if (length > EVENT_BYTES_MAX) throw new Error('an event is longer than any model server sends');
      return events;
    },
    end() {
      const raw = Buffer.concat(pieces, length);
      if (!raw.toString('utf8').trim()) return undefined;
      const event = toEvent(Buffer.concat([raw, Buffer.from('\n\n')]));
      if (event.data !== undefined && event.data !== DONE && !isJson(event.data))
        throw new Error('the stream ended inside an event');
      return event;
    },
  };
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Where the event that begins before `from` ends: after its blank line; -1 when that has not come. */
function endOfEvent(bytes: Buffer, from: number): number {
  for (let at = bytes.indexOf(LF, from); at !== -1; at = bytes.indexOf(LF, at + 1)) {
    if (bytes[at + 1] === LF) return at + 2;
    if (bytes[at + 1] === CR && bytes[at + 2] === LF) return at + 3;
  }
  return -1;
}

function dataOf(text: string): string | undefined {
  let data: string | undefined;
  for (const line of text.split(/\r?\n/)) {
    if (line !== 'data' && !line.startsWith('data:')) continue;
    const value = line.slice('data:'.length).replace(/^ /, '');
    data = data === undefined ? value : `${data}\n${value}`;
  }
  return data?.trim() === DONE ? DONE : data;
}

/** An event that carries a JSON value. */
export const eventOf = (value: unknown): Buffer => Buffer.from(`data: ${JSON.stringify(value)}\n\n`);
/** How an OpenAI stream ends. */
export const DONE = '[DONE]';
export const DONE_EVENT = Buffer.from(`data: ${DONE}\n\n`);

/**
 * An error in the place of an answer or a chunk, in the shapes that model servers use: OpenAI's, a bare sentence in
 * `error` (Text Generation Inference), and an object of the kind "error" (vLLM).
 */
export function errorIn(json: unknown): object | undefined {
  if (typeof json !== 'object' || json === null) return undefined;
  const { error, object } = json as { error?: unknown; object?: unknown };
  return error || object === 'error' ? json : undefined;
}
