import { execFile, execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { promisify } from 'node:util';
import { hasComponent, hasProgram } from './component.ts';

const SUITE = 'bookworm';
/** The tree is kept between runs: it is always the same, and takes half a minute to make. */
const treeOf = (packages: readonly string[]) =>
  join(tmpdir(), ['purser-minimal', SUITE, process.arch, ...packages].join('-'));
const MAKE_MILLISECONDS_MAX = 600_000;

/** Returns the mirror that this machine installs Debian packages from. */
function debianMirror(): string | undefined {
  if (!hasProgram('apt-get')) return undefined;
  const filters = ['Created-By: Packages', 'Origin: Debian', 'Label: Debian'];
  return execFileSync('apt-get', ['indextargets', '--format', '$(REPO_URI)', ...filters], { encoding: 'utf8' }).split(
    '\n',
  )[0];
}

/** Returns the directory of a minimal Debian with these `packages`. If it cannot be made, returns undefined and skips the test. */
export async function minimalDebian(t: TestContext, packages: readonly string[] = []): Promise<string | undefined> {
  if (!hasComponent(t, 'root', () => process.getuid?.() === 0)) return undefined;
  if (!hasComponent(t, 'debootstrap', () => hasProgram('debootstrap') && hasProgram('chroot'))) return undefined;
  const mirror = debianMirror();
  if (!hasComponent(t, 'a Debian mirror in the apt sources', () => Boolean(mirror))) return undefined;

  const tree = treeOf(packages);
  if (existsSync(tree)) return tree;
  const part = mkdtempSync(`${tree}.`);
  try {
    const include = packages.length ? [`--include=${packages.join(',')}`] : [];
    const args = ['--variant=minbase', ...include, SUITE, part, mirror as string];
    await promisify(execFile)('debootstrap', args, { timeout: MAKE_MILLISECONDS_MAX, maxBuffer: 2 ** 26 });
    // Atomic. Another test may have been quicker.
    if (!existsSync(tree)) renameSync(part, tree);
  } finally {
    rmSync(part, { recursive: true, force: true });
  }
  return tree;
}
