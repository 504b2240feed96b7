import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import type { TestContext } from 'node:test';
import { hasComponent } from './component.ts';

/** A separate ext4, mounted as Debian mounts one: after an error it refuses writes until it has been checked. */
export type FailingDisk = {
  directory: string;
  /** Makes the file system detect an error: it turns read-only, also for files that are open. */
  turnReadOnly(): void;
  /** Unmounts, checks and mounts it again. No file may be open there. */
  repair(): void;
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
  const mount = () => run('mount', '-o', 'errors=remount-ro', device, directory);
  mount();
  t.after(() => {
    run('umount', '--lazy', directory);
    run('losetup', '--detach', device);
    rmSync(at, { recursive: true, force: true });
  });
  return {
    directory,
    turnReadOnly() {
      run('sync', '--file-system', directory); // Mapped pages too: their next write faults, and ext4 notices.
      writeFileSync(join('/sys/fs/ext4', basename(device), 'trigger_fs_error'), '1');
    },
    repair() {
      run('umount', directory);
      try {
        run('e2fsck', '-f', '-y', device);
      } catch (error) {
        if ((error as { status?: number }).status !== CORRECTED) throw error;
      }
      mount();
    },
  };
}
