import type { Log } from '../base/log.ts';
import { Refusal } from '../base/refusal.ts';
import { nextTurn } from '../base/turn.ts';
import type { MasterKeySource } from '../config/config.ts';
import type { Ledger } from '../ledger/ledger.ts';
import {
  dropRetiredKey,
  dropWrappedKey,
  masterKeyRows,
  rotateMasterKey,
  walletNeeding,
} from '../ledger/master-keys.ts';
import { findWallet } from '../ledger/wallet.ts';
import type { Keyring } from './keyring.ts';
import { keepOldKey, type MasterKey, replaceMasterKey, textOf } from './master-key.ts';
import { wrapKey } from './wrapped-key.ts';

/** The place that the configuration takes the master key from. Purser writes it only in its own data directory. */
export type KeySource = Pick<MasterKeySource, 'from' | 'path'>;
type RotationApp = { ledger: Ledger; keyring: Keyring; keySource: KeySource };

/**
 * Makes `next` the master key (docs/decisions/0014). One commit wraps every older key with it, and wraps it with the configured
 * key, so that a start with either key opens the database wherever a crash falls. Then the key file in the data directory is
 * replaced, and the old one is kept beside it: returns its new name, or null. A key from the environment or from the operator's own
 * file is left to the operator to replace; until then a start with the old key unwraps the new one. Throws `conflict` for a key
 * that was used before, and `read_only` when the key file cannot be written.
 */
export async function rotate(
  { ledger, keyring, keySource }: RotationApp,
  next: MasterKey,
  now: number,
): Promise<string | null> {
  const { given } = keyring;
  // Keys are wrapped here: the writer never gets one in the clear.
  const kept = keyring.all().map((key) => ({ id: key.id, wrapped: wrapKey(key, next) }));
  const rotation = { next: { id: next.id, wrapped: wrapKey(next, given), wrappedBy: given.id }, kept };
  await ledger.write(rotateMasterKey, { rotation, now });
  keyring.turn(next);
  try {
    return await finishRotation({ ledger, keyring, keySource });
  } catch (cause) {
    const fault = `The master key ${next.id} is in force, but ${keySource.path} could not be written (${(cause as NodeJS.ErrnoException).code}).`;
    throw new Refusal('read_only', `${fault} Nothing is lost: the next start writes it.`, { cause });
  }
}

/**
 * Completes a rotation: replaces the key file in the data directory if it still holds the previous key, and drops the wrapped copy
 * of the current key once that is the configured one. Returns the name of the file with the previous key, or null.
 */
export async function finishRotation({ ledger, keyring, keySource }: RotationApp): Promise<string | null> {
  const { current } = keyring;
  let kept: string | null = null;
  if (keyring.given.id !== current.id && keySource.from === 'data directory') {
    kept = await keepOldKey(keySource.path as string, textOf(keyring.given)); // Backups made before need it.
    await replaceMasterKey(keySource.path as string, current);
    keyring.given = current;
  }
  const row = masterKeyRows(ledger.read).find((it) => it.id === current.id);
  if (keyring.given.id === current.id && row?.wrapped) await ledger.write(dropWrappedKey, { id: current.id });
  return kept;
}

/** Logs a warning at the start when a rotation has not reached the configuration. */
export function warnOfOldKey({ keyring, keySource }: Omit<RotationApp, 'ledger'>, log: Log): void {
  if (keyring.given.id === keyring.current.id) return;
  log.warn(
    { event: 'master_key.old', given: keyring.given.id, current: keyring.current.id, from: keySource.from },
    'the master key was rotated, but the configuration still gives the one before it: put the new one in its place',
  );
}

/**
 * Drops the retired keys that no live wallet needs any more; returns how many. `scanned` maps each key to the wallet up to which
 * none needs it: that part is not scanned again, as no new wallet uses a retired key and no closed one reopens.
 */
export async function dropRetiredKeys(
  { ledger, keyring }: Omit<RotationApp, 'keySource'>,
  scanned: Map<string, string>,
): Promise<number> {
  let dropped = 0;
  for (const { id, wrapped } of masterKeyRows(ledger.read)) {
    if (id === keyring.current.id || wrapped === null) continue;
    const last = findWallet(ledger.read, scanned.get(id) ?? '');
    if (last?.masterKeyId === id && last.status !== 'closed') continue;
    let at = last?.id ?? '';
    let walk = walletNeeding(ledger.read, id, at);
    while (walk.needed === undefined && walk.next !== undefined) {
      await nextTurn(); // Lets requests run between two pages.
      at = walk.next;
      walk = walletNeeding(ledger.read, id, at);
    }
    scanned.set(id, walk.needed ?? at);
    if (walk.needed !== undefined) continue;
    if (!(await ledger.write(dropRetiredKey, { id, walletId: at }))) continue;
    if (id !== keyring.given.id) keyring.forget(id);
    dropped++;
  }
  return dropped;
}
