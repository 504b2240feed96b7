import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import test, { after, type TestContext } from 'node:test';
import { collect } from '../../src/compute/machine/collect.ts';
import { until } from '../helper/waiting.ts';
import { beginSession, conform, type Subject } from './conformance.ts';
import { type Engine, importImage, openDocker, packBusybox } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';
import { containerSubject } from './engines/subject.ts';
import { workInGuest } from './guest.ts';

const engines: { docker?: Engine | undefined; podman?: Engine | undefined } = {};
after(async () => {
  await engines.docker?.stop();
  await engines.podman?.stop();
});

const subject = (engine: Engine | undefined, change: object = {}) =>
  engine && containerSubject({ socket: engine.socket }, change);

async function openSharedDocker(t: TestContext): Promise<Engine | undefined> {
  engines.docker ??= await openDocker(t, { shared: true });
  return engines.docker;
}
async function openSharedPodman(t: TestContext): Promise<Engine | undefined> {
  engines.podman ??= await openPodman(t);
  return engines.podman;
}

/** Packs the image with another shell, which has no `cat` of its own, and a `cat` that never ends. */
function packOdd(directory: string): string {
  packBusybox(directory);
  const root = join(directory, 'rootfs');
  const archive = join(directory, 'odd.tar');
  const make = `rm bin/sh bin/cat; cp /bin/dash bin/sh
for it in $(ldd /bin/dash | grep -o '/[^ ]*'); do mkdir -p ".\${it%/*}"; cp -L "$it" ".$it"; done
printf '#!/bin/sh\\nexec sleep 600\\n' >bin/cat; chmod 755 bin/cat; tar -cf "$1" .`;
  execFileSync('sh', ['-c', make, 'sh', archive], { cwd: root });
  return archive;
}

conform('container on Docker', async (t) => subject(await openSharedDocker(t)));
conform('container on Podman', async (t) => subject(await openSharedPodman(t)));
workInGuest('container on Docker', async (t) => subject(await openSharedDocker(t)));
workInGuest('container on Podman', async (t) => subject(await openSharedPodman(t)));

for (const name of ['Docker', 'Podman'] as const)
  test(`${name}: a container is limited, without capabilities and network, and says nothing into a log`, async (t) => {
    const opened = subject(await (name === 'Docker' ? openSharedDocker(t) : openSharedPodman(t)));
    if (!opened) return;
    const { backend, spec } = opened;
    const tag = 'purser-inst-conformance-res-limits';
    const deadline = Math.floor(Date.now() / 1000) + 600;
    const created = await backend.create({ tag, quote: await backend.quote(spec), deadline });
    assert.deepEqual(created, { kind: 'created', ref: tag });
    const sh = async (command: string) => {
      const said = await backend.guest.exec(tag, { command, timeoutSeconds: 60, streamBytesMax: 4096 });
      return `${said.stdout}${said.stderr}${said.exitCode}`.trim();
    };
    assert.equal(
      await sh("awk '/^Cap(Prm|Eff|Bnd)|^NoNewPrivs/ { print $2 }' /proc/1/status"),
      [...Array(3).fill('0'.repeat(16)), '1', '0'].join('\n'),
    );
    assert.equal(await sh('ls /sys/class/net; hostname; pwd; echo $NVIDIA_VISIBLE_DEVICES'), 'lo\nlease\n/\nvoid\n0');
    assert.match(await sh('echo x > /.purser-watchdog'), /Permission denied/);
    assert.equal(await sh('cat /proc/self/oom_score_adj'), '500\n0', 'it is ended before Purser is');
    assert.match(await sh('dd if=/dev/zero of=/dev/null bs=300M count=1'), /137$/, 'more than its memory kills it');
    // Each waits until the shell that starts them is gone.
    const crowd = 'for i in $(seq 80); do { exec </dev/shm/crowd 8>&- 9>&-; read _; } & done; wait';
    assert.match(await sh(`mkfifo /dev/shm/crowd; exec 9<>/dev/shm/crowd; ${crowd}`), /can't fork/);
    await until('there is room for processes again', async () => (await sh('true').catch(() => '')) === '0');
    await sh('for i in $(seq 1000); do echo noise > /proc/1/fd/1; done');
    const { HostConfig, LogPath } = await (engines[name === 'Docker' ? 'docker' : 'podman'] as Engine).docker
      .getContainer(tag)
      .inspect();
    assert.deepEqual([HostConfig.LogConfig?.Type, LogPath], ['none', '']);
    assert.deepEqual([HostConfig.CpuShares, HostConfig.OomScoreAdj, HostConfig.Binds ?? []], [128, 500, []]);
    assert.equal(HostConfig.NanoCpus || (HostConfig.CpuQuota ?? 0) * 1e4, 5e8);
    await backend.destroy(tag);
  });

for (const name of ['Docker', 'Podman'] as const) {
  const openShared = name === 'Docker' ? openSharedDocker : openSharedPodman;
  const prefix = 'purser-inst-conformance-';
  const create = async ({ backend, spec }: Subject, tag: string) => {
    const deadline = Math.floor(Date.now() / 1000) + 600;
    assert.deepEqual(await backend.create({ tag, quote: await backend.quote(spec), deadline }), {
      kind: 'created',
      ref: tag,
    });
  };

  test(`${name}: the exit code of a session is exact, whatever its command signals and whatever \`cat\` is`, async (t) => {
    const engine = await openShared(t);
    if (!engine) return;
    const image = 'localhost/busybox-odd:1';
    const opened = subject(engine, { image }) as Subject;
    const { backend } = opened;
    const directory = mkdtempSync(join(engine.directory, 'odd-'));
    await importImage(engine.docker, packOdd(directory), { repo: image });
    const tag = `${prefix}res-odd`;
    await create(opened, tag);
    t.after(() => backend.destroy(tag));
    const endOf = async (command: string) => {
      const session = await beginSession(backend, tag, `echo out; ${command}`);
      session.stderr.resume();
      const said = collect(session.stdout, 100);
      return [await session.ended, (await said).bytes.toString()];
    };
    const ends = await Promise.all([
      endOf(`trap 'exit 5' TERM; kill -TERM 0; sleep 1; exit 3`),
      endOf(`trap '' HUP INT TERM; kill -HUP 0; kill -INT 0; kill -TERM 0; exit 3`),
      endOf('kill -KILL $$'),
    ]);
    assert.deepEqual(
      ends,
      [5, 3, 137].map((code) => [{ code }, 'out\n']),
    );
  });

  test(`${name}: a session that is killed in its first moments leaves no process`, async (t) => {
    const engine = await openShared(t);
    if (!engine) return;
    const opened = subject(engine) as Subject;
    const { backend } = opened;
    const tag = `${prefix}res-first`;
    await create(opened, tag);
    t.after(() => backend.destroy(tag));
    for (const bytes of [0, 0, 3_000_000, 3_000_000]) {
      const session = await beginSession(backend, tag, 'true');
      session.stdin.write(Buffer.alloc(bytes));
      session.kill();
      await session.ended.catch(() => {}); // It may be unknown.
    }
    await until('the watchdog is alone', async () => {
      const { Processes } = (await engine.docker.getContainer(tag).top({ ps_args: '-eo pid,args' })) as {
        Processes: string[][];
      };
      return Processes.length === 1;
    });
  });

  test(`${name}: commands begin in the image's WORKDIR, while it is there, and /dev/shm has the size that was set`, async (t) => {
    const engine = await openShared(t);
    if (!engine) return;
    const image = 'localhost/busybox-workdir:1';
    const archive = packBusybox(mkdtempSync(join(engine.directory, 'workdir-')));
    await importImage(engine.docker, archive, { repo: image, changes: 'WORKDIR /tmp/work' });
    const opened = subject(engine, { image, shm_gib: 0.125 }) as Subject;
    const { backend } = opened;
    const tag = `${prefix}res-workdir`;
    await create(opened, tag);
    t.after(() => backend.destroy(tag));
    const sh = async (command: string) => {
      const { stdout, exitCode } = await backend.guest.exec(tag, {
        command,
        timeoutSeconds: 60,
        streamBytesMax: 4096,
      });
      return [stdout.toString(), exitCode];
    };
    await sh('mkdir -p /tmp/work');
    assert.deepEqual(await sh('pwd'), ['/tmp/work\n', 0]);
    assert.deepEqual(await sh("df -m /dev/shm | awk 'END { print $2 }'"), ['128\n', 0]);
    await backend.guest.upload(tag, 'a', Buffer.from('x'));
    assert.deepEqual(await sh('cat /tmp/work/a; exit 3'), ['x', 3]);
    const session = await backend.guest.session(tag, { command: 'pwd', terminal: undefined });
    const said = collect(session.stdout, 100);
    session.stderr?.resume();
    assert.deepEqual([await session.ended, (await said).bytes.toString()], [{ code: 0 }, '/tmp/work\n']);
    await sh('rm -r /tmp/work');
    assert.deepEqual(await sh('pwd'), ['/\n', 0]);
    const deadline = Math.floor(Date.now() / 1000) + 900;
    assert.deepEqual(await backend.extend(tag, deadline), { kind: 'done' });
  });

  test(`${name}: the code 126 of a command that leaves its input unread is its own`, async (t) => {
    const engine = await openShared(t);
    const opened = subject(engine);
    if (!opened) return;
    const { backend } = opened;
    const tag = `${prefix}res-unread`;
    await create(opened, tag);
    t.after(() => backend.destroy(tag));
    // Podman breaks the connection then, and may put its own words in place of the command's.
    const session = await backend.guest.session(tag, { command: ': > /tmp/notes; /tmp/notes', terminal: undefined });
    session.stdin.on('error', () => {});
    session.stdin.write(Buffer.alloc(8 * 1024 * 1024));
    session.stdout.resume();
    session.stderr?.resume();
    assert.deepEqual(await session.ended, { code: 126 });
  });

  test(`${name}: a container of a lease's image is not ours, whatever labels it has inherited`, async (t) => {
    const engine = await openShared(t);
    const opened = subject(engine);
    if (!engine || !opened) return;
    const { backend } = opened;
    const tag = `${prefix}res-committed`;
    await create(opened, tag);
    const { docker } = engine;
    await docker.getContainer(tag).commit({ repo: 'localhost/committed', tag: '1' });
    await backend.destroy(tag);
    const copy = await docker.createContainer({ name: 'somebodys', Image: 'localhost/committed:1', Cmd: ['true'] });
    t.after(() => copy.remove({ force: true }));
    assert.equal((await copy.inspect()).Config.Labels['purser.tag'], tag);
    assert.deepEqual(await backend.listOwned(prefix), []);
    assert.deepEqual(await backend.find(tag), []);
  });
}

test('Podman: a command for which no process is left ends with the words of the engine', async (t) => {
  const opened = subject(await openSharedPodman(t));
  if (!opened) return;
  const { backend, spec } = opened;
  const tag = 'purser-inst-conformance-res-crowd';
  const deadline = Math.floor(Date.now() / 1000) + 600;
  assert.equal((await backend.create({ tag, quote: await backend.quote(spec), deadline })).kind, 'created');
  t.after(() => backend.destroy(tag));
  // The readers outlive the shell that starts them until no more can be made; the last one takes its place.
  const reader = '{ read _ </dev/shm/crowd; } &';
  const crowd = await backend.guest.session(tag, {
    command: `mkfifo /dev/shm/crowd; exec 9<>/dev/shm/crowd; (for i in $(seq 80); do ${reader} done) 2>/dev/null
${reader} echo full; read _ <&9`,
    terminal: undefined,
  });
  crowd.stderr?.resume();
  await new Promise((resolve) => crowd.stdout.once('data', resolve));
  const order = { command: 'true', timeoutSeconds: 60, streamBytesMax: 4096 };
  let result = await backend.guest.exec(tag, order);
  // What the engine itself ran inside as the crowd came may have left a place: a shell begins there, and cannot go on.
  for (; result.exitCode !== 125; result = await backend.guest.exec(tag, order)) {
    const more = backend.guest.session(tag, { command: 'read _ </dev/shm/crowd', terminal: undefined });
    await more.then(
      ({ stdout, stderr, ended }) => {
        stdout.resume();
        stderr?.resume();
        ended.catch(() => {});
      },
      () => {},
    );
  }
  assert.match(result.stderr.toString(), /OCI runtime error$/m);
  crowd.ended.catch(() => {}); // It ends with its container.
});
