import * as v from 'valibot';
import type { Key } from '../access/keys.ts';
import { TOKEN_PREFIX } from '../access/token.ts';
import { name, Time } from './parts.ts';

/** Body of POST /v1/keys. */
export const KeyRequest = v.object({ name: name() });

const record = {
  id: v.string(),
  name: v.string(),
  prefix: v.string(),
  last4: v.string(),
  created_at: Time,
  last_used_at: v.nullable(Time),
  revoked_at: v.nullable(Time),
};
/** Key record (design, section 3): metadata only, never a secret. */
export const KeyRecord = v.object(record);
/** The one answer that holds a key's secret. */
export const NewKey = v.object({ ...record, key: v.string() });
export const KeyList = v.object({ keys: v.array(KeyRecord) });
export const RevokedKey = v.object({ id: v.string(), revoked: v.literal(true), revoked_at: Time });

/** Builds the body of an account or operator key, without its secret. */
export function keyRecord(key: Key): v.InferOutput<typeof KeyRecord> {
  return {
    id: key.id,
    name: key.name,
    prefix: TOKEN_PREFIX[key.kind],
    last4: key.last4,
    created_at: key.createdAt,
    last_used_at: key.lastUsedAt,
    revoked_at: key.revokedAt,
  };
}

/** Builds the body of the answer to a revocation. */
export function revokedKey(key: Pick<Key, 'id' | 'revokedAt'>): v.InferOutput<typeof RevokedKey> {
  return { id: key.id, revoked: true, revoked_at: key.revokedAt as number };
}
