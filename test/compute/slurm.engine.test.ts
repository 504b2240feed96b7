import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after, type TestContext } from 'node:test';
import * as v from 'valibot';
import { type Created, type Machine, tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { parseJobs, waitsFor } from '../../src/compute/engines/slurm/job.ts';
import { openSlurmBackend } from '../../src/compute/engines/slurm/slurm.ts';
import { ENTER, withoutSlurm } from '../../src/compute/engines/slurm/step.ts';
import { createJobUsers } from '../../src/compute/engines/slurm/user.ts';
import { MARKED } from '../../src/compute/kit/between.ts';
import { runCommand } from '../../src/compute/machine/command.ts';
import { killProcess, readLog, startProcess } from '../../src/compute/machine/process.ts';
import { selfTest } from '../../src/compute/self-test.ts';
import { Compute } from '../../src/compute/settings.ts';
import { assertLinear } from '../helper/cpu.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { UNHURRIED_MILLISECONDS, until } from '../helper/waiting.ts';
import { conform, FOLDERS, type Subject } from './conformance.ts';
import { type Cluster, openSlurm } from './engines/slurm.ts';
import { workInGuest } from './guest.ts';

const NOBODY = 65_534;
const installation = `inst_${randomBytes(13).toString('hex')}`;

let cluster: Cluster | undefined;
/** One cluster for the whole file: it takes some seconds to start. */
async function openCluster(t: TestContext): Promise<Cluster | undefined> {
  cluster ??= await openSlurm(t);
  return cluster;
}
after(async () => {
  await cluster?.stop();
  for (const name of readdirSync('/tmp').map((it) => join('/tmp', it)))
    if (name.startsWith(FOLDERS)) rmSync(name, { recursive: true, force: true });
});

const chip = (gres?: string) => ({
  ...(gres === undefined ? {} : { gres }),
  cpus: 1,
  memory_gib: 0.25,
  price_hourly_usd: 2_500_000_000n,
});
const CHIPS = {
  h100: chip('gpu:h100:1'),
  both: chip('gpu:h100:2'),
  a100: chip('gpu:a100:1'),
  huge: { ...chip(), memory_gib: 10_000 },
};

function open({ conf, directory }: Cluster, change: object = {}, lostSeconds?: number) {
  return openSlurmBackend(
    {
      backend: 'slurm',
      job_user: 'nobody',
      exclusive_user: false,
      slurm_conf: conf,
      chips: CHIPS,
      limits: { max_seconds: 86_400 },
      provision_seconds: 900,
      ...change,
    },
    {
      prefix: tagPrefix(installation),
      leases: join(directory, 'leases'),
      now,
      ...(lostSeconds === undefined ? {} : { lostSeconds }),
    },
  );
}

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

const freshTag = () => tagOf(installation, `res_${randomBytes(13).toString('hex')}`);
const now = () => Math.floor(Date.now() / 1000);

/** A backend, and what a test needs of it. What a test made is gone when it ends. */
async function subject(t: TestContext, change: object = {}, lostSeconds?: number) {
  const own = await openCluster(t);
  if (!own) return undefined;
  const backend = open(own, change, lostSeconds);
  const refs: string[] = [];
  async function create(name = 'h100', tag = freshTag()): Promise<Created> {
    const created = await backend.create({
      tag,
      quote: await backend.quote({ chip: name, max_seconds: 600 }),
      deadline: now() + 1500,
    });
    if (created.kind === 'created') refs.push(created.ref);
    return created;
  }
  async function submit(name = 'h100', tag = freshTag()): Promise<string> {
    const created = await create(name, tag);
    assert.equal(created.kind, 'created', JSON.stringify(created));
    return (created as { ref: string }).ref;
  }
  const running = (ref: string) =>
    until('it runs', async () => {
      const machine = await backend.inspect(ref);
      assert.ok(machine && machine.state !== 'ended', 'what was just made has not ended');
      return machine.state === 'running' && (await backend.guest.prove(ref)) === undefined && machine;
    });
  async function gone(ref: string) {
    await until(`${ref} is gone`, async () => {
      await backend.destroy(ref);
      return (await backend.inspect(ref)) === undefined;
    });
  }
  const sh = async (ref: string, command: string) => {
    const said = await backend.guest.exec(ref, { command, timeoutSeconds: 20, streamBytesMax: 100_000 });
    return said.stdout.toString() + said.stderr.toString();
  };
  t.after(() => Promise.all(refs.map(gone)));
  return { backend, cluster: own, create, submit, running, gone, sh };
}
const jobOf = (ref: string) => ref.split(':')[0] as string;

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
  await assert.rejects(it.backend.destroy(`${foreign}:${tag}`), /is not purser-/);
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

test('a lease submits and changes no job itself, and the check says so where it could', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const { cluster, backend } = it;
  const ref = await it.submit();
  await it.running(ref);
  const inside = async (command: string) => {
    const said = await backend.guest.exec(ref, {
      command: `export SLURM_CONF=${cluster.conf}; ${command}`,
      timeoutSeconds: 60,
      streamBytesMax: 4096,
    });
    return [said.exitCode, said.stdout.toString(), said.stderr.toString()] as const;
  };
  const sbatch = "sbatch --parsable --time=7-0 --mem=10M --output=/dev/null --chdir=/ --wrap 'sleep 60'";
  const first = { chips: { h100: CHIPS.h100 } };
  for (const command of [sbatch, 'srun --jobid= --time=7-0 --mem=10M true', 'salloc --mem=10M true']) {
    const [code, stdout, stderr] = await inside(`unset SLURM_JOB_ID SLURM_JOBID; ${command.replace('--jobid= ', '')}`);
    assert.notEqual(code, 0, command);
    assert.equal(stdout, '', command);
    assert.match(stderr, /Jobs of this user are submitted by Purser alone/, command);
  }
  const [code, , stderr] = await inside(`scontrol update JobId=${jobOf(ref)} JobName=mine`);
  assert.notEqual(code, 0);
  assert.match(stderr, /denied/i);
  assert.equal((await backend.inspect(ref))?.state, 'running');

  cluster.guard(false);
  try {
    const { ok, detail } = (await checked(cluster, first)).get('submission') ?? {};
    assert.equal(ok, false, detail);
    assert.match(detail ?? '', /A tenant can submit jobs as nobody .*docs\/job_submit\.lua.*docs\/backends\.md/);
    const [, job] = await inside(`unset SLURM_JOB_ID; ${sbatch}`);
    assert.match(job, /^\d+\n$/, 'without the plugin it is a job that nobody pays');

    const others = (await checked(cluster, first)).get('other jobs');
    assert.equal(others?.ok, false);
    assert.match(others?.detail ?? '', new RegExp(`^1 jobs .*: ${job.trim()} \\(wrap, .*exclusive_user: true`));
    const [found, ...more] = (await backend.strangers?.list(tagPrefix(installation))) ?? [];
    assert.deepEqual([found?.ref, found?.tag, more], [job.trim(), 'wrap', []]);
    assert.equal(backend.strangers?.end, undefined, 'it is only shown');

    const { strangers } = open(cluster, { exclusive_user: true });
    const foreign = (
      await cluster.slurm('sbatch', '--parsable', '--mem=10M', '--output=/dev/null', '--wrap', 'sleep 60')
    ).trim();
    await strangers?.end?.(foreign);
    assert.match(await cluster.slurm('squeue', '-h', '-o', '%A', `--jobs=${foreign}`), new RegExp(foreign), 'root’s');
    await strangers?.end?.(job.trim());
    await until('the job is gone', async () => (await strangers?.list(tagPrefix(installation)))?.length === 0);
    await cluster.slurm('scancel', foreign);
  } finally {
    cluster.guard(true);
  }
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

test('what a killed job left is removed by the next one of its user', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const [killed, neighbour] = [await it.submit(), await it.submit()];
  for (const ref of [killed, neighbour]) {
    await it.running(ref);
    await it.sh(ref, 'echo secret > file');
  }
  const directory = (ref: string) => `/tmp/purser-lease-${jobOf(ref)}`;
  for (const [pid, text] of filesOf('environ'))
    if (text.split('\0').includes(`SLURM_JOB_ID=${jobOf(killed)}`)) process.kill(Number(pid), 'SIGKILL');
  await until('it has ended', async () => (await it.backend.inspect(killed)) === undefined);
  assert.equal(existsSync(directory(killed)), true, 'its script could not remove it');
  const next = await it.submit();
  await it.running(next); // Its script may still be looking through the processes of the node.
  await until('what was left is removed', async () => !existsSync(directory(killed)));
  assert.deepEqual(
    [neighbour, next].map((ref) => existsSync(directory(ref))),
    [true, true],
  );
});

test('with job_users each lease has a user of its own, and reaches no other', async (t) => {
  const names = ['games', 'news'];
  const it = await subject(t, { job_user: undefined, job_users: names });
  if (!it) return;
  const { backend, sh } = it;
  const made = await Promise.all([it.create(), it.create(), it.create()]);
  assert.deepEqual(made.map(({ kind }) => kind).sort(), ['created', 'created', 'refused']);
  const refused = made.find((one) => one.kind === 'refused');
  assert.deepEqual(
    [refused?.code, refused?.reason],
    ['capacity_unavailable', 'Every one of the job users has a lease. Nothing was charged.'],
  );
  const refs = made.flatMap((one) => (one.kind === 'created' ? [one.ref] : []));
  const [one, two] = refs as [string, string];
  for (const ref of refs) await it.running(ref);
  assert.deepEqual(
    [await sh(one, 'id -un'), await sh(two, 'id -un')].sort(),
    names.map((name) => `${name}\n`),
  );
  assert.deepEqual((await backend.listOwned(tagPrefix(installation))).map(({ ref }) => ref).sort(), [...refs].sort());
  assert.deepEqual(await backend.strangers?.list(tagPrefix(installation)), []);

  await sh(one, 'echo secret > ~/file; sleep 600 >/dev/null 2>&1 &');
  const reach = [
    `cat /tmp/purser-lease-${jobOf(one)}/file`,
    `scancel ${jobOf(one)}`,
    `srun --jobid=${jobOf(one)} true`,
  ];
  for (const command of reach) assert.doesNotMatch(await sh(two, `${command}; echo "ended with $?"`), /ended with 0/);
  assert.equal((await backend.inspect(one))?.state, 'running');

  await it.gone(one);
  const again = await it.submit();
  await it.running(again);
  assert.notEqual(await sh(again, 'id -un'), await sh(two, 'id -un'), 'the user that is free again');
});

test('a user whose submission has no known outcome stays claimed for two minutes, also after a start; no other does', async (t) => {
  const leases = mkdtempSync(join(tmpdir(), 'purser-claims-'));
  t.after(() => rmSync(leases, { recursive: true }));
  const uids = ['2001', '2002', '2003'];
  const slurm = {
    run: async (argv: readonly string[]) => ({ code: 0, stdout: `${argv.at(-1)}\n`, stderr: '' }),
    start: () => assert.fail(),
  };
  const nothing = async () => new Set<number>();
  let ahead = 0;
  const real = performance.now.bind(performance);
  t.mock.method(performance, 'now', () => real() + ahead);
  /** A process that begins here, with what the others have left. */
  const begin = () => {
    const users = createJobUsers(slurm, { job_users: uids }, { leases, now });
    return { claim: () => users.claim(nothing), free: async () => (await users.free(nothing))?.uid };
  };
  const fresh = begin();
  const known = await fresh.claim();
  assert.equal(known?.user.uid, 2001, 'the first of a new installation, at once');
  known?.settle('known');
  const first = begin();
  assert.equal((await first.claim())?.user.uid, 2001, 'what is known is free at once');
  (await first.claim())?.settle('unknown');

  const second = begin();
  assert.equal(await second.free(), 2003, 'neither the one that was being submitted nor the one in doubt');
  ahead += 119_000;
  assert.equal(await second.free(), 2003);
  ahead += 2_000;
  assert.equal(await second.free(), 2001, 'its job would be in the list by now');

  // A doctor beside a server: neither knows of the other but by its records.
  rmSync(join(leases, 'slurm'), { recursive: true });
  const [server, doctor] = [begin(), begin()];
  const tried = await doctor.claim();
  const sold = await server.claim();
  assert.deepEqual([tried?.user.uid, sold?.user.uid], [2001, 2002]);
  tried?.settle('unknown');
  sold?.settle('known');
  assert.equal((await server.claim())?.user.uid, 2002, 'what the trial left in doubt is nobody’s');

  writeFileSync(join(leases, 'slurm/2001'), `${now() - 600} somebody`);
  writeFileSync(join(leases, 'slurm/2002'), `${now() + 600} somebody`);
  const third = begin();
  assert.equal((await third.claim())?.user.uid, 2001, 'after a long time nothing is in doubt');
  assert.equal(await third.free(), 2003, 'a clock that was set back proves nothing');
});

/** What the check of a backend finds, by name. */
const checked = async (own: Cluster, change: object = {}) =>
  new Map((await open(own, change).doctor?.check())?.map((it) => [it.name, it]));

test('a cluster that is fit is found so, with what only weakens the wall between tenants said', async (t) => {
  const it = await subject(t, { chips: { h100: CHIPS.h100, both: CHIPS.both } });
  if (!it) return;
  const names = ['commands', 'controller', 'partition', 'job_user', 'chip h100', 'chip both', 'processes', 'devices'];
  const found = await checked(it.cluster, { chips: { h100: CHIPS.h100, both: CHIPS.both } });
  names.splice(6, 0, 'submission', 'other jobs');
  assert.deepEqual([...found.keys()], [...names, 'directories', 'accounting']);
  for (const { ok, detail } of found.values()) assert.equal(ok, true, detail);
  const detail = (name: string) => found.get(name)?.detail ?? '';
  assert.match(detail('controller'), /is UP$/);
  assert.match(detail('partition'), /^main is UP, MaxTime UNLIMITED$/);
  assert.match(detail('job_user'), /^Warning: nobody is user 65534.*they can read, signal and enter each other/);
  assert.match(detail('chip h100'), /^Job \d+ to start at .* in partition main; gpu:h100:1 is on \S+ \(IDLE\)$/);
  assert.match(detail('submission'), /^Slurm refuses what nobody submits: .*submitted by Purser alone/);
  assert.equal(detail('other jobs'), 'the job users have none');
  assert.match(detail('processes'), /^proctrack\/linuxproc: .*Set ProctrackType=proctrack\/cgroup/);
  assert.match(detail('devices'), /^TaskPlugin is task\/none.*ConstrainDevices=yes/);
  assert.match(detail('directories'), /^job_container\/none: .*job_container\/tmpfs/);
  assert.match(detail('accounting'), /^accounting_storage\/none/);
  assert.equal(await it.cluster.slurm('squeue', '-h'), '', 'a check submits nothing');

  const tried = await selfTest({ backend: it.backend, provisionSeconds: 900 }, installation, now);
  assert.equal(tried.ok, true, tried.detail);
  assert.match(tried.detail, /was found by its tag and ran a command; it was destroyed and is gone$/);
});

test('what is wrong with a cluster is said, with what to do about it', async (t) => {
  const it = await subject(t);
  if (!it) return;
  const { cluster } = it;
  const h100 = { chips: { h100: CHIPS.h100 } };
  const hear = async (change: object, name: string, what: RegExp) => {
    const found = (await checked(cluster, { ...h100, ...change })).get(name);
    assert.equal(found?.ok, false, JSON.stringify(found));
    assert.match(found?.detail ?? '', what);
  };
  await hear({ chips: CHIPS }, 'chip a100', /^No node has gpu:a100:1\. Correct chips\.a100\.gres/);
  await hear({ chips: CHIPS }, 'chip huge', /^Slurm would refuse the job as nobody: .*not available/);
  await hear({ chips: { many: chip('gpu:h100:3') } }, 'chip many', /^No node has gpu:h100:3/);
  await hear({ job_user: 'no-such-user' }, 'job_user', /^job_user no-such-user cannot be found/);
  await hear({ job_user: 'no-such-user' }, 'chip h100', /no-such-user cannot be found/);
  await hear({ partition: 'main,nope' }, 'partition', /^There is no partition nope\. Set partition to one of: main\.$/);
  const node = (await cluster.slurm('sinfo', '-h', '-N', '-o', '%N')).trim();
  const update = (...change: string[]) => cluster.slurm('scontrol', 'update', ...change);
  try {
    await update(`NodeName=${node}`, 'State=DRAIN', 'Reason=broken fan');
    await hear(
      {},
      'chip h100',
      /not available\. Nodes: \S+ \(IDLE\+DRAIN: broken fan .*\)\. Correct chips\.h100, or make/,
    );
    await update('PartitionName=main', 'State=DOWN', 'MaxTime=1-00:10:00');
    await hear(
      { limits: { max_seconds: 87_001 } },
      'partition',
      /main is DOWN: scontrol update.*ends jobs after 87000 s.*may last 87001 s/,
    );
  } finally {
    await update('PartitionName=main', 'State=UP', 'MaxTime=UNLIMITED');
    await update(`NodeName=${node}`, 'State=RESUME');
  }
  await cluster.stopController();
  try {
    const found = await checked(cluster);
    assert.deepEqual([...found.keys()], ['commands', 'controller']);
    assert.match(
      found.get('controller')?.detail ?? '',
      /^The controller does not answer: .*DOWN.*Is slurmctld running/,
    );
  } finally {
    await cluster.startController();
  }
});

test('what squeue says is read to the letter or not at all', () => {
  const record = (text: string) => parseJobs(`MARK${text}\n`.replace('|>', 'MARK|'), 'MARK');
  for (const [gres, gpus] of [
    ['N/A', 0],
    ['gres:gpu', 1],
    ['gres:gpu:2', 2],
    ['gres:gpu:h100:2', 2],
    ['gres:gpu:h100', 1],
    ['gres/gpu:a100=3,gres/shard=4', 3],
    ['gres:gpu:a100:1,gres:gpu:h100:2', 3],
    ['gres:gpuish:4', 0],
  ] as const)
    assert.equal(record(`|12|RUNNING|7|1000|2000|${gres}|None|>x`)[0]?.gpus, gpus, gres);
  assert.deepEqual(parseJobs('', 'MARK'), []);
  assert.deepEqual(record('|12|RUNNING|7|1000|2000|N/A|None|>a|b\nc'), [
    { id: '12', uid: 7, name: 'a|b\nc', state: 'running', submittedAt: 1000, endsAt: 2000, gpus: 0, reason: undefined },
  ]);
  assert.deepEqual(record('|12|PENDING|7|1000|N/A|N/A|out | of\norder|>'), [
    {
      id: '12',
      uid: 7,
      name: '',
      state: 'provisioning',
      submittedAt: 1000,
      endsAt: undefined,
      gpus: 0,
      reason: 'out | of\norder',
    },
  ]);
  for (const text of [
    '',
    '|12|RUNNING|7|1000|2000|N/A|None',
    '|12|RUNNING|7|1000|2000|N/A|>x',
    '|12_3|RUNNING|7|1000|2000|N/A|None|>x',
    '|12|DANCING|7|1000|2000|N/A|None|>x',
    '|12|RUNNING|nobody|1000|2000|N/A|None|>x',
    '|12|RUNNING|7|2026-11-21T10:00:00|2000|N/A|None|>x',
    '|12|RUNNING|7|1000|N/A|N/A|None|>x', // One that runs has an end.
    '|12|RUNNING|7|1000|soon|N/A|None|>x',
  ])
    assert.throws(() => record(text), text);
  assert.throws(() => parseJobs('slurm_load_jobs error\n', 'MARK'));
  assert.throws(() => parseJobs('MARK|12|RUNNING|7|1000|2000|N/A|NoneMARK|cut off', 'MARK'));
});

test('why a job waits is said in plain words that name nothing', () => {
  const node = 'Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions';
  for (const [reason, words] of [
    ['None', /scheduler/],
    ['Resources', /until what it needs is free/],
    ['Priority', /behind jobs of a higher priority/],
    [node, /nodes that it needs are down or reserved/],
    ['ReqNodeNotAvail, UnavailableNodes:secret-node', /nodes that it needs are down/],
    ['PartitionTimeLimit', /its queue takes no such jobs/],
    ['QOSMaxGRESPerUser', /a limit of the cluster/],
    ['AssocGrpCPUMinutesLimit', /a limit of the cluster/],
    ['JobHeldAdmin', /an administrator/],
    ['see secret-wiki', /^it waits in the queue of the cluster$/],
  ] as const) {
    assert.match(waitsFor(reason), words, reason);
    assert.doesNotMatch(waitsFor(reason), /secret/);
  }
});

test('the configuration refuses a job_user that is root or ourselves, and what Slurm could misread', () => {
  const slot = (change: object) => ({
    provider_two: {
      backend: 'slurm',
      job_user: 'nobody',
      chips: { h100: { gres: 'gpu:h100:1', cpus: 8, memory_gib: 64, price_hourly_usd: '2.50' } },
      ...change,
    },
  });
  const faults = (change: object) =>
    v.safeParse(Compute, slot(change)).issues?.map((issue) => v.getDotPath(issue)) ?? [];
  assert.deepEqual(faults({}), []);
  const parsed = v.parse(Compute, slot({})).provider_two;
  assert.deepEqual(parsed?.backend === 'slurm' && [parsed.limits.max_seconds, parsed.provision_seconds], [86_400, 900]);
  assert.deepEqual(faults({ job_user: undefined, job_users: ['a', 'b'] }), []);
  assert.deepEqual(faults({ job_users: ['a'] }), ['provider_two.job_user']);
  assert.deepEqual(faults({ job_user: undefined }), ['provider_two.job_user']);
  assert.deepEqual(faults({ job_user: undefined, job_users: ['a', 'a'] }), ['provider_two.job_users']);
  assert.deepEqual(faults({ job_user: undefined, job_users: ['a', 'root'] }), ['provider_two.job_users.1']);
  assert.deepEqual(faults({ job_user: 'root' }), ['provider_two.job_user']);
  assert.deepEqual(faults({ job_user: '--uid=0' }), ['provider_two.job_user']);
  assert.deepEqual(faults({ chips: {} }), ['provider_two.chips']);
  assert.deepEqual(faults({ chips: { x: { gres: 'gpu --wrap=x', cpus: 1, memory_gib: 1, price_hourly_usd: '1' } } }), [
    'provider_two.chips.x.gres',
  ]);
  assert.deepEqual(faults({ partition: '-p main', user: 'x' }).sort(), ['provider_two.partition', 'provider_two.user']);
});

/** Environments of processes of this machine, which is the cluster's node, that have this variable. */
function environmentsOf(variable: string): string[] {
  return filesOf('environ').flatMap(([, text]) => (text.split('\0').includes(variable) ? [text] : []));
}

/** Whether a process belongs to a job. */
const isOf = (pid: string, job: string) =>
  filesOf('environ').some(([it, text]) => it === pid && text.split('\0').includes(`SLURM_JOB_ID=${job}`));

/** Processes whose command line is exactly this. */
function processesOf(commandLine: string): string[] {
  return filesOf('cmdline').flatMap(([pid, text]) => (text === commandLine ? [pid] : []));
}

function filesOf(name: 'environ' | 'cmdline'): [pid: string, text: string][] {
  return readdirSync('/proc')
    .filter((it) => /^\d+$/.test(it))
    .flatMap((pid) => {
      try {
        return [[pid, readFileSync(`/proc/${pid}/${name}`, 'latin1')] as [string, string]];
      } catch {
        return []; // It has ended.
      }
    });
}

test('the shell around a command says nothing of a signal that ended it', () => {
  const own = mkdtempSync(join(tmpdir(), 'purser-shell-'));
  const killed = ['/bin/sh', '-c', 'echo mine >&2; kill -TERM $$'];
  try {
    for (const [shell, ...before] of [[MARKED], [ENTER, own]] as [string, ...string[]][]) {
      const { stderr } = spawnSync('/bin/sh', ['-c', shell, 'purser', 'mark', ...before, ...killed], {
        encoding: 'utf8',
      });
      assert.equal(stderr, 'mark{mine\nmark}143;');
    }
  } finally {
    rmSync(own, { recursive: true });
  }
});

test("Slurm's words on the end of a step are taken out whether or not the shell around the command outlived it", () => {
  const cancelled = 'slurmstepd-vm: error: *** STEP 40477005.1 ON vm CANCELLED AT 2026-11-22T12:20:30 ***';
  const cut = (stderr: string, wasCut: boolean) => withoutSlurm(Buffer.from(stderr), '40477005', wasCut).toString();
  for (const wasCut of [true, false]) {
    assert.equal(cut(`mine\n${cancelled}`, wasCut), 'mine');
    assert.equal(cut(`mine\n${cancelled}\n`, wasCut).trimEnd(), 'mine');
    assert.equal(cut(`mine\n${cancelled}\nTerminated\n`, wasCut), 'mine\nTerminated\n', 'the last word is its own');
    const other = cancelled.replace('40477005', '40477006');
    assert.equal(cut(`${other}\nmine\n`, wasCut), `${other}\nmine\n`, 'it shows the log of another job');
  }
  assert.equal(cut('mine\nsrun: error: vm: task 0: Killed', true), 'mine');
  assert.equal(cut('srun: error: a step of the command itself', false), 'srun: error: a step of the command itself');
});

test(`of what a step says only the last lines of Slurm itself are taken out (seed ${SEED})`, () => {
  const random = createRandom(SEED);
  const lines = ['srun: a', 'slurmstepd-vm: b', 'slurmstepd: ', 'srun:', 'mine', '', 'a srun: c'];
  for (let i = 0; i < length(2000, 100_000); i++) {
    const text = Array.from({ length: random.whole(0, 6) }, () => random.pick(lines)).join('\n');
    const said = text + random.pick(['', '\n']);
    const expected = said.replace(/((^|\n)(srun|slurmstepd[\w-]*): [^\n]*)+\n?$/, '');
    assert.equal(withoutSlurm(Buffer.from(said), '1', true).toString(), expected, JSON.stringify(said));
  }
});

for (const [what, line] of [
  ['lines of Slurm', 'srun: a\n'],
  ['line feeds', '\n'],
  ['a long word', 'slurmstepd'],
] as const)
  test(`${what} of a megabyte are looked through in a time that grows with their length`, () =>
    assertLinear(what, 1024 * 1024, (bytes) => {
      const said = Buffer.from(`${line.repeat(bytes / line.length)}\nmine`);
      return () => withoutSlurm(said, '1', true);
    }));
