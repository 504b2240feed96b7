import { parseBytes, parseNested, UncountedJson } from '../base/json-text.ts';
import { type Json, wordOf } from '../base/parse-json.ts';
import { isWire } from '../config/router.ts';
import { tellsFullContext } from './full-context.ts';
import { generatedBytes } from './generated.ts';
import {
  type Api,
  errorOf,
  generatedInAnswer,
  generatedInEvent,
  isAnswerOf,
  isLastEvent,
  isNativeEvent,
  isPreamble,
} from './native.ts';
import { DONE, type SseEvent, type SseRun } from './sse.ts';
import { type Counts, countsIn, findUsage, readUsage } from './usage.ts';

/**
 * The data read from answers and events of model servers: plain, and small for any source, so that another thread can read
 * it.
 */

const objectOf = (value: unknown): Json => (typeof value === 'object' && value !== null ? (value as Json) : {});

/**
 * An error in place of an answer: its status, or NaN, its message, and whether it states that the prompt does not fit the model's
 * context.
 */
export type AnswerError = { status: number; message: string; isContextFull: boolean };

/** The part of a complete answer that is read. */
export type AnswerData = {
  /** It holds generated output, an embedding or ranks. */
  isFilled: boolean;
  /** It has the shape of an answer of its API. An answer with only a usage counts as done, too. */
  isAnswer: boolean;
  error: AnswerError | undefined;
  /** The message of an error with a status of its own, and whether it states that the prompt does not fit the context. */
  message: string;
  isContextFull: boolean;
  usage: Counts | undefined;
  /** A bound on the tokens that were generated. */
  generatedBytes: number;
};

/** The part of an event that is read. */
type EventReading = {
  /** An error right after it is a definite refusal. */
  isBeforeAnswer: boolean;
  error: AnswerError | undefined;
  usage: Counts | undefined;
  /** The usage is that of one choice. */
  isUsageOfChoice: boolean;
  generatedBytes: number;
  /** In a chunk: whether it has choices, or an empty list of them. */
  choices: 'some' | 'none' | undefined;
  /** In a chunk: the choices that it ends. */
  finished: unknown[];
  /** In a native event: whether it names the stop reason, and whether it is the last. */
  stops: boolean;
  isLast: boolean;
};

/** The data read from an event of a stream: undefined for a comment. */
type EventContent = EventReading | typeof DONE | undefined;

/** An event, or a run of them, with the data already read from it: by another thread for a large one. */
export type ReadRun = SseRun & { readonly content?: EventContent };

/** A longer message is cut before it is searched for secrets. */
const MESSAGE_LENGTH_MAX = 64 * 1024;
/** No request has this many choices. */
const FINISHED_COUNT_MAX = 1000;
const INDEX_LENGTH_MAX = 20;

/** Reads a complete answer. Returns undefined if it is not a JSON object, or has more than 100 levels. */
export function readAnswer(bytes: Buffer, api: Api): AnswerData | undefined {
  let json: unknown;
  try {
    json = parseBytes(bytes)?.value;
  } catch (error) {
    if (!(error instanceof UncountedJson)) throw error;
  }
  if (typeof json !== 'object' || json === null) return undefined;
  const error = errorOf(api, json);
  return {
    isFilled: isFilled(api, json),
    isAnswer: holdsAnswer(api, json),
    error: error && answerError(error, json),
    message: messageIn(json),
    isContextFull: tellsFullContext(json),
    usage: countsIn(findUsage(json)),
    generatedBytes: isWire(api) ? generatedInAnswer(json) : generatedBytes(json),
  };
}

/** Reads an event. Throws if it has more than 100 levels. */
export function readEvent(event: Pick<SseEvent, 'data' | 'parsed'>, api: Api): EventContent {
  const { data } = event;
  if (data === undefined || data === DONE) return data;
  const json = jsonIn(event, data);
  const error = errorOf(api, json);
  const { type, message, response, usage, choices, delta } = objectOf(json);
  const isNative = isWire(api);
  const holder = type === 'message_start' ? message : response;
  const given = isNative ? usage || objectOf(holder).usage : findUsage(json);
  return {
    isBeforeAnswer: isNative ? !isNativeEvent(json) || isPreamble(json) : !holdsAnswer(api, json),
    error: error && answerError(error, json),
    usage: countsIn(given),
    isUsageOfChoice: !isNative && given !== usage,
    generatedBytes: isNative ? generatedInEvent(objectOf(json)) : generatedBytes(json),
    choices: Array.isArray(choices) ? (choices.length ? 'some' : 'none') : undefined,
    finished: isNative || !Array.isArray(choices) ? [] : finishedIn(choices),
    stops: isNative && type === 'message_delta' && Boolean(objectOf(delta).stop_reason),
    isLast: isNative && isLastEvent(json),
  };
}

/** Returns the value of an event's data, which is parsed once. Undefined if it is not JSON; throws as `parseEvent` does. */
export function jsonIn(event: Pick<SseEvent, 'parsed'>, data: string | Buffer): unknown {
  event.parsed ??= { value: parseEvent(data) };
  return event.parsed.value;
}

/** Parses the data of an event. Returns undefined if it is not JSON; throws if it has more than 100 levels. */
export function parseEvent(data: string | Buffer): unknown {
  try {
    return (typeof data === 'string' ? parseNested(data, undefined, Number.POSITIVE_INFINITY) : parseBytes(data))
      ?.value;
  } catch (cause) {
    throw new Error('an event is nested deeper than any model server writes', { cause });
  }
}

function finishedIn(choices: unknown[]): unknown[] {
  const finished = new Set<unknown>();
  for (const it of choices) {
    const { finish_reason: reason, index } = objectOf(it);
    if (reason && finished.size < FINISHED_COUNT_MAX) finished.add(plainIndex(index ?? 0));
  }
  return [...finished];
}

const plainIndex = (index: unknown) => (typeof index === 'number' ? index : wordOf(index).slice(0, INDEX_LENGTH_MAX));

/** Returns whether a body contains generated output, an embedding or ranks. */
function isFilled(api: Api, json: unknown): boolean {
  if (api === 'rerank') return isFilledList(ranksIn(json));
  const { choices, data, content, output } = objectOf(json);
  return [choices, data, content, output].some(isFilledList);
}

/** Returns the ranks in an answer: a member of it, or the answer itself (SGLang). */
const ranksIn = (json: unknown): unknown => (Array.isArray(json) ? json : objectOf(json).results);

const isFilledList = (it: unknown) => Array.isArray(it) && it.length > 0;

function holdsAnswer(api: Api, json: unknown): boolean {
  if (isWire(api)) return isAnswerOf(api, json);
  const { choices, data } = objectOf(json);
  const list = api === 'embeddings' ? data : api === 'rerank' ? ranksIn(json) : choices;
  return isFilledList(list) || readUsage(json, api) !== undefined;
}

const answerError = (error: object, json: unknown): AnswerError => {
  const isContextFull = tellsFullContext(json);
  const status = Number(codeIn(error));
  // OpenAI names it by a word, where others name a status.
  return { status: isContextFull && !(status >= 400) ? 400 : status, message: messageIn(error), isContextFull };
};

/** Returns the message in an error body, in the shapes that model servers use; empty when there is none. */
function messageIn(json: unknown): string {
  const { error, message, detail } = objectOf(json);
  for (const it of [typeof error === 'string' ? error : objectOf(error).message, message, detail])
    if (typeof it === 'string' && it) return it.slice(0, MESSAGE_LENGTH_MAX);
  return '';
}

/** Returns the code in an error body: a status, a word, or nothing. */
function codeIn(json: object): unknown {
  const { error, code } = json as Json;
  const given = typeof error === 'object' && error !== null ? (error as Json).code : code;
  return typeof given === 'object' && given !== null ? undefined : given;
}
