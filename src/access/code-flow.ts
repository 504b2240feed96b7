import { createHash, hash, randomBytes } from 'node:crypto';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import type { IdentitySettings } from '../config/services.ts';
import { readAnswerText } from '../net/read-bounded.ts';
import { request } from '../net/request.ts';
import { addressOf, type Claims, type Discovery, type Issuer } from './issuer.ts';
import { claimOf, type Sessions } from './sessions.ts';

const CALL_MILLISECONDS = 10_000;
const ANSWER_BYTES_MAX = 256 * 1024;
const RANDOM_BYTES = 32;
/**
 * The scopes that a sign-in asks for where the issuer offers them; a claim that is asked for may be a scope of its own, such as
 * `groups`.
 */
const SCOPES = ['openid', 'email', 'profile'];

/** The secrets of one sign-in, which the browser keeps between its two halves. */
export type SignInAttempt = { state: string; verifier: string; nonce: string };

/** Sign-in in a browser: the authorization code flow of OpenID Connect, with PKCE (RFC 7636) and a nonce. */
export type CodeFlow = {
  /** A hash of the settings that decide who is an operator; undefined when the issuer names none. */
  rule: Buffer | undefined;
  /** Returns the issuer's page to send the browser to. Throws `provider_unavailable`. */
  begin(redirectUri: string): Promise<{ url: string; attempt: SignInAttempt }>;
  /**
   * Exchanges the code from the browser, and returns who signed in; an operator gets no account. `issuer` is the parameter `iss`
   * (RFC 9207). Throws `unauthenticated` for a code or a state of another attempt, and the errors of `Sessions.admit`.
   */
  finish(
    back: { state: string | null; code: string | null; issuer: string | null; redirectUri: string },
    attempt: SignInAttempt,
    now: number,
  ): Promise<SignedIn>;
};
/** A person who signed in at the identity provider: the holder of an account, or an operator, by the subject of the tokens. */
export type SignedIn = { accountId: string } | { operator: string };

type CodeFlowSettings = IdentitySettings & { client_id: string };

/** Creates the sign-in of the client `client_id`; without a secret it is a public client. */
export function createCodeFlow(settings: CodeFlowSettings, issuer: Issuer, sessions: Sessions): CodeFlow {
  const { client_id: clientId } = settings;

  /**
   * Returns the claims of an ID token, with those that it lacks: from the access token, if it is one for us, and where a claim that
   * decides is in neither, from the userinfo endpoint.
   */
  async function withMoreClaims(own: Claims, accessToken: unknown, now: number): Promise<Claims> {
    if (typeof accessToken !== 'string') return own;
    const access = await issuer.verify(accessToken, now).catch(() => undefined);
    if (access && access.sub !== own.sub) return own;
    const known: Claims = { ...access, ...own };
    if (access && decidingClaims(settings).every((name) => claimOf(known, name) !== undefined)) return known;
    const at = addressOf((await issuer.discover()).userinfo_endpoint, settings.issuer);
    if (!at) return known;
    const { status, body } = await call(at, { authorization: `Bearer ${accessToken}` });
    return status === 200 && body.sub === own.sub ? { ...body, ...known } : known;
  }

  return {
    rule: ruleOf(settings),

    async begin(redirectUri) {
      const document = await issuer.discover();
      const [state, verifier, nonce] = [random(), random(), random()];
      const url = endpointOf(document, settings.issuer, 'authorization_endpoint');
      const query = {
        client_id: clientId,
        response_type: 'code',
        redirect_uri: redirectUri,
        scope: scopesOf(document, settings).join(' '),
        state,
        nonce,
        code_challenge: createHash('sha256').update(verifier).digest('base64url'),
        code_challenge_method: 'S256',
      };
      for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
      return { url: url.href, attempt: { state, verifier, nonce } };
    },

    async finish({ state, code, issuer: from, redirectUri }, attempt, now) {
      if (state !== attempt.state || code === null || (from !== null && from !== settings.issuer))
        throw new Refusal('unauthenticated', 'This is not the answer to the sign-in that this browser began.');
      const tokens = await exchange(await issuer.discover(), settings, {
        code,
        verifier: attempt.verifier,
        redirectUri,
      });
      if (typeof tokens.id_token !== 'string')
        throw new Refusal('unauthenticated', 'The identity provider sent no ID token.');
      const own = await issuer.verifyIdToken(tokens.id_token, clientId, attempt.nonce, now);
      const claims = await withMoreClaims(own, tokens.access_token, now);
      return sessions.isOperator(claims) ? { operator: own.sub } : sessions.admit(claims);
    },
  };
}

/** Exchanges a code for the tokens of its sign-in. Throws `unauthenticated` if the issuer refuses it, `provider_unavailable`. */
async function exchange(
  document: Discovery,
  settings: CodeFlowSettings,
  { code, verifier, redirectUri }: { code: string; verifier: string; redirectUri: string },
): Promise<Record<string, unknown>> {
  const clientSecret = settings.client_secret?.reveal();
  const form = new URLSearchParams({
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: redirectUri,
    client_id: settings.client_id,
  });
  const headers: Record<string, string> = { 'content-type': 'application/x-www-form-urlencoded' };
  const methods = document.token_endpoint_auth_methods_supported;
  const isBasic = !Array.isArray(methods) || methods.includes('client_secret_basic');
  if (clientSecret !== undefined && isBasic) headers.authorization = basic(settings.client_id, clientSecret);
  else if (clientSecret !== undefined) form.set('client_secret', clientSecret);
  const { status, body } = await call(
    endpointOf(document, settings.issuer, 'token_endpoint'),
    headers,
    form.toString(),
  );
  if (status === 200) return body;
  const why = typeof body.error === 'string' ? ` (${body.error.slice(0, 100)})` : '';
  if (status < 500) throw new Refusal('unauthenticated', `The identity provider refused this sign-in${why}.`);
  throw new Refusal('provider_unavailable', `The identity provider answered ${status}.`);
}

/** Returns the names of the claims that say who may sign in, and who is an operator. */
function decidingClaims({ required_claim: required, operators, require_verified_email: isAsked }: IdentitySettings) {
  const verified = isAsked || operators?.claim === 'email' ? 'email_verified' : undefined;
  return [required?.name, operators?.claim, verified].filter((it) => it !== undefined);
}

/** Returns the scopes to ask for: those that the issuer offers, where it lists them. */
function scopesOf({ scopes_supported: offered }: Discovery, settings: IdentitySettings): string[] {
  if (!Array.isArray(offered)) return SCOPES;
  const wanted = new Set([...SCOPES, ...decidingClaims(settings)]);
  return [...wanted].filter((it) => it === 'openid' || offered.includes(it));
}

/** Returns an endpoint that the issuer publishes. Throws `provider_unavailable`. */
function endpointOf(document: Discovery, issuer: string, name: 'authorization_endpoint' | 'token_endpoint'): URL {
  const at = addressOf(document[name], issuer);
  if (at) return at;
  throw new Refusal('provider_unavailable', `The identity provider publishes no ${name}.`);
}

/** Returns a hash of everything that decides who is an operator: whatever changes of it ends the sessions that it opened. */
function ruleOf(settings: IdentitySettings): Buffer | undefined {
  const { client_secret: _, welcome_credit_cents: __, ...deciding } = settings;
  return settings.operators && hash('sha256', JSON.stringify(deciding), 'buffer');
}

const random = () => randomBytes(RANDOM_BYTES).toString('base64url');

/** RFC 6749, 2.3.1: both parts are form-encoded first. */
function basic(id: string, secret: string): string {
  const encode = (text: string) => new URLSearchParams({ '': text }).toString().slice(1);
  return `Basic ${Buffer.from(`${encode(id)}:${encode(secret)}`).toString('base64')}`;
}

async function call(
  at: URL,
  headers: Record<string, string>,
  body?: string,
): Promise<{ status: number; body: Record<string, unknown> }> {
  try {
    const response = await request(at, {
      method: body === undefined ? 'GET' : 'POST',
      headers: { accept: 'application/json', ...headers },
      body: body ?? null,
      signal: AbortSignal.timeout(CALL_MILLISECONDS),
    });
    const text = await readAnswerText(response.body, ANSWER_BYTES_MAX);
    let parsed: unknown;
    try {
      parsed = parseJson(text);
    } catch {}
    const isObject = typeof parsed === 'object' && parsed !== null;
    return { status: response.statusCode, body: isObject ? (parsed as Record<string, unknown>) : {} };
  } catch (cause) {
    throw new Refusal('provider_unavailable', 'The identity provider cannot be reached.', { cause });
  }
}
