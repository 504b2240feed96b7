import { hash } from 'node:crypto';
import type * as v from 'valibot';
import { canonicalBytes, type Outline, type ParsedText, parseText } from '../json-text.ts';
import { Refusal, type RefusalData, refusalOf, refusedFrom } from '../refusal.ts';
import { type Bounded, bound } from '../router/bound.ts';
import { cachedAs, type Forwards, withoutCacheControl } from '../router/cache-control.ts';
import type { Model } from '../router/catalogue.ts';
import { forwardedFrom, writtenAgain } from '../router/forwarded.ts';
import {
  type ChatBody as Chat,
  type Measured,
  type MeasuredFor,
  measureChat,
  measuredFor,
  measureEmbeddings,
} from '../router/measure.ts';
import { ChatBody } from '../wire/chat.ts';
import { EmbeddingsBody, RouterChatBody } from '../wire/router.ts';
import { validate } from './body.ts';
import { type Tag, tagsOfBody } from './tags.ts';

/** OpenAI's own limits: 2048 inputs of 8192 tokens each. The limit on body bytes is reached first. */
const EMBEDDED_TOKENS_MAX = 2048 * 8192;

/** The endpoints that take requests to models, by what their bodies are. */
export const KINDS = {
  chat: { schema: ChatBody, numbersMax: 0 },
  routerChat: { schema: RouterChatBody, numbersMax: 0 },
  embeddings: { schema: EmbeddingsBody, numbersMax: EMBEDDED_TOKENS_MAX },
} as const;
export type ModelRequestKind = keyof typeof KINDS;

/** What is known of a request to a model once its body has been read. Plain data, so that a worker thread can send it. */
export type ModelRequest =
  /** Is JSON, and not a valid request. */
  | { invalid: RefusalData }
  | {
      invalid?: undefined;
      model: string;
      stream: boolean;
      includeUsage: boolean;
      /** SHA-256 of the canonical JSON of the body; for a request without a key, of its bytes. */
      fingerprint: Buffer;
      /** The tags in the body. */
      tags: Tag[];
      /** What it is priced by, or why it cannot be priced; undefined where the model is not known. */
      measured: (Measured & { forwards: Forwards }) | { refused: RefusalData } | undefined;
      /** What the model was when the request was measured: a reload may change it before the request is priced. */
      measuredFor: MeasuredFor | undefined;
    };
export type ValidModelRequest = Extract<ModelRequest, { model: string }>;

/** How to read a body. `isKeyed`: an Idempotency-Key was sent, so the fingerprint is that of the meaning. */
export type ReadOrder = { kind: ModelRequestKind; isKeyed: boolean };

/**
 * Reads the body of a request to a model: parses, validates and measures it. `take` is told the number of values before
 * anything is made of them. Throws `invalid_json`, and what `take` throws.
 */
export function readModelRequest(
  bytes: Buffer,
  { kind, isKeyed }: ReadOrder,
  find: (model: string) => MeasuredFor | undefined,
  take: (outline: Pick<Outline, 'values' | 'numbers'>) => void,
): ModelRequest {
  const { schema, numbersMax } = KINDS[kind];
  const parsed = parseText(bytes, numbersMax, take);
  let body: v.InferOutput<typeof RouterChatBody | typeof EmbeddingsBody | typeof ChatBody>;
  try {
    body = validate(schema, parsed.value);
  } catch (error) {
    return { invalid: refusedFrom(error) };
  }
  const { model } = body;
  const stream = body.stream === true;
  const options = body.stream_options as { include_usage?: unknown } | null | undefined;
  const known = find(model);
  return {
    model,
    stream,
    includeUsage: options?.include_usage === true,
    fingerprint: hash('sha256', isKeyed ? canonicalBytes(bytes, parsed) : bytes, 'buffer'),
    tags: tagsOfBody(parsed.value as Record<string, unknown>),
    measured: known && measure(bytes, parsed, kind, known, stream),
    measuredFor: known,
  };
}

/** The parsed body is measured: valibot drops "__proto__" and "constructor", and what is not priced must be refused. */
function measure(bytes: Buffer, parsed: ParsedText, kind: ModelRequestKind, model: MeasuredFor, stream: boolean) {
  try {
    if (kind === 'embeddings') {
      const measured = measureEmbeddings(model, parsed.value as Record<string, unknown>);
      return { ...measured, forwards: { plain: forwardedFrom(bytes, parsed, measured.forwarded) } };
    }
    const raw = parsed.value as Chat;
    const plain = withoutCacheControl(raw);
    const measured = measureChat(model, plain, stream);
    if (plain === raw) return { ...measured, forwards: { plain: forwardedFrom(bytes, parsed, measured.forwarded) } };
    const cached = model.cachesPrompts ? cachedAs(raw, measured.forwarded) : {};
    return { ...measured, forwards: { plain: writtenAgain(plain, measured.forwarded), ...cached } };
  } catch (error) {
    return { refused: refusedFrom(error) };
  }
}

/**
 * Bounds a request. Throws the refusal of one that cannot be priced, and `gateway_unavailable` where the model changed after
 * it was measured. Its body is freed with what is returned. With `cutsNamed`, an output limit that the caller named may be
 * lowered, too.
 */
export function boundRequest(model: Model, request: ValidModelRequest, cutsNamed = false): Bounded {
  const { measured, measuredFor: then } = request;
  const now = measuredFor(model);
  const isSame = then && then.sellsImages === now.sellsImages && then.imageUrls === now.imageUrls;
  if (!measured || !isSame || then.enough < now.enough)
    throw new Refusal('gateway_unavailable', 'The model changed while the request was read. Nothing was charged.', {
      retryAfterSeconds: 1,
    });
  if ('refused' in measured) throw refusalOf(measured.refused);
  const { forwards, ...figures } = measured;
  request.measured = undefined;
  return bound(model, figures, forwards, cutsNamed);
}

/** Returns the valid request. Throws why it is none. */
export function validRequest(request: ModelRequest): ValidModelRequest {
  if (request.invalid) throw refusalOf(request.invalid);
  return request;
}
