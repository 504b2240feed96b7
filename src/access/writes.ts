import { defineWrite } from '../db/write.ts';
import { goBackTo } from '../ledger/accepted-clock.ts';
import { giveToken, replaceLostMasterKey } from '../ledger/master-keys.ts';
import type { Wallet } from '../ledger/wallet.ts';
import * as sessions from './browser-sessions.ts';
import * as identities from './identities.ts';
import * as keys from './keys.ts';
import * as passkeys from './passkeys.ts';
import * as routerKeys from './router-keys.ts';

/** The writes of keys and identities (docs/decisions/0002). `now` is in Unix seconds; refusals are those of the function. */

/** Mints a key. Its token is in the result and nowhere else. */
export const createKey = defineWrite('key.create', (tx, { order, now }: { order: keys.KeyOrder; now: number }) =>
  keys.createKey(tx, order, now),
);

type RevokeKey = { id: string; kind: keys.Key['kind']; accountId?: string; now: number };
/** Revokes a key, and ends the sessions that it opened: they are neither counted nor ended once more. */
export const revokeKey = defineWrite('key.revoke', (tx, { id, kind, accountId, now }: RevokeKey) => {
  const key = keys.revokeKey(tx, id, kind, now, accountId);
  sessions.endBrowserSessionsBy(tx, 'keyId', id);
  return key;
});

/** Stores when keys were last used: pairs of a key's id and Unix seconds. */
export const touchKeys = defineWrite('key.touch', (tx, { used }: { used: readonly (readonly [string, number])[] }) =>
  keys.touchKeys(tx, used),
);

type OpenRouterKey = { order: routerKeys.RouterKeyOrder; now: number };
export const openRouterKey = defineWrite('gateway_key.open', (tx, { order, now }: OpenRouterKey) =>
  routerKeys.openRouterKey(tx, order, now),
);

export const revokeRouterKey = defineWrite('gateway_key.revoke', (tx, { id, now }: { id: string; now: number }) =>
  routerKeys.revokeRouterKey(tx, id, now),
);

type Link = { accountId: string; identity: identities.Identity; now: number };
export const linkIdentity = defineWrite('identity.link', (tx, { accountId, identity, now }: Link) =>
  identities.linkIdentity(tx, accountId, identity, now),
);

type Admit = { identity: identities.Identity; welcomeCents: number; now: number };
export const admitIdentity = defineWrite('identity.admit', (tx, { identity, welcomeCents, now }: Admit) =>
  identities.admitIdentity(tx, identity, welcomeCents, now),
);

type KeyReplacement = {
  nextId: string;
  /** Every open wallet and live gateway key, with its columns under the new key. */
  wallets: readonly Pick<Wallet, 'id' | 'masterKeyId' | 'tokenHash' | 'tokenHint'>[];
  gatewayKeys: readonly routerKeys.RouterRow[];
  now: number;
};
/** Replaces a lost master key by another one, and all tokens under it. Ends the sessions of the page. */
export const replaceLostKey = defineWrite(
  'master_key.replace_lost',
  (tx, { nextId, wallets, gatewayKeys, now }: KeyReplacement) => {
    replaceLostMasterKey(tx, nextId, now);
    sessions.endAllBrowserSessions(tx); // A thief of the key may also have opened a session.
    for (const { id, ...credential } of wallets) giveToken(tx, id, credential);
    for (const row of gatewayKeys) routerKeys.giveRouterToken(tx, row);
  },
);

/**
 * Sets the books back to the time `now`, which is earlier than the newest time in them. Ends the sessions of the page, which
 * would otherwise last until after that later time.
 */
export const goBack = defineWrite('clock.go_back', (tx, { reason, now }: { reason: string; now: number }) => {
  goBackTo(tx, reason, now);
  sessions.endAllBrowserSessions(tx);
});

// Sessions of the page.

type OpenSession = { order: sessions.BrowserSessionOrder; earlierId: string | undefined; now: number };
/** Opens a session or a link, and ends the browser's earlier session. */
export const openBrowserSession = defineWrite('browser_session.open', (tx, { order, earlierId, now }: OpenSession) => {
  if (earlierId !== undefined) sessions.endBrowserSession(tx, earlierId);
  return sessions.addBrowserSession(tx, order, now);
});

type Redeem = { linkHash: Buffer; tokenHash: Buffer; earlierId: string | undefined; now: number };
/** Exchanges a link for a session, and ends the browser's earlier session. Returns false for a link that is not valid. */
export const redeemLink = defineWrite(
  'browser_session.redeem',
  (tx, { linkHash, tokenHash, earlierId, now }: Redeem) => {
    if (!sessions.redeemLink(tx, linkHash, tokenHash, now)) return false;
    if (earlierId !== undefined) sessions.endBrowserSession(tx, earlierId);
    return true;
  },
);

type OpenByPasskey = {
  passkeyId: string;
  useCount: number;
  tokenHash: Buffer;
  earlierId: string | undefined;
  now: number;
};
/** Opens a session by a passkey whose answer was verified, and ends the browser's earlier session. */
export const openByPasskey = defineWrite(
  'browser_session.open_by_passkey',
  (tx, { passkeyId, useCount, tokenHash, earlierId, now }: OpenByPasskey) => {
    passkeys.usePasskey(tx, passkeyId, useCount, now);
    if (earlierId !== undefined) sessions.endBrowserSession(tx, earlierId);
    sessions.addBrowserSession(tx, { kind: 'operator', passkeyId, tokenHash }, now);
  },
);

export const addPasskey = defineWrite(
  'passkey.add',
  (tx, { order, now }: { order: passkeys.PasskeyOrder; now: number }) => passkeys.addPasskey(tx, order, now),
);

/** Removes a passkey, and ends the sessions that it opened. */
export const removePasskey = defineWrite('passkey.remove', (tx, { id, now }: { id: string; now: number }) => {
  sessions.endBrowserSessionsBy(tx, 'passkeyId', id);
  return passkeys.removePasskey(tx, id, now);
});

export const noteBrowserSession = defineWrite('browser_session.note', (tx, { id, now }: { id: string; now: number }) =>
  sessions.noteBrowserSession(tx, id, now),
);

export const endBrowserSession = defineWrite('browser_session.end', (tx, { id }: { id: string }) =>
  sessions.endBrowserSession(tx, id),
);

/** Ends the operators' sessions that were opened in the same way. */
export const endOperatorSessionsOf = defineWrite('browser_session.end_all_of_operator', (tx, who: sessions.Operator) =>
  sessions.endOperatorSessionsOf(tx, who),
);

/** Ends every session of an account, or of all operators (null). */
export const endBrowserSessionsOf = defineWrite(
  'browser_session.end_all_of',
  (tx, { accountId }: { accountId: string | null }) => sessions.endBrowserSessionsOf(tx, accountId),
);

/** Ends the sessions that the settings no longer allow. */
export const endForbiddenSessions = defineWrite('browser_session.end_forbidden', (tx, allowed: sessions.Allowed) =>
  sessions.endForbiddenSessions(tx, allowed),
);
