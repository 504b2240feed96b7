import { copyFileSync, existsSync, globSync, lstatSync, mkdirSync, mkdtempSync, readlinkSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { type Architecture, run } from './tools.ts';

/** All that the executable loads beside itself. */
const LOADED = '{ld-linux-*,libc,libm,libdl,libpthread,libgcc_s,libstdc++}.so.[0-9]';

/**
 * Fetches the C and C++ libraries of an architecture, as this machine's Debian has them now, with their copyright files. Lays
 * them out as a root directory below `into`, and returns it.
 */
export function fetchLibraries({ debian }: Architecture, into: string): string {
  const work = mkdtempSync(join(tmpdir(), 'purser-libraries-'));
  try {
    const at = (name: string) => join(work, name);
    for (const it of ['state/lists/partial', 'cache/archives/partial', 'all']) mkdirSync(at(it), { recursive: true });
    // An apt of its own: the machine's need not know the architecture, and nothing is installed.
    const settings = [
      `APT::Architecture=${debian}`,
      `APT::Architectures=${debian}`,
      `Dir::State=${at('state')}`,
      'Dir::State::status=/dev/null',
      `Dir::Cache=${at('cache')}`,
      'APT::Sandbox::User=root',
      'APT::Install-Recommends=false',
      'Acquire::Languages=none',
      'Debug::NoLocking=true',
    ].flatMap((it) => ['-o', it]);
    run('apt-get', [...settings, '--quiet', 'update']);
    run('apt-get', [...settings, '--quiet', '--yes', '--download-only', 'install', 'libstdc++6']);
    for (const it of globSync(at('cache/archives/*.deb'))) run('dpkg-deb', ['--extract', it, at('all')]);

    const root = join(into, debian);
    const found = globSync([`**/${LOADED}`, 'usr/share/doc/{libc6,gcc-*-base}/copyright'], { cwd: at('all') });
    for (const name of found) {
      const to = join(root, name.replace(/^usr\/(?=lib)/, '')); // Where the executable looks, also if /lib is a link.
      mkdirSync(dirname(to), { recursive: true });
      copyFileSync(followedWithin(at('all'), name), to);
    }
    if (!existsSync(join(root, 'usr/share/doc/libc6/copyright')))
      throw new Error(`apt-get fetched no libc6 for ${debian}`);
    return root;
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** Follows a symbolic link in a root directory, to which an absolute one refers. */
function followedWithin(root: string, name: string): string {
  const path = join(root, name);
  if (!lstatSync(path).isSymbolicLink()) return path;
  const target = readlinkSync(path);
  return followedWithin(root, target.startsWith('/') ? target.slice(1) : join(dirname(name), target));
}
