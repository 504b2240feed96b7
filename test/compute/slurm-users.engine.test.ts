import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { createJobUsers } from '../../src/compute/engines/slurm/user.ts';
import { selfTest } from '../../src/compute/self-test.ts';
import { until } from '../helper/waiting.ts';
import { CHIPS, checked, chip, filesOf, installation, jobOf, now, open, subject } from './slurm-shared.ts';

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

test('a cluster that is fit is found so, with what only weakens the wall between tenants said', async (t) => {
  const it = await subject(t, { chips: { h100: CHIPS.h100, both: CHIPS.both } });
  if (!it) return;
  const names = [
    'commands',
    'controller',
    'partition',
    'nodes',
    'job_user',
    'chip h100',
    'chip both',
    'processes',
    'devices',
  ];
  const found = await checked(it.cluster, { chips: { h100: CHIPS.h100, both: CHIPS.both } });
  names.splice(7, 0, 'submission', 'other jobs');
  assert.deepEqual([...found.keys()], [...names, 'directories', 'accounting']);
  for (const { ok, detail } of found.values()) assert.equal(ok, true, detail);
  const detail = (name: string) => found.get(name)?.detail ?? '';
  assert.match(detail('controller'), /is UP$/);
  assert.match(detail('partition'), /^main is UP, MaxTime UNLIMITED$/);
  assert.equal(detail('nodes'), 'all 1 take jobs');
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
    await hear({}, 'nodes', /^1 of 1 take no jobs: \S+ is drained \(broken fan\)\. Repair them, then: scontrol update/);
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
