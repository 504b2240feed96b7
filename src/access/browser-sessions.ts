import { randomBytes } from 'node:crypto';
import { and, count, desc, eq, gt, isNotNull, isNull, lte, ne, or, type SQL, sql } from 'drizzle-orm';
import type { SQLiteColumn } from 'drizzle-orm/sqlite-core';
import { newId } from '../base/id.ts';
import { withChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { browserSessions } from '../db/schema.ts';

/** A session of the page: a browser that is signed in as the operator or as the holder of an account. */
export type BrowserSession = typeof browserSessions.$inferSelect;
type Owner = Pick<BrowserSession, 'accountId' | 'keyId' | 'passkeyId' | 'subject' | 'rule'>;
/** The sign-in of an operator: by a passkey, as a user of the identity provider, or by a link (both null). */
export type Operator = Pick<BrowserSession, 'passkeyId' | 'subject'>;
export type BrowserSessionOrder = Pick<BrowserSession, 'kind' | 'tokenHash'> & Partial<Owner>;

/** The operator, who opened a session by a link. */
const BY_LINK: Owner = { accountId: null, keyId: null, passkeyId: null, subject: null, rule: null };

const LINK_SECONDS = 60;
/** A session ends when it was not used for this long, and in any case after seven days (design, section 15). */
const IDLE_SECONDS = 12 * 3600;
const SESSION_SECONDS = 7 * 86_400;
/** An operator by the identity provider is asked for again after twelve hours: what changes there is seen at a sign-in only. */
const OPERATOR_BY_ISSUER_SECONDS = 12 * 3600;
/** The use of a session is noted at most this often: a note is a write to disk. */
const NOTE_SECONDS = 300;
const TOKEN_BYTES = 32;
/** The most concurrent sessions of a key, of a passkey, or of a person at the identity provider: beyond it the oldest end. */
const SESSION_COUNT_MAX = 20;

const reads = prepare((read: Reader) => ({
  byToken: read
    .select()
    .from(browserSessions)
    .where(eq(browserSessions.tokenHash, sql.placeholder('tokenHash')))
    .prepare(),
}));

/** Mints the secret of a session or of a link. Only its hash may be stored. */
export const mintBrowserToken = (): string => randomBytes(TOKEN_BYTES).toString('base64url');

/** Returns the link or the session with this token hash, unless it has ended by `now` (Unix seconds). */
export function findBrowserSession(read: Reader, tokenHash: Buffer, now: number): BrowserSession | undefined {
  const found = reads(read).byToken.get({ tokenHash });
  return found && now < found.expiresAt && now < found.lastUsedAt + IDLE_SECONDS ? found : undefined;
}

/** Returns whether the use of a session at `now` needs a new note. */
export const isUseNews = (session: BrowserSession, now: number): boolean => now >= session.lastUsedAt + NOTE_SECONDS;

/** Adds a link, good for a minute, or a session. Deletes expired rows as well. */
export function addBrowserSession(tx: Tx, order: BrowserSessionOrder, now: number): BrowserSession {
  tx.delete(browserSessions).where(lte(browserSessions.expiresAt, now)).run();
  const seconds = order.kind === 'link' ? LINK_SECONDS : order.subject ? OPERATOR_BY_ISSUER_SECONDS : SESSION_SECONDS;
  const row = withChecksum(browserSessions, {
    id: newId('ses'),
    ...BY_LINK,
    ...order,
    createdAt: now,
    expiresAt: now + seconds,
    lastUsedAt: now,
  });
  tx.insert(browserSessions).values(row).run();
  if (row.accountId !== null || row.subject !== null || row.passkeyId !== null) endOldest(tx, row);
  return row;
}

/**
 * Returns the condition for the sessions that were opened in the same way: by a key, by a passkey, by a person at the identity
 * provider, or by links.
 */
function openedBy({ accountId, keyId, passkeyId, subject }: Omit<Owner, 'rule'>): SQL | undefined {
  const is = (column: SQLiteColumn, value: string | null) => (value === null ? isNull(column) : eq(column, value));
  return and(
    is(browserSessions.accountId, accountId),
    is(browserSessions.keyId, keyId),
    is(browserSessions.passkeyId, passkeyId),
    is(browserSessions.subject, subject),
  );
}

/** Ends the oldest sessions of a key, of a passkey, or of a person's sign-ins by the identity provider, beyond the cap. */
function endOldest(tx: Tx, owner: Owner): void {
  const oldest = tx
    .select({ id: browserSessions.id })
    .from(browserSessions)
    .where(openedBy(owner))
    .orderBy(desc(browserSessions.createdAt), desc(browserSessions.id))
    .offset(SESSION_COUNT_MAX)
    .limit(SESSION_COUNT_MAX)
    .all();
  for (const { id } of oldest) endBrowserSession(tx, id);
}

/** Replaces a link by a session of the operator. Returns false for a link that is unknown, used or too old. */
export function redeemLink(tx: Tx, linkHash: Buffer, tokenHash: Buffer, now: number): boolean {
  const link = findBrowserSession(tx, linkHash, now);
  if (link?.kind !== 'link') return false;
  endBrowserSession(tx, link.id);
  addBrowserSession(tx, { kind: 'operator', tokenHash }, now);
  return true;
}

/** Notes that a session was used, Unix seconds. */
export function noteBrowserSession(tx: Tx, id: string, now: number): void {
  tx.update(browserSessions).set({ lastUsedAt: now }).where(eq(browserSessions.id, id)).run();
}

/** Ends one session. */
export function endBrowserSession(tx: Tx, id: string): void {
  tx.delete(browserSessions).where(eq(browserSessions.id, id)).run();
}

/** Ends the sessions that a passkey or a key opened. */
export function endBrowserSessionsBy(tx: Tx, by: 'passkeyId' | 'keyId', id: string): void {
  tx.delete(browserSessions).where(eq(browserSessions[by], id)).run();
}

/** Returns the sessions of operators that have not ended by `now` (Unix seconds), newest first. */
export function listOperatorSessions(read: Reader, now: number): BrowserSession[] {
  const isOpen = and(gt(browserSessions.expiresAt, now), gt(browserSessions.lastUsedAt, now - IDLE_SECONDS));
  const isOperators = eq(browserSessions.kind, 'operator');
  return read.select().from(browserSessions).where(and(isOperators, isOpen)).orderBy(desc(browserSessions.id)).all();
}

/** Ends the sessions of operators that were opened in the same way; for a session by a link unused links as well. */
export function endOperatorSessionsOf(tx: Tx, { passkeyId, subject }: Operator): void {
  tx.delete(browserSessions)
    .where(openedBy({ accountId: null, keyId: null, passkeyId, subject }))
    .run();
}

/** Ends every session of an account, or of all operators and unused links (null). Returns how many sessions ended. */
export function endBrowserSessionsOf(tx: Tx, accountId: string | null): number {
  const isTheirs = accountId === null ? isNull(browserSessions.accountId) : eq(browserSessions.accountId, accountId);
  return tx.delete(browserSessions).where(isTheirs).returning({ id: browserSessions.id }).all().length;
}

/** Counts the sessions of an account that have not ended by `now` (Unix seconds). */
export function countBrowserSessionsOf(read: Reader, accountId: string, now: number): number {
  const isOpen = and(gt(browserSessions.expiresAt, now), gt(browserSessions.lastUsedAt, now - IDLE_SECONDS));
  const isTheirs = eq(browserSessions.accountId, accountId);
  return Number(read.select({ count: count() }).from(browserSessions).where(and(isTheirs, isOpen)).get()?.count);
}

/** Ends every session and link: restored books may contain some that had already ended. */
export function endAllBrowserSessions(tx: Tx): void {
  tx.delete(browserSessions).run();
}

/** The ways in that the settings allow: the page, sign-in at an identity provider, and the rule by which it names operators. */
export type Allowed = { page: boolean; signIn: boolean; rule: Buffer | undefined };

/** The rows of sessions and links that the settings no longer allow. */
const forbidden = ({ page, signIn, rule }: Allowed) => {
  if (!page) return undefined;
  const byIssuer = and(eq(browserSessions.kind, 'account'), isNull(browserSessions.keyId));
  const byRule = rule ? ne(browserSessions.rule, rule) : isNotNull(browserSessions.rule);
  return signIn ? byRule : or(byIssuer, byRule);
};

/** Returns whether there are sessions that the settings no longer allow. */
export function hasForbiddenSessions(read: Reader, allowed: Allowed): boolean {
  return read.select({ id: browserSessions.id }).from(browserSessions).where(forbidden(allowed)).limit(1).get() != null;
}

/** Ends the sessions that the settings no longer allow, so that none comes back when they allow it again. */
export function endForbiddenSessions(tx: Tx, allowed: Allowed): void {
  tx.delete(browserSessions).where(forbidden(allowed)).run();
}
