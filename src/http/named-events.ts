import type { IncomingHttpHeaders } from 'node:http';
import { StringDecoder } from 'node:string_decoder';
import type { Refusal } from '../base/refusal.ts';
import type { EventStream } from './event-stream.ts';

/** Streams of named server-sent events, for calls inside a resource. */

/** A keep-alive comment is sent after this much silence, as proxies close idle connections. */
const SILENCE_MILLISECONDS = 15_000;
const COMMENT = Buffer.from(': still running\n\n');

/** Returns whether a request wants an answer of this media type. A request that accepts JSON as well gets JSON. */
export const accepts = ({ accept = '' }: IncomingHttpHeaders, type: string) =>
  listOf(accept).includes(type) && !listOf(accept).includes('application/json');
const listOf = (accept: string) => accept.split(',').map((it) => it.replace(/;.*/s, '').trim().toLowerCase());

const eventOf = (name: string, data: object) => Buffer.from(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`);

/** The last event of a stream that breaks off: the error body of the interface. */
export const errorEvent = ({ code }: Refusal, message: string, requestId: string) => [
  eventOf('error', { error: { code, message }, request_id: requestId }),
];

/** Sends named events on a stream, and comments during silence. Call `end` after the last event. */
export function namedEvents(stream: EventStream) {
  let silence: NodeJS.Timeout | undefined;
  return {
    begin() {
      stream.begin();
      silence = setInterval(() => void stream.write(COMMENT), SILENCE_MILLISECONDS);
    },
    /** Resolves when the client has room for more, or has disconnected. */
    send(name: string, data: object): Promise<void> | undefined {
      silence?.refresh();
      return stream.write(eventOf(name, data));
    },
    end: () => clearInterval(silence),
  };
}

/** Turns pieces of bytes into pieces of text: a character that is cut waits for its remaining bytes. */
export function textOf(send: (text: string) => Promise<void> | undefined) {
  const decoder = new StringDecoder('utf8');
  const pass = (text: string) => (text ? send(text) : undefined);
  return { add: (piece: Buffer) => pass(decoder.write(piece)), end: () => pass(decoder.end()) };
}
