// `npm run release`: makes release/ from the commit that is checked out. docs/how-do-i.md says how it is installed.
import { hash } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  globSync,
  mkdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join, resolve } from 'node:path';
import { gzipSync } from 'node:zlib';
import { createProgram } from '../cli/program.ts';
import { settingsText } from '../src/config/template.ts';
import { NAMESPACE } from '../src/service/release-file.ts';
import { unitText } from '../src/service/unit.ts';
import { sharedFiles, writePackage } from './deb.ts';
import { buildExecutable } from './executable.ts';
import { type Platform, writeImage } from './image.ts';
import { fetchLibraries } from './libraries.ts';
import { manPage } from './man.ts';
import { billOfMaterials } from './sbom.ts';
import { ARCHITECTURES, checkTools, isNative, run } from './tools.ts';

const OUT = 'release';
const CACHE = 'node_modules/.cache/purser-release'; // Of Nodes alone, which are always the same.

/** The commit, and its time, which everything in the release bears, and what differs from it in this clone. */
function source(): { seconds: number; revision: string; changed: string } {
  const git = (...args: string[]) => run('git', args).toString().trimEnd();
  if (!existsSync('.git')) throw new Error('A release is made from a clone of the repository: there is no .git here.');
  const seconds = Number(process.env.SOURCE_DATE_EPOCH ?? git('log', '-1', '--format=%ct'));
  const changed = git('status', '--porcelain', '--untracked-files=normal');
  const commit = git('rev-parse', 'HEAD');
  return { seconds, revision: changed ? `${commit}-dirty` : commit, changed };
}

/**
 * Returns the key file that signs: PURSER_RELEASE_KEY, or one here, which is made if it does not exist. Throws a sentence if there
 * is no such file, or it cannot sign now.
 */
function releaseKey(): string {
  const named = process.env.PURSER_RELEASE_KEY;
  const key = resolve(named || 'release-key');
  if (!existsSync(key)) {
    // A release that is signed by another key than its users trust must not come from a mistyped name.
    if (named) throw new Error(`PURSER_RELEASE_KEY names ${key}, which does not exist.`);
    run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', NAMESPACE, '-f', key]);
    console.error(
      `There was no release key: ${key} is a new one. Keep it: installations that trust it take its releases.`,
    );
  }
  try {
    run('ssh-keygen', ['-q', '-Y', 'sign', '-f', key, '-n', NAMESPACE], { input: 'a try' });
  } catch {
    throw new Error(
      `${key} does not sign. A key with a passphrase needs a terminal, or ssh-agent and PURSER_RELEASE_KEY=${key}.pub.`,
    );
  }
  return key;
}

/** Writes the sums of all files, signs them, and verifies that with the public half, which is one of the files. */
function sign(key: string): void {
  const half = key.endsWith('.pub') ? key : `${key}.pub`;
  const publicKey = existsSync(half) ? readFileSync(half, 'utf8') : run('ssh-keygen', ['-y', '-f', key]).toString();
  writeFileSync(at('purser-release.pub'), publicKey);
  const names = globSync('**/*', { cwd: OUT })
    .filter((it) => statSync(at(it)).isFile())
    .sort();
  // What was copied has the mode that the clone's umask gave it.
  for (const it of names) chmodSync(at(it), it.includes('-linux-') ? 0o755 : 0o644);
  const sums = names.map((it) => `${hash('sha256', readFileSync(at(it)))}  ${it}\n`).join('');
  writeFileSync(at('SHA256SUMS'), sums);
  run('ssh-keygen', ['-q', '-Y', 'sign', '-f', key, '-n', NAMESPACE, at('SHA256SUMS')]);

  const signers = join('dist', 'signers');
  writeFileSync(signers, `${NAMESPACE} ${publicKey}`);
  const verify = ['-Y', 'verify', '-f', signers, '-I', NAMESPACE, '-n', NAMESPACE, '-s', at('SHA256SUMS.sig')];
  run('ssh-keygen', verify, { input: sums });
}

/** Makes everything, the sums last. */
function release(): void {
  checkTools();
  const from = source();
  if (from.changed)
    console.error(`This clone is not clean, so the release calls itself ${from.revision}:\n${from.changed}`);
  const key = releaseKey();
  process.env.SOURCE_DATE_EPOCH = String(from.seconds);
  const { version } = JSON.parse(readFileSync('package.json', 'utf8'));
  rmSync(OUT, { recursive: true, force: true });
  mkdirSync(OUT);

  const libraries = join('dist', 'libraries');
  rmSync(libraries, { recursive: true, force: true });
  const platforms: Platform[] = ARCHITECTURES.map((architecture) => {
    const root = fetchLibraries(architecture, libraries);
    const built = buildExecutable(architecture, root, CACHE);
    const executable = at(`purser-${version}-linux-${architecture.node}`);
    copyFileSync(built, executable);
    chmodSync(executable, 0o755);
    return { architecture, executable, libraries: root };
  });
  const native = platforms.find(({ architecture }) => isNative(architecture)) as Platform;
  const say = (...args: string[]) => run(resolve(native.executable), args).toString();

  const notices = say('licenses');
  const files = sharedFiles(version, from.seconds, {
    unit: unitText('/usr/bin/purser'),
    settings: settingsText([]).text,
    man: manPage(createProgram(), version, from.seconds),
    completion: (shell) => say('completion', shell),
    notices,
  });
  for (const { architecture, executable } of platforms)
    writePackage(at(`purser_${version}_${architecture.debian}.deb`), {
      architecture,
      version,
      executable,
      files,
      seconds: from.seconds,
    });

  writeImage(at(`purser-${version}-image.tar`), `purser:${version}`, platforms, from);
  const named = (text: string) => text.replaceAll('@VERSION@', version);
  writeFileSync(at('compose.yaml'), named(readFileSync('packaging/compose.yaml', 'utf8')));
  writeFileSync(at('purser.yaml'), settingsText([]).text);
  mkdirSync(at('kubernetes'));
  copyFileSync('docs/kubernetes.yaml', at('kubernetes/purser.yaml'));
  writeFileSync(at('kubernetes/kustomization.yaml'), named(readFileSync('packaging/kustomization.yaml', 'utf8')));
  const archive = [
    '--sort=name',
    `--mtime=@${from.seconds}`,
    '--owner=0',
    '--group=0',
    '--numeric-owner',
    '--mode=u=rwX,go=rX',
  ];
  const kubernetes = run('tar', ['--create', ...archive, '--directory', OUT, 'kubernetes']);
  writeFileSync(at(`purser-${version}-kubernetes.tar.gz`), gzipSync(kubernetes, { level: 9 }));
  run('npm', ['pack', '--silent', '--pack-destination', resolve(OUT), resolve('sdk/javascript')]);
  run('python3', ['packaging/wheel.py', OUT, version, String(from.seconds)]);
  writeFileSync(
    at(`purser-${version}-sbom.cdx.json`),
    `${JSON.stringify(billOfMaterials(JSON.parse(say('licenses', '--json')).licenses, from), null, 2)}\n`,
  );
  writeFileSync(at(`purser-${version}-notices.txt`), notices);
  if (source().changed !== from.changed)
    throw new Error('The clone changed while the release was made, so it is not signed. Make it again.');
  sign(key);
}

const at = (name: string) => join(OUT, name);
process.umask(0o022);
try {
  release();
  console.error(`${OUT}/ is complete: it has all that SHA256SUMS names.`);
} catch (error) {
  console.error((error as Error).message);
  process.exitCode = 1;
}
