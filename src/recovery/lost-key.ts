import { existsSync, readFileSync } from 'node:fs';
import { createKeyring, openKeyring, routerRow, walletCredential } from '../access/keyring.ts';
import {
  generateMasterKey,
  keepOldKey,
  type MasterKey,
  readMasterKey,
  replaceMasterKey,
} from '../access/master-key.ts';
import { liveRouterKeys } from '../access/router-keys.ts';
import * as writes from '../access/writes.ts';
import { systemTime } from '../base/clock.ts';
import { Refusal } from '../base/refusal.ts';
import { gapOf, readMarks } from '../books/examine.ts';
import { enterDirectory, openBooks } from '../books/open.ts';
import type { Config, MasterKeySource } from '../config/config.ts';
import type { Reader } from '../db/handle.ts';
import { newestTime } from '../ledger/accepted-clock.ts';
import { installationOf } from '../ledger/installation.ts';
import { masterKeyRows, openWallets } from '../ledger/master-keys.ts';
import { allLiveResources } from '../ledger/resource.ts';

export type LostKeyReport = {
  lost_master_key_id: string;
  /** The new key; null in a plan where it will be generated. */
  master_key_id: string | null;
  from: MasterKeySource['from'];
  file: string | null;
  /** The new name of the unusable key file, if there was one. */
  kept: string | null;
  /** The wallets that get a new token. */
  wallets: { id: string; name: string; account_id: string; status: string }[];
  /** The number of their gateway keys that get a new secret, and of live leases that get a new SSH key. */
  gateway_keys: number;
  leases: number;
  is_done: boolean;
};

/**
 * Opens an installation whose master key is lost to a new one (docs/decisions/0014): every open wallet and its gateway keys get new
 * tokens, derived under the new key, and the old tokens end. Live leases lose what only the lost key could make again: what stands in
 * them for their account's secrets, and the variables of sandboxes. Without `apply` only reports what would happen. Throws `conflict`
 * where the key is not lost, where the configuration gives a key that was used here before, or none, outside the data directory, and
 * for books with lost commits; LockedError while a server runs.
 */
export async function replaceLostKey(config: Config, { apply }: { apply: boolean }): Promise<LostKeyReport> {
  const source = config.masterKey;
  using at = await enterDirectory(config.dataDirectory, { lock: { file: 'lock', who: 'purser master-key replace' } });
  const marks = await readMarks(at);
  const failed = Promise.withResolvers<never>();
  await using books = openBooks(at.database, {
    access: 'write',
    migrate: false,
    writesHere: true,
    fatal: failed.reject,
  });
  const gap = gapOf(books, marks);
  if (gap)
    throw new Refusal('conflict', `Nothing was changed: ${gap}. Restore the newest backup with --without-key first.`);
  refuseKnownKey(books.read, source);

  const given = givenKey(books.read, source);
  const wallets = openWallets(books.read);
  const report = {
    lost_master_key_id: installationOf(books.read).masterKeyId,
    master_key_id: given?.id ?? null,
    from: source.from,
    file: source.path ?? null,
    kept: null,
    wallets: wallets.map(({ id, name, accountId, status }) => ({ id, name, account_id: accountId, status })),
    gateway_keys: liveRouterKeys(books.read).length,
    leases: allLiveResources(books.read).length,
    is_done: false,
  };
  if (!apply) return report;

  const next = given ?? generateMasterKey();
  const path = source.path as string;
  // The file is written first: a key that is in force and in no file would be lost as well.
  const kept = !given && existsSync(path) ? await keepOldKey(path, readFileSync(path, 'utf8')) : null;
  if (!given) await replaceMasterKey(path, next);
  const now = Math.max(newestTime(books.read), Math.floor(systemTime.wall() / 1000));
  const keyring = createKeyring(next);
  // The new tokens are derived here: the writer never gets a key.
  const replaced = books.write(writes.replaceLostKey, {
    nextId: next.id,
    wallets: wallets.map(({ id }) => ({ id, ...walletCredential(keyring, id).row })),
    gatewayKeys: liveRouterKeys(books.read).map(({ id }) => routerRow(keyring, { id, masterKeyId: next.id })),
    now,
  });
  await Promise.race([replaced, failed.promise]);
  return { ...report, master_key_id: next.id, kept, is_done: true };
}

/** Throws `conflict` where the configured key opens these books: it is not lost. */
function refuseKnownKey(read: Reader, source: MasterKeySource): void {
  try {
    openKeyring(read, readMasterKey(source, { create: false }));
  } catch {
    return;
  }
  throw new Refusal(
    'conflict',
    'The master key is not lost: it opens these books. For a new one run: purser master-key rotate',
  );
}

/**
 * Returns the key that the configuration gives in place of the lost one; undefined where one is generated into the data
 * directory.
 */
function givenKey(read: Reader, source: MasterKeySource): MasterKey | undefined {
  const isOurs = source.from === 'data directory';
  let given: MasterKey;
  try {
    given = readMasterKey(source, { create: false });
  } catch (error) {
    if (isOurs) return undefined;
    throw new Refusal(
      'conflict',
      `Put a fresh key there first, for example of \`openssl rand -hex 32\`. ${(error as Error).message}`,
    );
  }
  if (!masterKeyRows(read).some((it) => it.id === given.id)) return given;
  if (isOurs) return undefined;
  throw new Refusal(
    'conflict',
    `The master key ${given.id} has been used here before, and does not open these books. Put a fresh one in its place, for example of \`openssl rand -hex 32\`.`,
  );
}
