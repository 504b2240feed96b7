import assert from 'node:assert/strict';
import test, { after, type TestContext } from 'node:test';
import { newId } from '../../src/base/id.ts';
import { nameOf } from '../../src/compute/engines/lxd/describe.ts';
import { keeperOf } from '../../src/compute/engines/lxd/keeper.ts';
import { hasEnded, until } from '../helper/waiting.ts';
import { conform } from './conformance.ts';
import { LXD_PREFIX, type Lxd, lxdSubject, openLxd } from './engines/lxd.ts';
import { type LxdMachines, MACHINE_IMAGE, openLxdMachines } from './engines/lxd-machines.ts';

let shared: { lxd: Lxd; machines: LxdMachines } | undefined;
after(async () => {
  shared?.machines.stop();
  await shared?.lxd.stop();
});

async function openShared(t: TestContext) {
  if (shared) return shared;
  const lxd = await openLxd(t);
  const machines = lxd && (await openLxdMachines(t, lxd));
  if (!machines) return void (await lxd?.stop());
  shared = { lxd, machines };
  return shared;
}

const MACHINE = { type: 'virtual-machine', image: MACHINE_IMAGE };

async function openSubject(t: TestContext, change: object = {}) {
  const opened = await openShared(t);
  if (!opened) return undefined;
  const subject = lxdSubject(opened.machines.socket, { ...MACHINE, ...change });
  t.after(() => subject.backend.close());
  return { ...subject, spec: { ...subject.spec, cpus: 1 }, ...opened };
}
type Opened = NonNullable<Awaited<ReturnType<typeof openSubject>>>;

conform('lxd machine', (t) => openSubject(t));

const now = () => Math.floor(Date.now() / 1000);
const freshTag = () => `${LXD_PREFIX}res-${newId('res').slice(4)}`;

async function order({ backend, spec }: Opened, tag: string, seconds = 600) {
  return { tag, quote: await backend.quote(spec), deadline: now() + seconds };
}

/** A machine of a test, which ends with it. */
async function lease(t: TestContext, opened: Opened, seconds?: number) {
  const tag = freshTag();
  const ref = nameOf(tag);
  const wanted = await order(opened, tag, seconds);
  assert.deepEqual(await opened.backend.create(wanted), { kind: 'created', ref });
  t.after(async () => {
    const last = lxdSubject(opened.machines.socket, MACHINE); // The one under test is closed.
    await last.backend.destroy(ref);
    await last.backend.close();
  });
  return { tag, ref, deadline: wanted.deadline, qemu: opened.machines.qemuOf(ref) };
}

const isThere = ({ lxd }: Opened, name: string) =>
  lxd.api.ask('GET', `/1.0/instances/${name}`).then(...[() => true, () => false]);
const ended = (what: string, qemu: { exitCode: number | null; signalCode: NodeJS.Signals | null }) =>
  until(what, async () => hasEnded(qemu as Parameters<typeof hasEnded>[0]));

test('lxd machine: it is switched off at its deadline while Purser and LXD are dead, and again if it starts again', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { ref, deadline, qemu } = await lease(t, opened, 30);
  await opened.lxd.end('SIGKILL');
  assert.ok(!hasEnded(qemu), 'it outlives the daemon');
  await ended('it is off', qemu);
  assert.deepEqual([qemu.exitCode, qemu.signalCode], [0, null], 'as by its power, not by a signal');
  assert.ok(Date.now() / 1000 >= deadline - 1, 'not before its deadline');
  await opened.machines.startAgain(ref);
  await ended('it is off again', opened.machines.qemuOf(ref));
  await opened.lxd.start();
});

test('lxd machine: its deadline moves, and is the same for another process', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { ref, deadline, qemu } = await lease(t, opened);
  const fresh = lxdSubject(opened.machines.socket, MACHINE);
  t.after(() => fresh.backend.close());
  assert.deepEqual(await fresh.backend.inspect(ref), { ref, state: 'running', deadline });
  assert.deepEqual(await opened.backend.extend(ref, now() + 5), { kind: 'done' });
  await ended('it is off', qemu);
  await until('LXD knows', async () => (await opened.backend.inspect(ref))?.state === 'ended');
  assert.equal((await opened.backend.extend(ref, now() + 600)).kind, 'refused', 'its keeper runs on');
});

test('lxd machine: one without its keeper is over, and a keeper without its machine is found and removed', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { backend, lxd } = opened;
  const { tag, ref } = await lease(t, opened);
  const keeper = keeperOf(ref);
  const stop = { action: 'stop', force: true, timeout: 10 };
  await lxd.api.run('PUT', `/1.0/instances/${keeper}/state`, stop, 60_000);
  assert.equal((await backend.inspect(ref))?.state, 'ended');
  const copy = { name: 'somebodys', type: 'container', source: { type: 'copy', source: keeper } };
  await lxd.api.run('POST', '/1.0/instances', copy, 60_000);
  t.after(() => lxd.api.run('DELETE', '/1.0/instances/somebodys', undefined, 60_000));
  opened.machines.qemuOf(ref).kill();
  await until('LXD removes the machine alone', () =>
    lxd.api.run('DELETE', `/1.0/instances/${ref}`, undefined, 60_000).then(...[() => true, () => false]),
  );
  assert.deepEqual(await backend.find(tag), [{ ref, state: 'ended' }]);
  const [left, ...others] = await backend.listOwned(LXD_PREFIX);
  assert.deepEqual([left?.ref, left?.tag, left?.state, others], [ref, tag, 'ended', []]);
  await backend.destroy(ref);
  assert.deepEqual([await backend.inspect(ref), await isThere(opened, keeper)], [undefined, false]);
});

test('lxd machine: one whose agent does not answer in time is refused, and nothing is left', async (t) => {
  const opened = await openSubject(t, { provision_seconds: 3 });
  if (!opened) return;
  const { machines, backend } = opened;
  machines.agentComesAfter = Number.POSITIVE_INFINITY;
  t.after(() => {
    machines.agentComesAfter = 1;
  });
  const tag = freshTag();
  const created = await backend.create(await order(opened, tag));
  assert.ok(
    created.kind === 'refused' && /agent of LXD .* within 3 s/.test(created.words ?? ''),
    JSON.stringify(created),
  );
  assert.deepEqual([await backend.find(tag), await isThere(opened, keeperOf(nameOf(tag)))], [[], false]);
});

test('lxd machine: one that QEMU does not start is refused, and nothing is left', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { machines, backend } = opened;
  machines.qemuLacks = '-device no-such-device';
  t.after(() => {
    machines.qemuLacks = '';
  });
  const tag = freshTag();
  const created = await backend.create(await order(opened, tag));
  assert.ok(created.kind === 'refused' && /no-such-device/.test(created.words ?? ''), JSON.stringify(created));
  assert.deepEqual([await backend.find(tag), await isThere(opened, keeperOf(nameOf(tag)))], [[], false]);
});

test('lxd machine: a pause stops its processors, and its deadline holds', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { backend, lxd } = opened;
  const pausing = backend.guest.pause;
  assert.ok(pausing && typeof pausing === 'object');
  const { ref, qemu } = await lease(t, opened);
  const statusOf = async () => (await lxd.api.ask<{ status: string }>('GET', `/1.0/instances/${ref}`)).status;
  for (const _ of ['once', 'again']) assert.deepEqual(await pausing.begin(ref, now() + 900), { kind: 'done' });
  assert.equal(await statusOf(), 'Frozen');
  for (const _ of ['once', 'again']) assert.deepEqual(await pausing.end(ref, now() + 600), { kind: 'done' });
  assert.equal(await statusOf(), 'Running');
  assert.deepEqual(await pausing.begin(ref, now() + 5), { kind: 'done' });
  await ended('it is off', qemu);
});

test('lxd machine: doctor asks for the driver, the wall and the keeper', async (t) => {
  const opened = await openSubject(t);
  if (!opened) return;
  const { backend, spec, lxd } = opened;
  const findings = await backend.doctor.check();
  assert.deepEqual(
    findings.filter(({ ok }) => !ok),
    [],
  );
  const alone = lxdSubject(lxd.socket, { type: 'virtual-machine' });
  t.after(() => alone.backend.close());
  const faults = (await alone.backend.doctor.check()).filter(({ ok }) => !ok).map(({ detail }) => detail);
  assert.match(
    faults.join('\n'),
    /runs none .*vhost_vsock[\s\S]*is the image of a container, not of a virtual-machine/,
  );
  const { ref } = await lease(t, opened);
  const quote = await backend.quote(spec);
  assert.match((await backend.doctor.unlimited?.(ref, quote)) ?? '', /shares the kernel of its host/);
  opened.machines.qemuOf(ref).kill();
  await until('its keeper knows', async () =>
    /does not hold its power|not running/.test(
      (await backend.doctor.unlimited?.(ref, quote).catch((error: Error) => error.message)) ?? '',
    ),
  );
});
