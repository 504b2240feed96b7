import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import type { TestContext } from 'node:test';
import { hasComponent } from './component.ts';
import { until } from './waiting.ts';

/** A separate ext4, mounted as Debian mounts one: after an error it refuses writes until it has been checked. */
export type FailingDisk = {
  directory: string;
  /** Makes the file system detect an error: it turns read-only, also for files that are open. */
  turnReadOnly(): void;
  /** Unmounts, checks and mounts it again. No file may be open there. */
  repair(): Promise<void>;
};

const BYTES = 256 * 1024 * 1024;
/** Exit code of e2fsck: "file system errors corrected". */
const CORRECTED = 1;

/** Opens one. If nothing can be mounted, returns undefined and skips the test. */
export function openFailingDisk(t: TestContext): FailingDisk | undefined {
  if (!hasComponent(t, 'failing disk')) return undefined;
  const at = mkdtempSync(join(tmpdir(), 'purser-ext4-'));
  const [image, directory] = [join(at, 'image'), join(at, 'disk')];
  const run = (program: string, ...args: string[]) =>
    execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).trim();
  writeFileSync(image, '');
  run('truncate', '--size', String(BYTES), image);
  run('mkfs.ext4', '-q', image);
  mkdirSync(directory);
  const device = run('losetup', '--find', '--show', image);
  let isMounted = false;
  const mount = () => {
    run('mount', '-o', 'errors=remount-ro', device, directory);
    isMounted = true;
  };
  mount();
  t.after(() => {
    if (isMounted) run('umount', '--lazy', directory);
    run('losetup', '--detach', device);
    rmSync(at, { recursive: true, force: true });
  });
  return {
    directory,
    turnReadOnly() {
      run('sync', '--file-system', directory); // Mapped pages too: their next write faults, and ext4 notices.
      writeFileSync(join('/sys/fs/ext4', basename(device), 'trigger_fs_error'), '1');
    },
    async repair() {
      run('umount', directory);
      isMounted = false;
      // A program with mounts of its own that began meanwhile, such as a container of another test, has this one as well.
      await until('nothing has the disk any more', () => {
        try {
          run('e2fsck', '-f', '-y', device);
          return true;
        } catch (error) {
          const { status, stdout } = error as { status?: number; stdout?: string };
          if (status === CORRECTED) return true;
          if (/is in use/.test(stdout ?? '')) return false;
          throw error;
        }
      });
      mount();
    },
  };
}
