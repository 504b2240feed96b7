import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import * as v from 'valibot';
import { Refusal } from '../refusal.ts';
import type { Share } from './held.ts';

/** Deeper nesting than any honest request has; it keeps recursive work on a body bounded. */
const NESTING_MAX = 100;
/** Long texts are one value each; what has more values than this is made to keep us busy. */
const PART_COUNT_MAX = 50_000;

/**
 * The whole body, at most `most` bytes. Refuses with `payload_too_large`, before reading when the length is announced,
 * and with `rate_limited` when too much is kept already.
 */
export async function readBody(request: IncomingMessage, most: number, share: Share): Promise<Buffer> {
  const announced = Number(request.headers['content-length'] ?? 0);
  if (announced > most) throw tooLarge(most);
  share.take(announced); // Whole or not at all: of many halves that fill the memory none would come to its end.
  return share.unlessCutOff(() => collect(request, most, announced, share));
}

async function collect(request: IncomingMessage, most: number, announced: number, share: Share): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let length = 0;
  try {
    for await (const chunk of request as AsyncIterable<Buffer>) {
      length += chunk.length;
      if (length > most) throw tooLarge(most);
      if (length > announced) share.take(chunk.length);
      chunks.push(chunk);
    }
  } catch (cause) {
    // A client that goes away is no fault of ours.
    throw cause instanceof Refusal
      ? cause
      : new Refusal('invalid_request', 'The body broke off before its end.', { cause });
  }
  return chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks, length);
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

/** The JSON value in a body. Refuses with `invalid_json`: not UTF-8, not JSON, nested too deep, or of too many parts. */
export function parseJson(bytes: Buffer): unknown {
  if (!isUtf8(bytes)) throw new Refusal('invalid_json', 'The body is not valid UTF-8.');
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString('utf8'));
  } catch (cause) {
    throw new Refusal('invalid_json', bytes.length ? 'The body is not valid JSON.' : 'The body is empty; send JSON.', {
      cause,
    });
  }
  if (partsLeft(value, NESTING_MAX, PART_COUNT_MAX) < 0)
    throw new Refusal('invalid_json', `The body has more than ${PART_COUNT_MAX} values.`);
  return value;
}

/** How many more values there may be beside this one; below 0 there were too many, and the rest is not looked at. */
function partsLeft(value: unknown, levels: number, left: number): number {
  if (typeof value !== 'object' || value === null) return left - 1;
  if (levels === 0) throw new Refusal('invalid_json', `The body is nested deeper than ${NESTING_MAX} levels.`);
  let rest = left - 1;
  if (Array.isArray(value))
    for (let i = 0; i < value.length && rest >= 0; i++) rest = partsLeft(value[i], levels - 1, rest);
  else
    for (const key in value) if (rest >= 0) rest = partsLeft((value as Record<string, unknown>)[key], levels - 1, rest);
  return rest;
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
