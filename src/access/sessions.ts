import type { Clock } from '../base/clock.ts';
import { Refusal } from '../base/refusal.ts';
import type { IdentitySettings } from '../config/services.ts';
import type { Account } from '../ledger/account.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { findIdentity, type Identity } from './identities.ts';
import type { Claims, Issuer } from './issuer.ts';
import { admitIdentity } from './writes.ts';

export type Sessions = {
  /**
   * Returns the account of an access token. Throws like `Issuer.verify`, and `wrong_token_scope` when the e-mail address is
   * not verified or the required claim is missing.
   */
  signIn(token: string): Promise<{ accountId: string }>;
  /** Returns the account of claims that were verified. Throws `wrong_token_scope` like `signIn`. */
  admit(claims: Claims): Promise<{ accountId: string }>;
  /** Returns whether verified claims are an operator's (`identity.operators`). Throws `wrong_token_scope` like `signIn`. */
  isOperator(claims: Claims): boolean;
};
export type SessionsApp = {
  ledger: Ledger;
  clock: Clock;
  events: { signedUp(account: Account, identity: Identity): void };
};

/** Creates the sign-in with the tokens of one identity provider (docs/sign-in.md). */
export function createSessions(settings: IdentitySettings, issuer: Issuer, app: SessionsApp): Sessions {
  async function admit(claims: Claims) {
    refuseUnverified(settings, claims);
    const identity = { issuer: settings.issuer, subject: claims.sub };
    const known = findIdentity(app.ledger.read, identity);
    if (known !== undefined) return { accountId: known };
    const now = app.clock.now();
    const welcomeCents = settings.welcome_credit_cents;
    const { account, isNew } = await app.ledger.write(admitIdentity, { identity, welcomeCents, now });
    if (isNew) app.events.signedUp(account, identity);
    return { accountId: account.id };
  }
  return {
    admit,
    signIn: async (token) => admit(await issuer.verify(token, app.clock.now())),
    isOperator(claims) {
      refuseUnverified(settings, claims);
      const { operators } = settings;
      return operators !== undefined && namesOperator(operators, claims);
    },
  };
}

/** Throws `wrong_token_scope` unless the token is a verified session (design 2.13); validity alone is not enough. */
function refuseUnverified(settings: IdentitySettings, claims: Claims): void {
  const { email_verified: verified } = claims;
  if (verified === false || verified === 'false' || (settings.require_verified_email && verified !== true))
    throw new Refusal(
      'wrong_token_scope',
      'The e-mail address of this sign-in is not verified. Verify it at the identity provider, and sign in again.',
    );
  const { required_claim: wanted } = settings;
  if (wanted && !holds(wanted.name, claimOf(claims, wanted.name), wanted.value))
    throw new Refusal(
      'wrong_token_scope',
      `This sign-in lacks what this installation asks for in ${wanted.name}. Ask the operator for access.`,
    );
}

/**
 * Returns whether the claim is the value, or a list with it. Nothing else makes an operator: a number, an object with such a
 * member or an unverified e-mail address does not.
 */
function namesOperator({ claim: name, value }: { claim: string; value: string }, claims: Claims): boolean {
  if (name === 'email' && claims.email_verified !== true) return false;
  const claim = claimOf(claims, name);
  return claim === value || (Array.isArray(claim) && claim.includes(value));
}

/** Returns a claim by its name, or else by the name as a dotted path (Keycloak: realm_access.roles). */
export function claimOf(claims: Claims, name: string): unknown {
  if (Object.hasOwn(claims, name)) return claims[name];
  let value: unknown = claims;
  for (const part of name.split('.')) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, part)) return undefined;
    value = (value as Record<string, unknown>)[part];
  }
  return value;
}

/** Claims that are space-separated lists (RFC 8693, 4.2). In others a space is an ordinary character. */
const SPACE_SEPARATED = new Set(['scope', 'scp']);

/** Returns whether a claim equals the value, is a list that contains it, or is an object with a member of that name. */
function holds(name: string, claim: unknown, wanted: string): boolean {
  if (Array.isArray(claim)) return claim.includes(wanted);
  if (typeof claim === 'string')
    return claim === wanted || (SPACE_SEPARATED.has(name) && claim.split(' ').includes(wanted));
  if (typeof claim === 'object' && claim !== null) return Object.hasOwn(claim, wanted); // Zitadel's roles
  return (typeof claim === 'boolean' || typeof claim === 'number') && String(claim) === wanted;
}
