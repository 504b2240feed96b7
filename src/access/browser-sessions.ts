import { randomBytes } from 'node:crypto';
import { and, count, desc, eq, gt, isNull, lte, sql } from 'drizzle-orm';
import { newId } from '../base/id.ts';
import { withChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { browserSessions } from '../db/schema.ts';

/** A session of the page: a browser that is signed in as the operator or as the holder of an account. */
export type BrowserSession = typeof browserSessions.$inferSelect;
export type BrowserSessionOrder = Pick<BrowserSession, 'kind' | 'accountId' | 'keyId' | 'tokenHash'>;

const LINK_SECONDS = 60;
/** A session ends when it was not used for this long, and in any case after seven days (design, section 15). */
const IDLE_SECONDS = 12 * 3600;
const SESSION_SECONDS = 7 * 86_400;
/** The use of a session is noted at most this often: a note is a write to disk. */
const NOTE_SECONDS = 300;
const TOKEN_BYTES = 32;
/** The most concurrent sessions of an account key, or of a person at the identity provider: beyond it the oldest end. */
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
  const expiresAt = now + (order.kind === 'link' ? LINK_SECONDS : SESSION_SECONDS);
  const row = withChecksum(browserSessions, {
    id: newId('ses'),
    ...order,
    createdAt: now,
    expiresAt,
    lastUsedAt: now,
  });
  tx.insert(browserSessions).values(row).run();
  if (order.kind === 'account') endOldest(tx, order);
  return row;
}

/** Ends the oldest sessions of an account key, or of an account's sign-ins by its identity provider, beyond the cap. */
function endOldest(tx: Tx, { accountId, keyId }: Pick<BrowserSessionOrder, 'accountId' | 'keyId'>): void {
  const isTheirs = and(
    eq(browserSessions.accountId, accountId as string),
    keyId === null ? isNull(browserSessions.keyId) : eq(browserSessions.keyId, keyId),
  );
  const oldest = tx
    .select({ id: browserSessions.id })
    .from(browserSessions)
    .where(isTheirs)
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
  addBrowserSession(tx, { kind: 'operator', accountId: null, keyId: null, tokenHash }, now);
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

/** Ends every session of an account, or of the operator (null), and unused links. Returns how many sessions ended. */
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

/** The ways in that the settings allow: the page, and sign-in at an identity provider. */
export type Allowed = { page: boolean; signIn: boolean };

/** The rows of sessions and links that the settings no longer allow. */
const forbidden = ({ page, signIn }: Allowed) => {
  if (!page) return undefined;
  return signIn ? sql`0` : and(eq(browserSessions.kind, 'account'), isNull(browserSessions.keyId));
};

/** Returns whether there are sessions that the settings no longer allow. */
export function hasForbiddenSessions(read: Reader, allowed: Allowed): boolean {
  return read.select({ id: browserSessions.id }).from(browserSessions).where(forbidden(allowed)).limit(1).get() != null;
}

/** Ends the sessions that the settings no longer allow, so that none comes back when they allow it again. */
export function endForbiddenSessions(tx: Tx, allowed: Allowed): void {
  tx.delete(browserSessions).where(forbidden(allowed)).run();
}
