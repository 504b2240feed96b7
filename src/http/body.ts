import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import * as v from 'valibot';
import { collectPieces } from '../net/pieces.ts';
import { Refusal } from '../refusal.ts';
import type { Allowance } from './memory-quota.ts';

/** Deeper nesting than any honest request has; it keeps recursive work on a body bounded. */
const NESTING_MAX = 100;
/** Long texts are one value each; what has more values than this is made to keep us busy. */
const VALUE_COUNT_MAX = 50_000;
/** What JSON.parse makes of a value, beside its text: an empty object takes 56 bytes, a number in a list 8 to 24. */
const VALUE_BYTES = 64;
const NUMBER_BYTES = 16;

/**
 * The whole body, at most `most` bytes. Refuses with `payload_too_large`, before reading when the length is announced,
 * and with `rate_limited` when too much is kept already.
 */
export async function readBody(request: IncomingMessage, most: number, share: Allowance): Promise<Buffer> {
  const announced = Number(request.headers['content-length'] ?? 0);
  if (announced > most) throw tooLarge(most);
  share.take(announced); // Whole or not at all: of many halves that fill the memory none would come to its end.
  return share.unlessCutOff(() => collect(request, most, announced, share));
}

async function collect(request: IncomingMessage, most: number, announced: number, share: Allowance): Promise<Buffer> {
  const pieces = collectPieces(announced);
  try {
    // Not destroyed when it is refused: that would end the connection before the client has read why.
    for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
      const length = pieces.length() + chunk.length;
      if (length > most) throw tooLarge(most);
      if (length > announced) share.take(chunk.length);
      pieces.add(chunk);
    }
  } catch (cause) {
    // A client that goes away is no fault of ours.
    throw cause instanceof Refusal
      ? cause
      : new Refusal('invalid_request', 'The body broke off before its end.', { cause });
  }
  return pieces.whole();
}

function tooLarge(most: number): Refusal {
  return new Refusal('payload_too_large', `The body is larger than the ${most} bytes that this endpoint takes.`);
}

/** Whether the request has a body at all (RFC 9112, 6: it says so by one of these headers). */
export function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

/** Refuses with `unsupported_media_type` unless the body is plain, uncompressed JSON. */
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
 * The JSON value in a body, of at most 100 levels and 50,000 values; up to `numbersMax` numbers that stand directly in
 * lists are not counted among these. Levels and values are counted before anything is made of the bytes, and what they
 * will take is counted in `share`. Refuses with `invalid_json`: not UTF-8, not JSON, nested too deep, or too many values;
 * and with `rate_limited` when too much is kept already.
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
 * How many values a JSON text has, numbers in lists apart; of what is no JSON it is some number. Reads no further than
 * the first value or level too many.
 */
function countValues(bytes: Buffer, numbersMax: number): { values: number; numbers: number } {
  const isList: boolean[] = [];
  let values = 0;
  let numbers = 0;
  /** Whether what comes next begins a value: the first in the text, one behind a bracket, a colon or a list's comma. */
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
      case 0x2c: // A comma: behind it comes a value of a list, or a name.
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

/** A value as its schema says, with defaults. Refuses with `invalid_request`, naming the first field that is wrong. */
export function validate<S extends v.GenericSchema>(schema: S, value: unknown): v.InferOutput<S> {
  // valibot takes a list for an object; no endpoint does.
  if (Array.isArray(value)) throw new Refusal('invalid_request', 'body: must be an object.');
  // At the first fault: a body of a million wrong values must not become a million sentences.
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
  // valibot's own sentences quote what was received; ours do not, and are said as they are.
  return `${field}: ${/^Invalid /.test(issue.message) ? `must be ${issue.expected ?? 'valid'}` : issue.message}`;
}
