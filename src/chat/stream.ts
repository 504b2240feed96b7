import { Refusal } from '../refusal.ts';
import { eventsOfCompletion } from '../router/completion-events.ts';
import { DONE_EVENT, type SseEvent } from '../router/sse.ts';
import { createStreamReader, type Heard } from '../router/stream-reader.ts';
import { createTranscript } from '../router/transcript.ts';
import { readUsage } from '../router/usage.ts';
import type { Answered } from '../spend/spend.ts';
import { charge } from './charge.ts';
import { lost, spendOnModel } from './metered.ts';
import type { ChatApp, ChatRequest } from './quote.ts';

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
 * begins is thrown as ever. One that breaks afterwards is charged for what came of it, and thrown as `answer_lost`.
 */
export function streamChat(
  app: ChatApp,
  { includeUsage, ...request }: StreamRequest,
  listener: Listener,
): Promise<Answered<Buffer | null>> {
  return spendOnModel<Buffer | null>(app, request, true, async ({ operation, detail, route, reply }) => {
    const transcript = detail.keep ? createTranscript() : undefined;
    const tell = (bytes: Buffer) => {
      transcript?.push(bytes);
      return listener.write(bytes);
    };
    listener.begin();
    // An upstream that does not stream has answered in one piece: its stream is made here.
    const isStream = reply.kind === 'streaming';
    const source = isStream ? reply.events : eventsOfOnePiece(reply.json);
    const endSoon = isStream ? reply.endSoon : () => {};
    const { heard, usageEvent, broken } = await pass(source, detail.bounded.choices, tell, endSoon);
    const usage = heard.usage ?? (isStream ? undefined : readUsage(reply.json, 'chat'));
    const charged = charge(app, operation, detail, route, usage, heard.tokensDelivered);
    if (!heard.isWhole)
      return {
        outcome: { kind: 'done', ...charged, answer: null, reason: broken },
        answer: () => {
          throw lost(charged.charge);
        },
      };
    const tail = Buffer.concat(includeUsage && usageEvent ? [usageEvent, DONE_EVENT] : [DONE_EVENT]);
    transcript?.push(tail);
    const kept = transcript?.finish() ?? null;
    return {
      outcome: { kind: 'done', ...charged, answer: kept },
      async answer() {
        await listener.write(tail);
        return kept;
      },
    };
  });
}

type Passed = {
  heard: Heard;
  /** The event that says nothing but the usage, held back until the charge is on disk. */
  usageEvent: Buffer | undefined;
  /** Why the stream did not come to its end, if it did not. */
  broken: string;
};

/** A stream that is made here: what cannot be told of in chunks breaks it. */
async function* eventsOfOnePiece(completion: unknown): AsyncGenerator<readonly SseEvent[], void, void> {
  yield eventsOfCompletion(completion);
}

/**
 * Passes a stream on until it ends, and reads what it says of its usage. What came at once goes on at once: most events are
 * a word each. Nobody reads faster than the listener. After an error a usage may still follow, and is waited for a moment.
 */
async function pass(
  source: AsyncIterable<readonly SseEvent[]>,
  choices: number,
  tell: (bytes: Buffer) => Promise<void> | undefined,
  endSoon: () => void,
): Promise<Passed> {
  const reader = createStreamReader(choices);
  let usageEvent: Buffer | undefined;
  let broken = 'the stream ended before its end';
  let untold: Buffer[] = [];
  const tellAll = () => {
    const [one] = untold;
    if (!one) return undefined;
    const bytes = untold.length === 1 ? one : Buffer.concat(untold);
    untold = [];
    return tell(bytes);
  };
  const passed = (): Passed => ({ heard: reader.heard(), usageEvent, broken });
  let hasFailed = false;
  try {
    for await (const events of source) {
      for (const event of events) {
        const reading = reader.read(event);
        if (reading === 'pass') {
          if (!hasFailed) untold.push(event.raw);
        } else if (reading === 'usage') usageEvent = event.raw;
        else if (reading === 'end') {
          await tellAll();
          return passed();
        } else if (reading === 'error' && !hasFailed) {
          hasFailed = true;
          broken = 'the upstream told of an error in the middle of its stream';
          await tellAll();
          if (reader.heard().isWhole) return passed();
          endSoon();
        }
      }
      const full = tellAll();
      if (full) await full;
    }
  } catch (error) {
    if (!hasFailed) broken = (error as Error).message;
  }
  return passed();
}

/** The transcript of an earlier request with the same key. Refuses one that was too long to be kept. */
export function transcriptOf(answer: Buffer | null): Buffer {
  if (!answer) throw new Refusal('idempotency_key_expired');
  return answer;
}
