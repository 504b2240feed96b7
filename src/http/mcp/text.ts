import { isUtf8 } from 'node:buffer';
import { hash } from 'node:crypto';
import * as v from 'valibot';
import { Refusal } from '../../base/refusal.ts';
import { UploadRequest } from '../../wire/compute.ts';
import { DownloadResult } from '../../wire/guest.ts';
import { completeLength } from '../complete-text.ts';
import type { Allowance } from '../memory-quota.ts';

/** Contents of files as text: a model can neither write nor read base64 reliably. */

const { id, path, content_base64 } = UploadRequest.entries;
export const TextUpload = v.object({
  id,
  path,
  text: v.optional(v.pipe(v.string('must be a string'), v.description('the content, as text'))),
  content_base64: v.optional(content_base64),
});

/** Returns the arguments of the endpoint for an upload of text or of base64. Throws `invalid_request` for both, and for neither. */
export function uploadOf(args: Record<string, unknown>, share: Pick<Allowance, 'take'>): Record<string, unknown> {
  const { text, ...others } = args;
  if ((text === undefined) === (args.content_base64 === undefined))
    throw new Refusal('invalid_request', 'text: give either text or content_base64.');
  if (text === undefined) return args;
  if (typeof text !== 'string') throw new Refusal('invalid_request', 'text: must be a string.');
  if (!text.isWellFormed()) throw new Refusal('invalid_request', 'text: has half of a surrogate pair.');
  share.take(2 * Buffer.byteLength(text)); // Once as bytes, and once as base64.
  return { ...others, content_base64: Buffer.from(text).toString('base64') };
}

const { content_base64: content, ...facts } = DownloadResult.entries;
export const TextDownload = v.object({
  ...facts,
  text: v.optional(v.pipe(v.string(), v.description('the content, where it is text in UTF-8'))),
  content_base64: v.optional(v.pipe(content, v.description('the content, where it is not text'))),
});

type Downloaded = v.InferOutput<typeof DownloadResult>;

/**
 * Returns the answer of a download with its content as text, if it is UTF-8 without NUL. A character that the part cuts is
 * left to the next part.
 */
export function downloadedText(answer: object, share: Pick<Allowance, 'take'>): object {
  const { content_base64: base64, ...facts } = answer as Downloaded;
  share.take(2 * base64.length);
  const all = Buffer.from(base64, 'base64');
  const isEnd = facts.offset + all.length >= facts.size;
  const bytes = isEnd ? all : all.subarray(0, completeLength(all) || all.length);
  if (!isUtf8(bytes) || bytes.includes(0)) return answer;
  return { ...facts, bytes: bytes.length, sha256: hash('sha256', bytes, 'hex'), text: bytes.toString() };
}
