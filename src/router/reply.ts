import type { RefusalCode } from '../base/refusal.ts';
import type { Whole } from '../net/watched-pool.ts';
import type { AnswerData, AnswerError, ReadRun } from './answer-data.ts';
import type { ReadApart } from './apart.ts';
import { type Api, PATHS } from './native.ts';

// What an answer of a model server means for the money: answered, refused, or unknown.

/** Longer answers are not read to the end and count as unreadable. */
const ANSWER_MIB_MAX = 32;
const ANSWER_BYTES_MAX = ANSWER_MIB_MAX * 1024 * 1024;
const ERROR_BYTES_MAX = 64 * 1024;

/** Returns the most bytes that are read of an answer of this status. */
export const answerBytesMax = (status: number) => (status === 200 ? ANSWER_BYTES_MAX : ERROR_BYTES_MAX);

/** A definite refusal. `elsewhere` means that another upstream may do better, because the request is not at fault. */
export type Refused = {
  kind: 'refused';
  code: RefusalCode;
  reason: string;
  retryAfterSeconds?: number;
  elsewhere: boolean;
  /** The correction needed if the configuration is at fault. For the operator's log, never for the caller. */
  fault?: string;
  /** No connection could be made. */
  isUnreachable?: true;
};
/** The reply of an upstream. Only `answered` has certainly cost money; `unknown` may have. */
export type Reply =
  | { kind: 'answered'; body: Buffer; data: AnswerData }
  /**
   * The first events have arrived. Later errors are thrown while reading; the events must be read or returned. After
   * `endSoon`, the stream breaks within two seconds.
   */
  | { kind: 'streaming'; events: AsyncIterable<readonly ReadRun[]>; endSoon: () => void }
  | Refused
  /**
   * `isAlive`: the server works, but its answer is unknown, as it is longer than the limit, takes longer than the call may, or
   * was held back here for too long. `isLate`: the time of the call was over, here or at a server on the way.
   */
  | { kind: 'unknown'; reason: string; isAlive?: true; isLate?: true }
  /** Purser ended the call before an answer began. `isSent`: the server may have begun to work. */
  | { kind: 'cancelled'; reason: string; isSent: boolean };

/** The name of a model server in messages, and the function that strikes its key from the texts that it sends. */
export type Label = { name: string; clean: (text: string) => string };

/** Statuses of a time-out somewhere on the way: it is unknown whether anything was generated (design, section 8). */
const TIME_OUTS = new Set([408, 425, 499, 504, 522, 524]);

/** Judges a complete answer. Throws its error if it broke off, unless its status is conclusive. */
export async function replyOf(
  { statusCode: status, headers, bytes, error: broken }: Whole,
  api: Api,
  { name, clean }: Label,
  apart: ReadApart,
): Promise<Reply> {
  // The status of a redirect or a 4xx is conclusive, even if its body breaks off; an error of the server has to be whole.
  if (broken && !(status >= 300 && status < 500)) throw broken;
  const data = bytes && (await apart('answer', bytes, api));
  if (status === 200) {
    if (!bytes)
      return { kind: 'unknown', reason: `${name} answered 200 with more than ${ANSWER_MIB_MAX} MiB`, isAlive: true };
    if (!data) return { kind: 'unknown', reason: `${name} answered 200 with a body that cannot be read` };
    const error = data.isFilled ? undefined : data.error;
    if (!error && !data.isAnswer)
      return { kind: 'unknown', reason: `${name} answered 200 with something else than an answer of ${PATHS[api]}` };
    return error ? errorReply(error, { name, clean }) : { kind: 'answered', body: bytes, data };
  }
  if (TIME_OUTS.has(status)) return { kind: 'unknown', reason: `${name} answered ${status}`, isLate: true };
  if (status < 300) return { kind: 'unknown', reason: `${name} answered ${status}` };
  if (data?.isFilled) return { kind: 'unknown', reason: `${name} answered ${status} with an answer in its body` };
  return refusal(status, clean(data?.message ?? ''), name, {
    isContextFull: data?.isContextFull ?? false,
    retryAfter: retryAfter(headers['retry-after']),
    location: addressIn(headers.location, clean),
  });
}

/** Maps a status 200 with an error in place of an answer to a refusal, by the status that the error names, if any. */
export function errorReply({ status, message, isContextFull }: AnswerError, { name, clean }: Label): Refused {
  // A request that timed out may still be running: it is not charged, and no other upstream is asked.
  const elsewhere = !TIME_OUTS.has(status);
  if (elsewhere && status >= 400 && status < 500) return refusal(status, clean(message), name, { isContextFull });
  const reason = 'The model server refused to answer. Nothing was charged.';
  return { kind: 'refused', code: 'gateway_unavailable', reason, elsewhere };
}

type ReplyDetails = { isContextFull: boolean; retryAfter?: number | undefined; location?: string | undefined };

/**
 * Maps a complete answer with a status from 300 up and no generated output to a definite refusal, for any server. The
 * caller sees only faults that they can fix; the rest is between the operator and the upstream.
 */
function refusal(
  status: number,
  message: string,
  name: string,
  { isContextFull, retryAfter, location }: ReplyDetails,
): Refused {
  const detail = message ? `: ${message}` : '.';
  const request = { kind: 'refused', elsewhere: false } as const;
  const server = { kind: 'refused', elsewhere: true } as const;
  if (isContextFull && [400, 413, 422].includes(status))
    return { ...request, code: 'context_length_exceeded', reason: `The model server refused the request${detail}` };
  if (status === 400 || status === 422)
    return { ...request, code: 'invalid_request', reason: `The model server refused the request${detail}` };
  if (status === 413)
    return { ...request, code: 'payload_too_large', reason: `The model server finds the request too large${detail}` };
  if (status === 404)
    return { ...server, code: 'model_not_found', reason: `The model server does not know the model${detail}` };
  if (status === 429) {
    const retryAfterSeconds = retryAfter ?? 5;
    return { ...server, code: 'rate_limited', reason: `The model server is busy${detail}`, retryAfterSeconds };
  }
  const code = 'gateway_unavailable';
  const operator = 'That is for the operator of this gateway to correct. Nothing was charged.';
  if (status < 400) {
    const fault = `${name} answered ${status}, a redirect${location ? ` to ${location}` : ''}: correct its base_url`;
    return { ...server, code, reason: `The model server answered ${status}, a redirect. ${operator}`, fault };
  }
  if (status === 401 || status === 403) {
    const fault = `${name} answered ${status}: its api_key is missing or wrong, or may not use the model`;
    return { ...server, code, reason: `The model server refused this gateway (${status}). ${operator}`, fault };
  }
  return { ...server, code, reason: `The model server answered ${status}. Nothing was charged.` };
}

/** Returns the target of a redirect without the parts of a URL that may be secret. */
function addressIn(location: string | string[] | undefined, clean: Label['clean']): string | undefined {
  if (typeof location !== 'string' || !URL.canParse(location)) return undefined;
  const { origin, pathname } = new URL(location);
  return clean(origin + pathname);
}

/** Nobody is told to wait longer. */
const RETRY_SECONDS_MAX = 86_400;

function retryAfter(header: string | string[] | undefined): number | undefined {
  const text = Array.isArray(header) ? header[0] : header;
  const seconds = text ? Number(text) : Number.NaN; // An empty one would be a 0.
  return Number.isFinite(seconds) && seconds >= 0 ? Math.min(Math.ceil(seconds), RETRY_SECONDS_MAX) : undefined;
}
