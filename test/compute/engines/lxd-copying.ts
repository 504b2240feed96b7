import { after, type TestContext } from 'node:test';
import { openBtrfs } from './btrfs.ts';
import { type Lxd, openLxd } from './lxd.ts';

/** The pool of btrfs, which limits disks and copies them by reference. */
export const COPYING_POOL = 'copying';

let opened: { lxd: Lxd; close(): Promise<void> } | undefined;
after(() => opened?.close());

/** Opens an LXD with such a pool, one for a whole file. Without either, returns undefined and skips the test. */
export async function openCopyingLxd(t: TestContext): Promise<Lxd | undefined> {
  if (opened) return opened.lxd;
  const btrfs = openBtrfs(t);
  if (!btrfs) return undefined;
  const lxd = await openLxd(t);
  if (!lxd) {
    btrfs.close();
    return undefined;
  }
  opened = {
    lxd,
    async close() {
      await lxd.stop();
      btrfs.close();
    },
  };
  const pool = { name: COPYING_POOL, driver: 'btrfs', config: { source: btrfs.directory } };
  await lxd.api.ask('POST', '/1.0/storage-pools', pool);
  return lxd;
}
