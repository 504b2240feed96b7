/** One server-sent event: as it came, and what its data lines say (undefined for a comment). */
export type SseEvent = { raw: Buffer; data: string | undefined };

/** A longer event is no event of a model server. */
const EVENT_BYTES_MAX = 8 * 1024 * 1024;
const [LF, CR] = [10, 13];

/**
 * Cuts a stream of bytes into server-sent events at their blank lines (WHATWG HTML, 9.2.6), whatever the chunks. Throws
 * when one is longer than 8 MiB.
 */
export function createEventSplitter(): { push(chunk: Buffer): SseEvent[]; left(): number } {
  let pending: Buffer = Buffer.alloc(0);
  return {
    left: () => pending.length,
    push(chunk) {
      const bytes = pending.length ? Buffer.concat([pending, chunk]) : chunk;
      // What was pending had no end in it; the last three of its bytes may be part of one.
      let from = Math.max(0, pending.length - 3);
      let start = 0;
      const events: SseEvent[] = [];
      for (let end = endOfEvent(bytes, from); end !== -1; end = endOfEvent(bytes, from)) {
        const raw = bytes.subarray(start, end);
        events.push({ raw, data: dataOf(raw) });
        start = end;
        from = end;
      }
      pending = bytes.subarray(start);
      if (pending.length > EVENT_BYTES_MAX) throw new Error('an event is longer than any model server sends');
      return events;
    },
  };
}

/** Where the event that begins before `from` ends: after its blank line; -1 when that has not come. */
function endOfEvent(bytes: Buffer, from: number): number {
  for (let at = bytes.indexOf(LF, from); at !== -1; at = bytes.indexOf(LF, at + 1)) {
    if (bytes[at + 1] === LF) return at + 2;
    if (bytes[at + 1] === CR && bytes[at + 2] === LF) return at + 3;
  }
  return -1;
}

function dataOf(raw: Buffer): string | undefined {
  let data: string | undefined;
  for (const line of raw.toString('utf8').split(/\r?\n/)) {
    if (line !== 'data' && !line.startsWith('data:')) continue;
    const value = line.slice('data:'.length).replace(/^ /, '');
    data = data === undefined ? value : `${data}\n${value}`;
  }
  return data;
}

/** An event that carries a JSON value. */
export const eventOf = (value: unknown): Buffer => Buffer.from(`data: ${JSON.stringify(value)}\n\n`);
/** How an OpenAI stream ends. */
export const DONE = '[DONE]';
export const DONE_EVENT = Buffer.from(`data: ${DONE}\n\n`);

/** The body of an event that tells of an error instead of a chunk. */
export function errorIn(data: string): { error: { code?: unknown; message?: unknown } } | undefined {
  if (!data.includes('"error"')) return undefined;
  try {
    const json = JSON.parse(data);
    return typeof json?.error === 'object' && json.error !== null ? json : undefined;
  } catch {
    return undefined;
  }
}
