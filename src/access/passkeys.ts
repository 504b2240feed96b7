import { hash } from 'node:crypto';
import { count, eq, isNull, sql } from 'drizzle-orm';
import { newId } from '../base/id.ts';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { refuseOnLowDisk } from '../db/disk-reserve.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { passkeys } from '../db/schema.ts';
import type { Credential } from './webauthn.ts';

/** A passkey with which an operator signs in to the page. */
export type Passkey = typeof passkeys.$inferSelect;
export type PasskeyOrder = Credential & Pick<Passkey, 'name' | 'origin'>;

/** The most passkeys that are not removed. */
const PASSKEY_COUNT_MAX = 50;

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(passkeys)
    .where(eq(passkeys.id, sql.placeholder('id')))
    .prepare(),
  byCredential: read
    .select()
    .from(passkeys)
    .where(eq(passkeys.credentialId, sql.placeholder('credentialId')))
    .prepare(),
  all: read.select().from(passkeys).orderBy(sql`${passkeys.id} desc`).prepare(),
}));

/** Returns all passkeys, newest first, removed ones too. */
export const listPasskeys = (read: Reader): Passkey[] => reads(read).all.all();

/** Returns whether a passkey signs in: not where it was made for a user of the identity provider, which would not be asked. */
export const isUsable = ({ removedAt, rule }: Passkey): boolean => removedAt === null && rule === null;

/** Returns the passkeys that sign in to the page at this origin. */
export const passkeysAt = (read: Reader, origin: string): Passkey[] =>
  listPasskeys(read).filter((it) => isUsable(it) && it.origin === origin);

/** Returns the passkey of a credential, even if removed. */
export const findPasskey = (read: Reader, credentialId: Buffer): Passkey | undefined =>
  reads(read).byCredential.get({ credentialId });

/** Returns the passkey with this id, even if removed. */
export const findPasskeyById = (read: Reader, id: string): Passkey | undefined => reads(read).byId.get({ id });

/** Returns the name under which authenticators know the operator of an installation. */
export const handleOf = (installationId: string): Buffer => hash('sha256', `operator\n${installationId}`, 'buffer');

/**
 * Adds a passkey. Throws `conflict` for one that was added before, and beyond the limit, and `invalid_request` for a name that
 * is empty or too long.
 */
export function addPasskey(tx: Tx, order: PasskeyOrder, now: number): Passkey {
  if (!order.name || [...order.name].length > 80)
    throw new Refusal('invalid_request', 'The name of a passkey has 1 to 80 characters.');
  if (findPasskey(tx, order.credentialId)) throw new Refusal('conflict', 'This passkey was added before.');
  const live = tx.select({ count: count() }).from(passkeys).where(isNull(passkeys.removedAt)).get();
  if (Number(live?.count) >= PASSKEY_COUNT_MAX)
    throw new Refusal('conflict', `There are ${PASSKEY_COUNT_MAX} passkeys already. Remove one first.`);
  refuseOnLowDisk(tx);
  const row = withChecksum(passkeys, {
    id: newId('pass'),
    ...order,
    subject: null,
    rule: null,
    createdAt: now,
    lastUsedAt: null,
    removedAt: null,
  });
  tx.insert(passkeys).values(row).run();
  return row;
}

/** Returns whether a counting authenticator has counted no further since the last use: a copy of it may be in use. */
export const isCopy = (passkey: Passkey, useCount: number): boolean =>
  (useCount > 0 || passkey.useCount > 0) && useCount <= passkey.useCount;

/** Notes a use of a passkey. Throws `unauthenticated` for one that has been removed, or used as often already. */
export function usePasskey(tx: Tx, id: string, useCount: number, now: number): Passkey {
  const passkey = reads(tx).byId.get({ id });
  if (!passkey || !isUsable(passkey) || isCopy(passkey, useCount)) throw new Refusal('unauthenticated');
  const used = withNewChecksum(passkeys, passkey, { useCount, lastUsedAt: now });
  tx.update(passkeys).set(used).where(eq(passkeys.id, id)).run();
  return { ...passkey, ...used };
}

/** Notes that a passkey was used at least this often, so that an older copy of it is noticed. */
export function notePasskeyUses(tx: Tx, id: string, useCount: number): void {
  const passkey = reads(tx).byId.get({ id });
  if (!passkey || passkey.useCount >= useCount) return;
  tx.update(passkeys)
    .set(withNewChecksum(passkeys, passkey, { useCount }))
    .where(eq(passkeys.id, id))
    .run();
}

/** Removes a passkey for good; a second call changes nothing. Throws `not_found`. */
export function removePasskey(tx: Tx, id: string, now: number): Passkey {
  const passkey = reads(tx).byId.get({ id });
  if (!passkey) throw new Refusal('not_found', 'There is no such passkey.');
  if (passkey.removedAt !== null) return passkey;
  const removed = withNewChecksum(passkeys, passkey, { removedAt: now });
  tx.update(passkeys).set(removed).where(eq(passkeys.id, id)).run();
  return { ...passkey, ...removed };
}
