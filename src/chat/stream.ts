import { Refusal } from '../base/refusal.ts';
import { isWire } from '../config/router.ts';
import type { ReadRun } from '../router/answer-data.ts';
import type { AnswerStream } from '../router/answer-stream.ts';
import { isLarge } from '../router/apart.ts';
import { secondsSince } from '../router/call.ts';
import { createNativeReader } from '../router/native-reader.ts';
import type { Reply } from '../router/reply.ts';
import { createStreamReader, type Heard, type StreamReader } from '../router/stream-reader.ts';
import { createTranscript } from '../router/transcript.ts';
import { inTurns } from '../router/turns.ts';
import type { Answered } from '../spend/spend.ts';
import { charge, sizeOf } from './charge.ts';
import { cancelled, lost, outOfContext, spendOnModel } from './metered.ts';
import type { ChatApp, ChatRequest } from './quote.ts';

/** The client that an answer is streamed to. It may disconnect at any time; later writes are dropped. */
export type Listener = {
  /** Starts the stream: from now on the response is a stream. */
  begin(): void;
  /**
   * Resolves when more can be written; at once when the client has disconnected. `events` are those in the bytes, where they have
   * been split.
   */
  write(bytes: Buffer, events?: readonly ReadRun[]): Promise<void> | undefined;
};
type StreamRequest = ChatRequest & {
  /** True if the caller asked for the usage chunk (stream_options.include_usage). */
  includeUsage: boolean;
};

/**
 * Runs one metered chat completion as a stream: the hold is on disk before the first byte, and the end of the stream is sent only
 * when the charge is on disk. Returns the packed transcript, or null when it is too long, or neither stored nor wanted by another
 * client. Refusals before the stream begins are thrown as usual. A stream that breaks later is charged by the usage if the upstream
 * still reports it, else by the delivered text, and throws `answer_lost`, or `context_length_exceeded` if that is the upstream's
 * reason. A stream that is stopped because its clients have gone throws `answer_lost`, too.
 */
export function streamChat(
  app: ChatApp,
  { includeUsage, ...request }: StreamRequest,
  listener: Listener,
): Promise<Answered<Buffer | null>> {
  const { claim, isKeyMadeUp } = request;
  return spendOnModel<Buffer | null>(app, request, true, async (answering) => {
    const { operation, detail, route, reply, began, isCancelled, memory } = answering;
    const transcript = claim || !isKeyMadeUp ? createTranscript(memory) : undefined;
    const sendPiece = (bytes: Buffer, events?: readonly ReadRun[]) => {
      transcript?.push(bytes);
      return listener.write(bytes, events);
    };
    const send: SendEvents = (bytes, events) =>
      isLarge(bytes) ? inTurns(bytes, (piece) => sendPiece(piece)) : sendPiece(bytes, events);
    listener.begin();
    const isStream = reply.kind === 'streaming';
    const api = detail.bounded.apiOf(route);
    const { choices } = detail.bounded;
    const { heard, usageEvent, end, broken } = isStream
      ? await pass(reply, isWire(api) ? createNativeReader(api) : createStreamReader(choices), send)
      : await passWhole(
          await app.readApart(app.tenantOf(operation.walletId))('stream', reply.body, api, choices),
          send,
        );
    if (isStream) app.events.streamEnded(operation, route, secondsSince(began));
    // A complete answer is charged by its own usage, even if it could not be turned into a stream.
    const charged = charge(app, operation, detail, route, isStream ? heard : sizeOf(reply.data));
    if (!heard.isWhole && isCancelled()) return cancelled(operation, charged);
    if (!heard.isWhole)
      return {
        outcome: { kind: 'done', ...charged, answer: null, reason: broken },
        answer: () => {
          const charge = operation.charge ?? charged.charge; // A policy or the operator may have charged it before.
          throw heard.isContextFull ? outOfContext(charge) : lost(charge);
        },
      };
    const tail = Buffer.concat(includeUsage && usageEvent ? [usageEvent, end] : [end]);
    if (transcript) await (isLarge(tail) ? inTurns(tail, transcript.push) : transcript.push(tail));
    const packed = () => transcript?.finish() ?? null;
    claim?.offer(packed);
    const kept = detail.keep(packed);
    return {
      outcome: { kind: 'done', ...charged, ...kept },
      async answer() {
        await listener.write(tail);
        return kept.answer ?? (claim && !claim.isShared() ? null : packed());
      },
    };
  });
}

type Passed = {
  heard: Heard;
  /** The event with nothing but the usage, held back until the charge is on disk. */
  usageEvent: Buffer | undefined;
  /** The end of the stream for the client, once it is whole. */
  end: Buffer;
  /** The reason why the stream broke off, if it did. */
  broken: string;
};

type SendEvents = (bytes: Buffer, events?: readonly ReadRun[]) => Promise<void> | undefined;

/** Forwards the stream made of a complete answer, for an upstream that does not stream. */
async function passWhole({ events, ...stream }: AnswerStream, tell: SendEvents): Promise<Passed> {
  if (events.length) await tell(events);
  return stream;
}

/**
 * Forwards a stream until it ends and reads its usage. Events of one chunk are forwarded in one write, and read no faster than by
 * the client. After an error, waits a moment for the usage, which may still follow.
 */
async function pass(
  { events: source, endSoon }: Extract<Reply, { kind: 'streaming' }>,
  reader: StreamReader,
  tell: SendEvents,
): Promise<Passed> {
  let usageEvent: Buffer | undefined;
  let broken = 'the stream ended early';
  let pending: ReadRun[] = [];
  const flush = () => {
    const events = pending;
    const [one] = events;
    if (!one) return undefined;
    pending = [];
    return tell(joined(one.raw, events), events);
  };
  const passed = (): Passed => ({ heard: reader.heard(), usageEvent, end: reader.end(), broken });
  let hasFailed = false;
  try {
    for await (const events of source) {
      for (const event of events) {
        const reading = reader.read(event);
        if (reading === 'pass') {
          if (!hasFailed) pending.push(event);
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
function joined(first: Buffer, all: readonly ReadRun[]): Buffer {
  if (all.length === 1) return first;
  let length = 0;
  for (const { raw } of all) {
    if (raw.buffer !== first.buffer || raw.byteOffset !== first.byteOffset + length)
      return Buffer.concat(all.map((it) => it.raw));
    length += raw.length;
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
