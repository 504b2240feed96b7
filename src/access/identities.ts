import { hash } from 'node:crypto';
import { and, eq, sql } from 'drizzle-orm';
import { Refusal } from '../base/refusal.ts';
import { withChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { identities } from '../db/schema.ts';
import { type Account, accountOf, fundAccount, openAccount } from '../ledger/account.ts';

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
export function admitIdentity(
  tx: Tx,
  identity: Identity,
  welcomeCents: number,
  now: number,
): { account: Account; isNew: boolean } {
  const known = findIdentity(tx, identity);
  if (known !== undefined) return { account: accountOf(tx, known), isNew: false };
  const { id } = openAccount.run(tx, { name: nameOf(identity), creditCents: 0, now });
  linkIdentity(tx, id, identity, now);
  if (welcomeCents === 0) return { account: accountOf(tx, id), isNew: true };
  const order = {
    accountId: id,
    kind: 'welcome' as const,
    amountCents: welcomeCents,
    reason: 'first sign-in',
    key: null,
  };
  return { account: fundAccount.run(tx, { order, now }).account, isNew: true };
}

/** Builds a readable and unique account name. It is for display only. */
function nameOf({ issuer, subject }: Identity): string {
  const plain = subject.replace(/\p{Cc}/gu, '').slice(0, 50);
  return `${plain} ${hash('sha256', `${issuer}\n${subject}`, 'hex').slice(0, 12)}`;
}
