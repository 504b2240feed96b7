import type { Operation, Outcome } from '../ledger/operation.ts';
import { Refusal } from '../refusal.ts';
import { eventsOfCompletion } from '../router/completion-events.ts';
import { DONE, DONE_EVENT, errorIn, mayTell, type SseEvent } from '../router/sse.ts';
import { createTranscript } from '../router/transcript.ts';
import {
  type ChatApp,
  type ChatRequest,
  call,
  charge,
  type Detail,
  noAnswer,
  quoteChat,
  replayChat,
  settleChat,
} from './chat.ts';
import { type Answered, spend } from './road.ts';
import type { GiveUp } from './running.ts';

/** Whoever the answer is streamed to. It may go away at any time: that changes nothing here. */
export type Listener = {
  /** From now on the answer is a stream. */
  begin(): void;
  /** Resolves when more can be taken, at once when nobody listens any more. */
  write(bytes: Buffer): Promise<void> | undefined;
};
export type StreamRequest = ChatRequest & {
  /** Whether the caller asked for the chunk with the usage (stream_options.include_usage). */
  includeUsage: boolean;
};

/**
 * One metered chat completion as a stream: the hold stands before the first byte, and the end of the stream is told only
 * when the charge is on disk. Answers the packed transcript, or null when none was kept. What is refused before the stream
 * begins is thrown as ever; what breaks afterwards is thrown too, and the operation waits for its policy.
 */
export function streamChat(
  app: ChatApp,
  { prepare, maxPrice, keep = true, includeUsage, ...request }: StreamRequest,
  listener: Listener,
): Promise<Answered<Buffer | null>> {
  return spend<Detail, Buffer | null>(
    app,
    { ...request, kind: 'chat' },
    {
      quote: () => quoteChat(app, prepare(), keep, maxPrice),
      finish: (operation, { detail }, giveUp) => finish(app, operation, detail, includeUsage, listener, giveUp),
      replay: (operation) => replayChat(app, operation),
    },
  );
}

async function finish(
  app: ChatApp,
  operation: Operation,
  detail: Detail,
  includeUsage: boolean,
  listener: Listener,
  giveUp: GiveUp,
): Promise<Buffer | null> {
  const { route, reply } = await call(app, operation, detail, true);
  detail.bounded.release();
  if (reply.kind === 'refused' || reply.kind === 'unknown') return settleChat(app, operation, noAnswer(reply), giveUp);

  const transcript = detail.keep ? createTranscript() : undefined;
  const tell = (bytes: Buffer) => {
    transcript?.push(bytes);
    return listener.write(bytes);
  };
  listener.begin();
  // An upstream that does not stream has answered in one piece: its stream is made here.
  const { answer, usageEvent, broken } = await pass(
    reply.kind === 'streaming' ? reply.events : eventsOfOnePiece(reply.json),
    tell,
  );
  const isWhole = broken === undefined || answer?.isLast === true;
  if (!isWhole) return settleChat(app, operation, { kind: 'unknown', reason: broken }, giveUp);

  const charged = charge(app, operation, detail, route, answer?.json);
  const tail = Buffer.concat(includeUsage && usageEvent ? [usageEvent, DONE_EVENT] : [DONE_EVENT]);
  transcript?.push(tail);
  const kept = transcript?.finish() ?? null;
  const outcome: Outcome<Buffer | null> & { kind: 'done' } = { kind: 'done', ...charged, answer: kept };
  await settleChat(app, operation, outcome, giveUp);
  await listener.write(tail);
  return kept;
}

/** What a stream said of its usage: the last count stands, and `isLast` says that nothing came after it, nor was to. */
type Counted = { json: unknown; isLast: boolean };
type Passed = {
  answer: Counted | undefined;
  /** The event that says nothing but the usage, held back until the charge is on disk. */
  usageEvent: Buffer | undefined;
  /** Why the stream did not come to its end, if it did not. */
  broken: string | undefined;
};

/** A stream that is made here: what cannot be told of in chunks breaks it. */
async function* eventsOfOnePiece(completion: unknown): AsyncGenerator<readonly SseEvent[], void, void> {
  yield eventsOfCompletion(completion);
}

/**
 * Passes a stream on and keeps what it says of its usage. What came at once goes on at once: most events are a word each.
 * Nobody reads faster than the listener.
 */
async function pass(
  source: AsyncIterable<readonly SseEvent[]>,
  tell: (bytes: Buffer) => Promise<void> | undefined,
): Promise<Passed> {
  let answer: Counted | undefined;
  let usageEvent: Buffer | undefined;
  let untold: Buffer[] = [];
  const tellAll = () => {
    const [one] = untold;
    if (!one) return undefined;
    const bytes = untold.length === 1 ? one : Buffer.concat(untold);
    untold = [];
    return tell(bytes);
  };
  try {
    for await (const events of source) {
      for (const event of events) {
        const data = answer || mayTell(event) ? event.data : undefined;
        if (data !== undefined) {
          const isEnd = data === DONE;
          if (isEnd || errorIn(data)) {
            await tellAll();
            const broken = isEnd ? undefined : 'the upstream told of an error in the middle of its stream';
            return { answer, usageEvent, broken };
          }
          const counted = countIn(data);
          if (counted) answer = counted;
          else if (answer) answer.isLast = false; // Its count was none of the whole.
          if (counted?.isLast) {
            usageEvent = event.raw;
            continue;
          }
        }
        untold.push(event.raw);
      }
      const full = tellAll();
      if (full) await full;
    }
    // It ended properly, though not with [DONE]: what it has counted by then is the count.
    return { answer, usageEvent, broken: answer ? undefined : 'the stream ended before its end' };
  } catch (error) {
    return { answer, usageEvent, broken: (error as Error).message };
  }
}

/** The usage in a chunk, if it has one. In OpenAI's shape the chunk without choices is the last. */
function countIn(data: string): Counted | undefined {
  if (!/"usage"\s*:(?!\s*null)/.test(data)) return undefined; // Most say that there is none yet.
  try {
    const json = JSON.parse(data) as { usage?: unknown; choices?: unknown } | null;
    if (json?.usage === undefined || json.usage === null) return undefined;
    return { json, isLast: Array.isArray(json.choices) && json.choices.length === 0 };
  } catch {
    return undefined;
  }
}

/** The transcript of an earlier request with the same key. Refuses one that was too long to be kept. */
export function transcriptOf(answer: Buffer | null): Buffer {
  if (!answer) throw new Refusal('idempotency_key_expired');
  return answer;
}
