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

/** The client that an answer is streamed to. It may disconnect at any time, which changes nothing here. */
export type Listener = {
  /** Starts the stream: from now on the answer is one. */
  begin(): void;
  /** Resolves when more can be written; at once when the client has disconnected. */
  write(bytes: Buffer): Promise<void> | undefined;
};
export type StreamRequest = ChatRequest & {
  /** Whether the caller asked for the usage chunk (stream_options.include_usage). */
  includeUsage: boolean;
};

/**
 * Runs one metered chat completion as a stream: the hold is on disk before the first byte, and the end of the stream is
 * sent only when the charge is on disk. Returns the packed transcript, or null when none was kept. Refusals before the
 * stream begins are thrown as usual. A stream that breaks later is charged for what was delivered, and `answer_lost` is
 * thrown.
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
    // An upstream that does not stream has answered in one piece; the stream is made here.
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
  /** The event with nothing but the usage, held back until the charge is on disk. */
  usageEvent: Buffer | undefined;
  /** Why the stream broke off, if it did. */
  broken: string;
};

/** Makes a stream of one completion. Breaks if the completion cannot be expressed in chunks. */
async function* eventsOfOnePiece(completion: unknown): AsyncGenerator<readonly SseEvent[], void, void> {
  yield eventsOfCompletion(completion);
}

/**
 * Forwards a stream until it ends and reads its usage. Events that arrived in one chunk are forwarded in one write.
 * Back-pressure: reads no faster than the client. After an error, waits a moment for the usage, which may still follow.
 */
async function pass(
  source: AsyncIterable<readonly SseEvent[]>,
  choices: number,
  tell: (bytes: Buffer) => Promise<void> | undefined,
  endSoon: () => void,
): Promise<Passed> {
  const reader = createStreamReader(choices);
  let usageEvent: Buffer | undefined;
  let broken = 'the stream ended early';
  let pending: Buffer[] = [];
  const flush = () => {
    const [one] = pending;
    if (!one) return undefined;
    const bytes = pending.length === 1 ? one : Buffer.concat(pending);
    pending = [];
    return tell(bytes);
  };
  const passed = (): Passed => ({ heard: reader.heard(), usageEvent, broken });
  let hasFailed = false;
  try {
    for await (const events of source) {
      for (const event of events) {
        const reading = reader.read(event);
        if (reading === 'pass') {
          if (!hasFailed) pending.push(event.raw);
        } else if (reading === 'usage') usageEvent = event.raw;
        else if (reading === 'end') {
          await flush();
          return passed();
        } else if (reading === 'error' && !hasFailed) {
          hasFailed = true;
          broken = 'the upstream reported an error in the middle of its stream';
          await flush();
          if (reader.heard().isWhole) return passed();
          endSoon();
        }
      }
      const full = flush();
      if (full) await full;
    }
  } catch (error) {
    if (!hasFailed) broken = (error as Error).message;
  }
  return passed();
}

/**
 * Returns the transcript of an earlier request with the same key. Throws `idempotency_key_expired` for one that was too
 * long to be stored.
 */
export function transcriptOf(answer: Buffer | null): Buffer {
  if (!answer) throw new Refusal('idempotency_key_expired');
  return answer;
}
