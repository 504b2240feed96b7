import { createHmac, timingSafeEqual } from 'node:crypto';
import type { Keyring } from '../../access/keyring.ts';
import { hashToken } from '../../access/token.ts';
import type { Resource } from '../../ledger/resource.ts';
import type { Wallet } from '../../ledger/wallet.ts';

/** The doors of a sandbox, each with a token of its own: its files and commands, and its ports. */
export type SandboxDoor = 'envd' | 'traffic';

type TokenApp = { keyring: Keyring };
type OfWallet = Pick<Wallet, 'masterKeyId'>;

/**
 * Derives a token of a sandbox from the master key of its wallet. So it is the same for all clients and after a restart, and is
 * stored nowhere. Undefined once the last wallet that needed that key is gone.
 */
export function sandboxToken(
  { keyring }: TokenApp,
  { masterKeyId }: OfWallet,
  { id }: Pick<Resource, 'id'>,
  door: SandboxDoor,
): string | undefined {
  const master = keyring.find(masterKeyId);
  return master && createHmac('sha256', master).update(`purser/e2b-${door}/v1\0${id}`).digest('hex');
}

/** Compares a token that was shown with the right one, in constant time. */
export const isToken = (shown: string | undefined, right: string | undefined): boolean =>
  shown !== undefined && right !== undefined && timingSafeEqual(hashToken(shown), hashToken(right));
