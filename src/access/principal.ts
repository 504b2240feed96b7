import { Refusal, type RefusalData, refusedFrom } from '../base/refusal.ts';
import type { Reader } from '../db/handle.ts';
import type { Wallet } from '../ledger/wallet.ts';
import { refuseRevokedKey } from './keys.ts';
import { type KeyLimits, refuseRevokedRouterKey } from './router-keys.ts';
import type { Sessions } from './sessions.ts';
import { looksLikeOurs } from './token.ts';
import type { Tokens } from './tokens.ts';

/** The authenticated caller. An operator key acts for the account it was bound to at minting (design 2.12). */
export type Principal =
  | { kind: 'account' | 'operator'; keyId: string; accountId: string }
  | { kind: 'session'; accountId: string }
  /** A wallet without its state, which is read at the moment that it is needed. */
  | { kind: 'wallet'; wallet: Pick<Wallet, 'id' | 'accountId'> }
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
 * Authenticates a token. Purser's own are looked up synchronously. Where sign-in is configured, `sessions` verifies any other
 * string without their prefix (design 2.13). Throws `unauthenticated` for an unknown, revoked or malformed token, and the refusals
 * of `Sessions.signIn`.
 */
export function authenticate(
  { tokens, sessions }: { tokens: Tokens; sessions: Sessions | undefined },
  token: string,
): Principal | Promise<Principal> {
  if (sessions && !looksLikeOurs(token))
    return sessions.signIn(token).then(({ accountId }) => ({ kind: 'session', accountId }));
  const principal = tokens.find(token);
  if (!principal) throw new Refusal('unauthenticated');
  return principal;
}

/** Returns why the caller's key is no longer valid, as data; undefined unless the key has been revoked. */
export function revokedSince(read: Reader, principal: Principal): RefusalData | undefined {
  try {
    refuseRevoked(read, principal);
    return undefined;
  } catch (error) {
    return refusedFrom(error);
  }
}

/** Throws `unauthenticated` when the caller's key has been revoked since it was authenticated. */
export function refuseRevoked(read: Reader, principal: Principal): void {
  if ('keyId' in principal) refuseRevokedKey(read, principal.keyId);
  if ('routerKeyId' in principal) refuseRevokedRouterKey(read, principal.routerKeyId);
}

export type AccountPrincipal = Extract<Principal, { accountId: string }>;
type WalletPrincipal = Extract<Principal, { kind: 'wallet' }>;
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
