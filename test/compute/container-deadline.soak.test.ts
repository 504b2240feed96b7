import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { newId } from '../../src/base/id.ts';
import { type Created, tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { minimalDebian } from '../helper/minimal-debian.ts';
import { until } from '../helper/waiting.ts';
import { sharedDocker } from '../lease/docker-leases.ts';
import {
  COPIED_WATCHDOG,
  deadlineInside,
  type Engine,
  IMAGE,
  importImage,
  runAsRoot,
  WATCHDOG,
} from './engines/docker.ts';

const INSTALLATION = newId('inst');
const now = () => Math.floor(Date.now() / 1000);

/** A lease of an image, with a backend that nobody else drives: what ends it is its watchdog. */
async function lease(engine: Engine, image: string, seconds: number, more: { runtime?: string } = {}) {
  const backend = openContainerBackend(
    {
      backend: 'container',
      socket: engine.socket,
      image,
      pull: 'never',
      network: 'none',
      pids: 64,
      provision_seconds: 60,
      prices: { cpu_hourly_usd: 1n, memory_gib_hourly_usd: 1n, gpu_hourly_usd: {} },
      limits: { cpus: 2, memory_gib: 1, gpus: 0, disk_gb: 20, max_seconds: 3600 },
      gpu_mode: 'nvidia',
      ...more,
    },
    { prefix: tagPrefix(INSTALLATION), now },
  );
  const tag = tagOf(INSTALLATION, newId('res'));
  const quote = await backend.quote({ gpu: null, gpus: 0, cpus: 0.5, memory_gib: 0.25, max_seconds: 600 });
  const created: Created = await backend.create({ tag, quote, deadline: now() + seconds });
  return {
    backend,
    tag,
    created,
    async sh(command: string): Promise<string> {
      const { stdout, stderr } = await backend.guest.exec(tag, {
        command,
        timeoutSeconds: 60,
        streamBytesMax: 10_000,
      });
      return `${stdout}${stderr}`.trim();
    },
    /** Waits for its end, which has to come at the deadline and for no other reason. */
    async endsAt(deadline: number): Promise<void> {
      assert.equal((await backend.inspect(tag))?.state, 'running');
      const ended = await until('it has ended', async () => {
        const machine = await backend.inspect(tag);
        return machine?.state === 'ended' && machine;
      });
      assert.ok(Date.now() / 1000 >= deadline, 'not before its deadline');
      assert.equal(ended.note, "its deadline has passed by the clock of the engine's machine");
      await backend.destroy(tag);
    },
  };
}

/** Makes an image of a directory; `changes` are lines of a Dockerfile. */
async function imageOf(t: TestContext, engine: Engine, repo: string, tree: string, changes?: string) {
  const archive = join(engine.directory, 'image.tar');
  execFileSync('tar', ['-C', tree, '--exclude=./dev/*', '-cf', archive, '.']);
  await importImage(engine.docker, archive, { repo, ...(changes ? { changes } : {}) });
  rmSync(archive);
  t.after(() => engine.docker.getImage(repo).remove({ force: true }));
}

/** Puts a recorder in the place of each program: it leaves a file in /tmp whenever somebody runs it. */
const replace = (interpreter: string, programs: string) => `for it in ${programs}; do
  rm -f "$it"; printf '#!${interpreter}\\n: > /tmp/ran.$$\\n' > "$it"; chmod 755 "$it"
done; echo replaced`;

/** The names of what is in /tmp, read by the engine: nothing inside has to work. */
async function temporaries({ docker }: Engine, tag: string): Promise<string> {
  const chunks: Buffer[] = [];
  const stream = await docker.getContainer(tag).getArchive({ path: '/tmp' });
  for await (const chunk of stream as AsyncIterable<Buffer>) chunks.push(chunk);
  return execFileSync('tar', ['-t'], { input: Buffer.concat(chunks), encoding: 'utf8' });
}

/** Has the kernel send process 1 each signal, which root may without capabilities (fcntl(2), F_SETOWN and F_SETSIG). */
const SIGNAL_BY_IO = `use strict; for my $signal (9, 10, 12, 17, 18, 19, 29, 34, 40, 64) {
  pipe(my $reader, my $writer) or die; fcntl($reader, 8, 1) or die "owner: $!"; fcntl($reader, 10, $signal) or die;
  fcntl($reader, 4, 020000) or die; syswrite($writer, "x") for 1 .. 100 } print "sent"`;

for (const runtime of [undefined, 'runc'])
  test(`in Debian${runtime ? ', under a runtime that is named' : ''}, whatever root replaces or breaks: the deadline is moved by Purser alone and ends the lease`, async (t) => {
    const engine = await sharedDocker(t);
    if (!engine) return;
    const tree = await minimalDebian(t);
    if (tree === undefined) return;
    await imageOf(t, engine, 'localhost/debian:1', tree, 'USER root');
    const { backend, tag, created, sh, endsAt } = await lease(
      engine,
      'localhost/debian:1',
      300,
      runtime ? { runtime } : {},
    );
    const inside = () => deadlineInside(docker, tag, runtime ? COPIED_WATCHDOG : WATCHDOG);
    assert.equal(created.kind, 'created', JSON.stringify(created));
    const { docker } = engine;

    // Who commands run as is not looked up in the container's own /etc/passwd.
    await sh("sed -i 's/^root:x:0:0/root:x:63541:63541/' /etc/passwd");
    assert.match(await sh('grep ^root: /etc/passwd; echo $EUID; id -u'), /^root:x:63541:63541:.*\n\n0$/);

    const before = await inside();
    assert.equal(await sh(`perl -e '${SIGNAL_BY_IO}'`), 'sent');
    assert.match(await sh('kill -KILL 1; kill -STOP 1; kill -CONT 1; echo sent'), /^sent/);
    assert.match(await sh('dd if=/dev/zero of=/dev/shm/full bs=1M count=100'), /No space left/);
    assert.match(await sh("bash -c 'exec 9<>/proc/1/fd/9' || echo refused"), /^refused\n.*Permission denied$/);
    assert.equal(await inside(), before);

    const programs = '/bin/date /bin/sleep /bin/sh /bin/cat /bin/true /usr/bin/env /.purser-watchdog';
    // Not before the clock of the command's limit runs: with another `sleep` in its place it would end the command at once.
    const limited = 'for i in $(seq 5000); do grep -qsx sleep /proc/[0-9]*/comm && break; done';
    assert.equal(await sh(`${limited}; cp /bin/bash /keep; ${replace('/keep', programs)}`), 'replaced');
    assert.deepEqual(await backend.extend(tag, now() + 200), { kind: 'done' });
    const broken =
      'echo /tmp/evil.so > /etc/ld.so.preload; cd /usr/lib; rm -rf */libc.so.6 */libc.so* */ld-linux* /lib64 /usr/lib64';
    await runAsRoot(
      docker,
      tag,
      '/keep',
      '-c',
      `kill -STOP -1; mv /.purser-watchdog /.moved; chmod 0 /.moved; ${broken.replace('rm', '/bin/rm')}`,
    );
    const [code] = await runAsRoot(docker, tag, '/keep', '-c', 'true');
    assert.notEqual(code, 0, 'nothing of the image runs any more');
    const deadline = now() + 15; // What comes before its end takes seconds on a busy machine.
    assert.deepEqual(await backend.extend(tag, deadline), { kind: 'done' });
    assert.equal(await inside(), deadline);
    assert.doesNotMatch(await temporaries(engine, tag), /ran/, 'nothing of what root put there was run');
    await endsAt(deadline);
  });

test('whatever an image has in the place of the directory of its watchdog, root can neither replace that nor write in it', async (t) => {
  const engine = await sharedDocker(t);
  if (!engine) return;
  const tree = join(engine.directory, 'linked');
  cpSync(join(engine.directory, 'rootfs'), tree, { recursive: true, verbatimSymlinks: true });
  t.after(() => rmSync(tree, { recursive: true }));
  mkdirSync(join(tree, 'there'));
  const place = join(tree, '.purser');
  for (const [what, put] of Object.entries({
    link: () => symlinkSync('there', place),
    dangling: () => symlinkSync('/tmp/nowhere', place),
    file: () => writeFileSync(place, ''),
    directory: () => {
      mkdirSync(place, { mode: 0o777 });
      for (const name of ['unfinished', 'deadline', 'watchdog']) writeFileSync(join(place, name), '', { mode: 0o777 });
    },
  })) {
    put();
    const image = `localhost/place-${what}:1`;
    await imageOf(t, engine, image, tree);
    rmSync(place, { recursive: true });
    const { backend, tag, created, sh } = await lease(engine, image, 300, { runtime: 'runc' });
    assert.equal(created.kind, 'created', `${what}: ${JSON.stringify(created)}`);
    const replaced = `rm -rf /.purser; mkdir /.purser; cp /bin/true /.purser/watchdog; test -O /.purser || echo kept`;
    assert.match(await sh(replaced), /^kept$/m, what);
    const deadline = now() + 200;
    assert.deepEqual(await backend.extend(tag, deadline), { kind: 'done' });
    assert.equal(await deadlineInside(engine.docker, tag, COPIED_WATCHDOG), deadline, what);
    await backend.destroy(tag);
  }
});

test('in busybox, with all its processes and its processor used up, the deadline ends the lease', async (t) => {
  const engine = await sharedDocker(t);
  if (!engine) return;
  const { backend, tag, sh, endsAt } = await lease(engine, IMAGE, 300);
  assert.equal(
    await sh(`cp /bin/busybox /busybox-kept; ${replace('/busybox-kept sh', '/bin/date /bin/sleep /.purser-watchdog')}`),
    'replaced',
  );
  const deadline = now() + 15;
  assert.deepEqual(await backend.extend(tag, deadline), { kind: 'done' });
  assert.doesNotMatch(await temporaries(engine, tag), /ran/);
  const spin = 'i=0; while [ $i -lt 80 ]; do /busybox-kept sh -c "while :; do :; done" & i=$((i+1)); done; true';
  await runAsRoot(engine.docker, tag, '/busybox-kept', 'sh', '-c', spin);
  await endsAt(deadline);
});

test('in an image with nothing but one static program, the deadline is kept and moved', async (t) => {
  const engine = await sharedDocker(t);
  if (!engine) return;
  const tree = mkdtempSync(join(tmpdir(), 'purser-scratch-'));
  t.after(() => rmSync(tree, { recursive: true, force: true }));
  cpSync(execFileSync('sh', ['-c', 'command -v busybox'], { encoding: 'utf8' }).trim(), join(tree, 'sleep'));
  await imageOf(t, engine, 'localhost/scratch:1', tree);
  const { backend, tag, created, endsAt } = await lease(engine, 'localhost/scratch:1', 300);
  assert.equal(created.kind, 'created', JSON.stringify(created));
  assert.match((await backend.guest.prove(tag)) ?? '', /^it runs, but .*\/bin\/sh/, 'nobody would pay for it');
  const tenant = runAsRoot(engine.docker, tag, '/sleep', '4321');
  const deadline = now() + 12;
  assert.deepEqual(await backend.extend(tag, deadline), { kind: 'done' });
  await endsAt(deadline);
  await tenant.catch(() => {}); // Its container is gone.
});

test('a deadline that was in the container before Purser was told of it is read from the watchdog', async (t) => {
  const engine = await sharedDocker(t);
  if (!engine) return;
  const { backend, tag, sh } = await lease(engine, IMAGE, 300);
  const moved = now() + 400;
  const move = await engine.docker
    .getContainer(tag)
    .exec({ Cmd: ['/proc/1/exe', String(moved)], User: '63541:63541', AttachStdout: true, Tty: true });
  await move.start({ Tty: true });
  await until('it is moved', async () => (await move.inspect()).ExitCode === 0); // What is read is read once.
  const again = openAnother(engine);
  await until('it is read', async () => (await again.inspect(tag))?.deadline === moved);
  // A watchdog that cannot be asked is no reason to call the machine unknown.
  await sh('chmod 700 /');
  const third = openAnother(engine);
  assert.deepEqual(await third.inspect(tag), { ref: tag, state: 'running' });
  assert.equal((await third.extend(tag, moved + 1)).kind, 'refused');
  await backend.destroy(tag);
  assert.deepEqual(await third.extend(tag, moved), { kind: 'refused', reason: 'the container is gone' });

  function openAnother({ socket }: Engine) {
    const shape = { id: 'small', count: 9, cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: 1n };
    const common = { image: IMAGE, pull: 'never', network: 'none', pids: 64, provision_seconds: 60 } as const;
    const limits = { max_seconds: 3600 };
    return openContainerBackend(
      { backend: 'container', socket, ...common, limits, offers: [shape] },
      { prefix: tagPrefix(INSTALLATION), now },
    );
  }
});

test('an image whose user cannot run commands is not leased', async (t) => {
  const engine = await sharedDocker(t);
  if (!engine) return;
  const tree = join(engine.directory, 'named');
  cpSync(join(engine.directory, 'rootfs'), tree, { recursive: true, verbatimSymlinks: true });
  mkdirSync(join(tree, 'etc'));
  writeFileSync(
    join(tree, 'etc/passwd'),
    'root:x:0:0::/:/bin/sh\nagent:x:1234:1235::/tmp:/bin/sh\nclock:x:63541:1::/:/bin/sh\n',
  );
  t.after(() => rmSync(tree, { recursive: true }));
  const order = async (user: string) => {
    const image = `localhost/user-${user.replace(/\W/g, '-')}:1`;
    await imageOf(t, engine, image, tree, `USER ${user}`);
    return lease(engine, image, 300);
  };
  for (const user of ['63541', 'clock', 'clock:root', 'nobody-there']) {
    const { created, backend, tag } = await order(user);
    assert.equal(created.kind, 'refused', user);
    assert.match(JSON.stringify(created), /the image runs its commands as (user 63541|nobody-there)/);
    assert.equal(await backend.inspect(tag), undefined);
  }
  for (const [user, id] of [
    ['agent', '1234 1235'],
    ['agent:0', '1234 0'],
    ['1234:7', '1234 7'],
    ['1234', '1234 1235'],
  ] as const) {
    const { backend, tag, sh } = await order(user);
    assert.equal(await sh('echo $(id -u) $(id -g)'), id, user);
    await backend.destroy(tag);
  }
  const left = await engine.docker.listContainers({ all: true });
  assert.deepEqual(
    left.filter(({ Names }) => /-user-/.test(Names[0] ?? '')),
    [],
  );
});

test('limits are read inside: one that lies above what is leased is named', async (t) => {
  const engine = await sharedDocker(t);
  if (!engine) return;
  const { backend, tag } = await lease(engine, IMAGE, 300);
  const quote = await backend.quote({ gpu: null, gpus: 0, cpus: 0.5, memory_gib: 0.25, max_seconds: 600 });
  assert.equal(await backend.doctor.unlimited?.(tag, quote), undefined);
  // As if no limit had been asked for: what is set is then more than what was sold.
  const smaller = { ...quote, spec: { ...quote.spec, memory_gib: 0.1 } };
  assert.match(
    (await backend.doctor.unlimited?.(tag, smaller)) ?? '',
    /^inside it nothing limits its memory, whatever/,
  );
  await backend.destroy(tag);
});
