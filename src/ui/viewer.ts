import type { IncomingMessage } from 'node:http';
import { type BrowserSession, findBrowserSession, isUseNews } from '../access/browser-sessions.ts';
import { findKey } from '../access/keys.ts';
import { hashToken } from '../access/token.ts';
import { noteBrowserSession } from '../access/writes.ts';
import { cookieOf, type PageAddress, SESSION } from './guard.ts';
import type { UiApp, Viewer } from './visit.ts';

/** Returns the session whose cookie a request carries, if it has not ended. */
export function sessionOf(app: UiApp, incoming: IncomingMessage, address: PageAddress): BrowserSession | undefined {
  const token = cookieOf(incoming, address, SESSION);
  if (!token) return undefined;
  const session = findBrowserSession(app.ledger.read, hashToken(token), app.clock.now());
  return session && session.kind !== 'link' ? session : undefined;
}

/**
 * Returns the owner of a session; undefined when the account key that opened it has been revoked, the sign-in that opened it
 * is no longer configured, or the rule that made its user an operator has changed.
 */
export function viewerOf(app: UiApp, session: BrowserSession): Viewer | undefined {
  const { id: sessionId, accountId, keyId, passkeyId, subject, rule } = session;
  if (accountId === null) {
    const isInForce = rule === null || app.codeFlow?.rule?.equals(rule) === true;
    return isInForce ? { kind: 'operator', sessionId, passkeyId, subject } : undefined;
  }
  if (keyId === null) {
    const principal = { kind: 'session', accountId } as const;
    return app.codeFlow && { kind: 'account', sessionId, accountId, principal };
  }
  const key = findKey(app.ledger.read, keyId);
  if (!key || key.revokedAt !== null) return undefined;
  return { kind: 'account', sessionId, accountId, principal: { kind: key.kind, keyId, accountId } };
}

/** Records that a session was used, at intervals. A failed write does not fail the page. */
export async function noteUse(app: UiApp, session: BrowserSession): Promise<void> {
  const now = app.clock.now();
  if (!isUseNews(session, now)) return;
  await app.ledger
    .write(noteBrowserSession, { id: session.id, now })
    .catch((error) => app.events.failed('browser_session', error));
}
