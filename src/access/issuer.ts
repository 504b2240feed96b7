import {
  createLocalJWKSet,
  createRemoteJWKSet,
  errors,
  type FlattenedJWSInput,
  type JWSHeaderParameters,
  type JWTPayload,
  jwtVerify,
} from 'jose';
import { request } from 'undici';
import { Refusal } from '../refusal.ts';

/** Asymmetric only: a key that anybody may read must not be one that signs (RFC 8725, 3.1). */
const ALGORITHMS = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
  'Ed25519',
];
/** RFC 9068, and what Keycloak and others write instead. Absent is fine too. */
const TYPES = new Set(['at+jwt', 'application/at+jwt', 'jwt']);
const CLOCK_TOLERANCE_SECONDS = 30;
const CALL_MILLISECONDS = 5000;
/** After a failure the issuer is left alone for so long; unknown key ids make us ask no more often either. */
const COOLDOWN_MILLISECONDS = 30_000;
const CACHE_MILLISECONDS = 600_000;
const DISCOVERY_BYTES_MAX = 256 * 1024;

export type Claims = JWTPayload & { sub: string };
export type Issuer = {
  /**
   * The claims of a valid access token. Refuses with `unauthenticated` what is none, and with `provider_unavailable` when
   * the issuer's keys cannot be had: then nobody knows. `now` is Unix seconds.
   */
  verify(token: string, now: number): Promise<Claims>;
};

class Unavailable extends Error {}

/** Verifies the access tokens of one OpenID Connect issuer by its published keys (OpenID Connect Discovery 1.0). */
export function createIssuer(issuer: string, audience: string): Issuer {
  type KeySet = ReturnType<typeof createRemoteJWKSet>;
  let keys: KeySet | undefined;
  let discovering: Promise<KeySet> | undefined;
  let failedAt = Number.NEGATIVE_INFINITY;
  let failure = '';
  let reloadFailedAt = Number.NEGATIVE_INFINITY;

  /** Where the keys are does not change while we run; a failure is remembered for a while, so that nobody is flooded. */
  async function discovered(): Promise<KeySet> {
    if (keys) return keys;
    if (performance.now() - failedAt < COOLDOWN_MILLISECONDS) throw new Unavailable(failure);
    discovering ??= discover(issuer)
      .then((at) => {
        keys = createRemoteJWKSet(at, {
          timeoutDuration: CALL_MILLISECONDS,
          cooldownDuration: COOLDOWN_MILLISECONDS,
          cacheMaxAge: CACHE_MILLISECONDS,
        });
        return keys;
      })
      .catch((error: Error) => {
        failedAt = performance.now();
        failure = error.message;
        throw new Unavailable(failure);
      })
      .finally(() => {
        discovering = undefined;
      });
    return discovering;
  }

  /** The issuer's keys; those that were cached when it cannot be asked: an outage locks nobody out. */
  async function keyFor(header: JWSHeaderParameters, token: FlattenedJWSInput) {
    const set = await discovered();
    const isDown = performance.now() - reloadFailedAt < COOLDOWN_MILLISECONDS; // Nobody waits for it again so soon.
    try {
      if (!isDown || set.fresh) return await set(header, token);
    } catch (error) {
      if (isAboutTheToken(error)) throw error;
      reloadFailedAt = performance.now();
      if (!set.jwks()) throw new Unavailable((error as Error).message);
    }
    const cached = set.jwks();
    if (!cached) throw new Unavailable('the keys could not be had a moment ago');
    return createLocalJWKSet(cached)(header, token);
  }

  return {
    async verify(token, now) {
      try {
        const { payload, protectedHeader } = await jwtVerify(token, keyFor, {
          issuer,
          audience,
          algorithms: ALGORITHMS,
          clockTolerance: CLOCK_TOLERANCE_SECONDS,
          requiredClaims: ['sub', 'exp'],
          currentDate: new Date(now * 1000),
        });
        const type = protectedHeader.typ?.toLowerCase();
        if (type !== undefined && !TYPES.has(type)) throw notValid('is of another type');
        if (isIdToken(payload)) throw notValid('is an ID token: send the access token');
        if (typeof payload.sub !== 'string' || !payload.sub) throw notValid('has no subject');
        return payload as Claims;
      } catch (error) {
        if (error instanceof Refusal) throw error;
        if (error instanceof errors.JOSEError) throw notValid(sentenceOf(error), error);
        throw new Refusal(
          'provider_unavailable',
          'The keys of the identity provider cannot be had at the moment. Retry in a moment.',
          { retryAfterSeconds: 10, cause: error },
        );
      }
    },
  };
}

const isIdToken = (payload: JWTPayload) =>
  payload.nonce !== undefined || payload.at_hash !== undefined || payload.c_hash !== undefined || payload.typ === 'ID';

/** Whether the key set was fine and the token was not: no key of it fits, or more than one. */
function isAboutTheToken(error: unknown): boolean {
  return (
    error instanceof errors.JWKSNoMatchingKey ||
    error instanceof errors.JWKSMultipleMatchingKeys ||
    error instanceof errors.JOSENotSupported
  );
}

function notValid(what: string, cause?: unknown): Refusal {
  return new Refusal('unauthenticated', `The token ${what}.`, cause === undefined ? {} : { cause });
}

/** What is wrong, in words that name no claim's value. */
function sentenceOf(error: errors.JOSEError): string {
  if (error instanceof errors.JWTExpired) return 'has expired';
  if (error instanceof errors.JWTClaimValidationFailed) return `is not for this service (${error.claim})`;
  if (error instanceof errors.JWKSNoMatchingKey) return 'is signed by a key that its issuer does not publish';
  return 'is malformed, unknown, or its signature is wrong';
}

/** The address of the keys, as the issuer itself publishes it under its own name. */
async function discover(issuer: string): Promise<URL> {
  const at = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`;
  const response = await request(at, { signal: AbortSignal.timeout(CALL_MILLISECONDS) });
  const text = await readText(response.body);
  if (response.statusCode !== 200) throw new Error(`${at} answered ${response.statusCode}`);
  const document = JSON.parse(text) as { issuer?: unknown; jwks_uri?: unknown };
  if (document.issuer !== issuer)
    throw new Error(`${at} names another issuer: ${JSON.stringify(document.issuer).slice(0, 200)}`);
  if (typeof document.jwks_uri !== 'string' || !/^https?:\/\//.test(document.jwks_uri))
    throw new Error(`${at} has no jwks_uri`);
  return new URL(document.jwks_uri);
}

async function readText(body: AsyncIterable<Buffer>): Promise<string> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of body) {
    length += chunk.length;
    if (length > DISCOVERY_BYTES_MAX) throw new Error('the discovery document is too long');
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

/** For doctor: fetches the document anew, whatever is cached. Answers where the keys are. */
export const tryIssuer = async (issuer: string): Promise<string> => (await discover(issuer)).href;
