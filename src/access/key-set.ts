import { createLocalJWKSet, errors, type JSONWebKeySet, type JWTVerifyGetKey } from 'jose';

/** Pause after a failure before the issuer is asked again; also the shortest interval between reloads for unknown key ids. */
const COOLDOWN_MILLISECONDS = 30_000;
/** Age at which keys are reloaded, so that withdrawn keys become invalid. */
const FRESH_MILLISECONDS = 600_000;

/** The issuer's keys are unavailable, so a token cannot be checked. */
class Unavailable extends Error {}

/**
 * Caches the published keys of an issuer. While the issuer is down, cached keys stay valid however old they are, so an outage locks
 * no user out; an unknown key may be a new one, and throws Unavailable instead of rejecting the token. `milliseconds` is a
 * monotonic clock; `failed` is called once per cooldown during an outage.
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
  let reloadedAt = Number.NEGATIVE_INFINITY;

  /** Loads the keys; concurrent callers share one load. Records an error instead of throwing it. */
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
      // The issuer may have rotated its keys.
      if (!isDown() && (loading || milliseconds() - reloadedAt >= COOLDOWN_MILLISECONDS)) {
        if (!loading) reloadedAt = milliseconds();
        await reload();
        if (!isDown()) return keys(header, token);
      }
      if (isDown()) throw new Unavailable(failure);
      throw error;
    }
  };
}
