import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { hasComponent } from '../../helper/component.ts';
import { unmountBelow } from './docker.ts';

/** Sparse: only what is written takes space. What was deleted is free again only a while later. */
const BYTES = 16 * 1024 ** 3;

/**
 * Opens a btrfs in a file: a file system on which both engines can limit a container's disk. If there is none, returns
 * undefined and skips the test.
 */
export function openBtrfs(t: TestContext): { directory: string; close(): void } | undefined {
  const below = mkdtempSync(join(tmpdir(), 'purser-btrfs-'));
  const directory = join(below, 'mount');
  const mount = () => {
    const file = join(below, 'image');
    writeFileSync(file, '');
    truncateSync(file, BYTES);
    mkdirSync(directory);
    try {
      execFileSync('mkfs.btrfs', ['-q', file], { stdio: 'ignore' });
      execFileSync('mount', ['-o', 'loop', file, directory], { stdio: 'ignore' });
      return true;
    } catch {
      return false; // The kernel has no btrfs or no loop devices.
    }
  };
  const isMounted = hasComponent(t, 'btrfs', mount);
  const close = () => {
    if (isMounted) {
      unmountBelow(directory);
      execFileSync('umount', [directory]);
    }
    rmSync(below, { recursive: true, force: true });
  };
  if (isMounted) return { directory, close };
  close();
  return undefined;
}
