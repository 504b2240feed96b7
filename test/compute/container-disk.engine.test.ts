import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after, type TestContext } from 'node:test';
import { promisify } from 'node:util';
import { stringify } from 'yaml';
import { tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { checkDisk } from '../../src/compute/engines/container/check.ts';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { openEngine } from '../../src/compute/engines/container/engine.ts';
import { selfTest } from '../../src/compute/self-test.ts';
import { until } from '../helper/waiting.ts';
import { openBtrfs } from './engines/btrfs.ts';
import { LIST_WRITABLE } from './engines/disk.ts';
import { type Engine, IMAGE, IMAGE_WITH_VOLUME, openDocker } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';
import { containerSubject } from './engines/subject.ts';
import { ASKINGS, askForSubvolumes, FIRST, MADE, NO_SUCH_REQUEST } from './engines/subvolume.ts';

const leases = mkdtempSync(join(tmpdir(), 'purser-leases-'));
after(() => rmSync(leases, { recursive: true, force: true }));

const run = promisify(execFile);
const INSTALLATION = `inst_${randomBytes(13).toString('hex')}`;

/** A backend that leases one GB of disk, and one machine of it. */
async function rent(engine: Engine, image = IMAGE) {
  const offer = { id: 'small', count: 1, cpus: 1, memory_gib: 0.25, max_disk_gb: 1, price_hourly_usd: 1n };
  const backend = openContainerBackend(
    {
      backend: 'container',
      socket: engine.socket,
      image,
      pull: 'never',
      network: 'none',
      pids: 64,
      provision_seconds: 60,
      limits: { max_seconds: 3600 },
      offers: [offer],
    },
    {
      prefix: tagPrefix(INSTALLATION),
      books: leases,
      measureMilliseconds: 0,
      now: () => Math.floor(Date.now() / 1000),
    },
  );
  const findings = new Map((await backend.doctor.check()).map((it) => [it.name, it]));
  const quote = await backend.quote({ offer_id: 'small', disk_gb: 1, max_seconds: 600 });
  const tag = tagOf(INSTALLATION, `res_${randomBytes(13).toString('hex')}`);
  const created = await backend.create({ tag, quote, deadline: Math.floor(Date.now() / 1000) + 660 });
  assert.equal(created.kind, 'created', JSON.stringify(created));
  const exec = (command: string) => backend.guest.exec(tag, { command, timeoutSeconds: 60, streamBytesMax: 4096 });
  const reserve = (megabytes: number, file = '/tmp/file') => exec(`fallocate -l ${megabytes}M ${file}`);
  return {
    disk: findings.get('disk'),
    image: findings.get('image'),
    reserve,
    /** Runs a command as root. Returns its output; the lease may end of it. */
    sh: async (command: string) =>
      exec(command).then(...[({ stdout }: { stdout: Buffer }) => stdout.toString(), () => '']),
    usage: () => backend.guest.usage?.(tag),
    inspect: () => backend.inspect(tag),
    left: () => engine.docker.listContainers({ all: true }),
    destroy: () => backend.destroy(tag),
  };
}

/** What doctor's trial says of a slot with settings changed by `change`. */
async function trialOf(t: TestContext, { socket }: Engine, change: object): Promise<string> {
  const { backend } = containerSubject({ socket }, change);
  t.after(() => backend.close());
  const { ok, detail } = await selfTest({ backend, provisionSeconds: 60 }, INSTALLATION, () =>
    Math.floor(Date.now() / 1000),
  );
  return `${ok}: ${detail}`;
}

/** What `purser config check` says of such a slot. */
async function configCheck(engine: Engine): Promise<string> {
  const offers = [{ id: 'small', cpus: 1, memory_gib: 1, max_disk_gb: 1, price_hourly_usd: '0.01' }];
  const provider_three = { backend: 'container', socket: engine.socket, image: IMAGE, offers };
  const file = join(leases, `${randomBytes(4).toString('hex')}.yaml`);
  writeFileSync(file, stringify({ compute: { provider_three } }));
  const main = join(import.meta.dirname, '../../cli/main.ts');
  const { stdout } = await run(process.execPath, [main, '--config', file, '--data', leases, 'config', 'check']);
  return stdout;
}

/** Opens an engine, with `data` on btrfs, by that driver or by that of its usual disks. */
type Open = (t: TestContext, data?: string, isUsual?: boolean) => Promise<Engine | undefined>;
const openOn: Record<'Docker' | 'Podman', Open> = {
  Docker: (t, data, isUsual = data === undefined) =>
    openDocker(t, {
      shared: true,
      ...(data === undefined ? {} : { data, flags: [`--storage-driver=${isUsual ? 'overlay2' : 'btrfs'}`] }),
    }),
  Podman: (t, data, isUsual = data === undefined) =>
    openPodman(t, data === undefined ? {} : { data, driver: isUsual ? 'overlay' : 'btrfs' }),
};

/** Makes the longest path that there can be, and longer. Nothing that walks through it by its whole path gets to the end. */
const MAKE_DEEP_PATH = `cd /tmp; name=$(printf '%0250d' 0); while mkdir $name && cd $name; do :; done 2>/dev/null; pwd | wc -c`;

for (const [name, open] of Object.entries(openOn)) {
  test(`${name}: wherever a tenant writes, it counts as disk or as memory`, async (t) => {
    const engine = await open(t);
    if (!engine) return;
    t.after(() => engine.stop());
    const first = await rent(engine, IMAGE_WITH_VOLUME);
    const listed = (await first.sh(LIST_WRITABLE)).trim().split('\n');
    const pathsOf = (kind: RegExp) => listed.filter((it) => kind.test(it)).map((it) => it.split(' ')[2] as string);
    const inMemory = pathsOf(/^tmpfs directory /);
    const files = pathsOf(/^(?!tmpfs directory |overlay directory \/$)/); // Its disk itself is measured.
    t.diagnostic(`in memory ${inMemory}; files beside the disk ${files}`);
    assert.ok(inMemory?.includes('/dev/shm') && inMemory.includes('/dev'), `${listed}`);
    assert.ok(files.includes('/etc/hosts') && files.includes('/etc/hostname'), `${listed}`);
    const before = (await first.usage())?.memoryBytes ?? 0;
    for (const directory of inMemory) await first.sh(`head -c 30000000 /dev/zero >${directory}/.tried`);
    const grown = ((await first.usage())?.memoryBytes ?? 0) - before;
    assert.ok(grown > 29_000_000 * inMemory.length, `${grown} B of memory for ${inMemory}`);
    assert.deepEqual((await engine.docker.listVolumes()).Volumes ?? [], [], 'no volume of the image is on the disk');
    await first.destroy();

    for (const file of files) {
      const { sh, inspect, destroy } = await rent(engine);
      assert.equal(await sh(`head -c 9000000 /dev/zero >${file} && echo kept`), 'kept\n', file);
      assert.equal((await inspect())?.state, 'running');
      await sh(`head -c 30000000 /dev/zero >${file}`);
      const { exceeded, note } = await until(`${file} ends it`, async () => {
        const found = await inspect();
        return found?.state === 'ended' && found;
      });
      assert.equal(exceeded, 'disk', file);
      assert.match(note ?? '', /^it wrote more than 16 MiB to files that the engine mounts into it/);
      await destroy();
    }
  });

  test(`${name}: a lease that nothing can measure any more is ended, and one that removed all it had is not`, async (t) => {
    const engine = await open(t);
    if (!engine) return;
    t.after(() => engine.stop());
    const { sh, inspect, destroy } = await rent(engine);
    for (let times = 2; times > 0; times--) assert.equal((await inspect())?.state, 'running');
    await sh('rm -rf /tmp/* /.purser-watchdog');
    for (let times = 6; times > 0; times--) assert.equal((await inspect())?.state, 'running');
    assert.ok(Number(await sh(MAKE_DEEP_PATH)) > 3900);
    const { exceeded, note } = await until('it cannot be measured', async () => {
      const found = await inspect();
      return found?.state === 'ended' && found;
    });
    assert.equal(exceeded, 'disk');
    assert.equal(note, 'its disk can no longer be measured: a path in it is too long');
    await destroy();
    assert.deepEqual(await engine.docker.listContainers({ all: true }), []);
  });
}

for (const [name, driver] of [
  ['Docker', 'overlay2'],
  ['Podman', 'overlay'],
] as const) {
  const open = openOn[name];
  test(`${name}: disk_gb is what a lease can write where the storage driver has limits`, async (t) => {
    const btrfs = openBtrfs(t);
    if (!btrfs) return;
    const engine = await open(t, btrfs.directory);
    t.after(async () => {
      await engine?.stop();
      btrfs.close();
    });
    if (!engine) return;
    const { disk, reserve, left, destroy } = await rent(engine);
    const said = 'disk_gb is enforced by btrfs, except in subvolumes, which a lease can make: ';
    assert.match(disk?.detail ?? '', new RegExp(`^Warning: ${said}`));
    assert.match(await configCheck(engine), new RegExp(`warn compute.provider_three: ${said}`));
    assert.equal((await reserve(900)).exitCode, 0);
    const over = await reserve(1100);
    assert.notEqual(over.exitCode, 0);
    assert.match(over.stderr.toString(), /quota exceeded/i);
    await destroy();
    assert.deepEqual(await left(), [], 'the trial of the limit leaves nothing');
    const limits = { cpus: 2, memory_gib: 1, gpus: 0, disk_gb: 1, max_seconds: 3600 };
    const tried = await trialOf(t, engine, { limits });
    assert.match(
      tried,
      /^true: .*its disk: more than disk_gb cannot be written outside of subvolumes, deleted files that are still open included;/,
    );
    const slow = openEngine({ socket: engine.socket });
    t.after(() => slow.close());
    const ask: typeof slow.ask = async (what, call, milliseconds) => {
      const answer = await slow.ask(what, call, milliseconds);
      if (what === 'create') throw new Error('create took longer than 30 s');
      return answer;
    };
    const { detail } = await checkDisk({ ...slow, ask }, IMAGE);
    assert.equal(detail, 'whether disk_gb is enforced cannot be told: create took longer than 30 s');
    assert.deepEqual(await left(), [], 'nor does one whose answer comes too late');

    const other = await rent(engine, IMAGE_WITH_VOLUME);
    assert.notEqual((await other.reserve(1100, '/data/file')).exitCode, 0, 'nor does a volume of the image hold more');
    const kept = /its volumes \/data are kept in memory/.test(other.image?.detail ?? '');
    assert.equal(kept, name === 'Docker', other.image?.detail);
    await other.destroy();

    if (process.arch !== 'x64') return t.diagnostic('the programs that make one are those of amd64');
    const third = await rent(engine);
    assert.deepEqual(await askForSubvolumes('/tmp/in', third.sh, ASKINGS.slice(0, 1)), [MADE], 'doctor says no less');
    assert.equal((await third.reserve(1100, `/tmp/in/${FIRST}/file`)).exitCode, 0);
    const { exceeded } = await until('it was measured', async () => {
      const found = await third.inspect();
      return found?.state === 'ended' && found;
    });
    assert.equal(exceeded, 'disk');
    await third.destroy();
  });

  test(`${name}: no subvolume is made on ${driver}, also where that lies on btrfs`, async (t) => {
    if (process.arch !== 'x64') return t.diagnostic('the programs that make one are those of amd64');
    const btrfs = openBtrfs(t);
    if (!btrfs) return;
    const engine = await open(t, btrfs.directory, true);
    t.after(async () => {
      await engine?.stop();
      btrfs.close();
    });
    if (!engine) return;
    const { sh, destroy } = await rent(engine);
    const codes = await askForSubvolumes('/tmp/in', sh);
    assert.ok(!codes.includes(MADE) && codes.includes(NO_SUCH_REQUEST), `${codes}`);
    await destroy();
  });

  test(`${name}: where the storage driver has no limits a lease that wrote too much is ended, and check says so`, async (t) => {
    const engine = await open(t);
    if (!engine) return;
    t.after(() => engine.stop());
    const { disk, reserve, inspect, left, destroy } = await rent(engine);
    assert.equal(disk?.ok, true, 'it is as it is, and no fault');
    const said = `disk_gb is not enforced: ${driver} on \\w+ has no limits`;
    // The engine's directory and this test's are both temporary, so on one file system.
    assert.match(disk?.detail ?? '', new RegExp(`^Warning: ${said}.*database \\(${leases}\\) are on one file system`));
    assert.match(await configCheck(engine), new RegExp(`warn compute.provider_three: ${said}`));
    assert.equal((await reserve(900)).exitCode, 0);
    for (let times = 3; times > 0; times--) assert.equal((await inspect())?.state, 'running');
    assert.equal((await reserve(1100)).exitCode, 0);
    const { exceeded, note } = await until('it was measured', async () => {
      const found = await inspect();
      return found?.state === 'ended' && found;
    });
    assert.equal(exceeded, 'disk');
    assert.match(note ?? '', /^it wrote 1\.\d GiB to its disk and may write 1$/);
    assert.equal((await inspect())?.exceeded, 'disk', 'it stays so');
    await destroy();
    assert.deepEqual(await left(), []);
  });
}
