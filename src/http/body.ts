import type { IncomingMessage } from 'node:http';
import * as v from 'valibot';
import { type ParsedText, parseText } from '../base/json-text.ts';
import { Refusal } from '../base/refusal.ts';
import { collectPieces, giveBack } from '../net/pieces.ts';
import type { Allowance } from './memory-quota.ts';

/** Memory per parsed value beside its text: JSON.parse takes 56 bytes for an empty object, 8 to 24 for a number in a list. */
export const VALUE_BYTES = 64;
export const NUMBER_BYTES = 16;

/**
 * Reads the whole body, at most `max` bytes. Throws `payload_too_large`, by Content-Length before reading; `rate_limited` when the
 * memory quota is used up; `invalid_request` when the body breaks off; and the error of a failed body (http/unreadable.ts).
 */
export async function readBody(request: IncomingMessage, max: number, share: Allowance): Promise<Buffer> {
  const announced = Number(request.headers['content-length'] ?? 0);
  if (announced > max) throw tooLarge(max);
  share.take(announced); // All or nothing: if many half-read bodies filled the memory, none could be completed.
  return collect(request, max, announced, share);
}

/** Uses events: an async iterator costs more than all other work on a small body. */
function collect(request: IncomingMessage, max: number, announced: number, share: Allowance): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const pieces = collectPieces(announced);
    const takeBack = share.onCutOff(refuse);
    function leave() {
      request.off('data', take).off('end', finish).off('close', breakOff).off('error', breakOff);
      takeBack();
    }
    function refuse(refusal: Refusal) {
      leave();
      // Paused, not destroyed: that would close the connection before the client has read the error.
      request.pause();
      reject(refusal);
    }
    function take(chunk: Buffer) {
      try {
        const length = pieces.length() + chunk.length;
        if (length > max) throw tooLarge(max);
        if (length > announced) share.take(chunk.length);
        pieces.add(chunk);
        giveBack(chunk); // Node's parser makes a piece for this listener and keeps no reference to it.
      } catch (error) {
        refuse(error as Refusal);
      }
    }
    function finish() {
      leave();
      resolve(pieces.whole());
    }
    // A client that disconnects is not an internal error.
    function breakOff(cause?: Error) {
      leave();
      const gone = () => new Refusal('invalid_request', 'The connection closed before the end of the body.', { cause });
      reject(cause instanceof Refusal ? cause : gone());
    }
    if (request.destroyed) return breakOff(request.errored ?? undefined);
    request.on('data', take).on('end', finish).on('close', breakOff).on('error', breakOff);
  });
}

/** The requests whose body has a time limit of its own, instead of that of every other request. */
const unhurried = new WeakSet<IncomingMessage>();
export const isUnhurried = (request: IncomingMessage) => unhurried.has(request);

/** A body that is read as it comes. */
export type StreamedBody = {
  /**
   * Returns the next piece, undefined at the end. Rejects with `invalid_request` when the body breaks off, `request_timeout` when
   * nothing comes for a while, `read_only` when the server stops, and the error with which the body was failed.
   */
  next(): Promise<Buffer | undefined>;
  /** Reads no more. */
  leave(): void;
};

/** Reads a body as it comes: no more of it waits in memory than one piece. Nothing may come for `stallMilliseconds`. */
export function streamBody(request: IncomingMessage, stallMilliseconds: number, share: Allowance): StreamedBody {
  unhurried.add(request);
  let waiting: PromiseWithResolvers<Buffer | undefined> | undefined;
  let arrived: Buffer[] = [];
  let ending: { error?: unknown } | undefined;
  let silence: NodeJS.Timeout | undefined;
  const takeBack = share.onCutOff((refusal) => end({ error: refusal }));

  function end(how: { error?: unknown }) {
    if (ending) return;
    ending = how;
    clearTimeout(silence);
    takeBack();
    request.off('data', take).off('end', finish).off('close', breakOff).off('error', breakOff);
    // Paused, not destroyed: that would close the connection before the client has read the error.
    if (how.error) request.pause();
    settle();
  }
  function settle() {
    if (!waiting) return;
    const piece = arrived.shift();
    if (piece === undefined && !ending) return;
    const { resolve, reject } = waiting;
    waiting = undefined;
    clearTimeout(silence);
    if (piece === undefined && ending && 'error' in ending) reject(ending.error);
    else resolve(piece);
  }
  function take(chunk: Buffer) {
    request.pause();
    arrived.push(chunk);
    settle();
  }
  const finish = () => end({});
  function breakOff(cause?: Error) {
    const gone = () => new Refusal('invalid_request', 'The connection closed before the end of the body.', { cause });
    end({ error: cause instanceof Refusal ? cause : gone() });
  }
  request.on('data', take).on('end', finish).on('close', breakOff).on('error', breakOff);
  request.pause();
  if (request.destroyed) breakOff(request.errored ?? undefined);

  return {
    next() {
      waiting = Promise.withResolvers();
      const { promise } = waiting;
      settle();
      if (waiting) {
        request.resume();
        silence = setTimeout(() => end({ error: new Refusal('request_timeout') }), stallMilliseconds);
      }
      return promise;
    },
    leave() {
      arrived = [];
      end({ error: new Refusal('invalid_request') });
    },
  };
}

function tooLarge(max: number): Refusal {
  return new Refusal('payload_too_large', `The body is larger than the ${max} bytes that this endpoint takes.`);
}

/** Returns the media type of the body, without its parameters. */
export const mediaTypeOf = ({ headers }: IncomingMessage): string =>
  (headers['content-type'] ?? '').replace(/;.*/s, '').trim().toLowerCase();

/** Throws `unsupported_media_type` unless the body is uncompressed, and JSON or one of the `others`. */
export function refuseMediaType(request: IncomingMessage, others: readonly string[] = []): void {
  if (!['application/json', ...others].includes(mediaTypeOf(request))) {
    const list = others.map((it) => ` or ${it}`).join('');
    throw new Refusal('unsupported_media_type', `Send the body as application/json${list}.`);
  }
  const encoding = request.headers['content-encoding'];
  if (encoding && encoding !== 'identity')
    throw new Refusal(
      'unsupported_media_type',
      `Send the body uncompressed, not as ${JSON.stringify(encoding.slice(0, 40))}.`,
    );
}

/**
 * Parses a body of at most 100 levels and 50,000 values, or `valuesMax`. Both are counted before parsing, and the memory that they
 * need is taken from `share`. Throws `invalid_json` for a body that is not UTF-8, not JSON or beyond these limits, and
 * `rate_limited` when the memory quota is used up.
 */
export function parseBody(bytes: Buffer, share: Allowance, valuesMax?: number): ParsedText {
  const take = ({ values, numbers }: { values: number; numbers: number }) =>
    share.take(values * VALUE_BYTES + numbers * NUMBER_BYTES);
  return parseText(bytes, 0, take, valuesMax);
}

/**
 * Reads the query of an address. Throws `invalid_request` for a parameter that occurs twice: it is unclear which one is
 * meant (decision 0072).
 */
export function readQuery({ url = '' }: IncomingMessage): Record<string, string> {
  const at = url.indexOf('?');
  if (at < 0) return {};
  const query = new URLSearchParams(url.slice(at + 1));
  for (const name of new Set(query.keys()))
    if (query.getAll(name).length > 1)
      throw new Refusal('invalid_request', `${name.slice(0, 120)}: send this query parameter once.`);
  return Object.fromEntries(query);
}

/**
 * Validates a value and fills in defaults. Throws `invalid_request`, naming the first invalid field (a `member`), or
 * `streaming_not_supported` for `stream: true`.
 */
export function validate<S extends v.GenericSchema>(
  schema: S,
  value: unknown,
  member: 'property' | 'query parameter' = 'property',
): v.InferOutput<S> {
  // valibot accepts an array as an object; no endpoint does.
  if (Array.isArray(value)) throw new Refusal('invalid_request', 'body: must be an object.');
  // Stop at the first issue: a body of a million invalid values must not produce a million messages.
  const parsed = v.safeParse(schema, value, { abortEarly: true });
  if (parsed.success) return parsed.output;
  const [fault] = parsed.issues;
  if (isStreaming(fault)) throw new Refusal('streaming_not_supported');
  const param = v.getDotPath(fault)?.slice(0, 120);
  throw new Refusal('invalid_request', `${describe(fault, member)}.`, param === undefined ? {} : { param });
}

const isStreaming = (issue: v.BaseIssue<unknown>) => v.getDotPath(issue) === 'stream' && issue.input === true;

function describe(issue: v.BaseIssue<unknown>, member: string): string {
  const field = (v.getDotPath(issue) ?? 'body').slice(0, 120);
  if (issue.type === 'strict_object' && issue.expected === 'never') return `${field}: unknown ${member}`;
  if (issue.received === 'undefined') return `${field}: is required`;
  // valibot's own messages quote the input, so they are replaced. Ours do not, and are used unchanged.
  return `${field}: ${/^Invalid /.test(issue.message) ? `must be ${issue.expected ?? 'valid'}` : issue.message}`;
}
