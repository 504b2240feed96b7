import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, type TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { until } from '../helper/waiting.ts';

const ROOT = join(import.meta.dirname, '../..');

/** What `npm run release` has made in a clone: its directory, the clone, and what the command said. */
export type Release = { directory: string; clone: string; said: string };

let made: Promise<Release> | undefined;
/** The directory of the release of a file that runs alone. In a test, `after` would remove it with that test. */
let own: string | undefined;
after(() => own && rmSync(own, { recursive: true, force: true }));

/**
 * Returns a release. It takes minutes to make, so it is made once for all files of a run of the tests, or once for a file that
 * runs alone. Without what that needs, returns undefined and skips the test.
 */
export async function releaseOf(t: TestContext): Promise<Release | undefined> {
  if (!hasComponent(t, 'release')) return undefined;
  made ??= sharedRelease(process.env.PURSER_TEST_RUN);
  return made;
}

async function sharedRelease(run: string | undefined): Promise<Release> {
  const place = run ? join(run, 'release') : mkdtempSync(join(tmpdir(), 'purser-release-'));
  if (!run) own = place;
  const clone = join(place, 'clone');
  const result = join(place, 'result.json');
  if (!run || isFirst(place)) {
    writeFileSync(`${result}.new`, JSON.stringify(tryRelease(clone)));
    renameSync(`${result}.new`, result);
  }
  await until('another file has made the release', () => existsSync(result));
  const { said, error } = JSON.parse(readFileSync(result, 'utf8'));
  assert.equal(error, undefined);
  return { directory: join(clone, 'release'), clone, said };
}

/** Makes a directory. Returns whether no other process has made it before. */
const isFirst = (directory: string) => mkdirSync(directory, { recursive: true }) !== undefined;

function tryRelease(clone: string): { said?: string; error?: string } {
  try {
    makeClone(clone);
    return { said: runRelease(clone) };
  } catch (error) {
    const { stdout = '', stack } = error as Error & { stdout?: string };
    return { error: `${stdout}\n${stack}` };
  }
}

/** Clones the repository as it is here: what a developer has not committed yet is tested, too. */
function makeClone(clone: string): void {
  const git = (args: string[], cwd = ROOT) => execFileSync('git', args, { cwd, encoding: 'utf8' });
  git(['clone', '--quiet', ROOT, clone]);
  for (const name of git(['ls-files', '-z', '--modified', '--others', '--exclude-standard'])
    .split('\0')
    .filter(Boolean)) {
    mkdirSync(dirname(join(clone, name)), { recursive: true });
    if (existsSync(join(ROOT, name))) copyFileSync(join(ROOT, name), join(clone, name));
    else rmSync(join(clone, name), { force: true });
  }
  const author = ['-c', 'user.name=test', '-c', 'user.email=test@purser.invalid'];
  git(['add', '--all'], clone);
  git([...author, 'commit', '--quiet', '--allow-empty', '--message', 'as it is here'], clone);
  symlinkSync(realpathSync(join(ROOT, 'node_modules')), join(clone, 'node_modules'));
}

/** Runs the command in a clone, as a user whose files nobody else reads, and returns what it said. Throws if it fails. */
export function runRelease(clone: string, env: NodeJS.ProcessEnv = {}): string {
  const line = 'umask 077 && exec node packaging/release.ts 2>&1';
  const { PATH = '', NODE_TEST_CONTEXT: _, PURSER_RELEASE_KEY: __, ...rest } = process.env;
  const first = join(clone, 'node_modules/.bin');
  return execFileSync('sh', ['-c', line], {
    cwd: clone,
    encoding: 'utf8',
    env: { ...rest, PATH: `${first}:${PATH}`, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
}

/** The settings of the page's examples: one model at `url`. */
export const settingsFor = (url: string) => ({
  router: {
    upstreams: [{ name: 'local', base_url: url }],
    models: [
      {
        id: 'qwen3-8b',
        upstream: 'local',
        context_length: 32768,
        max_output_tokens: 8192,
        pricing_per_million: { prompt: '0.10', completion: '0.40' },
      },
    ],
  },
});

/** Returns the commands of the block of a page that begins with `start`. */
export function readBlock(page: string, start: string): string[] {
  const text = readFileSync(join(ROOT, page), 'utf8');
  const [, block] = [...text.matchAll(/^```\w*\n([\s\S]*?)^```$/gm)].find(([, it]) => it?.startsWith(start)) ?? [];
  assert.ok(block, `${page} has no block that begins with ${start}`);
  return block
    .replaceAll('\\\n', '')
    .trim()
    .split('\n')
    .map((it) => it.replace(/ +#.*/, ''));
}
