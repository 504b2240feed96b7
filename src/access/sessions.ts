import { hash } from 'node:crypto';
import { and, eq, sql } from 'drizzle-orm';
import type { Clock } from '../clock.ts';
import type { IdentitySettings } from '../config/services.ts';
import { withChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { identities } from '../db/schema.ts';
import { type Account, accountOf, fundAccount, openAccount } from '../ledger/account.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { Refusal } from '../refusal.ts';
import type { Claims, Issuer } from './issuer.ts';

export type Identity = { issuer: string; subject: string };

const reads = prepare((read: Reader) => ({
  one: read
    .select({ accountId: identities.accountId })
    .from(identities)
    .where(and(eq(identities.issuer, sql.placeholder('issuer')), eq(identities.subject, sql.placeholder('subject'))))
    .prepare(),
}));

/** Returns the account id of an identity, or undefined if it has neither signed in nor been linked. */
export function findIdentity(read: Reader, { issuer, subject }: Identity): string | undefined {
  return reads(read).one.get({ issuer, subject })?.accountId;
}

/** Links an identity to an existing account. Throws `conflict` when it is linked to another, `not_found` without the account. */
export function linkIdentity(tx: Tx, accountId: string, identity: Identity, now: number): Account {
  const account = accountOf(tx, accountId);
  const known = findIdentity(tx, identity);
  if (known === account.id) return account;
  if (known !== undefined) throw new Refusal('conflict', `This identity is linked to ${known} already.`);
  tx.insert(identities)
    .values(withChecksum(identities, { ...identity, accountId, createdAt: now }))
    .run();
  return account;
}

/** Returns the account of an identity. The first sign-in creates it and grants the welcome credit. */
function admitIdentity(
  tx: Tx,
  identity: Identity,
  welcomeCents: number,
  now: number,
): { account: Account; isNew: boolean } {
  const known = findIdentity(tx, identity);
  if (known !== undefined) return { account: accountOf(tx, known), isNew: false };
  const { id } = openAccount(tx, nameOf(identity), now);
  linkIdentity(tx, id, identity, now);
  if (welcomeCents === 0) return { account: accountOf(tx, id), isNew: true };
  const order = {
    accountId: id,
    kind: 'welcome' as const,
    amountCents: welcomeCents,
    reason: 'first sign-in',
    key: null,
  };
  return { account: fundAccount(tx, order, now), isNew: true };
}

/** Builds a readable and unique account name. It is for display only. */
function nameOf({ issuer, subject }: Identity): string {
  const plain = subject.replace(/\p{Cc}/gu, '').slice(0, 50);
  return `${plain} ${hash('sha256', `${issuer}\n${subject}`, 'hex').slice(0, 12)}`;
}

export type Sessions = {
  /**
   * Returns the account of an access token. Throws like `Issuer.verify`, and `wrong_token_scope` when the e-mail address is
   * not verified or the required claim is missing.
   */
  signIn(token: string): Promise<{ accountId: string }>;
};
export type SessionsApp = {
  ledger: Ledger;
  clock: Clock;
  events: { signedUp(account: Account, identity: Identity): void };
};

export function createSessions(settings: IdentitySettings, issuer: Issuer, app: SessionsApp): Sessions {
  return {
    async signIn(token) {
      const claims = await issuer.verify(token, app.clock.now());
      refuseUnverified(settings, claims);
      const identity = { issuer: settings.issuer, subject: claims.sub };
      const known = findIdentity(app.ledger.read, identity);
      if (known !== undefined) return { accountId: known };
      const now = app.clock.now();
      const { account, isNew } = await app.ledger.write((tx) =>
        admitIdentity(tx, identity, settings.welcome_credit_cents, now),
      );
      if (isNew) app.events.signedUp(account, identity);
      return { accountId: account.id };
    },
  };
}

/** Throws `wrong_token_scope` unless the token is a verified session (design 2.13); validity alone is not enough. */
function refuseUnverified(settings: IdentitySettings, claims: Claims): void {
  const { email_verified: verified } = claims;
  if (verified === false || verified === 'false' || (settings.require_verified_email && verified !== true))
    throw new Refusal('wrong_token_scope', 'The e-mail address of this sign-in is not verified.');
  const { required_claim: wanted } = settings;
  if (wanted && !holds(wanted.name, claimOf(claims, wanted.name), wanted.value))
    throw new Refusal('wrong_token_scope', `This sign-in lacks what this installation asks for in ${wanted.name}.`);
}

/** Returns a claim by its name, or else by the name as a dotted path (Keycloak: realm_access.roles). */
function claimOf(claims: Claims, name: string): unknown {
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

/** Tells whether a claim equals the value, is a list that contains it, or is an object with a member of that name. */
function holds(name: string, claim: unknown, wanted: string): boolean {
  if (Array.isArray(claim)) return claim.includes(wanted);
  if (typeof claim === 'string')
    return claim === wanted || (SPACE_SEPARATED.has(name) && claim.split(' ').includes(wanted));
  if (typeof claim === 'object' && claim !== null) return Object.hasOwn(claim, wanted); // Zitadel's roles
  return (typeof claim === 'boolean' || typeof claim === 'number') && String(claim) === wanted;
}
