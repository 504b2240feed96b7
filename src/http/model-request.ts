import type { IncomingHttpHeaders } from 'node:http';
import * as v from 'valibot';
import { fingerprintOf } from '../base/fingerprint.ts';
import type { Scan } from '../base/json-scan.ts';
import { type ParsedText, parseText } from '../base/json-text.ts';
import type { Json } from '../base/parse-json.ts';
import { Refusal, type RefusalData, refusalOf, refusedFrom } from '../base/refusal.ts';
import { type Bounded, bound, type Native } from '../router/bound.ts';
import { cachedAs, type Forwards, withoutCacheControl } from '../router/cache-control.ts';
import type { Model } from '../router/catalogue.ts';
import { type Forwarded, forwardedFrom, writtenAgain } from '../router/forwarded.ts';
import {
  type ChatBody as Chat,
  type Measured,
  type MeasuredFor,
  measureChat,
  measuredFor,
  measureEmbeddings,
} from '../router/measure.ts';
import { measureCompletion, measureRanking } from '../router/measure-prompts.ts';
import { ChatBody } from '../wire/chat.ts';
import { CompletionBody, EmbeddingsBody, RankingBody, RouterChatBody } from '../wire/router.ts';
import { validate } from './body.ts';
import { conversationOf } from './conversation.ts';
import type { Dialect, KeptState, Translation } from './dialects/dialect.ts';

import { messagesDialect } from './dialects/messages.ts';
import { type MeasuredNative, nativeOf } from './dialects/native.ts';
import { responsesDialect } from './dialects/responses.ts';
import { type Tag, tagsOfBody } from './tags.ts';

/** OpenAI's own limits: 2048 inputs of 8192 tokens each. The limit on body bytes is reached first. */
const EMBEDDED_TOKENS_MAX = 2048 * 8192;

/** The members read here of a body in another API. Every other member is checked by the translation. */
export const DialectBody = v.looseObject({
  model: RouterChatBody.entries.model,
  stream: RouterChatBody.entries.stream,
});

/** The endpoints that take requests to models, by the kind of their bodies. */
export const KINDS = {
  chat: { schema: ChatBody, numbersMax: 0, keptIn: 'messages' },
  routerChat: { schema: RouterChatBody, numbersMax: 0, keptIn: 'messages' },
  completions: { schema: CompletionBody, numbersMax: EMBEDDED_TOKENS_MAX },
  embeddings: { schema: EmbeddingsBody, numbersMax: EMBEDDED_TOKENS_MAX },
  rerank: { schema: RankingBody, numbersMax: 0 },
  messages: { schema: DialectBody, numbersMax: 0, wire: messagesDialect },
  responses: { schema: DialectBody, numbersMax: 0, wire: responsesDialect },
  /** A message whose tokens are only counted: nothing is forwarded. */
  tokens: { schema: DialectBody, numbersMax: 0, wire: messagesDialect },
} as const;
export type ModelRequestKind = keyof typeof KINDS;
type Schema =
  | typeof RouterChatBody
  | typeof CompletionBody
  | typeof EmbeddingsBody
  | typeof RankingBody
  | typeof ChatBody
  | typeof DialectBody;
/** A kind of body. Long texts in the member `keptIn` are only measured and forwarded. */
type BodyKind = { schema: Schema; numbersMax: number; keptIn?: string; wire?: Dialect };
const dialectOf = (kind: ModelRequestKind): Dialect | undefined => (KINDS[kind] as BodyKind).wire;

/** The result of reading the body of a request to a model. Plain data, so that a worker thread can send it. */
export type ModelRequest =
  /** The body is JSON, but not a valid request. */
  | { invalid: RefusalData }
  | {
      invalid?: undefined;
      model: string;
      stream: boolean;
      includeUsage: boolean;
      /** True if the answer's usage must have its cost. */
      includeCost: boolean;
      /** SHA-256 of the canonical JSON of the body; for a request without a key, of its question. */
      fingerprint: Buffer;
      /** The tags in the body. */
      tags: Tag[];
      /** The conversation that it belongs to, for a model with several equal servers. */
      conversation: string | undefined;
      /** For a request in another API: the data needed to translate its answer, or the reason why it cannot be translated. */
      kept: KeptState | { refused: RefusalData } | undefined;
      /** The measurements for its price, or the reason why it cannot be priced; undefined if the model is not known. */
      measured: MeasuredRequest | { refused: RefusalData } | undefined;
      /** The model's settings when the request was measured: a reload may change them before the request is priced. */
      measuredFor: MeasuredFor | undefined;
    };
type MeasuredRequest = Measured & {
  forwards: Forwards;
  native?: MeasuredNative | undefined;
  /** The reason why only a server of the request's own API can answer it, if so. */
  nativeOnly?: RefusalData | undefined;
};
export type ValidModelRequest = Extract<ModelRequest, { model: string }>;

/** The way to read a body. `isKeyed`: an Idempotency-Key was sent, so every member counts in the fingerprint. */
export type ReadOrder = { kind: ModelRequestKind; isKeyed: boolean };

/**
 * Reads the body of a request to a model: parses, validates and measures it. `take` is called with the number of values
 * before they are created. Throws `invalid_json`, and the errors of `take`.
 */
export function readModelRequest(
  bytes: Buffer,
  { kind, isKeyed }: ReadOrder,
  find: (model: string) => MeasuredFor | undefined,
  take: (counts: Pick<Scan, 'values' | 'numbers'>) => void,
): ModelRequest {
  const { schema, numbersMax, keptIn } = KINDS[kind] as BodyKind;
  const parsed = parseText(bytes, numbersMax, take, undefined, keptIn);
  let body: v.InferOutput<Schema>;
  try {
    body = validate(schema, parsed.value);
  } catch (error) {
    return { invalid: refusedFrom(error) };
  }
  const { model } = body;
  const stream = body.stream === true;
  const options = body.stream_options as { include_usage?: unknown } | null | undefined;
  const known = find(model);
  const translated = translatedBy(dialectOf(kind), parsed.value as Json);
  return {
    model,
    stream,
    includeUsage: options?.include_usage === true,
    includeCost: COSTED.has(kind) && (body.usage as { include?: unknown } | null | undefined)?.include === true,
    fingerprint: fingerprintOf(parsed.text, isKeyed ? undefined : besideTheQuestion(parsed.value as Json)),
    tags: tagsOfBody(parsed.value as Record<string, unknown>),
    conversation: known?.isPooled ? conversationOf(parsed.value as Json) : undefined,
    kept: translated && ('refused' in translated ? translated : translated.kept),
    measured: known && !isRefused(translated) ? measure(bytes, parsed, kind, known, stream, translated) : undefined,
    measuredFor: known,
  };
}

/**
 * Members that are not part of the question: they name the caller, give tags, or control how the answer is stored or counted. A
 * retry without a key may differ in them (design 2.7). Each with the one value to which that applies, or null for any
 * (docs/clients.md).
 */
export const BESIDE_THE_QUESTION: ReadonlyMap<string, unknown> = new Map<string, unknown>([
  ['client_metadata', null],
  ['metadata', null],
  ['prompt_cache_key', null],
  ['prompt_cache_retention', null],
  ['safety_identifier', null],
  ['store', false],
  ['stream_options', null],
  ['user', null],
]);

/** Returns a predicate for the members of this body that are not part of the question. */
function besideTheQuestion(body: Readonly<Record<string, unknown>>): (name: string) => boolean {
  return (name) => {
    const only = BESIDE_THE_QUESTION.get(name);
    return only !== undefined && (only === null || body[name] === only);
  };
}

function translatedBy(wire: Dialect | undefined, raw: Json): Translation | { refused: RefusalData } | undefined {
  try {
    return wire?.translate(withoutCacheControl(raw));
  } catch (error) {
    return { refused: refusedFrom(error) };
  }
}

const isRefused = (it: object | undefined): it is { refused: RefusalData } => it !== undefined && 'refused' in it;

/** The kinds of bodies that may ask for the cost in the usage of their answer. */
const COSTED = new Set<ModelRequestKind>(['routerChat', 'completions']);

/** Returns a body without the member that asks for its cost: the same object if there is none. */
function withoutUsage(body: Json): Json {
  const { usage, ...rest } = body;
  return usage === undefined ? body : rest;
}

const MEASURES = { completions: measureCompletion, embeddings: measureEmbeddings, rerank: measureRanking };

/** Measures the parsed body: valibot drops "__proto__" and "constructor", and members that are not priced must be refused. */
function measure(
  bytes: Buffer,
  parsed: ParsedText,
  kind: ModelRequestKind,
  model: MeasuredFor,
  stream: boolean,
  translated: Translation | undefined,
): MeasuredRequest | { refused: RefusalData } {
  try {
    if (translated) return measureTranslated(bytes, parsed, kind, model, stream, translated);
    const raw = COSTED.has(kind) ? withoutUsage(parsed.value as Json) : (parsed.value as Json);
    if (kind === 'completions' || kind === 'embeddings' || kind === 'rerank') {
      const measured = MEASURES[kind](model, raw, stream);
      return { ...measured, forwards: { plain: forwardedFrom(bytes, parsed, measured.forwarded) } };
    }
    const plain = withoutCacheControl(raw);
    const measured = measureChat(model, plain as Chat, stream);
    if (plain === raw) return { ...measured, forwards: { plain: forwardedFrom(bytes, parsed, measured.forwarded) } };
    const cached = model.cachesPrompts ? cachedAs(raw, measured.forwarded) : {};
    return { ...measured, forwards: { plain: writtenAgain(plain, measured.forwarded), ...cached } };
  } catch (error) {
    return { refused: refusedFrom(error) };
  }
}

/**
 * Measures a request in another API: as the chat completion that it translates to, and in its own form for upstreams with
 * that API.
 */
function measureTranslated(
  bytes: Buffer,
  { outline, value }: ParsedText,
  kind: ModelRequestKind,
  model: MeasuredFor,
  stream: boolean,
  { chat, others, nativeOnly }: Translation,
): MeasuredRequest {
  const wire = dialectOf(kind) as Dialect;
  const raw = value as Json;
  const measured = measureChat(model, chat, stream, others);
  if (kind === 'tokens') return { ...measured, forwards: { plain: writtenAgain({}, []) } };
  const isMarked = model.cachesPrompts && withoutCacheControl(raw) !== raw;
  const cached = isMarked ? cachedAs(wire.translate(raw).chat, measured.forwarded) : {};
  return {
    ...measured,
    forwards: { plain: writtenAgain(chat, measured.forwarded), ...cached },
    native: model.wires.includes(wire.name)
      ? nativeOf(wire, raw, { bytes, outline }, measured.byRoute, model)
      : undefined,
    nativeOnly,
  };
}

/**
 * Bounds a request. Throws the refusal of a request that cannot be priced, and `gateway_unavailable` if the model changed after it
 * was measured. Its body is freed with the returned object. With `cutsNamed`, an output limit set by the caller may be lowered,
 * too. `now` decides how much of the learned bound is left. Some of `headers` are passed on for another API.
 */
export function boundRequest(
  model: Model,
  request: ValidModelRequest,
  cutsNamed = false,
  headers: IncomingHttpHeaders = {},
  now = 0,
): Bounded {
  const { measured, measuredFor: then } = request;
  const current = measuredFor(model);
  const isSame = then && then.sellsImages === current.sellsImages && then.imageUrls === current.imageUrls;
  if (!measured || !isSame || then.enough < current.enough)
    throw new Refusal('gateway_unavailable', 'The model changed while the request was read. Nothing was charged.', {
      retryAfterSeconds: 1,
    });
  if ('refused' in measured) throw refusalOf(measured.refused);
  const { forwards, native, nativeOnly, ...figures } = measured;
  request.measured = undefined;
  if (nativeOnly && !(native && model.routes.some(({ wires }) => wires.includes(native.wire))))
    throw refusalOf(nativeOnly);
  const own = native && { ...sendable(native, headers), isOnly: nativeOnly !== undefined };
  return bound(model, figures, forwards, cutsNamed, own, now);
}

/**
 * Adds the parts that depend on the output limit and on the headers. Holds nothing large: it is kept for the length of a
 * stream.
 */
function sendable({ kept, ...native }: MeasuredNative, headers: IncomingHttpHeaders): Omit<Native, 'isOnly'> {
  const wire = native.wire === 'messages' ? messagesDialect : responsesDialect;
  return { ...native, written: (outputTokens) => wire.written(kept, outputTokens), headers: wire.headers(headers) };
}

/** Returns the data for translating the answer to a request in another API. Throws the reason if it cannot be translated. */
export function keptOf({ kept }: ValidModelRequest): KeptState {
  if (isRefused(kept)) throw refusalOf(kept.refused);
  return kept as KeptState;
}

/** Returns every form in which the request may be forwarded. */
export function forwardedOf(request: ModelRequest): Forwarded[] {
  if (request.invalid || !request.measured || isRefused(request.measured)) return [];
  const { forwards, native } = request.measured;
  return [...Object.values(forwards), ...Object.values(native?.forwards ?? {})].filter((it) => it !== undefined);
}

/** Returns the valid request. Throws the refusal of an invalid one. */
export function validRequest(request: ModelRequest): ValidModelRequest {
  if (request.invalid) throw refusalOf(request.invalid);
  return request;
}
