import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import test from 'node:test';
import { type Created, type Machine, tagPrefix } from '../../src/compute/backend.ts';
import { until } from '../helper/waiting.ts';
import {
  environmentsOf,
  filesOf,
  freshTag,
  installation,
  isOf,
  jobOf,
  NOBODY,
  now,
  processesOf,
  subject,
} from './slurm-shared.ts';

test('a number alone is not trusted: another’s job, or one that lost its name, is neither ended nor taken for gone', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const ref = await it.submit();
  await it.running(ref);
  const [, tag] = ref.split(':') as [string, string];
  await it.cluster.slurm('scontrol', 'update', `JobId=${jobOf(ref)}`, 'JobName=something else');
  await assert.rejects(it.backend.inspect(ref), /is not purser-/);
  await assert.rejects(it.backend.destroy(ref), /is not purser-/);
  await it.cluster.slurm('scontrol', 'update', `JobId=${jobOf(ref)}`, `JobName=${tag}`);
  assert.equal((await it.backend.inspect(ref))?.state, 'running');

  // Somebody else may use our tag as he likes, and our own user may choose a name to confuse a reader.
  const stay = ['--parsable', '--output=/dev/null', '--chdir=/', '--mem=10M', '--wrap', 'sleep 60'];
  const foreign = (await it.cluster.slurm('sbatch', `--job-name=${tag}`, ...stay)).trim();
  const odd = (
    await it.cluster.slurm(
      'sbatch',
      `--uid=${NOBODY}`,
      `--gid=${NOBODY}`,
      `--job-name=x\n99|RUNNING|0|0|0|N/A|${tag}`,
      ...stay,
    )
  ).trim();
  assert.deepEqual(
    (await it.backend.listOwned(tagPrefix(installation))).map((owned) => owned.ref),
    [ref],
  );
  // If it has just begun, Slurm does not say until when it runs, and nothing that is said of it is believed.
  await assert.rejects(it.backend.destroy(`${foreign}:${tag}`), /is not purser-|tells no end of job/);
  assert.match(await it.cluster.slurm('squeue', '-h', '-o', '%A', `--jobs=${foreign}`), new RegExp(foreign));
  await it.cluster.slurm('scancel', foreign, odd);
  await until(
    'they have ended',
    async () =>
      !(await it.cluster.slurm('squeue', '-h', '-o', '%A')).split('\n').some((id) => id === foreign || id === odd),
  );
});

test('without the controller nothing is taken for gone: questions throw, a submission is refused', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const tag = freshTag();
  const ref = await it.submit('h100', tag);
  const before = await it.running(ref);
  await it.cluster.stopController();
  try {
    const said = await Promise.allSettled([
      it.create(),
      it.backend.find(tag),
      it.backend.inspect(ref),
      it.backend.listOwned(tagPrefix(installation)),
      it.backend.destroy(ref),
      it.backend.extend(ref, now() + 900),
      it.sh(ref, 'true'),
    ]);
    const [created, ...others] = said;
    assert.deepEqual(created.status === 'fulfilled' && { ...created.value, reason: '', words: '' }, {
      kind: 'refused',
      code: 'provider_unavailable',
      reason: '',
      words: '',
    });
    for (const other of others) assert.equal(other.status, 'rejected');
  } finally {
    await it.cluster.startController();
  }
  assert.deepEqual(await it.running(ref), before, 'the controller still knows the job and its end');
});

test('a job ends by its own clock where the controller is gone, at the end that it was last given', async (t) => {
  const it = await subject(t, {}, 3);
  if (!it) return;
  const { backend, cluster } = it;
  const [short, extended] = [await it.submit(), await it.submit()];
  for (const ref of [short, extended]) await it.running(ref);
  const marker = `7${randomBytes(3).readUIntBE(0, 3)}`;
  await it.sh(short, `setsid sleep ${marker} >/dev/null 2>&1 & touch file`);
  /** Moves a job's end, and waits until its script has heard: it sleeps a minute at a time, and less before its end. */
  const move = async (ref: string, deadline: number) => {
    assert.deepEqual(await backend.extend(ref, deadline), { kind: 'done' });
    const isNear = deadline < now() + 60;
    await until('its script has heard of it', async () =>
      filesOf('cmdline').some(([pid, text]) => {
        const seconds = /^sleep\0(\d\d?)\0$/.exec(text)?.[1];
        return seconds !== undefined && isNear === Number(seconds) < 60 && isOf(pid, jobOf(ref));
      }),
    );
  };
  const end = now() + 30;
  await move(extended, end);
  await move(short, end);
  await move(extended, end + 600);
  const alive = (ref: string) => environmentsOf(`SLURM_JOB_ID=${jobOf(ref)}`).length > 0;
  await cluster.stopController();
  try {
    await until('the short one has ended', async () => !alive(short));
    assert.ok(now() >= end + 3, `it ended ${end + 3 - now()} s early`);
    assert.equal(existsSync(`/tmp/purser-lease-${jobOf(short)}`), false);
    assert.equal(alive(extended), true, 'the other one heard that its end was moved');
  } finally {
    await cluster.startController();
  }
  await until('Slurm knows that it ended', async () => (await backend.inspect(short)) === undefined);
  assert.deepEqual(processesOf(`sleep\0${marker}\0`), []);
  assert.equal((await backend.inspect(extended))?.deadline, end + 600);
});

test('a job whose end has come lives on while the controller is only restarted', async (t) => {
  const it = await subject(t, {}, 60);
  if (!it) return;
  const ref = await it.submit();
  await it.running(ref);
  const end = now() + 5;
  assert.deepEqual(await it.backend.extend(ref, end), { kind: 'done' });
  await it.cluster.stopController();
  await until('its end has passed', async () => now() >= end + 3);
  assert.ok(environmentsOf(`SLURM_JOB_ID=${jobOf(ref)}`).length > 0);
  await it.cluster.startController();
});

test('a submission that the controller does not answer is unknown, and is found later', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const tag = freshTag();
  it.cluster.pause();
  let created: Created;
  try {
    created = await it.create('h100', tag);
  } finally {
    it.cluster.proceed();
  }
  assert.equal(created.kind, 'unknown', JSON.stringify(created));
  const found = await until<Machine>('the job is found', async () => (await it.backend.find(tag))[0]);
  await it.running(found.ref);
  await it.gone(found.ref);
  assert.deepEqual(await it.backend.find(tag), []);
});

test('what fails before anything is sent is a clear no: no configuration, no credential', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const hear = async (created: Created, words: RegExp) => {
    assert(created.kind === 'refused');
    assert.equal(created.code, 'provider_unavailable');
    assert.match(created.words ?? '', words);
    assert.doesNotMatch(created.reason, words, 'the words of the engine are the operator’s');
  };
  await it.cluster.stopMunge();
  try {
    await hear(await it.create(), /Munge encode failed/);
  } finally {
    await it.cluster.startMunge();
  }
  const lost = await subject(t, { slurm_conf: undefined });
  await hear((await lost?.create()) as Created, /Could not establish a configuration source/);
  await it.running(await it.submit());
});

test('a job of a dead node is not ready, and never called running', async (t) => {
  const it = await subject(t);
  if (!it) return;
  await it.cluster.stopNode();
  const ref = await it.submit();
  try {
    // Slurm itself says RUNNING until it misses the node (SlurmdTimeout).
    const states = () => it.cluster.slurm('squeue', '-h', '-o', '%T', `--jobs=${jobOf(ref)}`);
    await until('Slurm calls it running', async () => (await states()).startsWith('RUNNING'));
    assert.match((await it.backend.guest.prove(ref)) ?? '', /^it runs, but nothing can be run in it: /);
  } finally {
    await it.cluster.startNode();
    await it.gone(ref);
  }
});
