import { AwsV4Signer } from 'aws4fetch';
import { Refusal } from '../base/refusal.ts';
import type { TransferSettings } from '../config/services.ts';

/** The longest object key that S3 accepts, in bytes of UTF-8 (docs.aws.amazon.com, object keys). */
const KEY_BYTES_MAX = 1024;

export type ObjectMethod = 'GET' | 'PUT' | 'DELETE';
export type Signer = {
  /**
   * Returns the URL of one exact object, valid for `method` from `at` (Unix seconds) for `seconds` (1 to 604800). Makes no
   * network call.
   */
  sign(method: ObjectMethod, key: string, at: number, seconds: number): Promise<string>;
};

/**
 * Returns the key of a tenant's object, under its wallet's prefix. Throws `invalid_request` for a name that would escape
 * the prefix, that S3 does not accept, or that a URL would not preserve.
 */
export function keyOfObject(walletId: string, object: string): string {
  const key = `wallets/${walletId}/${object}`;
  const refuse = (what: string) => new Refusal('invalid_request', `object: ${what}.`, { param: 'object' });
  if (object.startsWith('/')) throw refuse('must not begin with a slash');
  if (/\p{Cc}/u.test(object) || !object.isWellFormed()) throw refuse('must not contain control characters');
  // Clients remove these from a URL before they send it, even percent-encoded ones.
  if (object.split('/').some((part) => part === '.' || part === '..'))
    throw refuse('must not contain "." or ".." as a part of its path');
  const max = KEY_BYTES_MAX - (Buffer.byteLength(key) - Buffer.byteLength(object));
  if (Buffer.byteLength(object) > max) throw refuse(`must have at most ${max} bytes`);
  return key;
}

/** Creates a signer of URLs by AWS Signature Version 4 (docs.aws.amazon.com, sigv4-query-string-auth). */
export function createSigner(settings: TransferSettings): Signer {
  const cache = new Map<string, ArrayBuffer>(); // The derived key of the day.
  return {
    async sign(method, key, at, seconds) {
      const target = new URL(addressOf(settings, key));
      target.searchParams.set('X-Amz-Expires', String(seconds));
      const signer = new AwsV4Signer({
        method,
        url: target.href,
        accessKeyId: settings.access_key_id.reveal(),
        secretAccessKey: settings.secret_access_key.reveal(),
        service: 's3',
        region: settings.region,
        datetime: amzDate(at),
        signQuery: true,
        cache,
      });
      if (cache.size > 1) cache.clear(); // The day has changed.
      return (await signer.sign()).url.href;
    },
  };
}

function addressOf({ endpoint, bucket, path_style: isPathStyle }: TransferSettings, key: string): string {
  const path = key.split('/').map(encodeSegment).join('/');
  if (isPathStyle) return `${endpoint}/${bucket}/${path}`;
  return `${endpoint.replace('://', `://${bucket}.`)}/${path}`;
}

/** Percent-encodes all but RFC 3986's unreserved characters, including those that encodeURIComponent leaves. */
function encodeSegment(text: string): string {
  return encodeURIComponent(text).replace(/[!'()*]/g, (it) => `%${it.charCodeAt(0).toString(16).toUpperCase()}`);
}

/** Formats Unix seconds as `20130524T000000Z`. */
function amzDate(at: number): string {
  return new Date(at * 1000).toISOString().replace(/[:-]|\.\d{3}/g, '');
}
