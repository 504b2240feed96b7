import { isWire } from '../config/router.ts';
import type { AnswerBody } from '../net/watched-pool.ts';
import { type ReadRun, readEvent } from './answer-data.ts';
import { isLarge, type ReadApart } from './apart.ts';
import type { CallLimits } from './call-limits.ts';
import type { Api } from './native.ts';
import { createPlainText } from './plain-text.ts';
import { errorReply, type Label, type Reply } from './reply.ts';
import { createEventSplitter, DONE, type SseRun } from './sse.ts';
import { usageIn } from './usage.ts';

/** Limits on the wait, in milliseconds and bytes, after the end of a stream, so that its connection can be reused. */
const REST = { bytesMax: 64 * 1024, milliseconds: 2000 };
/**
 * Limits on the events that are held back before an answer: beyond them it begins all the same. A response repeats its request in two
 * of them, and a server that only says that it is alive does so every few seconds.
 */
const HELD = { bytesMax: 16 * 1024 * 1024, countMax: 1000 };

type StreamParts = {
  api: Api;
  apart: ReadApart;
  label: Label;
  limits: CallLimits;
  /** Called once the events have been read or returned. */
  onEnd: () => void;
};

/**
 * Waits for the first event with content: an error there is a definite refusal, before anything was forwarded. A stream that ends
 * before has begun if it has reported its prompt: that part of its cost is known. So has one with too much before its answer.
 */
export async function beginStream(body: AnswerBody, { api, apart, label, limits, onEnd }: StreamParts): Promise<Reply> {
  const next = eventsOf(body, limits, api, apart);
  const held: ReadRun[] = [];
  let heldBytes = 0;
  const isPromptKnown = () =>
    held.some(({ content }) => typeof content === 'object' && usageIn(content.usage, api).promptTokens);
  const empty = { kind: 'unknown', reason: `${label.name} answered 200 with a stream that holds no answer` } as const;
  const streaming = (more: ReadRun[], rest = next): Reply => ({
    kind: 'streaming',
    events: follow([...held, ...more], rest, body, { label, limits, onEnd }),
    endSoon: limits.endSoon,
  });
  try {
    for (;;) {
      const events = await next();
      if (!events) return isPromptKnown() ? streaming([]) : empty;
      for (const [at, event] of events.entries()) {
        const content = event.textBytes === undefined ? (event.content ?? readEvent(event, api)) : 'text';
        if (content === undefined) continue; // A comment, which keeps the connection alive.
        if (content === DONE) {
          if (isPromptKnown()) return streaming([event]);
          body.leave(REST);
          return empty;
        }
        if (content !== 'text' && content.error) {
          body.leave(REST);
          return errorReply(content.error, label);
        }
        if (content === 'text' || !content.isBeforeAnswer) return streaming(events.slice(at));
        held.push({ raw: event.raw, data: undefined, content });
        heldBytes += event.raw.length;
        if (held.length === HELD.countMax || heldBytes > HELD.bytesMax) return streaming(events.slice(at + 1));
      }
    }
  } catch (error) {
    if (!isPromptKnown()) throw error;
    return streaming([], () => Promise.reject(error));
  }
}

/** Yields the events read so far, then the rest. */
async function* follow(
  first: ReadRun[],
  next: () => Promise<ReadRun[] | undefined>,
  body: AnswerBody,
  { label, limits, onEnd }: Pick<StreamParts, 'label' | 'limits' | 'onEnd'>,
): AsyncGenerator<readonly ReadRun[], void, void> {
  try {
    for (let events: ReadRun[] | undefined = first; events; events = await next()) yield events;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new Error(`${label.name}: ${limits.exceeded() ?? label.clean(code ?? message)}`);
  } finally {
    onEnd();
    body.leave(REST);
  }
}

/** Returns a function that waits for the next events of a body: all that have arrived. Undefined at the end. */
function eventsOf(
  body: AnswerBody,
  limits: CallLimits,
  api: Api,
  apart: ReadApart,
): () => Promise<ReadRun[] | undefined> {
  const splitter = createEventSplitter(isWire(api) ? undefined : createPlainText());
  let hasEnded = false;
  /** Reads nothing more before a large event has been read: this keeps the order, and bounds the unread part of a stream. */
  async function withLarge(events: SseRun[]): Promise<ReadRun[]> {
    const all: ReadRun[] = [];
    for (const event of events) {
      const { raw } = event;
      const isApart = isLarge(raw) && event.textBytes === undefined;
      all.push(isApart ? { raw, data: undefined, content: await apart('event', raw, api) } : event);
    }
    return all;
  }
  return async () => {
    while (!hasEnded) {
      const chunk = await body.next();
      limits.firstByte();
      if (!chunk) break;
      const events = splitter.push(chunk);
      if (events.length) return events.some(({ raw }) => isLarge(raw)) ? withLarge(events) : events;
    }
    const last = hasEnded ? undefined : splitter.end();
    hasEnded = true;
    return last && [{ raw: last.raw, data: undefined, content: await apart('last', last.raw, api) }];
  };
}
