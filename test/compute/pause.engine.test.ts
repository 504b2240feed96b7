import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import test, { after, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import type { Pausing } from '../../src/compute/backend.ts';
import { processMilliseconds } from '../helper/cpu.ts';
import { inTime, until } from '../helper/waiting.ts';
import type { Subject } from './conformance.ts';
import { openDocker } from './engines/docker.ts';
import { LXD_PREFIX, lxdSubject, openLxd } from './engines/lxd.ts';
import { openPodman } from './engines/podman.ts';
import { containerSubject } from './engines/subject.ts';

const now = () => Math.floor(Date.now() / 1000);
const shared: { stop(): unknown }[] = [];
after(() => Promise.all(shared.map((it) => it.stop())));

type Engine = { stop(): unknown };
/** Opens an engine once for all tests of a file. */
function once<E extends Engine>(open: (t: TestContext) => Promise<E | undefined>) {
  let opened: Promise<E | undefined> | undefined;
  return (t: TestContext) => {
    opened ??= open(t).then((it) => {
      if (it) shared.push(it);
      return it;
    });
    return opened;
  };
}
const docker = once((t) => openDocker(t, { shared: true }));
const podman = once((t) => openPodman(t));
const lxd = once((t) => openLxd(t));
const SUBJECTS: Record<string, (t: TestContext) => Promise<Subject | undefined>> = {
  Docker: async (t) => of(await docker(t), ({ socket }) => containerSubject({ socket })),
  Podman: async (t) => of(await podman(t), ({ socket }) => containerSubject({ socket })),
  LXD: async (t) => of(await lxd(t), ({ socket }) => lxdSubject(socket)),
};
const of = <E>(engine: E | undefined, subject: (engine: E) => Subject) => engine && subject(engine);

/** A machine of an engine, and the calls into it. */
async function openMachine(t: TestContext, engine: string) {
  const subject = await (SUBJECTS[engine] as (t: TestContext) => Promise<Subject | undefined>)(t);
  if (!subject) return undefined;
  const { backend, spec } = subject;
  const tag = `${engine === 'LXD' ? LXD_PREFIX : 'purser-inst-conformance-'}res-${randomBytes(13).toString('hex')}`;
  const deadline = now() + 600;
  const made = await backend.create({ tag, quote: await backend.quote(spec), deadline });
  assert.equal(made.kind, 'created', JSON.stringify(made));
  const ref = made.kind === 'created' ? made.ref : '';
  t.after(async () => {
    await backend.destroy(ref).catch(() => {});
    await backend.close();
  });
  const sh = async (command: string) => {
    const { stdout, stderr } = await backend.guest.exec(ref, { command, timeoutSeconds: 60, streamBytesMax: 65_536 });
    return `${stdout}${stderr}`.trim();
  };
  /** Starts a command, and returns its process as this machine numbers it. */
  const background = async (command: string) => {
    const name = `background-${randomBytes(13).toString('hex')}`;
    await sh(`sh -c '${command}' ${name} </dev/null >/dev/null 2>&1 &`);
    return until('it runs', async () => processNamed(name));
  };
  return { backend, ref, sh, background, deadline, pause: backend.guest.pause as Pausing };
}

/** Returns the number on this machine of the process whose last argument is `name`, whatever it is in its lease. */
const processNamed = (name: string): number | undefined =>
  readdirSync('/proc')
    .map(Number)
    .find((pid) => pid > 0 && argumentsOf(pid).at(-1) === name);
function argumentsOf(pid: number): string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').filter(Boolean);
  } catch {
    return []; // It has ended.
  }
}

for (const engine of Object.keys(SUBJECTS)) {
  test(`${engine}: what runs stands still while its machine is paused, and goes on`, async (t) => {
    const it = await openMachine(t, engine);
    if (!it) return;
    const { backend, ref, sh, background, pause } = it;
    await sh('mkdir -p /tmp');
    // Both only add to their files: one that is written anew is empty most of the time that it is looked at.
    const processes = [
      await background('while [ ! -e /tmp/go ]; do echo x >>/tmp/count; done'),
      await background('while [ ! -e /tmp/go ]; do (echo x >>/tmp/forks); done'),
    ];
    // Asked from outside: a command inside of a paused machine takes longer than a slow machine is waited for.
    const used = () => processes.reduce((sum, pid) => sum + processMilliseconds(pid), 0);
    const counts = async () =>
      (await sh('cat /tmp/count | wc -l; cat /tmp/forks | wc -l')).split('\n').map(Number) as [number, number];
    // A shell with job control, whose job is in the foreground of a terminal.
    const session = await backend.guest.session(ref, {
      command: `sh -mc 'while [ ! -e /tmp/go ]; do sleep 0.1; done; sh -c "exit 7"; echo "left $?" >/tmp/left'`,
      terminal: { term: 'dumb', columns: 80, rows: 24 },
    });
    session.stdout.resume();
    await until('all of it runs', async () => (await counts()).every((it) => it > 0));

    const begunAt = performance.now();
    assert.deepEqual(await pause.begin(ref, now() + 3600), { kind: 'done' });
    t.diagnostic(`paused in ${Math.round(performance.now() - begunAt)} ms`);
    const before = used();
    assert.ok(before > 0);
    await delay(2000);
    assert.ok(used() - before < 100, `${used() - before} ms of processor time in 2 s`);
    const { deadline = 0 } = (await backend.inspect(ref)) ?? {};
    assert.ok(deadline > now() + 3000);

    const resumedAt = performance.now();
    assert.deepEqual(await pause.end(ref, it.deadline), { kind: 'done' });
    t.diagnostic(`resumed in ${Math.round(performance.now() - resumedAt)} ms`);
    const [count, forks] = await counts();
    await until('both go on', async () => {
      const [further, more] = await counts();
      return further > count && more > forks;
    });
    await sh('touch /tmp/go'); // Also ends those two: what follows has time limits of Purser's own, and few processors.
    assert.equal(
      await until('the job ends', async () => (await sh('cat /tmp/left 2>/dev/null')) || undefined),
      'left 7',
    );
    session.kill();
    assert.equal((await backend.inspect(ref))?.deadline, it.deadline);
    assert.deepEqual(await pause.begin(ref, now() + 3600), { kind: 'done' }, 'again');
    assert.deepEqual(await pause.begin(ref, now() + 3601), { kind: 'done' }, 'and while it is paused');
    assert.deepEqual(await pause.end(ref, it.deadline), { kind: 'done' });
    assert.deepEqual(await pause.end(ref, it.deadline), { kind: 'done' });
    assert.match(
      await sh('dd if=/dev/zero of=/dev/null bs=300M count=1; echo $?'),
      /^137$/m,
      'its other limits still hold',
    );
  });

  test(`${engine}: a paused machine ends at its deadline, with nobody there`, async (t) => {
    const it = await inTime(async (seconds) => {
      const opened = await openMachine(t, engine);
      await opened?.background('while :; do :; done');
      const begun = await opened?.pause.begin(opened.ref, now() + seconds);
      if (begun) assert.deepEqual(begun, { kind: 'done' });
      return opened;
    });
    if (!it) return;
    await until('it has ended', async () => {
      const machine = await it.backend.inspect(it.ref);
      return machine === undefined || machine.state === 'ended';
    });
    const ended = await it.pause.end(it.ref, now() + 600).catch((error: Error) => ({ kind: 'unknown', error }));
    assert.notEqual(ended.kind, 'done');
  });

  test(`${engine}: what wakes itself in a paused machine has next to no processor`, async (t) => {
    const it = await openMachine(t, engine);
    if (!it) return;
    const { ref, background, pause } = it;
    const waker = await background('while :; do :; done');
    assert.deepEqual(await pause.begin(ref, now() + 3600), { kind: 'done' });
    // As by a timer of its own, which may end in a process that is stopped.
    process.kill(waker, 'SIGCONT');
    const began = performance.now();
    const before = processMilliseconds(waker);
    const after = await until('it has woken', async () => {
      const milliseconds = processMilliseconds(waker);
      return milliseconds > before + 40 && milliseconds;
    });
    // A busy machine makes it less.
    const share = (after - before) / (performance.now() - began);
    t.diagnostic(`${(share * 100).toFixed(2)} % of a processor`);
    assert.ok(share < 0.03, `${share} of a processor`);
    assert.deepEqual(await pause.end(ref, it.deadline), { kind: 'done' });
  });
}
