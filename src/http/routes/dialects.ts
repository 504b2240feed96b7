import * as v from 'valibot';
import { nextTurn } from '../../base/turn.ts';
import { chat } from '../../chat/chat.ts';
import { streamChat, transcriptOf } from '../../chat/stream.ts';
import { findWallet, type Wallet } from '../../ledger/wallet.ts';
import { jsonIn, type ReadRun } from '../../router/answer-data.ts';
import { isLarge } from '../../router/apart.ts';
import { isLastEvent, isNativeEvent } from '../../router/native.ts';
import { createEventSplitter, DONE, type SseEvent } from '../../router/sse.ts';
import { inTurns } from '../../router/turns.ts';
import type { AnswerReadings } from '../answer-readings.ts';
import type { Dialect, StreamTranslator } from '../dialects/dialect.ts';
import { messagesDialect } from '../dialects/messages.ts';
import { responsesDialect } from '../dialects/responses.ts';
import { type Endpoint, endpoint, type HttpApp } from '../endpoint.ts';
import { asBytes, type EventStream, writePieces } from '../event-stream.ts';
import type { Allowance } from '../memory-quota.ts';
import { boundRequest, DialectBody, keptOf } from '../model-request.ts';
import { paidComment, paidHeaders, planHeaders } from '../paid.ts';
import { CHAT_BYTES_MAX } from './chat.ts';
import { adviseCaller, find, paidRequest, refuseOthers, replayTranscript } from './router.ts';

const planOf = (app: HttpApp, walletId: string) => planHeaders(findWallet(app.ledger.read, walletId) as Wallet);

export const createMessage = translated('One answer in the shape of Anthropic’s Messages', messagesDialect, planOf);
export const createResponse = translated('One answer in the shape of OpenAI’s Responses', responsesDialect);

/** Builds an endpoint that speaks another API: it translates to one chat completion, which then runs like all others. */
function translated(
  summary: string,
  wire: Dialect,
  extraHeaders: (app: HttpApp, walletId: string) => Record<string, string> = () => ({}),
): Endpoint {
  return endpoint({
    summary,
    scope: 'router',
    idempotent: 'optional',
    body: DialectBody,
    modelRequest: wire.name,
    bodyBytesMax: CHAT_BYTES_MAX,
    answer: v.looseObject({}),
    example: { answer: {} },
    async run(app, { principal, request: original, isKeyMadeUp, ...call }) {
      refuseOthers(principal, original.model);
      const kept = keptOf(original);
      const caller = { principal, isKeyMadeUp, ...call };
      const { request, headers } = await paidRequest(app, caller, original, wire.route, () => {
        const model = find(app, principal, original.model, 'chat');
        return { model, bounded: boundRequest(model, original, true, call.headers, app.clock.now()) };
      });
      const { walletId } = principal;
      const apart = app.readApart(app.tenantOf(walletId));
      if (!original.stream) {
        const { answer, replayed, paid } = await adviseCaller(isKeyMadeUp, chat(app, request));
        const translate = () => apart('translated', answer, wire.name, kept, call.idempotencyKey);
        const name = `${wire.name}\n${call.idempotencyKey}`;
        const translated = await (isLarge(answer) ? translatedOnce(answer, name, translate) : translate());
        const all = { ...paidHeaders(app, request, paid), ...headers(), ...extraHeaders(app, walletId) };
        return { body: translated ?? answer, replayed, headers: all };
      }
      const translator = wire.answers(kept, call.idempotencyKey).stream();
      return {
        async stream(client: EventStream, share: Allowance) {
          const translating = translateStream(apart, client, translator, () => paidComment(app, request));
          const events = {
            ...translating,
            begin: (more?: Record<string, string>) =>
              client.begin({ ...headers(), ...extraHeaders(app, walletId), ...more }),
          };
          const streamed = adviseCaller(
            isKeyMadeUp,
            streamChat(app, { ...request, includeUsage: true }, events),
            client.hasBegun,
          );
          const { answer, replayed } = await streamed;
          if (!replayed) return;
          original.measured = undefined; // A replay never prepares, so the body is still referenced.
          await replayTranscript(transcriptOf(answer), events, share);
        },
        errorEvent: translator.fail,
      };
    },
  });
}

/** Translations of large answers that are in memory, by API and key. */
const translations = new WeakMap<Buffer, Map<string, ReturnType<Translating>>>();
type Translating = () => Buffer | undefined | Promise<Buffer | undefined>;

/** Translates an answer once for all requests that have the same key and wait for it together. */
function translatedOnce(answer: Buffer, name: string, translate: Translating): ReturnType<Translating> {
  const known = translations.get(answer) ?? new Map<string, ReturnType<Translating>>();
  translations.set(answer, known);
  if (!known.has(name)) known.set(name, translate());
  return known.get(name);
}

/**
 * Returns a stream that takes chat completion chunks and writes the events of another API. Events that are already in that
 * API pass unchanged, with `comment` before the last. Await each write before the next.
 */
function translateStream(
  apart: AnswerReadings,
  client: EventStream,
  translator: StreamTranslator,
  comment: () => Buffer,
): EventStream {
  const splitter = createEventSplitter();
  let isNative: boolean | undefined;

  function passed(raw: Buffer, json: unknown, isLast: boolean): Buffer {
    translator.passed?.(json);
    return isLast ? Buffer.concat([comment(), raw]) : raw;
  }

  function translated(event: SseEvent): Iterable<Buffer | string> {
    const { raw, data } = event;
    if (data === undefined) return [raw]; // A comment, which keeps the connection alive.
    const json = jsonIn(event, data);
    isNative ??= isNativeEvent(json);
    if (isNative) return [passed(raw, json, isLastEvent(json))];
    if (data !== DONE) return translator.chunk(json);
    const before = comment();
    const end = translator.end();
    return Array.isArray(end) ? [before, ...end] : inOrder<Buffer | string>([[before], end]);
  }

  async function writeLarge(raw: Buffer): Promise<void> {
    const { native, isLast, response, chunks } = await apart('chunk', raw);
    isNative ??= native;
    if (isNative) return client.write(passed(raw, { response }, isLast));
    for (const chunk of chunks) {
      await writePieces(client, translator.chunk(chunk));
      await nextTurn();
    }
  }

  function writeAll(events: readonly SseEvent[]): Promise<void> | undefined {
    const pieces = events.map(translated);
    if (!pieces.every(Array.isArray)) return writePieces(client, inOrder(pieces));
    const all = Buffer.concat(pieces.flat().map(asBytes));
    return all.length ? client.write(all) : undefined;
  }

  /** Only the first event can be large: those behind it have arrived in one piece with its end. */
  async function writeBehindLarge([first, ...others]: readonly SseEvent[]): Promise<void> {
    await writeLarge((first as SseEvent).raw);
    await writeAll(others);
  }

  /** Returns the events one by one. Runs of plain text, and those that another thread has read, are not split yet. */
  const apartIn = (events: readonly ReadRun[]): readonly SseEvent[] =>
    events.some(isUnsplit) ? events.flatMap((it) => (isUnsplit(it) ? splitter.push(it.raw) : it)) : events;
  const isUnsplit = (it: ReadRun) => it.textBytes !== undefined || it.content !== undefined;

  function writePiece(bytes: Buffer, runs?: readonly ReadRun[]): Promise<void> | undefined {
    const events = runs ? apartIn(runs) : splitter.push(bytes);
    return events[0] && isLarge(events[0].raw) ? writeBehindLarge(events) : writeAll(events);
  }

  return {
    ...client,
    write: (bytes, events) =>
      isLarge(bytes) ? inTurns(bytes, (piece) => writePiece(piece)) : writePiece(bytes, events),
  };
}

function* inOrder<T>(lists: readonly Iterable<T>[]): Generator<T> {
  for (const it of lists) yield* it;
}

export const countTokens = endpoint({
  summary: 'Estimate the tokens of a message, free of charge',
  scope: 'router',
  body: DialectBody,
  modelRequest: 'tokens',
  bodyBytesMax: CHAT_BYTES_MAX,
  answer: v.object({ input_tokens: v.number() }),
  example: { answer: { input_tokens: 12 } },
  run(app, { principal, request }) {
    const model = find(app, principal, request.model, 'chat');
    keptOf(request);
    return { body: { input_tokens: boundRequest(model, request).estimate } };
  },
});
