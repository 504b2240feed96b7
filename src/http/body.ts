import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import * as v from 'valibot';
import { Refusal } from '../refusal.ts';

/** Deeper nesting than any honest request has; it keeps recursive work on a body bounded. */
const NESTING_MAX = 100;

/** The whole body, at most `most` bytes. Refuses with `payload_too_large`, before reading when the length is announced. */
export async function readBody(request: IncomingMessage, most: number): Promise<Buffer> {
  if (Number(request.headers['content-length'] ?? 0) > most) throw tooLarge(most);
  const chunks: Buffer[] = [];
  let length = 0;
  try {
    for await (const chunk of request as AsyncIterable<Buffer>) {
      length += chunk.length;
      if (length > most) throw tooLarge(most);
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

/** The JSON value in a body. Refuses with `invalid_json`: not UTF-8, not JSON, or nested too deep. */
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
  if (isDeeperThan(value, NESTING_MAX))
    throw new Refusal('invalid_json', `The body is nested deeper than ${NESTING_MAX} levels.`);
  return value;
}

function isDeeperThan(value: unknown, levels: number): boolean {
  if (typeof value !== 'object' || value === null) return false;
  if (levels === 0) return true;
  if (Array.isArray(value)) return value.some((item) => isDeeperThan(item, levels - 1));
  for (const key in value) if (isDeeperThan((value as Record<string, unknown>)[key], levels - 1)) return true;
  return false;
}

/** A value as its schema says, with defaults. Refuses with `invalid_request`, naming each field that is wrong. */
export function validate<S extends v.GenericSchema>(schema: S, value: unknown): v.InferOutput<S> {
  // valibot takes a list for an object; no endpoint does.
  if (Array.isArray(value)) throw new Refusal('invalid_request', 'body: must be an object.');
  const parsed = v.safeParse(schema, value);
  if (parsed.success) return parsed.output;
  const [first, second] = parsed.issues;
  if (isStreaming(first)) throw new Refusal('streaming_not_supported');
  const faults = second ? [first, second] : [first];
  const more = parsed.issues.length > 2 ? ` (and ${parsed.issues.length - 2} more)` : '';
  throw new Refusal('invalid_request', `${faults.map(describe).join('; ')}${more}.`);
}

const isStreaming = (issue: v.BaseIssue<unknown>) => v.getDotPath(issue) === 'stream' && issue.input === true;

function describe(issue: v.BaseIssue<unknown>): string {
  const field = (v.getDotPath(issue) ?? 'body').slice(0, 120);
  if (issue.type === 'strict_object' && issue.expected === 'never') return `${field}: unknown property`;
  if (issue.received === 'undefined') return `${field}: is required`;
  // valibot's own sentences quote what was received; ours do not, and are said as they are.
  return `${field}: ${/^Invalid /.test(issue.message) ? `must be ${issue.expected ?? 'valid'}` : issue.message}`;
}
