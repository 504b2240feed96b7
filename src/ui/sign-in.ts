import type { IncomingMessage } from 'node:http';
import { type BrowserSessionOrder, findBrowserSession, mintBrowserToken } from '../access/browser-sessions.ts';
import type { Challenges } from '../access/challenges.ts';
import type { SignedIn, SignInAttempt } from '../access/code-flow.ts';
import { findKeyByToken } from '../access/keys.ts';
import { findPasskey, handleOf, isCopy, isUsable, type Passkey, passkeysAt } from '../access/passkeys.ts';
import { hashToken, kindOfToken } from '../access/token.ts';
import * as writes from '../access/writes.ts';
import { Refusal } from '../base/refusal.ts';
import { createShares } from '../base/shares.ts';
import { callerNetwork } from '../http/caller.ts';
import { installationOf } from '../ledger/installation.ts';
import { ATTEMPT, cookie, cookieOf, type PageAddress, SESSION } from './guard.ts';
import { html } from './html.ts';
import { assets, type Page } from './layout.ts';
import { buttonLink, card, form } from './parts.ts';
import { askFor, ceremonyOf, clearedChallenge, whyNone } from './passkeys.ts';
import { sessionOf } from './viewer.ts';
import { operatorOnly, type UiApp, type Viewer } from './visit.ts';

/** A request of a visitor who is not signed in yet. */
export type Arrival = {
  app: UiApp;
  incoming: IncomingMessage;
  address: PageAddress;
  challenges: Challenges;
  params: Record<string, string>;
  query: URLSearchParams;
  form: URLSearchParams;
};
/** A redirection of the browser, with cookies. */
export type Go = { to: string; cookies?: string[] };
/** JSON for the page's script, with cookies. */
export type ScriptData = { data: object; cookies: string[] };

const COOKIE_SECONDS = 7 * 86_400;
const ATTEMPT_SECONDS = 600;
const CALLBACK = '/sign-in/callback';

/** Maximum number of sign-ins that are asked of the identity provider at once, of one network and of all. Each has a connection. */
const EXCHANGE_COUNT_MAX = { each: 16, all: 64 };
const EXCHANGE_RETRY_SECONDS = 5;
const exchanges = createShares(EXCHANGE_COUNT_MAX);

/** Returns a path of this server; any other becomes the first page. */
export const ownPath = (path: string | null): string => (path && /^\/(?![/\\])[\x21-\x7e]*$/.test(path) ? path : '/');

/** Shows the sign-in page. */
export function signInPage({ app, address, query }: Arrival, fault?: string): Page {
  const next = ownPath(query.get('next'));
  const issuer =
    app.codeFlow && html`<p>${buttonLink('/sign-in/issuer', 'Sign in with your identity provider', 'primary')}</p>`;
  const usable = whyNone(app, address) ? [] : passkeysAt(app.ledger.read, address.origin);
  const byPasskey =
    usable.length > 0 &&
    form({
      action: '/sign-in/passkey',
      passkey: '/sign-in/passkey/options',
      hidden: { next },
      submit: 'Sign in with a passkey',
    });
  const body = html`
    ${fault && html`<p class="notice bad" role="alert">${fault}</p>`}
    ${issuer && card('Your account', issuer)}
    ${card(
      'With an account key',
      form({
        action: '/sign-in/key',
        hidden: { next },
        fields: [
          {
            name: 'key',
            label: 'Account key',
            type: 'password',
            required: true,
            placeholder: 'cnv_live_…',
            hint: 'It is exchanged for a session of this browser and not kept.',
          },
        ],
        submit: 'Sign in',
        tone: app.codeFlow ? '' : 'primary',
      }),
    )}
    ${card('As the operator', html`${app.codeFlow?.rule && html`<p>If your identity provider names you as an operator, sign in with it above.</p>`}${byPasskey}<p>Run <code>purser ui</code> where Purser runs, and open the link that it prints. Elsewhere, an SSH tunnel to this address leads here.</p>`)}`;
  const brand = html`<img src="${assets['icon.svg'].path}" alt="" width="32" height="32">`;
  return { title: 'Sign in to Purser', body, aside: brand, status: fault === undefined ? 200 : 401 };
}

/** Opens a session with a new token and ends the browser's earlier one, which may have been planted there. */
async function open(arrival: Arrival, order: Omit<BrowserSessionOrder, 'tokenHash'>): Promise<string> {
  const { app, incoming, address } = arrival;
  const token = mintBrowserToken();
  const earlier = sessionOf(app, incoming, address);
  const now = app.clock.now();
  const opened = { ...order, tokenHash: hashToken(token) };
  await app.ledger.write(writes.openBrowserSession, { order: opened, earlierId: earlier?.id, now });
  return cookie(address, SESSION, token, COOKIE_SECONDS);
}

/** Counts a wrong credential against its network. Throws `rate_limited` and `unauthenticated`. */
function refuse({ app, incoming }: Arrival, message: string): never {
  app.limits.failedAuth.take(callerNetwork(app, incoming));
  throw new Refusal('unauthenticated', message);
}

/** Signs in with an account key or an operator key, for its account. Throws `rate_limited` like each request of the account. */
export async function signInByKey(arrival: Arrival): Promise<Go> {
  const { app, form } = arrival;
  const token = (form.get('key') ?? '').trim();
  const kind = kindOfToken(token);
  const key = kind === 'account' || kind === 'operator' ? findKeyByToken(app.ledger.read, hashToken(token)) : undefined;
  if (!key || key.kind !== kind || key.revokedAt !== null)
    return refuse(arrival, 'This is no account key of this installation, or it was revoked.');
  app.limits.account.take(key.accountId); // A session costs a commit, even if it is never used.
  app.used(key.id, app.clock.now());
  const cookies = [await open(arrival, { kind: 'account', accountId: key.accountId, keyId: key.id })];
  return { to: ownPath(form.get('next')), cookies };
}

/** Signs in as the operator by a link of `purser ui`. */
export async function signInByLink(arrival: Arrival): Promise<Go> {
  const { app, incoming, address, params } = arrival;
  const token = mintBrowserToken();
  const linkHash = hashToken(params.code ?? '');
  const now = app.clock.now();
  const earlier = sessionOf(app, incoming, address);
  const isKnown = findBrowserSession(app.ledger.read, linkHash, now)?.kind === 'link'; // A guess costs no write.
  const isGood =
    isKnown &&
    (await app.ledger.write(writes.redeemLink, { linkHash, tokenHash: hashToken(token), earlierId: earlier?.id, now }));
  if (!isGood) return refuse(arrival, 'This link was used already, or is older than a minute. Run `purser ui` again.');
  return { to: '/', cookies: [cookie(address, SESSION, token, COOKIE_SECONDS)] };
}

const PASSKEY_PURPOSE = 'sign in';

/** Returns what the browser needs to sign in with a passkey. */
export async function optionsOfPasskey(arrival: Arrival): Promise<ScriptData> {
  const { expected, cookies } = askFor(arrival, PASSKEY_PURPOSE);
  const { requestOptions } = await import('../access/webauthn.ts');
  return { data: await requestOptions(expected), cookies };
}

/** Signs in as an operator by the answer of a passkey. Throws `rate_limited` and `unauthenticated`. */
export async function signInByPasskey(arrival: Arrival): Promise<Go> {
  const { app, incoming, address, form } = arrival;
  app.limits.failedAuth.check(callerNetwork(app, incoming));
  const { passkey, useCount } = await verified(arrival);
  if (isCopy(passkey, useCount)) {
    app.events.passkeyCopied(passkey, useCount);
    refuse(
      arrival,
      'This passkey has counted fewer uses than it had before: it may be a copy. Sign in by a link instead.',
    );
  }
  app.limits.account.take('operator ');
  const token = mintBrowserToken();
  const earlierId = sessionOf(app, incoming, address)?.id;
  const use = { passkeyId: passkey.id, useCount, tokenHash: hashToken(token), earlierId, now: app.clock.now() };
  await app.ledger.write(writes.openByPasskey, use);
  app.events.operatorSignedIn('passkey', null, passkey.id);
  return {
    to: ownPath(form.get('next')),
    cookies: [cookie(address, SESSION, token, COOKIE_SECONDS), clearedChallenge(address)],
  };
}

/** Returns the passkey of an answer that was verified, and the uses that it counts. Throws `unauthenticated`. */
async function verified(arrival: Arrival): Promise<{ passkey: Passkey; useCount: number }> {
  const { app, address, form } = arrival;
  try {
    const { checkAnswer, readAnswer } = await import('../access/webauthn.ts');
    const expected = ceremonyOf(arrival, PASSKEY_PURPOSE);
    const answer = readAnswer(form.get('credential') ?? '');
    const passkey = findPasskey(app.ledger.read, Buffer.from(answer.id, 'base64url'));
    if (!passkey || passkey.origin !== address.origin || !isUsable(passkey))
      throw new Refusal('invalid_request', 'This passkey is not known here, or was removed.');
    const { installationId } = installationOf(app.ledger.read);
    const handle = handleOf(installationId);
    const useCount = await checkAnswer(answer, expected, { publicKey: passkey.publicKey, handle });
    return { passkey, useCount };
  } catch (error) {
    if (error instanceof Refusal && error.code === 'invalid_request') return refuse(arrival, error.message);
    throw error;
  }
}

/** Redirects the browser to the identity provider. The state that must come back with it is kept in a cookie. */
export async function beginSignIn({ app, address }: Arrival): Promise<Go> {
  if (!app.codeFlow) throw new Refusal('not_found', 'No sign-in is configured (identity.client_id).');
  const { url, attempt } = await app.codeFlow.begin(`${address.origin}${CALLBACK}`);
  const kept = [attempt.state, attempt.verifier, attempt.nonce].join('.');
  return { to: url, cookies: [cookie(address, ATTEMPT, kept, ATTEMPT_SECONDS)] };
}

/** Completes the sign-in when the browser returns from the identity provider. Throws `rate_limited` and `unauthenticated`. */
export async function finishSignIn(arrival: Arrival): Promise<Go> {
  const { app, incoming, address, query } = arrival;
  if (!app.codeFlow) throw new Refusal('not_found', 'No sign-in is configured (identity.client_id).');
  const [state, verifier, nonce] = (cookieOf(incoming, address, ATTEMPT) ?? '').split('.');
  if (!state || !verifier || !nonce)
    throw new Refusal('unauthenticated', 'This sign-in was begun in another browser, or ten minutes ago. Begin again.');
  if (query.get('error'))
    throw new Refusal(
      'unauthenticated',
      'The identity provider did not sign you in. Begin again, or ask the operator.',
    );
  const attempt: SignInAttempt = { state, verifier, nonce };
  const back = {
    state: query.get('state'),
    code: query.get('code'),
    issuer: query.get('iss'),
    redirectUri: `${address.origin}${CALLBACK}`,
  };
  const network = callerNetwork(app, incoming);
  app.limits.failedAuth.check(network); // Each attempt calls the identity provider.
  // An attempt counts once it has failed: those that are on their way are limited by their number.
  if (!exchanges.tryTake(network, 1))
    throw new Refusal('rate_limited', 'Too many people are signing in at the moment. Reload this page in a moment.', {
      retryAfterSeconds: EXCHANGE_RETRY_SECONDS,
    });
  const signedIn = await app.codeFlow
    .finish(back, attempt, app.clock.now())
    .catch((error) => {
      const isFailed = error instanceof Refusal && ['unauthenticated', 'provider_unavailable'].includes(error.code);
      if (isFailed) app.limits.failedAuth.count(network);
      throw error;
    })
    .finally(() => exchanges.release(network, 1));
  const order = orderOf(arrival, signedIn);
  return { to: '/', cookies: [await open(arrival, order), cookie(address, ATTEMPT, '', 0)] };
}

/** Returns the session of who signed in at the identity provider. Throws `rate_limited`: a session costs a commit. */
function orderOf({ app }: Arrival, signedIn: SignedIn): Omit<BrowserSessionOrder, 'tokenHash'> {
  if ('accountId' in signedIn) {
    app.limits.account.take(signedIn.accountId);
    return { kind: 'account', accountId: signedIn.accountId };
  }
  const subject = signedIn.operator;
  app.limits.account.take(`operator ${subject}`);
  app.events.operatorSignedIn('issuer', subject);
  return { kind: 'operator', subject, rule: app.codeFlow?.rule ?? null };
}

/**
 * Ends the session of this browser, `everywhere` all of the same account or that the same operator opened in the same way, or
 * those of all `operators`. Throws `not_found` unless one of them asks for that.
 */
export async function signOut(
  app: UiApp,
  address: PageAddress,
  viewer: Viewer,
  which: 'this' | 'everywhere' | 'operators',
): Promise<Go> {
  const { write } = app.ledger;
  if (which === 'operators') {
    operatorOnly({ viewer });
    await write(writes.endBrowserSessionsOf, { accountId: null });
  } else if (which === 'this') await write(writes.endBrowserSession, { id: viewer.sessionId });
  else if (viewer.kind === 'account') await write(writes.endBrowserSessionsOf, { accountId: viewer.accountId });
  else await write(writes.endOperatorSessionsOf, { passkeyId: viewer.passkeyId, subject: viewer.subject });
  const done = which === 'this' ? 'signed-out' : 'signed-out-everywhere';
  return { to: `/sign-in?done=${done}`, cookies: [cookie(address, SESSION, '', 0)] };
}
