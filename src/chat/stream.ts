import { isWire } from '../config/router.ts';
import { Refusal } from '../refusal.ts';
import { secondsSince } from '../router/call.ts';
import { eventsOfCompletion } from '../router/completion-events.ts';
import { type Api, createNativeReader, eventsOfAnswer } from '../router/native.ts';
import type { SseRun } from '../router/sse.ts';
import { createStreamReader, type Heard, type StreamReader } from '../router/stream-reader.ts';
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
type StreamRequest = ChatRequest & {
  /** True if the caller asked for the usage chunk (stream_options.include_usage). */
  includeUsage: boolean;
};

/**
 * Runs one metered chat completion as a stream: the hold is on disk before the first byte, and the end of the stream is sent
 * only when the charge is on disk. Returns the packed transcript, or null when it is too long, or neither stored nor wanted
 * by another client. Refusals before the stream begins are thrown as usual. A stream that breaks later is charged by the
 * usage if the upstream still reports it, else for what was delivered, and `answer_lost` is thrown.
 */
export function streamChat(
  app: ChatApp,
  { includeUsage, ...request }: StreamRequest,
  listener: Listener,
): Promise<Answered<Buffer | null>> {
  const { place, isKeyMadeUp } = request;
  return spendOnModel<Buffer | null>(app, request, true, async ({ operation, detail, route, reply, began }) => {
    const transcript = place || !isKeyMadeUp ? createTranscript() : undefined;
    const tell = (bytes: Buffer) => {
      transcript?.push(bytes);
      return listener.write(bytes);
    };
    listener.begin();
    // An upstream that does not stream has answered in one piece; the stream is made here.
    const isStream = reply.kind === 'streaming';
    const api = detail.bounded.apiOf(route);
    const source = isStream ? reply.events : eventsOfOnePiece(api, reply.json);
    const reader = isWire(api) ? createNativeReader(api) : createStreamReader(detail.bounded.choices);
    const endSoon = isStream ? reply.endSoon : () => {};
    const { heard, usageEvent, broken } = await pass(source, reader, tell, endSoon);
    if (isStream) app.events.streamEnded(operation, route, secondsSince(began));
    const usage = heard.usage ?? (isStream ? undefined : readUsage(reply.json, api));
    const charged = charge(app, operation, detail, route, usage, heard.tokensDelivered);
    if (!heard.isWhole)
      return {
        outcome: { kind: 'done', ...charged, answer: null, reason: broken },
        answer: () => {
          throw lost(operation.charge ?? charged.charge); // A policy or the operator may have charged it before.
        },
      };
    const tail = Buffer.concat(includeUsage && usageEvent ? [usageEvent, reader.end()] : [reader.end()]);
    transcript?.push(tail);
    const packed = () => transcript?.finish() ?? null;
    place?.offer(packed);
    const keptSeconds = detail.keptSeconds();
    const kept = keptSeconds ? packed() : null;
    return {
      outcome: { kind: 'done', ...charged, answer: kept, keptSeconds },
      async answer() {
        await listener.write(tail);
        return kept ?? (place?.isShared() ? packed() : null);
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

/** Makes a stream of one answer. Breaks if a completion cannot be expressed in chunks. */
async function* eventsOfOnePiece(api: Api, answer: unknown): AsyncGenerator<readonly SseRun[], void, void> {
  yield isWire(api) ? eventsOfAnswer(api, answer) : eventsOfCompletion(answer);
}

/**
 * Forwards a stream until it ends and reads its usage. Events that arrived in one chunk are forwarded in one write.
 * Back-pressure: reads no faster than the client. After an error, waits a moment for the usage, which may still follow.
 */
async function pass(
  source: AsyncIterable<readonly SseRun[]>,
  reader: StreamReader,
  tell: (bytes: Buffer) => Promise<void> | undefined,
  endSoon: () => void,
): Promise<Passed> {
  let usageEvent: Buffer | undefined;
  let broken = 'the stream ended early';
  let pending: Buffer[] = [];
  const flush = () => {
    const [one] = pending;
    if (!one) return undefined;
    const bytes = joined(one, pending);
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

/** Joins events. Those of one chunk lie beside each other in memory, so they are not copied. */
function joined(first: Buffer, all: readonly Buffer[]): Buffer {
  let { byteLength: length } = first;
  for (const it of all.slice(1)) {
    if (it.buffer !== first.buffer || it.byteOffset !== first.byteOffset + length) return Buffer.concat(all);
    length += it.length;
  }
  return Buffer.from(first.buffer, first.byteOffset, length);
}

/**
 * Returns the transcript of an earlier request with the same key. Throws `idempotency_key_expired` for one that was too
 * long to be stored.
 */
export function transcriptOf(answer: Buffer | null): Buffer {
  if (!answer) throw new Refusal('idempotency_key_expired');
  return answer;
}
