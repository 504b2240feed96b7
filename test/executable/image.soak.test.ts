import assert from 'node:assert/strict';
import { execFile, execFileSync, spawn } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { PassThrough } from 'node:stream';
import { text } from 'node:stream/consumers';
import test, { after, type TestContext } from 'node:test';
import { promisify } from 'node:util';
import type Docker from 'dockerode';
import { type Engine, IMAGE as LEASED_IMAGE, openDocker } from '../compute/engines/docker.ts';
import { hasComponent } from '../helper/component.ts';
import { minimalDebian } from '../helper/minimal-debian.ts';
import { until } from '../helper/waiting.ts';
import { builderImage, cleanClone, piped, progress, ROOT } from './image-shared.ts';

/**
 * The Dockerfile, on a real Docker Engine that has no network. The image it starts from is not the published one but a
 * minimal Debian under its name, with what the machine's own `npm ci` made of the lock file laid where the Dockerfile would
 * make it, and the machine's `strip`. The two lines that fetch are covered by image-fetched.soak.test.ts.
 */
const IMAGE = 'purser:test';
const IMAGE_MEGABYTES_MAX = 140;
const UID = 65532;

/** The development packages that build. The others check and test: without them the image is made sooner. */
const BUILDS = /^node_modules\/(esbuild|@esbuild\/[^/]+|postject)(\/|$)/;

/** The folders that building does not need: of packages, as the lock file knows them, and what tools keep for themselves. */
function notForBuilding(): string[] {
  const lock = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8'));
  const packages = Object.entries<{ dev?: boolean; devOptional?: boolean }>(lock.packages);
  const others = packages.filter(([folder, { dev, devOptional }]) => (dev || devOptional) && !BUILDS.test(folder));
  return ['node_modules/.cache', ...others.map(([folder]) => folder)];
}

async function importBase(t: TestContext, docker: Docker, tree: string, name: string): Promise<void> {
  const beside = mkdtempSync(join(tmpdir(), 'purser-image-'));
  t.after(() => rmSync(beside, { recursive: true, force: true }));
  const packages = dirname(realpathSync(join(ROOT, 'node_modules')));
  const excluded = ['--anchored', ...notForBuilding().map((it) => `--exclude=${it}`)];
  const [repo, tag] = name.split(':');
  const image = piped(t, 'tar', [
    ...['--create', '--file=-', '--transform=flags=rhS;s,^node_modules,src/node_modules,', ...excluded],
    ...['--directory', tree, '--exclude=./proc/*', '.'],
    ...['--directory', beside, ...layStrip(tree, beside)], // Files alone: the engine takes no path twice.
    ...['--directory', packages, 'node_modules'],
  ]);
  await progress(docker, (await docker.importImage(image, { repo, tag })) as NodeJS.ReadableStream);
}

/** Lays the machine's `strip` into a directory, with what it loads that the tree does not have; answers their names. */
function layStrip(tree: string, beside: string): string[] {
  const strip = execFileSync('sh', ['-c', 'command -v strip'], { encoding: 'utf8' }).trim();
  const libraries = execFileSync('ldd', [strip], { encoding: 'utf8' }).match(/\/\S+/g) ?? [];
  return [strip, ...libraries].flatMap((file) => {
    const name = join('.', realpathSync(dirname(file)), basename(file));
    if (existsSync(join(tree, name))) return [];
    mkdirSync(join(beside, dirname(name)), { recursive: true });
    copyFileSync(file, join(beside, name));
    return [`./${name}`];
  });
}

let built: Engine | undefined;
after(() => built?.stop());
/** An engine with the image, for the whole file: building takes a minute. */
async function openImage(t: TestContext): Promise<Engine | undefined> {
  if (built) return built;
  if (!hasComponent(t, 'strip')) return undefined;
  if (!hasComponent(t, 'git', () => existsSync(join(ROOT, '.git')))) return undefined;
  const tree = await minimalDebian(t);
  const engine = tree && (await openDocker(t, { shared: true }));
  if (!tree || !engine) return undefined;
  built = engine;
  await importBase(t, engine.docker, tree, builderImage());
  const options = { t: IMAGE, networkmode: 'none' };
  await progress(engine.docker, await engine.docker.buildImage(cleanClone(t), options));
  return engine;
}

/** Runs one command in a container of its own, on the same volume, to its end. */
async function runOnce({ docker }: Engine, volume: string, ...command: string[]) {
  const container = await docker.createContainer({
    Image: IMAGE,
    Cmd: command,
    HostConfig: { Binds: [`${volume}:/data`], NetworkMode: 'none', ReadonlyRootfs: true },
  });
  await container.start();
  const { StatusCode: code } = await container.wait();
  return { code, said: await logsOf(container) };
}

/** A command beside the server, in its container: the one JSON value that it says. */
async function ask(container: Docker.Container, ...command: string[]) {
  const exec = await container.exec({ Cmd: ['/purser', '--json', ...command], AttachStdout: true, AttachStderr: true });
  const stream = await exec.start({});
  const [stdout, stderr] = [new PassThrough(), new PassThrough()];
  container.modem.demuxStream(stream, stdout, stderr);
  stream.once('end', () => void [stdout.end(), stderr.end()]);
  const [said, words] = await Promise.all([text(stdout), text(stderr)]);
  const { ExitCode: code } = await exec.inspect();
  assert.equal(code, 0, said + words);
  return JSON.parse(said);
}

/** What a container has said. Docker puts eight bytes before each piece: the stream, and the length. */
async function logsOf(container: Docker.Container): Promise<string> {
  const framed = await container.logs({ stdout: true, stderr: true });
  const pieces: Buffer[] = [];
  for (let at = 0; at < framed.length; ) {
    const length = framed.readUInt32BE(at + 4);
    pieces.push(framed.subarray(at + 8, at + 8 + length));
    at += 8 + length;
  }
  return Buffer.concat(pieces).toString();
}

test('the image holds the executable and its libraries, runs as nobody on a volume, and knows whether it is well', async (t) => {
  const engine = await openImage(t);
  if (!engine) return;
  const { docker } = engine;

  const { Config: config, Size: bytes } = await docker.getImage(IMAGE).inspect();
  assert.equal(config.User, `${UID}:${UID}`);
  assert.deepEqual(Object.keys(config.Volumes ?? {}), ['/data']);
  assert(bytes < IMAGE_MEGABYTES_MAX * 1e6, `${bytes} bytes`);
  t.diagnostic(`the image has ${Math.round(bytes / 1e6)} MB`);

  const create = (env: string[], healthcheck: object = {}) =>
    docker.createContainer({
      Image: IMAGE,
      Env: env,
      Healthcheck: { Interval: 1e9, Timeout: 2e9, Retries: 1, ...healthcheck },
      HostConfig: {
        Binds: ['purser-data:/data'],
        NetworkMode: 'host', // This engine has no bridge.
        ReadonlyRootfs: true,
        CapDrop: ['ALL'],
        SecurityOpt: ['no-new-privileges'],
      },
    });
  const container = await create(['PURSER_LISTEN=127.0.0.1:0']);
  const listing = spawn('tar', ['--list']);
  (await container.export()).pipe(listing.stdin);
  const names = (await text(listing.stdout)).split('\n').filter((it) => it && !it.endsWith('/'));
  const DOCKERS_OWN = /^(\.dockerenv|dev\/console|etc\/(hostname|hosts|mtab|resolv\.conf))$/;
  const others = names.filter((it) => it !== 'purser' && !/^(lib|lib64|usr\/lib)\/\S+\.so\.\d+$/.test(it));
  assert.deepEqual(
    others.filter((it) => !DOCKERS_OWN.test(it)),
    [],
    'nothing but the executable and libraries',
  );
  assert(names.includes('purser'));

  await container.start();
  const line = await until('it serves', async () =>
    (await logsOf(container)).split('\n').find((it) => it.includes('"event":"serving"')),
  );
  const { listen } = JSON.parse(line.slice(line.indexOf('{')));
  const ready = await fetch(`${listen}/readyz`);
  assert.deepEqual([ready.status, await ready.json()], [200, { ready: true }]);
  const health = async () => (await container.inspect()).State.Health?.Status;
  await until('it is healthy', async () => (await health()) === 'healthy');

  const { Pid: pid } = (await container.inspect()).State;
  assert.match(readFileSync(`/proc/${pid}/status`, 'utf8'), new RegExp(`^Uid:\\t${UID}\\t${UID}`, 'm'));
  process.kill(pid, 'SIGSTOP');
  await until('a server that hangs is not healthy', async () => (await health()) === 'unhealthy');
  process.kill(pid, 'SIGCONT');
  await until('it is healthy again', async () => (await health()) === 'healthy');

  const account = await ask(container, 'account', 'create', 'agents', '--credit-cents', '500');
  const { key } = await ask(container, 'operator-key', 'mint', '--account', account.id);
  const created = await fetch(`${listen}/v1/wallets`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', 'idempotency-key': 'first' },
    body: JSON.stringify({ name: 'agent', budget_cents: 200, expires_in_seconds: 0 }),
  });
  assert.equal(created.status, 201);
  const wallet = (await created.json()) as { id: string; agent_token: string };
  const budget = await fetch(`${listen}/v1/budget`, { headers: { authorization: `Bearer ${wallet.agent_token}` } });
  assert.equal(((await budget.json()) as { available_usd: string }).available_usd, '2.00');

  await container.stop({ t: 20 });
  assert.equal((await container.inspect()).State.ExitCode, 0);
  const show = await runOnce(engine, 'purser-data', 'wallet', 'show', wallet.id);
  assert.deepEqual([show.code, /active/.test(show.said)], [0, true], show.said);
  const verify = await runOnce(engine, 'purser-data', 'ledger', 'verify');
  assert.deepEqual([verify.code, /every balance agrees/.test(verify.said)], [0, true], verify.said);
});

/** Has the server in `container` listen, and returns the answer of its log line `serving`. */
async function serving(container: Docker.Container): Promise<string> {
  const line = await until('it serves', async () =>
    (await logsOf(container)).split('\n').find((it) => it.includes('"event":"serving"')),
  );
  return JSON.parse(line.slice(line.indexOf('{'))).listen;
}

test('from its image, with the engine’s socket mounted, Purser rents out containers, which end without it', async (t) => {
  const engine = await openImage(t);
  if (!engine) return;
  const { docker } = engine;
  const socket = engine.socket.slice('unix://'.length);
  const directory = mkdtempSync(join(tmpdir(), 'purser-image-rents-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  writeFileSync(
    join(directory, 'purser.yaml'),
    `ssh: { listen: "127.0.0.1:0" }
compute:
  provider_three:
    backend: container
    image: ${LEASED_IMAGE}
    offers: [{ id: small, cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: "0.36" }]
`,
  );
  const container = await docker.createContainer({
    Image: IMAGE,
    Env: ['PURSER_LISTEN=127.0.0.1:0', 'PURSER_CONFIG=/etc/purser/purser.yaml'],
    HostConfig: {
      Binds: [
        'purser-renting:/data',
        `${directory}/purser.yaml:/etc/purser/purser.yaml:ro`,
        `${socket}:/var/run/docker.sock`,
      ],
      GroupAdd: [String(statSync(socket).gid)],
      NetworkMode: 'host', // This engine has no bridge.
      ReadonlyRootfs: true,
      CapDrop: ['ALL'],
      SecurityOpt: ['no-new-privileges'],
    },
  });
  await container.start();
  const listen = await serving(container);
  const doctor = await ask(container, 'doctor');
  const trial = doctor.checks.find((it: { name: string }) => it.name === 'provider_three container: trial');
  assert.match(trial.detail, /was found by its tag and ran a command; its disk: .*; it was destroyed and is gone$/);

  const account = await ask(container, 'account', 'create', 'agents', '--credit-cents', '500');
  const order = ['--account', account.id, '--name', 'agent', '--budget-cents', '200', '--expires', '0'];
  const wallet = await ask(container, 'wallet', 'create', ...order);
  const call = async (path: string, body: object, key?: string) => {
    const answer = await fetch(`${listen}/v1/compute/${path}`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${wallet.agent_token}`,
        'content-type': 'application/json',
        ...(key ? { 'idempotency-key': key } : {}),
      },
      body: JSON.stringify(body),
    });
    const said = await answer.json();
    assert.equal(answer.status, 200, JSON.stringify(said));
    return said as Record<string, any>;
  };
  const spec = { offer_id: 'small', disk_gb: 5, max_seconds: 60 };
  const made = await call('create', { provider: 'provider_three', spec }, 'first');
  assert.deepEqual([made.status, made.billing_state, made.charged_usd], ['running', 'settled', '0.006'], made.id);
  const { id } = made;
  await call('upload', { id, path: '/tmp/file', content_base64: Buffer.from('uploaded').toString('base64') });
  const ran = await call('exec', { id, command: 'cat /tmp/file; exit 3' });
  assert.deepEqual([ran.stdout, ran.exit_code], ['uploaded', 3]);
  const access = await call('ssh', { id });
  const key = join(directory, 'key');
  writeFileSync(key, access.private_key, { mode: 0o600 });
  writeFileSync(`${key}.known`, `[${access.host}]:${access.port} ${access.host_key}\n`);
  const { stdout } = await promisify(execFile)('ssh', [
    ...['-i', key, '-p', String(access.port), '-o', `UserKnownHostsFile=${key}.known`, '-o', 'BatchMode=yes'],
    ...[`${access.username}@${access.host}`, 'echo', 'over-ssh'],
  ]);
  assert.equal(stdout, 'over-ssh\n');

  const second = await call('create', { provider: 'provider_three', spec }, 'second').catch((error: Error) => error);
  assert.match(String(second), /capacity_unavailable/, 'one of it is leased');
  const extended = await call('extend', { id, additional_seconds: 60 }, 'longer');
  assert.equal(extended.expires_at, made.expires_at + 60);
  await until('it has stopped', async () => (await call('stop', { id })).status === 'stopped');

  const last = await call('create', { provider: 'provider_three', spec }, 'last');
  await container.kill();
  const lease = docker.getContainer(last.provider_id);
  assert.equal((await lease.inspect()).State.Status, 'running', 'it outlives Purser');
  await until('its deadline has ended it', async () => !(await lease.inspect()).State.Running);
  const late = Date.parse((await lease.inspect()).State.FinishedAt) / 1000 - last.expires_at;
  assert.ok(late >= -1, `it ended ${late} s after its deadline`);
  assert.deepEqual(
    (await docker.listVolumes()).Volumes.map((it) => it.Name).filter((it) => !/^purser-/.test(it)),
    [],
    'no volume was made for a lease',
  );

  await container.start(); // The container is the same; Purser comes back and tidies up.
  await serving(container);
  await until('what has ended is removed', async () => {
    const all = await docker.listContainers({ all: true });
    return !all.some((it) => it.Id !== container.id && it.Names[0]?.startsWith('/purser-inst'));
  });
  await container.stop({ t: 20 });
});
