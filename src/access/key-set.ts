import { createLocalJWKSet, errors, type JSONWebKeySet, type JWTVerifyGetKey } from 'jose';

/** After a failure the issuer is left alone for so long; unknown key ids make us ask no more often either. */
const COOLDOWN_MILLISECONDS = 30_000;
/** Keys are asked for anew after this: a key that was withdrawn is good no longer. */
const FRESH_MILLISECONDS = 600_000;

/** The issuer's keys cannot be had: nobody knows whether a token is good. */
export class Unavailable extends Error {}

/**
 * The published keys of an issuer, kept. While the issuer is down the keys that were kept are good, however old: an outage
 * locks nobody out. A key that is unknown while it is down may be a new one: that is Unavailable, not a bad token.
 * `milliseconds` is a monotonic clock; `failed` hears of each outage once in a cooldown.
 */
export function createKeySet(
  load: () => Promise<JSONWebKeySet>,
  milliseconds: () => number,
  failed: (error: Error) => void,
): JWTVerifyGetKey {
  type Keys = ReturnType<typeof createLocalJWKSet>;
  let keys: Keys | undefined;
  let loading: Promise<void> | undefined;
  let loadedAt = Number.NEGATIVE_INFINITY;
  let failedAt = Number.NEGATIVE_INFINITY;
  let failure = '';
  let askedAgainAt = Number.NEGATIVE_INFINITY;

  /** Loads once however many wait; what goes wrong is remembered, and not thrown. */
  function reload(): Promise<void> {
    loading ??= load()
      .then((published) => {
        keys = createLocalJWKSet(published);
        loadedAt = milliseconds();
        failedAt = Number.NEGATIVE_INFINITY;
      })
      .catch((error: Error) => {
        failedAt = milliseconds();
        failure = error.message;
        failed(error);
      })
      .finally(() => {
        loading = undefined;
      });
    return loading;
  }
  const isDown = () => milliseconds() - failedAt < COOLDOWN_MILLISECONDS;

  return async (header, token) => {
    if (milliseconds() - loadedAt >= FRESH_MILLISECONDS && !isDown()) await reload();
    if (!keys) throw new Unavailable(failure);
    try {
      return await keys(header, token);
    } catch (error) {
      if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
      // The issuer may have changed its keys since.
      if (!isDown() && (loading || milliseconds() - askedAgainAt >= COOLDOWN_MILLISECONDS)) {
        if (!loading) askedAgainAt = milliseconds();
        await reload();
        if (!isDown()) return keys(header, token);
      }
      if (isDown()) throw new Unavailable(failure);
      throw error;
    }
  };
}
