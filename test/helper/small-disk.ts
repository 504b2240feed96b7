import { execFileSync } from 'node:child_process';
import { closeSync, existsSync, mkdtempSync, openSync, rmSync, statfsSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { hasComponent } from './component.ts';

/** A separate disk that a test can fill completely: a tmpfs of a few MiB. */
export type SmallDisk = {
  directory: string;
  freeBytes(): number;
  /** Fills the disk with a file, except for `leaveBytes`. Called again, it takes the space freed since. */
  fill(leaveBytes?: number): void;
  /** Removes that file. */
  free(): void;
  /** Returns when the disk was last filled, in Unix milliseconds: the present time while it is full, 0 if it never was. */
  lastFilledAt(): number;
};

const SLICE = Buffer.alloc(64 * 1024, 1);

/** Opens one. If nothing can be mounted, returns undefined and skips the test. */
export function openSmallDisk(t: TestContext, mebibytes: number): SmallDisk | undefined {
  if (!hasComponent(t, 'root')) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-disk-'));
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${mebibytes}m,mode=700`, 'tmpfs', directory]);
  t.after(() => {
    execFileSync('umount', ['--lazy', directory]);
    rmSync(directory, { recursive: true, force: true });
  });
  const filler = join(directory, 'somebody-elses');
  let freedAt = 0;
  const freeBytes = () => {
    const { bavail, bsize } = statfsSync(directory);
    return bavail * bsize;
  };
  return {
    directory,
    freeBytes,
    fill(leaveBytes = 0) {
      const handle = openSync(filler, 'a');
      try {
        for (let left = freeBytes(); left > leaveBytes; left = freeBytes())
          writeSync(handle, SLICE, 0, Math.min(SLICE.length, left - leaveBytes));
      } finally {
        closeSync(handle);
      }
    },
    free() {
      if (existsSync(filler)) freedAt = Date.now();
      rmSync(filler, { force: true });
    },
    lastFilledAt: () => (existsSync(filler) ? Date.now() : freedAt),
  };
}
