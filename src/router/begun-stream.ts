import { isWire } from '../config/router.ts';
import type { AnswerBody } from '../net/watched-pool.ts';
import { isLarge, type ReadApart } from './apart.ts';
import type { CallLimits } from './call-limits.ts';
import type { Api } from './native.ts';
import { createPlainText } from './plain-text.ts';
import { errorReply, type Label, type Reply } from './reply.ts';
import { createEventSplitter, DONE, type SseRun } from './sse.ts';
import { readEvent, type SaidRun } from './told.ts';
import { toldIn } from './usage.ts';

/** Limits on the wait, in milliseconds and bytes, after the end of a stream, so that its connection can be reused. */
const REST = { bytesMax: 64 * 1024, milliseconds: 2000 };

type StreamParts = {
  api: Api;
  apart: ReadApart;
  label: Label;
  limits: CallLimits;
  /** Called once the events have been read or returned. */
  over: () => void;
};

/**
 * Waits for the first event with content: an error there is a definite refusal, before anything was forwarded. A stream
 * that ends before such an event counts as begun if it has reported its prompt: that part of its cost is known.
 */
export async function beginStream(body: AnswerBody, { api, apart, label, limits, over }: StreamParts): Promise<Reply> {
  const next = eventsOf(body, limits, api, apart);
  const held: SaidRun[] = [];
  const isPromptTold = () => held.some(({ said }) => typeof said === 'object' && toldIn(said.usage, api).promptTokens);
  const empty = { kind: 'unknown', reason: `${label.name} answered 200 with a stream that holds no answer` } as const;
  const streaming = (more: SaidRun[], rest = next): Reply => ({
    kind: 'streaming',
    events: follow([...held, ...more], rest, body, { label, limits, over }),
    endSoon: limits.endSoon,
  });
  try {
    for (;;) {
      const events = await next();
      if (!events) return isPromptTold() ? streaming([]) : empty;
      for (const [at, event] of events.entries()) {
        const said = event.textBytes === undefined ? (event.said ?? readEvent(event, api)) : 'text';
        if (said === undefined) continue; // A comment, which keeps the connection alive.
        if (said === DONE) {
          if (isPromptTold()) return streaming([event]);
          body.leave(REST);
          return empty;
        }
        if (said !== 'text' && said.error) {
          body.leave(REST);
          return errorReply(said.error, label);
        }
        if (said === 'text' || !said.isBeforeAnswer) return streaming(events.slice(at));
        held.push({ raw: event.raw, data: undefined, said });
      }
    }
  } catch (error) {
    if (!isPromptTold()) throw error;
    return streaming([], () => Promise.reject(error));
  }
}

/** Yields the events read so far, then the rest. */
async function* follow(
  first: SaidRun[],
  next: () => Promise<SaidRun[] | undefined>,
  body: AnswerBody,
  { label, limits, over }: Pick<StreamParts, 'label' | 'limits' | 'over'>,
): AsyncGenerator<readonly SaidRun[], void, void> {
  try {
    for (let events: SaidRun[] | undefined = first; events; events = await next()) yield events;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new Error(`${label.name}: ${limits.exceeded() ?? label.clean(code ?? message)}`);
  } finally {
    over();
    body.leave(REST);
  }
}

/** Returns a function that waits for the next events of a body: all that have arrived. Undefined at the end. */
function eventsOf(
  body: AnswerBody,
  limits: CallLimits,
  api: Api,
  apart: ReadApart,
): () => Promise<SaidRun[] | undefined> {
  const splitter = createEventSplitter(isWire(api) ? undefined : createPlainText());
  let isOver = false;
  /** Reads nothing more before a large event has been read: this keeps the order, and bounds the unread part of a stream. */
  async function withLarge(events: SseRun[]): Promise<SaidRun[]> {
    const all: SaidRun[] = [];
    for (const event of events) {
      const { raw } = event;
      const isApart = isLarge(raw) && event.textBytes === undefined;
      all.push(isApart ? { raw, data: undefined, said: await apart('event', raw, api) } : event);
    }
    return all;
  }
  return async () => {
    while (!isOver) {
      const chunk = await body.next();
      limits.firstByte();
      if (!chunk) break;
      const events = splitter.push(chunk);
      if (events.length) return events.some(({ raw }) => isLarge(raw)) ? withLarge(events) : events;
    }
    const last = isOver ? undefined : splitter.end();
    isOver = true;
    return last && [{ raw: last.raw, data: undefined, said: await apart('last', last.raw, api) }];
  };
}
