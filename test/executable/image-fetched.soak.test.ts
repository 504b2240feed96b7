import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, cpSync, existsSync, mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { openDocker } from '../compute/engines/docker.ts';
import { hasComponent } from '../helper/component.ts';
import { minimalDebian } from '../helper/minimal-debian.ts';
import { builderImage, cleanClone, piped, progress, ROOT } from './image-shared.ts';

/**
 * The Dockerfile as it is built where nothing was prepared: the image that it starts from has a Node with its npm, as the published
 * one, and neither `strip` nor packages. So both lines that fetch do, from the registries that this machine uses.
 */
const IMAGE = 'purser:fetched';
const CERTIFICATES = '/etc/ssl/certs/ca-certificates.crt';

/** Lays Node and npm into a directory, where the published image has them, with the certificates that this machine trusts. */
function layNode(beside: string): void {
  const at = (...names: string[]) => join(beside, 'usr/local', ...names);
  for (const it of [at('bin'), at('lib/node_modules'), join(beside, 'etc/ssl/certs')])
    mkdirSync(it, { recursive: true });
  copyFileSync(realpathSync(join(ROOT, 'node_modules/.bin/node')), at('bin/node'));
  const npm = execFileSync('sh', ['-c', 'command -v npm'], { encoding: 'utf8' }).trim();
  cpSync(join(realpathSync(npm), '../..'), at('lib/node_modules/npm'), { recursive: true, dereference: true });
  symlinkSync('../lib/node_modules/npm/bin/npm-cli.js', at('bin/npm'));
  if (existsSync(CERTIFICATES)) copyFileSync(CERTIFICATES, join(beside, CERTIFICATES));
}

/** Returns how this machine reaches its registries, as the environment of an image. */
function registries(): string {
  const npm = (name: string) => execFileSync('npm', ['config', 'get', name], { encoding: 'utf8' }).trim();
  const proxies = Object.entries(process.env).filter(([name]) => /_proxy$/i.test(name));
  const all = [['npm_config_registry', npm('registry')], ['NODE_EXTRA_CA_CERTS', CERTIFICATES], ...proxies];
  return all.map(([name, value]) => `ENV ${name}=${JSON.stringify(value)}`).join('\n');
}

async function importBare(t: TestContext, docker: import('dockerode'), tree: string): Promise<void> {
  const beside = mkdtempSync(join(tmpdir(), 'purser-bare-'));
  t.after(() => rmSync(beside, { recursive: true, force: true }));
  layNode(beside);
  const laid = ['bin/node', 'bin/npm', 'lib/node_modules/npm'].map((it) => `./usr/local/${it}`);
  if (existsSync(join(beside, CERTIFICATES))) laid.push(`.${CERTIFICATES}`);
  const image = piped(t, 'tar', [
    ...['--create', '--file=-', '--directory', tree, '--exclude=./proc/*', '.'],
    ...['--directory', beside, ...laid],
  ]);
  const [repo, tag] = builderImage().split(':');
  const options = { repo, tag, changes: registries() };
  await progress(docker, (await docker.importImage(image, options)) as NodeJS.ReadableStream);
}

test('the image is built where nothing was prepared: its lines fetch the packages of Debian and of npm', async (t) => {
  if (!hasComponent(t, 'git', () => existsSync(join(ROOT, '.git')))) return;
  const tree = await minimalDebian(t);
  const engine = tree && (await openDocker(t));
  if (!tree || !engine) return;
  const { docker } = engine;
  await importBare(t, docker, tree);
  const options = { t: IMAGE, networkmode: 'host' }; // This engine has no bridge.
  const said = await progress(docker, await docker.buildImage(cleanClone(t), options));
  assert.match(said, /Setting up binutils /);
  assert.match(said, /\nadded \d+ packages/);

  const container = await docker.createContainer({
    Image: IMAGE,
    Cmd: ['version'],
    HostConfig: { NetworkMode: 'none', ReadonlyRootfs: true },
  });
  await container.start();
  assert.equal((await container.wait()).StatusCode, 0);
});
