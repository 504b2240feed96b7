import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { promisify } from 'node:util';
import { debianMirror } from '../components.ts';
import { hasComponent } from './component.ts';

const SUITE = 'bookworm';
/** Beside Kubernetes' programs (test/setup). */
const CACHE = '/var/cache/purser-tests';
/** The tree is kept between runs: it is always the same, and takes half a minute to create. */
const treeOf = (packages: readonly string[]) => join(CACHE, ['minimal', SUITE, process.arch, ...packages].join('-'));

/** Returns the directory of a minimal Debian with these `packages`. If it cannot be made, returns undefined and skips the test. */
export async function minimalDebian(t: TestContext, packages: readonly string[] = []): Promise<string | undefined> {
  if (!hasComponent(t, 'debootstrap') || !hasComponent(t, 'a Debian mirror')) return undefined;

  const tree = treeOf(packages);
  if (existsSync(tree)) return tree;
  mkdirSync(CACHE, { recursive: true });
  const part = mkdtempSync(`${tree}.`);
  try {
    const include = packages.length ? [`--include=${packages.join(',')}`] : [];
    const args = ['--variant=minbase', ...include, SUITE, part, debianMirror() as string];
    await promisify(execFile)('debootstrap', args, { maxBuffer: 2 ** 26 });
    // Atomic: a concurrent test may have created it first.
    if (!existsSync(tree)) renameSync(part, tree);
  } finally {
    rmSync(part, { recursive: true, force: true });
  }
  return tree;
}
