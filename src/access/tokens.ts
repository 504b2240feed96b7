import type { Reader } from '../db/handle.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { findWalletByToken } from '../ledger/wallet.ts';
import { findKeyByToken } from './keys.ts';
import type { Principal } from './principal.ts';
import { findRouterKeyByToken, limitsOf } from './router-keys.ts';
import { hashToken, kindOfToken } from './token.ts';

/** The most that is remembered: tokens, and the models that gateway keys are limited to, up to a thousand for one key. */
const KNOWN_SIZE_MAX = 20_000;

/** Purser's own tokens. */
export type Tokens = {
  /** Returns the principal of a token; undefined for a token that is unknown, revoked or malformed. */
  find(token: string): Principal | undefined;
};

/**
 * Creates the look-up of tokens in the books. It remembers what it finds, by the hash of the token, until something is
 * written that is not a paid request, so an agent's chats read no row for their token (docs/decisions/0062).
 */
export function createTokens(
  { read, changeCount }: Pick<Ledger, 'read' | 'changeCount'>,
  knownSizeMax = KNOWN_SIZE_MAX,
): Tokens {
  const known = new Map<string, Principal>();
  let size = 0;
  let changes = changeCount();
  return {
    find(token) {
      const now = changeCount();
      if (changes !== now || size > knownSizeMax) {
        known.clear();
        size = 0;
        changes = now;
      }
      const hash = hashToken(token);
      const name = hash.toString('latin1');
      const before = known.get(name);
      if (before) return before;
      const principal = lookUp(read, token, hash);
      if (!principal) return undefined;
      known.set(name, principal);
      size += 1 + ((principal.kind === 'router' && principal.limits.models?.size) || 0);
      return principal;
    },
  };
}

function lookUp(read: Reader, token: string, hash: Buffer): Principal | undefined {
  const kind = kindOfToken(token);
  if (kind === 'account' || kind === 'operator') {
    const key = findKeyByToken(read, hash);
    if (key?.kind !== kind || key.revokedAt !== null) return undefined;
    return { kind, keyId: key.id, accountId: key.accountId };
  }
  if (kind === 'wallet') {
    const wallet = findWalletByToken(read, hash);
    return wallet && { kind, wallet: { id: wallet.id, accountId: wallet.accountId } };
  }
  if (kind === 'router') {
    const key = findRouterKeyByToken(read, hash);
    return key && { kind, routerKeyId: key.id, walletId: key.walletId, limits: limitsOf(key) };
  }
  return undefined;
}
