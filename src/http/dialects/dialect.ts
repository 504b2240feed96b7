import { hash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import type { Json } from '../../base/parse-json.ts';
import type { Refusal, RefusalData } from '../../base/refusal.ts';
import type { NativeWire } from '../../config/router.ts';
import type { ChatBody, MeasuredFor, Others } from '../../router/measure.ts';
import type { Texts } from './event-texts.ts';

/**
 * An API under the gateway's base URL beside chat completions. It is translated to one chat completion and back by pure
 * functions, so that holding, calling and settling know one shape (design, section 14).
 */
export type Dialect = {
  name: NativeWire;
  /** The path below the base URL; with the wallet and the key, the scope of idempotency. */
  route: string;
  /**
   * Translates a request. Throws `invalid_request` for a malformed request and `unsupported_parameter` for a feature that
   * is not offered.
   */
  translate(raw: Json): Translation;
  /**
   * Returns the way back for a request of which `kept` was kept. `seed` replaces an id that the model server does not name:
   * the same for a replay, another for any other request.
   */
  answers(kept: KeptState, seed: string): Answers;
  /** Describes how a translatable request is passed on to a model server that speaks this API. */
  native(raw: Json, model: Pick<MeasuredFor, 'imageUrls'>): NativeRequest;
  /** Returns the members of such a request that are rewritten, computed from the kept data. */
  written(kept: KeptState, outputTokens: number): Json;
  /** Returns the headers that are sent beside those of every request. */
  headers(headers: IncomingHttpHeaders): Record<string, string>;
};

/** The data of a request kept until its answer has ended: plain, as another thread may have read it, and small. */
export type KeptState = Readonly<Record<string, unknown>>;

/** A request in the form that is passed on. */
export type NativeRequest = {
  /** The request without the removed inner parts: the same object if nothing is removed. */
  value: Json;
  /** The members that are passed on unchanged. */
  names: string[];
  /** The data on which the rewritten members depend. */
  kept: KeptState;
  /** Members that lead to parts with images and with marks for prompt caches. */
  parts: readonly string[];
  /** An upper bound of the prompt tokens that neither bytes nor images bound. */
  addedTokens: number;
};

export type Translation = Translated & { kept: KeptState };

export type Translated = {
  chat: ChatBody;
  others: Others;
  /** The reason why only a server of this API can answer the request, if so. Its chat completion is then only measured. */
  nativeOnly?: RefusalData | undefined;
};

/** The way back. Holds nothing of the request but a few names: a stream may last for an hour. */
export type Answers = {
  /** Translates a complete chat completion. */
  whole(completion: unknown): object;
  /** Begins the translation of a stream of chat completion chunks. */
  stream(): StreamTranslator;
};

/** The text of server-sent events for each step of a stream. */
export type StreamTranslator = {
  chunk(chunk: unknown): Texts;
  /** The events at the end of a complete stream. */
  end(): Texts;
  /** The events at the end of a stream that broke off. */
  fail(refusal: Refusal, message: string, requestId: string): Texts;
  /** Takes note of an event that the model server sent in this API itself, and that passes unchanged. */
  passed?(event: unknown): void;
};

const SEED_DIGITS = 32;

/**
 * Returns an id derived from the model server's, so that a replay gets the same; without one, from the seed. That is hashed: a seed may
 * be long, and of any characters, and two of them never give one id.
 */
export function idFrom(prefix: string, upstreamId: unknown, seed: string): string {
  const given = typeof upstreamId === 'string' ? upstreamId.replace(/[^A-Za-z0-9_-]/g, '').slice(0, 100) : '';
  return `${prefix}_${given || hash('sha256', seed, 'hex').slice(0, SEED_DIGITS)}`;
}
