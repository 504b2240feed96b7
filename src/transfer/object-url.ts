import { AwsV4Signer } from 'aws4fetch';
import type { TransferKeys, TransferSettings } from '../config/services.ts';
import { Refusal } from '../refusal.ts';

/** The longest key that S3 takes, in bytes of UTF-8 (docs.aws.amazon.com, object keys). */
const KEY_BYTES_MAX = 1024;

export type Method = 'GET' | 'PUT' | 'DELETE';
export type Signer = {
  /** The URL of one exact object, good for `method` from `at` for `seconds` (Unix seconds; 1..604800). Asks nobody. */
  sign(method: Method, key: string, at: number, seconds: number): Promise<string>;
};

/**
 * The key of a tenant's object: under its wallet's own prefix. Refuses with `invalid_request` what would leave it, what S3
 * does not take, and what a URL would not bring there unchanged.
 */
export function keyOfObject(walletId: string, object: string): string {
  const key = `wallets/${walletId}/${object}`;
  const refuse = (what: string) => new Refusal('invalid_request', `object: ${what}.`, { param: 'object' });
  if (object.startsWith('/')) throw refuse('must not begin with a slash');
  if (/\p{Cc}/u.test(object) || !object.isWellFormed()) throw refuse('must not contain control characters');
  // A client takes these out of a URL before it sends it, percent-encoded ones too.
  if (object.split('/').some((part) => part === '.' || part === '..'))
    throw refuse('must not contain "." or ".." as a part of its path');
  const most = KEY_BYTES_MAX - (Buffer.byteLength(key) - Buffer.byteLength(object));
  if (Buffer.byteLength(object) > most) throw refuse(`must have at most ${most} bytes`);
  return key;
}

/** Signs by AWS Signature Version 4 in the query (docs.aws.amazon.com, sigv4-query-string-auth). */
export function createSigner(settings: TransferSettings, keys: TransferKeys): Signer {
  const cache = new Map<string, ArrayBuffer>(); // The day's derived key.
  return {
    async sign(method, key, at, seconds) {
      const target = new URL(addressOf(settings, key));
      target.searchParams.set('X-Amz-Expires', String(seconds));
      const signer = new AwsV4Signer({
        method,
        url: target.href,
        accessKeyId: keys.access_key_id,
        secretAccessKey: keys.secret_access_key,
        service: 's3',
        region: settings.region,
        datetime: amzDate(at),
        signQuery: true,
        cache,
      });
      if (cache.size > 1) cache.clear(); // A day went by.
      return (await signer.sign()).url.href;
    },
  };
}

function addressOf({ endpoint, bucket, path_style: isPathStyle }: TransferSettings, key: string): string {
  const path = key.split('/').map(encodeSegment).join('/');
  if (isPathStyle) return `${endpoint}/${bucket}/${path}`;
  return `${endpoint.replace('://', `://${bucket}.`)}/${path}`;
}

/** RFC 3986: everything but unreserved characters is percent-encoded, those that encodeURIComponent leaves too. */
function encodeSegment(text: string): string {
  return encodeURIComponent(text).replace(/[!'()*]/g, (it) => `%${it.charCodeAt(0).toString(16).toUpperCase()}`);
}

/** Unix seconds as `20130524T000000Z`. */
function amzDate(at: number): string {
  return new Date(at * 1000).toISOString().replace(/[:-]|\.\d{3}/g, '');
}
