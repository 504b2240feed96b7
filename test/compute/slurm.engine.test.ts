import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import test, { type TestContext } from 'node:test';
import { runCommand } from '../../src/compute/machine/command.ts';
import { killProcess, readLog, startProcess } from '../../src/compute/machine/process.ts';
import { UNHURRIED_MILLISECONDS, until } from '../helper/waiting.ts';
import { conform, type Subject } from './conformance.ts';
import { workInGuest } from './guest.ts';
import {
  CHIPS,
  environmentsOf,
  filesOf,
  freshTag,
  jobOf,
  NOBODY,
  now,
  open,
  openCluster,
  processesOf,
  subject,
} from './slurm-shared.ts';

const suite = async (t: TestContext): Promise<Subject | undefined> => {
  const own = await openCluster(t);
  return (
    own && {
      backend: open(own),
      spec: { chip: 'h100', max_seconds: 600 },
      unknownSpec: { chip: 'no-such-chip', max_seconds: 600 },
      room: 2,
      extends: true,
      deadlineMinSeconds: 3,
    }
  );
};
conform('slurm', suite);
workInGuest('slurm', suite);

test('a process in the background belongs to the script of its job, and not to the step that asked for it', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const ref = await it.submit();
  await it.running(ref);
  const command = 'echo "$HOME $TMPDIR $PWD $SHELL $(umask)"; sleep 600';
  const { id } = await startProcess(it.backend, ref, { command });
  const keeper = () => it.sh(ref, `cat ".purser-processes/${id}/pid" 2>/dev/null`);
  await until('it has begun', async () => (await keeper()) !== '');
  const parent = `read -r _ _ _ parent _ </proc/$(cat ".purser-processes/${id}/pid")/stat; echo "$parent"`;
  assert.equal(await it.sh(ref, parent), await it.sh(ref, 'cat .purser-launcher'));
  const log = async () => (await readLog(it.backend, ref, { id, offset: 0, bytesMax: 1000 })).bytes.toString();
  assert.equal(await log(), await it.sh(ref, 'echo "$HOME $TMPDIR $PWD $SHELL $(umask)"'), 'as a command begins');
  assert.equal((await killProcess(it.backend, ref, id)).exitCode, 137);
});

test('a job that waits for its turn is provisioning, and starts when there is room', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const first = await it.submit('both');
  await it.running(first);
  const tag = freshTag();
  const second = await it.submit('both', tag);
  const waiting = await until('Slurm has looked at it', async () => {
    const machine = await it.backend.inspect(second);
    return machine?.note !== 'Slurm says: None' && machine;
  });
  const note = 'Slurm says: Resources';
  assert.deepEqual(waiting, {
    ref: second,
    state: 'provisioning',
    note,
    waitsFor: 'it waits until what it needs is free',
  });
  assert.deepEqual(await it.backend.find(tag), [waiting]);
  assert.equal((await it.backend.extend(second, now() + 60)).kind, 'refused');
  await assert.rejects(it.sh(second, 'true'), /does not run/);
  const gpus = (name: string) => it.backend.guest.gpus?.(second, { chip: name, max_seconds: 600 });
  assert.deepEqual(['h100', 'both', 'huge'].map(gpus), [1, 2, 0], 'as its chip orders them');
  assert.throws(() => gpus('no-such-chip'));
  const third = await it.submit('both');
  await it.gone(third); // From the queue.
  await it.gone(first);
  const { deadline = 0 } = await it.running(second);
  assert.ok(deadline >= now() + 590 && deadline <= now() + 660, 'Slurm’s own limit is the lease’s, and not shorter');
});

test('an offer is available while a job of it would start now, and the answer never takes long', async (t) => {
  const it = await subject(t, { chips: CHIPS });
  if (!it) return;
  const { cluster } = it;
  /** Waits for the answer, however busy the machine is, or `milliseconds`. */
  const available = async (backend = it.backend, milliseconds = UNHURRIED_MILLISECONDS) =>
    (await backend.offers(milliseconds)).flatMap((offer) =>
      offer.available ? [(offer.spec as { chip: string }).chip] : [],
    );
  assert.deepEqual(await available(), ['h100', 'both']);
  const ref = await it.submit('h100');
  await it.running(ref);
  assert.deepEqual(await available(open(cluster)), ['h100']);
  const other = await it.submit('h100');
  await it.running(other);
  assert.deepEqual(await available(), []);
  for (const one of [ref, other]) await it.gone(one);
  await until('the GPUs are free', async () => (await available(open(cluster))).length === 2);

  const update = (...change: string[]) => cluster.slurm('scontrol', 'update', ...change);
  try {
    await update('PartitionName=main', 'State=DOWN');
    assert.deepEqual(await available(open(cluster)), []);
  } finally {
    await update('PartitionName=main', 'State=UP');
  }
  const crowded = open(cluster, { job_user: undefined, job_users: ['games'] });
  assert.deepEqual(await available(crowded), ['h100', 'both']);
  const quote = await crowded.quote({ chip: 'h100', max_seconds: 600 });
  const made = await crowded.create({ tag: freshTag(), quote, deadline: now() + 1500 });
  assert(made.kind === 'created');
  assert.deepEqual(await available(crowded), [], 'its only user has a lease');
  await until('it is gone', async () => {
    await crowded.destroy(made.ref);
    return (await crowded.inspect(made.ref)) === undefined;
  });

  cluster.pause();
  try {
    assert.deepEqual(await available(open(cluster), 100), [], 'while it hangs');
  } finally {
    cluster.proceed();
  }
});

test('while every node is down nothing is available, a create is refused, and a job in the queue says so', async (t) => {
  const it = await subject(t, { chips: CHIPS });
  if (!it) return;
  const { cluster } = it;
  const first = await it.submit('both');
  await it.running(first);
  const queued = await it.submit('h100');
  const waitsFor = async () => (await open(cluster).inspect(queued))?.waitsFor;
  await until('it waits for the first', async () => (await waitsFor()) === 'it waits until what it needs is free');
  const node = (await cluster.slurm('sinfo', '-h', '-N', '-o', '%N')).trim();
  await cluster.slurm('scontrol', 'update', `NodeName=${node}`, 'State=DRAIN', 'Reason=a broken | fan');
  try {
    assert.equal(await waitsFor(), 'every node that it may run on is down');
    const other = open(cluster);
    assert.deepEqual(
      (await other.offers(UNHURRIED_MILLISECONDS)).filter(({ available }) => available),
      [],
    );
    const quote = await other.quote({ chip: 'h100', max_seconds: 600 });
    assert.deepEqual(await other.create({ tag: freshTag(), quote, deadline: now() + 1500 }), {
      kind: 'refused',
      code: 'capacity_unavailable',
      reason: 'Every node of the cluster is down. Nothing was charged.',
    });
  } finally {
    await cluster.slurm('scontrol', 'update', `NodeName=${node}`, 'State=RESUME');
  }
  await it.gone(first);
  await it.running(queued);
  await it.gone(queued);
});

test('what Slurm cannot give is refused, and nothing is left in the queue', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const elsewhere = await subject(t, { partition: 'no-such-partition' });
  const unknownUser = await subject(t, { job_user: 'no-such-user' });
  const root = await subject(t, { job_user: 'root' });
  for (const [who, name, words] of [
    [it, 'a100', /Requested node configuration is not available|Invalid generic resource/],
    [it, 'huge', /Requested node configuration is not available/],
    [elsewhere, 'h100', /Invalid partition name/],
    [unknownUser, 'h100', /no-such-user cannot be found/],
    [root, 'h100', /is root/],
  ] as const) {
    const tag = freshTag();
    const created = (await who?.create(name, tag)) as { kind: string; code: string; words: string };
    assert.deepEqual([created.kind, created.code], ['refused', 'provider_unavailable'], created.words);
    assert.match(created.words, words);
    assert.deepEqual(await it.backend.find(tag), []);
  }
});

test('a job runs as its user, in a private directory, with nothing of Purser’s environment', async (t) => {
  const it = await subject(t);
  if (!it) return;
  process.env.PURSER_TEST_SECRET = 'do-not-hand-on';
  t.after(() => delete process.env.PURSER_TEST_SECRET);
  const ref = await it.submit();
  await it.running(ref);
  const directory = `/tmp/purser-lease-${jobOf(ref)}`;
  assert.equal(
    await it.sh(ref, 'id -u; id -G; pwd; echo "$HOME $TMPDIR"; stat -c "%a %U" .'),
    `${NOBODY}\n${NOBODY}\n${directory}\n${directory} ${directory}\n700 nobody\n`,
  );
  const session = await it.backend.guest.session(ref, { command: 'read line', terminal: undefined });
  const environments = environmentsOf(`SLURM_JOB_ID=${jobOf(ref)}`);
  assert.ok(environments.length >= 2, 'the job’s script and the session');
  for (const environment of environments) assert.doesNotMatch(environment, /do-not-hand-on|PURSER_TEST/);
  session.stdin.end();
  assert.deepEqual(await session.ended, { code: 1 });
  await assert.rejects(it.backend.guest.upload(ref, '/root/.ssh/authorized_keys', Buffer.from('x')), {
    code: 'invalid_request',
  });
  await it.backend.guest.upload(ref, `${directory}/a/b`, Buffer.from('mine'));
  assert.equal(await it.sh(ref, 'cat a/b'), 'mine');
});

test('what a command left in the background does not hold it up, and dies with the job, the directory too', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const ref = await it.submit();
  await it.running(ref);
  const marker = `5${randomBytes(3).readUIntBE(0, 3)}`;
  assert.equal(
    await it.sh(ref, `setsid sleep ${marker} >/dev/null 2>&1 & sleep ${marker} & echo begun; touch here`),
    'begun\n',
  );
  await it.gone(ref);
  assert.equal(existsSync(`/tmp/purser-lease-${jobOf(ref)}`), false);
  assert.deepEqual(processesOf(`sleep\0${marker}\0`), []);
});

test('what cleared its environment and closed its files dies with the job of a user that is Purser’s alone', async (t) => {
  const it = await subject(t, { job_user: undefined, job_users: ['games'], exclusive_user: true });
  if (!it) return;
  const ref = await it.submit();
  await it.running(ref);
  const marker = `7${randomBytes(3).readUIntBE(0, 3)}`;
  await it.sh(ref, `(env -i setsid sleep ${marker} </dev/null >/dev/null 2>&1 8<&- &)`);
  await until('it runs', async () => processesOf(`sleep\0${marker}\0`).length === 1);
  await it.gone(ref);
  // Slurm may call a job cancelled while its script still cleans up.
  await until('it is dead', async () => processesOf(`sleep\0${marker}\0`).length === 0);
});

test('a job is not ready before its script has begun, which ends what commands leave', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const ref = await it.submit();
  await it.running(ref);
  await it.sh(ref, 'mv "$HOME/.purser-launcher" "$HOME/kept"');
  assert.match(String(await it.backend.guest.prove(ref)), /script of its job has not begun/);
  await it.sh(ref, 'mv "$HOME/kept" "$HOME/.purser-launcher"');
  assert.equal(await it.backend.guest.prove(ref), undefined);
});

test('several commands run at once in one job', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const ref = await it.submit();
  await it.running(ref);
  const said = await Promise.all([1, 2, 3, 4].map((n) => it.sh(ref, `sleep 0.3; echo ${n}`)));
  assert.deepEqual(said, ['1\n', '2\n', '3\n', '4\n']);
});

test('a command whose step is lost is not answered with half of what it said', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const ref = await it.submit();
  await it.running(ref);
  const limits = { timeoutSeconds: 30, streamBytesMax: 1000 };
  for (const [way, run] of [
    ['plain', (command: string) => it.backend.guest.exec(ref, { command, ...limits })],
    ['in a directory', (command: string) => runCommand(it.backend, ref, { command, cwd: '/tmp', ...limits })],
  ] as const) {
    const marker = `6${randomBytes(3).readUIntBE(0, 3)}`;
    const ran = run(`echo half; sleep ${marker}`);
    ran.catch(() => {}); // It is looked at below.
    await until('it runs', async () => processesOf(`sleep\0${marker}\0`).length > 0);
    for (const [pid, text] of filesOf('cmdline'))
      if (text.includes(`srun\0--jobid=${jobOf(ref)}\0`)) process.kill(Number(pid), 'SIGKILL');
    await assert.rejects(ran, /the step was lost/, way);
  }
});

test('a session with a terminal has its size, is resized, and can be killed', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const ref = await it.submit();
  await it.running(ref);
  const session = await it.backend.guest.session(ref, {
    command: undefined,
    terminal: { term: 'xterm', columns: 90, rows: 20 },
  });
  let said = '';
  session.stdout.on('data', (chunk) => {
    said += chunk;
  });
  session.stdin.write('echo "$TERM $(stty size)"\n');
  await until('it told its size', async () => said.includes('xterm 20 90'));
  session.resize(100, 30);
  session.resize(120, 40);
  await until('it told its new size', async () => {
    session.stdin.write('stty size\n');
    return said.includes('\n40 120');
  });
  session.stdin.write('exit 6\n');
  assert.deepEqual(await session.ended, { code: 6 });

  const marker = `6${randomBytes(3).readUIntBE(0, 3)}`;
  const killed = await it.backend.guest.session(ref, {
    command: `trap '' HUP TERM; setsid sleep ${marker}; sleep ${marker}`,
    terminal: undefined,
  });
  await until('it runs', async () => processesOf(`sleep\0${marker}\0`).length > 0);
  killed.kill();
  assert.deepEqual(await killed.ended, { signal: 'KILL' });
  await until('it is dead', async () => processesOf(`sleep\0${marker}\0`).length === 0);
  await it.gone(ref);
  await assert.rejects(it.backend.guest.session(ref, { command: 'true', terminal: undefined }), /does not run/);
});
