import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import * as v from 'valibot';
import { collectPieces } from '../net/pieces.ts';
import { Refusal } from '../refusal.ts';
import type { Allowance } from './memory-quota.ts';

/** The deepest nesting that a body may have. No honest request needs it, and it bounds recursive work on a body. */
const NESTING_MAX = 100;
/** The most values that a body may have. A long text is one value, so only a hostile body has more. */
const VALUE_COUNT_MAX = 50_000;
/** Memory per parsed value beside its text: JSON.parse takes 56 bytes for an empty object, 8 to 24 for a number in a list. */
const VALUE_BYTES = 64;
const NUMBER_BYTES = 16;

/**
 * Reads the whole body, at most `max` bytes. Throws `payload_too_large`, before reading when Content-Length announces the
 * size; `rate_limited` when the memory quota is used up; and `invalid_request` when the body breaks off.
 */
export async function readBody(request: IncomingMessage, max: number, share: Allowance): Promise<Buffer> {
  const announced = Number(request.headers['content-length'] ?? 0);
  if (announced > max) throw tooLarge(max);
  share.take(announced); // Whole or not at all: if many half-read bodies filled the memory, none could be completed.
  return share.unlessCutOff(() => collect(request, max, announced, share));
}

async function collect(request: IncomingMessage, max: number, announced: number, share: Allowance): Promise<Buffer> {
  const pieces = collectPieces(announced);
  try {
    // Not destroyed on refusal: that would close the connection before the client has read the error.
    for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
      const length = pieces.length() + chunk.length;
      if (length > max) throw tooLarge(max);
      if (length > announced) share.take(chunk.length);
      pieces.add(chunk);
    }
  } catch (cause) {
    // A client that disconnects is not an internal error.
    throw cause instanceof Refusal
      ? cause
      : new Refusal('invalid_request', 'The connection closed before the end of the body.', { cause });
  }
  return pieces.whole();
}

function tooLarge(max: number): Refusal {
  return new Refusal('payload_too_large', `The body is larger than the ${max} bytes that this endpoint takes.`);
}

/** Throws `unsupported_media_type` unless the body is uncompressed JSON. */
export function refuseMediaType(request: IncomingMessage): void {
  const type = request.headers['content-type'];
  if (!type || !/^application\/json\s*(;|$)/i.test(type)) throw new Refusal('unsupported_media_type');
  const encoding = request.headers['content-encoding'];
  if (encoding && encoding !== 'identity')
    throw new Refusal(
      'unsupported_media_type',
      `Send the body uncompressed, not as ${JSON.stringify(encoding.slice(0, 40))}.`,
    );
}

/**
 * Parses a body of at most 100 levels and 50,000 values. Up to `numbersMax` numbers directly in lists are exempt from
 * that count. Levels and values are counted before parsing, and the memory they will need is taken from `share`. Throws
 * `invalid_json` for a body that is not UTF-8, not JSON, nested too deep or has too many values, and `rate_limited` when
 * the memory quota is used up.
 */
export function parseJson(bytes: Buffer, numbersMax: number, share: Allowance): unknown {
  if (!isUtf8(bytes)) throw new Refusal('invalid_json', 'The body is not valid UTF-8.');
  const { values, numbers } = countValues(bytes, numbersMax);
  share.take(values * VALUE_BYTES + numbers * NUMBER_BYTES);
  try {
    return JSON.parse(bytes.toString('utf8'));
  } catch (cause) {
    throw new Refusal('invalid_json', bytes.length ? 'The body is not valid JSON.' : 'The body is empty; send JSON.', {
      cause,
    });
  }
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/**
 * Counts the values of a JSON text, and separately the numbers in its lists. The counts mean nothing for text that is
 * not JSON. Throws `invalid_json` at the first value or level too many.
 */
function countValues(bytes: Buffer, numbersMax: number): { values: number; numbers: number } {
  const isList: boolean[] = [];
  let values = 0;
  let numbers = 0;
  /** True where a value may begin: at the start, and after a bracket, a colon or a comma in a list. */
  let isExpected = true;
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at] as number;
    switch (byte) {
      case 0x20: // White space.
      case 0x09:
      case 0x0a:
      case 0x0d:
        continue;
      case 0x3a: // A colon.
        isExpected = true;
        continue;
      case 0x2c: // A comma: a value follows it in a list, a name in an object.
        isExpected = isList.at(-1) === true;
        continue;
      case 0x5d: // ] and }
      case 0x7d:
        isList.pop();
        isExpected = false;
        continue;
    }
    if (isExpected) {
      const isNumber = byte === 0x2d || (byte >= 0x30 && byte <= 0x39);
      if (isNumber && numbers < numbersMax && isList.at(-1)) numbers++;
      else if (++values > VALUE_COUNT_MAX)
        throw new Refusal('invalid_json', `The body has more than ${VALUE_COUNT_MAX} values.`);
    }
    isExpected = false;
    if (byte === 0x5b || byte === 0x7b) {
      if (isList.length === NESTING_MAX)
        throw new Refusal('invalid_json', `The body is nested deeper than ${NESTING_MAX} levels.`);
      isExpected = byte === 0x5b;
      isList.push(isExpected);
    } else if (byte === QUOTE) {
      for (at++; at < bytes.length && bytes[at] !== QUOTE; at++) if (bytes[at] === BACKSLASH) at++;
    }
  }
  return { values, numbers };
}

/**
 * Validates a value and fills in defaults. Throws `invalid_request`, naming the first invalid field, or
 * `streaming_not_supported` for `stream: true`.
 */
export function validate<S extends v.GenericSchema>(schema: S, value: unknown): v.InferOutput<S> {
  // valibot accepts an array as an object; no endpoint does.
  if (Array.isArray(value)) throw new Refusal('invalid_request', 'body: must be an object.');
  // Stop at the first issue: a body of a million invalid values must not produce a million messages.
  const parsed = v.safeParse(schema, value, { abortEarly: true });
  if (parsed.success) return parsed.output;
  const [fault] = parsed.issues;
  if (isStreaming(fault)) throw new Refusal('streaming_not_supported');
  const param = v.getDotPath(fault)?.slice(0, 120);
  throw new Refusal('invalid_request', `${describe(fault)}.`, param === undefined ? {} : { param });
}

const isStreaming = (issue: v.BaseIssue<unknown>) => v.getDotPath(issue) === 'stream' && issue.input === true;

function describe(issue: v.BaseIssue<unknown>): string {
  const field = (v.getDotPath(issue) ?? 'body').slice(0, 120);
  if (issue.type === 'strict_object' && issue.expected === 'never') return `${field}: unknown property`;
  if (issue.received === 'undefined') return `${field}: is required`;
  // valibot's own messages quote the input, so they are replaced. Ours do not, and are used unchanged.
  return `${field}: ${/^Invalid /.test(issue.message) ? `must be ${issue.expected ?? 'valid'}` : issue.message}`;
}
