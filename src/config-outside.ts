import * as v from 'valibot';
import { url } from './config-router.ts';

/** The settings of the parts that touch other people's services (design, section 4): transfer storage. */

const word = (most: number) => v.pipe(v.string(), v.trim(), v.minLength(1), v.maxLength(most));

/** Object storage that speaks S3's protocol. `endpoint` is the address under which a sandbox reaches it: it is signed. */
export const Transfer = v.strictObject({
  endpoint: v.pipe(
    url,
    v.check((text) => /^https?:\/\/[^/]+$/.test(text), 'must be scheme, host and port alone: the bucket stands apart'),
  ),
  region: v.optional(word(100), 'us-east-1'),
  bucket: v.pipe(word(63), v.regex(/^[a-z0-9][a-z0-9.-]+$/i, 'is no name of a bucket')),
  access_key_id: word(200),
  secret_access_key: word(500),
  /** https://host/bucket/object, as self-hosted servers want it; false is https://bucket.host/object. */
  path_style: v.optional(v.boolean(), true),
});
type Keys = 'access_key_id' | 'secret_access_key';
type Parsed = v.InferOutput<typeof Transfer>;
export type TransferSettings = Omit<Parsed, Keys>;
export type TransferKeys = Pick<Parsed, Keys>;

/** The settings without their secrets, and these. */
export function partTransfer(
  parsed: Parsed | undefined,
): { transfer: TransferSettings; transferKeys: TransferKeys } | { transfer: undefined; transferKeys: undefined } {
  if (!parsed) return { transfer: undefined, transferKeys: undefined };
  const { access_key_id, secret_access_key, ...transfer } = parsed;
  return { transfer, transferKeys: { access_key_id, secret_access_key } };
}
