import type { Reader } from '../db/handle.ts';
import { findWalletByToken, type Wallet } from '../ledger/wallet.ts';
import { Refusal } from '../refusal.ts';
import { findKeyByToken, refuseRevokedKey } from './keys.ts';
import { findRouterKeyByToken, type KeyLimits, limitsOf, refuseRevokedRouterKey } from './router-keys.ts';
import type { Sessions } from './sessions.ts';
import { hashToken, kindOfToken, looksLikeOurs } from './token.ts';

/** The authenticated caller. An operator key acts for the account it was bound to at minting (design 2.12). */
export type Principal =
  | { kind: 'account' | 'operator'; keyId: string; accountId: string }
  | { kind: 'session'; accountId: string }
  | { kind: 'wallet'; wallet: Wallet }
  | { kind: 'router'; routerKeyId: string; walletId: string; limits: KeyLimits };

/**
 * The credential that an endpoint requires (interface, section 4): an account key, a signed-in session, or a wallet token;
 * `router` is a gateway key, for the endpoints under the gateway's base URL (design, section 8).
 */
export type Scope = 'account' | 'session' | 'wallet' | 'router';

const ADMITS: Record<Scope, Record<Principal['kind'], boolean>> = {
  account: { account: true, operator: true, session: true, wallet: false, router: false },
  session: { account: false, operator: true, session: true, wallet: false, router: false },
  wallet: { account: false, operator: false, session: false, wallet: true, router: false },
  router: { account: false, operator: false, session: false, wallet: false, router: true },
};

const BEARER = /^bearer +([^\s]+) *$/i;

/** Returns the token of an Authorization header. Throws `unauthenticated` when there is none. */
export function bearerOf(authorization: string | undefined): string {
  const token = BEARER.exec(authorization ?? '')?.[1];
  if (token) return token;
  throw new Refusal('unauthenticated', 'Send the header "Authorization" with "Bearer", a space and the token.');
}

/**
 * Authenticates a token. Purser's own tokens are looked up synchronously. Where sign-in is configured, any other string is
 * verified by `sessions`; one with the prefix of our own tokens never is (design 2.13). Throws `unauthenticated` for an
 * unknown, revoked or malformed token, and the refusals of `Sessions.signIn`.
 */
export function authenticate(read: Reader, token: string, sessions?: Sessions): Principal | Promise<Principal> {
  if (sessions && !looksLikeOurs(token))
    return sessions.signIn(token).then(({ accountId }) => ({ kind: 'session', accountId }));
  const kind = kindOfToken(token);
  if (kind === 'account' || kind === 'operator') {
    const key = findKeyByToken(read, hashToken(token));
    if (key && key.kind === kind && key.revokedAt === null) return { kind, keyId: key.id, accountId: key.accountId };
  } else if (kind === 'wallet') {
    const wallet = findWalletByToken(read, hashToken(token));
    if (wallet) return { kind, wallet };
  } else if (kind === 'router') {
    const key = findRouterKeyByToken(read, hashToken(token));
    if (key) return { kind, routerKeyId: key.id, walletId: key.walletId, limits: limitsOf(key) };
  }
  throw new Refusal('unauthenticated');
}

/** Throws `unauthenticated` when the caller's key has been revoked since it was authenticated. */
export function refuseRevoked(read: Reader, principal: Principal): void {
  if ('keyId' in principal) refuseRevokedKey(read, principal.keyId);
  if ('routerKeyId' in principal) refuseRevokedRouterKey(read, principal.routerKeyId);
}

export type AccountPrincipal = Extract<Principal, { accountId: string }>;
export type WalletPrincipal = Extract<Principal, { kind: 'wallet' }>;
export type RouterPrincipal = Extract<Principal, { kind: 'router' }>;
export type PrincipalFor<S extends Scope> = S extends 'router'
  ? RouterPrincipal
  : S extends 'wallet'
    ? WalletPrincipal
    : AccountPrincipal;

/** Narrows the caller to the type that `scope` requires. Throws `wrong_token_scope` when it is another. */
export function admit<S extends Scope>(principal: Principal, scope: S): PrincipalFor<S> {
  if (ADMITS[scope][principal.kind]) return principal as PrincipalFor<S>;
  const wanted = {
    account: 'an account key',
    session: 'a signed-in session or an operator key',
    wallet: 'a wallet token',
    router: 'a gateway key, which POST /v1/router/key answers',
  };
  throw new Refusal('wrong_token_scope', `This endpoint takes ${wanted[scope]}.`);
}
