import { sql } from 'drizzle-orm';
import { blob, check, index, primaryKey, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { KEY_KINDS, SESSION_KINDS } from '../enums.ts';
import { accounts } from './account.ts';
import { count, hash, oneOf, refersTo, seal } from './columns.ts';

/** Sign-in identities: an account by issuer and subject, never by e-mail address (design 2.13). */
export const identities = sqliteTable(
  'identity',
  {
    issuer: text().notNull(),
    subject: text().notNull(),
    accountId: refersTo('account_id', () => accounts.id),
    createdAt: count('created_at').notNull(),
    seal: seal(),
  },
  (t) => [primaryKey({ columns: [t.issuer, t.subject] }), index('identity_account').on(t.accountId)],
);

/** Account keys and operator keys: hashes only. */
export const keys = sqliteTable(
  'key',
  {
    id: text().primaryKey(),
    kind: text({ enum: KEY_KINDS }).notNull(),
    accountId: refersTo('account_id', () => accounts.id),
    name: text().notNull(),
    tokenHash: hash('token_hash').notNull(),
    last4: text().notNull(),
    mintedBy: text('minted_by').notNull(),
    createdAt: count('created_at').notNull(),
    lastUsedAt: count('last_used_at'),
    revokedAt: count('revoked_at'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('key_token').on(t.tokenHash),
    index('key_account').on(t.accountId, t.id),
    check('key_kind', oneOf(t.kind, KEY_KINDS)),
    check('key_name', sql`length(${t.name}) between 1 and 80`),
  ],
);

/** Passkeys of the operators: public keys only. A row stays when its passkey is removed. */
export const passkeys = sqliteTable(
  'passkey',
  {
    id: text().primaryKey(),
    name: text().notNull(),
    /** The address of the page that it was made at, and signs in at. */
    origin: text().notNull(),
    credentialId: blob('credential_id', { mode: 'buffer' }).notNull(),
    /** In the form of COSE (RFC 9052). */
    publicKey: blob('public_key', { mode: 'buffer' }).notNull(),
    /** The number of uses as the authenticator counts them; 0 if it does not count. */
    useCount: count('use_count').notNull(),
    /** Null: the identity provider signs its users in itself. A passkey that has both signs no user in. */
    subject: text(),
    rule: hash('rule'),
    createdAt: count('created_at').notNull(),
    lastUsedAt: count('last_used_at'),
    removedAt: count('removed_at'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('passkey_credential').on(t.credentialId),
    check('passkey_name', sql`length(${t.name}) between 1 and 80`),
    check('passkey_uses', sql`${t.useCount} >= 0`),
    check('passkey_rule', sql`(${t.subject} is null) = (${t.rule} is null)`),
  ],
);

/** Sessions of the page, and the links that open one: hashes only. A row is deleted when its session ends. */
export const browserSessions = sqliteTable(
  'browser_session',
  {
    id: text().primaryKey(),
    kind: text({ enum: SESSION_KINDS }).notNull(),
    /** The account of the session; null for the operator's. */
    accountId: text('account_id').references(() => accounts.id),
    /** The account key that opened it: the session ends with the key. */
    keyId: text('key_id').references(() => keys.id),
    /** The passkey that opened it: the session ends with the passkey. */
    passkeyId: text('passkey_id').references(() => passkeys.id),
    /** The user of the identity provider that an operator's session is of. Null for a session from a link, and for an account's. */
    subject: text(),
    /** A hash of the settings that made this user an operator: the session ends when they change. */
    rule: hash('rule'),
    tokenHash: hash('token_hash').notNull(),
    createdAt: count('created_at').notNull(),
    /** The end of the session, which no use postpones. */
    expiresAt: count('expires_at').notNull(),
    lastUsedAt: count('last_used_at').notNull(),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('browser_session_token').on(t.tokenHash),
    index('browser_session_expiry').on(t.expiresAt),
    check('browser_session_kind', oneOf(t.kind, SESSION_KINDS)),
    check('browser_session_account', sql`(${t.kind} = 'account') = (${t.accountId} is not null)`),
    check('browser_session_rule', sql`(${t.subject} is null) = (${t.rule} is null)`),
    check('browser_session_subject', sql`${t.subject} is null or ${t.kind} = 'operator'`),
  ],
);
