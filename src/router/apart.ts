import { parseEvent, readAnswer, readEvent } from './answer-data.ts';
import type { AnswerRoom } from './answer-room.ts';
import { streamOfAnswer } from './answer-stream.ts';
import type { Api } from './native.ts';
import { eventIn } from './sse.ts';

/**
 * Bytes from outside beyond this size are read in another thread: the main one would keep all other requests waiting, 50 ms
 * at the worst.
 */
export const LARGE_BYTES = 128 * 1024;
export const isLarge = (bytes: Buffer) => bytes.length > LARGE_BYTES;

/** Ways to read the answers of model servers: pure functions on plain data, so that another thread can run them. */
export const READINGS = {
  answer: readAnswer,
  event: (raw: Buffer, api: Api) => readEvent(eventIn(raw), api),
  /** Reads the last event of a stream that lacks its blank line. Throws when the event is incomplete. */
  last(raw: Buffer, api: Api) {
    const event = eventIn(raw);
    const content = readEvent(event, api);
    if (typeof content === 'object' && parseEvent(event.data ?? '') === undefined) throw new Error(UNFINISHED);
    return content;
  },
  stream: streamOfAnswer,
};
const UNFINISHED = 'the stream ended inside an event';

/** Reads in one of several ways, at once or in another thread, which gets a copy of large bytes. */
export type ReadBy<R extends Record<string, (bytes: Buffer, ...given: never[]) => unknown>> = <N extends keyof R>(
  name: N,
  ...given: Parameters<R[N]>
) => ReturnType<R[N]> | Promise<ReturnType<R[N]>>;
export type ReadApart = ReadBy<typeof READINGS>;

/** Reads everything at once: for commands, which keep no other requests waiting. */
const readHere: ReadApart = (name, ...given) => (READINGS[name] as (...all: typeof given) => never)(...given);

/** Reads the answer to one request: the large parts by `apart`, after `enter` has given it room. */
export type AnswerReader = { apart: ReadApart; enter: AnswerRoom['enter'] };
export const READ_HERE: AnswerReader = { apart: readHere, enter: () => undefined };
