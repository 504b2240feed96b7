import assert from 'node:assert/strict';
import test, { after, type TestContext } from 'node:test';
import { selfTest } from '../../src/compute/self-test.ts';
import { until } from '../helper/waiting.ts';
import { conform } from './conformance.ts';
import { COPIED_WATCHDOG, deadlineInside, type Engine, runAsRoot } from './engines/docker.ts';
import { NO_WALL, openRunsc, RUNSC, UNLIMITED } from './engines/runsc.ts';
import { containerSubject } from './engines/subject.ts';
import { workInGuest } from './guest.ts';
import { stayInside } from './lease-inside-shared.ts';

let engine: Engine | undefined;
after(() => engine?.stop());

/** gVisor takes several threads of the host for each process, and the engine counts those. */
const settingsOf = (runtime: string) => ({ runtime, pids: 2048 });
const openEngine = async (t: TestContext) => (engine ??= await openRunsc(t, { shared: true }));
async function openWith(t: TestContext, runtime: string, more: object = {}) {
  const opened = await openEngine(t);
  return opened && containerSubject({ socket: opened.socket }, { ...settingsOf(runtime), ...more });
}
const subject = (t: TestContext) => openWith(t, RUNSC);

conform('container under gVisor', subject);
workInGuest('container under gVisor', subject);
stayInside('gVisor under Docker', { engine: openEngine, settings: settingsOf(RUNSC), watchdog: COPIED_WATCHDOG });

const now = () => Math.floor(Date.now() / 1000);

/** Attempts of root's at the watchdog's directory, its memory and itself; each has to be refused. */
const ATTEMPTS = [
  'cat /.purser/deadline',
  'ls /.purser',
  'chmod 777 /.purser',
  'chown 0 /.purser',
  'mv /.purser /moved',
  'rmdir /.purser',
  'umount /.purser',
  'mount -t tmpfs none /.purser',
  'unshare -m true',
  'unshare -Um mount -t tmpfs none /.purser',
  'unshare -U ls /.purser',
  'unshare -U mv /.purser /moved',
  'ls /proc/1/root/.purser',
  'ls /proc/1/cwd/.purser',
  'cat /proc/1/mem',
  'kill -KILL 1',
  'kill -STOP 1',
  'unshare -U kill -KILL 1',
];

test('under gVisor, a file that the engine mounts ends the lease when it grows', async (t) => {
  const opened = await subject(t);
  if (!opened) return;
  const { backend, spec } = opened;
  const tag = 'purser-inst-conformance-res-grown';
  const made = await backend.create({ tag, quote: await backend.quote(spec), deadline: now() + 600 });
  assert.deepEqual(made, { kind: 'created', ref: tag });
  t.after(() => backend.destroy(tag));
  const command = 'head -c 30000000 /dev/zero >/etc/hosts';
  await backend.guest.exec(tag, { command, timeoutSeconds: 60, streamBytesMax: 100 }).catch(() => {}); // It ends of it.
  const { exceeded } = await until('it has ended', async () => {
    const found = await backend.inspect(tag);
    return found?.state === 'ended' && found;
  });
  assert.equal(exceeded, 'disk');
});

test('under gVisor, whatever root replaces or breaks: the deadline is moved by Purser alone and ends the lease', async (t) => {
  const opened = await subject(t);
  if (!opened || !engine) return;
  const { backend, spec } = opened;
  const { docker } = engine;
  const tag = 'purser-inst-conformance-res-gvisor';
  const before = now() + 600;
  assert.deepEqual(await backend.create({ tag, quote: await backend.quote(spec), deadline: before }), {
    kind: 'created',
    ref: tag,
  });
  t.after(() => backend.destroy(tag));
  const sh = async (command: string) => {
    const { stdout, stderr } = await backend.guest.exec(tag, { command, timeoutSeconds: 60, streamBytesMax: 10_000 });
    return `${stdout}${stderr}`.trim();
  };
  assert.match(await sh('cat /proc/version'), /^Linux version 4\.4\.0 /, 'this is gVisor');
  assert.equal((await docker.getContainer(tag).inspect()).HostConfig.Runtime, RUNSC);

  // No descriptor of process 1 leads to its deadline: gVisor lets everybody open what a process has open.
  const held = (await sh('ls -l /proc/1/fd | sed "s/.* -> //"')).split('\n').filter((it) => it.startsWith('/'));
  assert.deepEqual(
    held.sort(),
    ['/etc/hostname', '/etc/hosts', '/etc/resolv.conf'],
    'only what root may write as well',
  );
  assert.equal(await sh('awk "/^CapEff/ { print \\$2 }" /proc/self/status'), '0'.repeat(16));
  const attempts = ATTEMPTS.map((it) => `${it} >/dev/null 2>&1 && echo "${it}"`).join('\n');
  assert.equal(await sh(`${attempts}\necho tried`), 'tried');
  assert.equal(await deadlineInside(docker, tag, COPIED_WATCHDOG), before);

  // With other programs in the place of all that the image has, and of the file that the watchdog was started from.
  const record = 'printf "#!/busybox-kept sh\\n: > /tmp/ran\\n"';
  const replace = `for it in sh sleep cat true date; do rm /bin/$it; ${record} > /bin/$it; /busybox-kept chmod 755 /bin/$it; done`;
  await runAsRoot(
    docker,
    tag,
    ...[
      '/bin/sh',
      '-c',
      `cp /bin/busybox /busybox-kept; mv /.purser-watchdog /moved; ${record} > /.purser-watchdog; ${replace}`,
    ],
  );
  await runAsRoot(docker, tag, '/busybox-kept', 'chmod', '755', '/.purser-watchdog');
  const deadline = now() + 15; // What comes before its end takes seconds on a busy machine.
  assert.deepEqual(await backend.extend(tag, deadline), { kind: 'done' });
  assert.equal(await deadlineInside(docker, tag, COPIED_WATCHDOG), deadline);
  assert.deepEqual(await runAsRoot(docker, tag, '/busybox-kept', 'ls', '/tmp'), [0, '']);
  const ended = await until('it has ended', async () => {
    const machine = await backend.inspect(tag);
    return machine?.state === 'ended' && machine;
  });
  assert.ok(Date.now() / 1000 >= deadline, 'not before its deadline');
  assert.equal(ended.note, "its deadline has passed by the clock of the engine's machine");
});

for (const [runtime, said] of [
  [
    RUNSC,
    /^true: .*took a deadline, was found by its tag and ran a command, and its way out opened; it was destroyed and is gone$/,
  ],
  [NO_WALL, /^false: .*it runs, but it shares the kernel of its host \(\S+\), and kata is sold as a wall\./],
  [
    UNLIMITED,
    /^false: .*it runs, but nothing limits its CPU \(.* For gVisor remove --ignore-cgroups; it was destroyed/,
  ],
] as const)
  test(`doctor tries a lease under ${runtime}: its kernel, its limits, its deadline and its way out`, async (t) => {
    const opened = await openWith(t, runtime, { egress: 'public' });
    if (!opened) return;
    const { ok, detail } = await selfTest({ backend: opened.backend, provisionSeconds: 60 }, 'inst_conformance', now);
    assert.match(`${ok}: ${detail}`, said);
  });
