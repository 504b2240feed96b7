import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { type Architecture, isNative, run } from './tools.ts';

/** Builds the executable for an architecture and returns its path. A foreign one runs by qemu, on `libraries`. */
export function buildExecutable(architecture: Architecture, libraries: string, cache: string): string {
  const { node } = architecture;
  if (isNative(architecture)) {
    // Optional to npm, and build.mjs would take whichever Node runs it.
    if (!existsSync(join('node_modules', `node-linux-${node}`, 'bin/node')))
      throw new Error(`A release needs the pinned Node, node-linux-${node}, which npm did not install: npm ci`);
    run(process.execPath, ['build.mjs']);
    return 'dist/purser';
  }
  run(process.execPath, ['build.mjs', '--foreign', node, foreignRuntime(node, cache), libraries]);
  return join('dist', node, 'purser');
}

/** Returns the pinned Node of another architecture, which `npm ci` does not install. build.mjs checks its sum. */
function foreignRuntime(node: string, cache: string): string {
  const name = `node-linux-${node}`;
  const version = JSON.parse(readFileSync('package.json', 'utf8')).optionalDependencies[name];
  const directory = join(cache, `${name}-${version}`);
  const runtime = join(directory, 'package/bin/node');
  if (existsSync(runtime)) return runtime;
  mkdirSync(cache, { recursive: true });
  const fresh = mkdtempSync(`${directory}.`); // Two runs share the cache, and one that is ended leaves no half of it in its place.
  const said = run('npm', ['pack', '--json', '--pack-destination', fresh, `${name}@${version}`]);
  const [{ filename }] = JSON.parse(said.toString());
  run('tar', ['-xzf', join(fresh, filename), '-C', fresh, '--exclude=package/include']);
  try {
    renameSync(fresh, directory);
  } catch (error) {
    if (!existsSync(runtime)) throw error;
    rmSync(fresh, { recursive: true }); // Another run has put the same there.
  }
  return runtime;
}
