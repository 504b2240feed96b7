import { errors, type JSONWebKeySet, type JWTPayload, jwtVerify } from 'jose';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import type { IdentitySettings } from '../config/services.ts';
import { readAnswerText } from '../net/read-bounded.ts';
import { request } from '../net/request.ts';
import { createKeySet } from './key-set.ts';

/** Asymmetric algorithms only: a published key must not be usable for signing (RFC 8725, 3.1). */
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
/** The accepted `typ` headers: that of RFC 9068, and the one of Keycloak and others. It may also be absent. */
const TYPES = new Set(['at+jwt', 'jwt']);
const CLOCK_TOLERANCE_SECONDS = 30;
const CALL_MILLISECONDS = 5000;
const DOCUMENT_BYTES_MAX = 256 * 1024;
const RETRY_SECONDS = 10;
/** The time for which a discovery document is kept for sign-ins in the browser. */
const DISCOVERY_MILLISECONDS = 600_000;

type IssuerSettings = Pick<IdentitySettings, 'issuer' | 'audience' | 'token_type' | 'client_ids'>;
export type Claims = JWTPayload & { sub: string };
export type Issuer = {
  /**
   * Returns the claims of a valid access token. `now` is Unix seconds. Throws `unauthenticated` for an invalid token, and
   * `provider_unavailable` when it cannot be checked because the issuer's keys are unavailable.
   */
  verify(token: string, now: number): Promise<Claims>;
  /**
   * Returns the claims of an ID token that was issued to this client for this nonce (OpenID Connect Core 1.0, 3.1.3.7).
   * Throws like `verify`.
   */
  verifyIdToken(token: string, clientId: string, nonce: string, now: number): Promise<Claims>;
  /**
   * Returns the issuer's discovery document, at most ten minutes old. Throws `provider_unavailable` when it cannot be fetched,
   * and then for ten seconds without another attempt: anyone can begin a sign-in.
   */
  discover(): Promise<Discovery>;
};
export type Discovery = {
  authorization_endpoint?: unknown;
  token_endpoint?: unknown;
  userinfo_endpoint?: unknown;
  scopes_supported?: unknown;
  token_endpoint_auth_methods_supported?: unknown;
};

/**
 * Creates the verifier of access tokens of one OpenID Connect issuer, by its published keys (OpenID Connect Discovery 1.0).
 * `milliseconds` is a monotonic clock; `failed` is called when the issuer cannot be reached.
 */
export function createIssuer(
  { issuer, audience, token_type: wantedType, client_ids: clients }: IssuerSettings,
  milliseconds: () => number,
  failed: (error: Error) => void,
): Issuer {
  const keyFor = createKeySet(async () => readKeys(keysUrlOf(await discover(issuer), issuer)), milliseconds, failed);
  let known: { document: Discovery; until: number } | undefined;
  let running: Promise<Discovery> | undefined;
  let away: { error: Error; until: number } | undefined;
  async function read(): Promise<Discovery> {
    try {
      const document = await discover(issuer);
      known = { document, until: milliseconds() + DISCOVERY_MILLISECONDS };
      return document;
    } catch (thrown) {
      const error = thrown as Error;
      failed(error);
      away = { error, until: milliseconds() + RETRY_SECONDS * 1000 };
      throw unavailable(error);
    }
  }
  const options = (audience: string, now: number) => ({
    issuer,
    audience,
    algorithms: ALGORITHMS,
    clockTolerance: CLOCK_TOLERANCE_SECONDS,
    requiredClaims: ['sub', 'exp'],
    currentDate: new Date(now * 1000),
  });
  return {
    async verify(token, now) {
      try {
        const { payload, protectedHeader } = await jwtVerify(token, keyFor, options(audience, now));
        const type = protectedHeader.typ?.toLowerCase().replace(/^application\//, '');
        if (type === undefined ? wantedType !== undefined : !(wantedType ? type === wantedType : TYPES.has(type)))
          throw notValid('is of another type');
        if (isIdToken(payload)) throw notValid('is an ID token: send the access token');
        if (isOther(payload)) throw notValid('is no access token');
        if (clients && !clients.includes(clientOf(payload))) throw notValid('was made for another application');
        return withSubject(payload);
      } catch (error) {
        throw refusalOf(error);
      }
    },

    async verifyIdToken(token, clientId, nonce, now) {
      try {
        const { payload } = await jwtVerify(token, keyFor, options(clientId, now));
        if (payload.nonce !== nonce) throw notValid('is not the answer to this sign-in');
        if (payload.azp !== undefined && payload.azp !== clientId) throw notValid('was made for another application');
        if (isOther(payload)) throw notValid('is no ID token');
        return withSubject(payload);
      } catch (error) {
        throw refusalOf(error);
      }
    },

    async discover() {
      if (known && milliseconds() < known.until) return known.document;
      if (away && milliseconds() < away.until) throw unavailable(away.error);
      running ??= read().finally(() => {
        running = undefined;
      });
      return running;
    },
  };
}

function withSubject(payload: JWTPayload): Claims {
  if (typeof payload.sub === 'string' && payload.sub && payload.sub.isWellFormed()) return payload as Claims;
  throw notValid('has no subject');
}

function refusalOf(error: unknown): Refusal {
  if (error instanceof Refusal) return error;
  return error instanceof errors.JOSEError ? notValid(sentenceOf(error), error) : unavailable(error);
}

function unavailable(cause: unknown): Refusal {
  const message = 'The keys of the identity provider are not available at the moment. Retry shortly.';
  return new Refusal('provider_unavailable', message, { retryAfterSeconds: RETRY_SECONDS, cause });
}

const isIdToken = (payload: JWTPayload) =>
  payload.nonce !== undefined || payload.at_hash !== undefined || payload.c_hash !== undefined || payload.typ === 'ID';

/** Security events, logout tokens among them (RFC 8417, OpenID Connect Back-Channel Logout 2.4), and Keycloak's other types. */
const OTHER_TYPES: unknown[] = ['Logout', 'Refresh', 'Offline'];
const isOther = (payload: JWTPayload) => payload.events !== undefined || OTHER_TYPES.includes(payload.typ);

/** The application that a token was made for: `client_id` (RFC 9068, 2.2), or `azp` where the issuer writes that instead. */
const clientOf = ({ client_id: client, azp }: JWTPayload) => String(client ?? azp ?? '');

function notValid(what: string, cause?: unknown): Refusal {
  return new Refusal('unauthenticated', `The token ${what}.`, cause === undefined ? {} : { cause });
}

/** Describes an error without quoting the value of a claim. */
function sentenceOf(error: errors.JOSEError): string {
  if (error instanceof errors.JWTExpired) return 'has expired';
  if (error instanceof errors.JWTClaimValidationFailed) return `is not for this service (${error.claim})`;
  if (error instanceof errors.JWKSNoMatchingKey) return 'is signed by a key that its issuer does not publish';
  return 'is malformed, unknown, or its signature is wrong';
}

const documentOf = (issuer: string) => `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`;

/** Reads the issuer's discovery document. Throws when it names another issuer. */
async function discover(issuer: string): Promise<Discovery & { jwks_uri?: unknown }> {
  const at = documentOf(issuer);
  const document = (await readJson(at)) as Discovery & { issuer?: unknown; jwks_uri?: unknown };
  if (document.issuer !== issuer)
    throw new Error(`${at} names another issuer: ${String(JSON.stringify(document.issuer)).slice(0, 200)}`);
  return document;
}

/** Returns an address of the issuer's, https where the issuer is; undefined for anything else. */
export function addressOf(value: unknown, issuer: string): URL | undefined {
  const isSafe = issuer.startsWith('https:') ? /^https:\/\// : /^https?:\/\//;
  return typeof value === 'string' && isSafe.test(value) && URL.canParse(value) ? new URL(value) : undefined;
}

function keysUrlOf(document: { jwks_uri?: unknown }, issuer: string): URL {
  const at = addressOf(document.jwks_uri, issuer);
  if (at) return at;
  throw new Error(`${documentOf(issuer)} has no ${issuer.startsWith('https:') ? 'https ' : ''}jwks_uri`);
}

async function readKeys(at: URL): Promise<JSONWebKeySet> {
  return (await readJson(at.href)) as JSONWebKeySet; // jose checks its shape.
}

async function readJson(at: string): Promise<object> {
  const response = await request(at, {
    headers: { accept: 'application/json' },
    signal: AbortSignal.timeout(CALL_MILLISECONDS),
  }).catch((cause: NodeJS.ErrnoException) => {
    const why =
      cause.name === 'TimeoutError' ? `no answer within ${CALL_MILLISECONDS} ms` : (cause.code ?? cause.message);
    throw new Error(`${at} cannot be reached (${why})`, { cause });
  });
  const text = await readAnswerText(response.body, DOCUMENT_BYTES_MAX);
  if (response.statusCode !== 200) throw new Error(`${at} answered ${response.statusCode}`);
  let document: unknown;
  try {
    document = parseJson(text);
  } catch {}
  if (typeof document !== 'object' || document === null) throw new Error(`${at} did not answer with a JSON object`);
  return document;
}

/** Fetches the document and the keys for doctor, bypassing the cache. Returns the finding; throws an error that describes the fault. */
export async function tryIssuer(issuer: string): Promise<string> {
  const at = keysUrlOf(await discover(issuer), issuer);
  const { keys } = await readKeys(at);
  if (!Array.isArray(keys) || !keys.length) throw new Error(`${at.href} publishes no keys`);
  return `${at.href} publishes ${keys.length} ${keys.length === 1 ? 'key' : 'keys'}`;
}
