import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import * as v from 'valibot';
import { parseJobs, waitsFor } from '../../src/compute/engines/slurm/job.ts';
import { ENTER, withoutSlurm } from '../../src/compute/engines/slurm/step.ts';
import { MARKED } from '../../src/compute/kit/between.ts';
import { Compute } from '../../src/compute/settings.ts';
import { assertLinear } from '../helper/cpu.ts';
import { createRandom, length, SEED } from '../helper/random.ts';

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

test('a job that may run is not gone: another cluster of a federation runs one that is revoked here', () => {
  const [job] = parseJobs('MARK|12|REVOKED|7|1000|2000|N/A|NoneMARK|x\n', 'MARK');
  assert.equal(job?.state, 'ended', 'it still has to be cancelled');
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

test('nodes that are down are said, without their names', () => {
  const nodes = (...states: string[]) => states.map((state) => ({ name: 'secret-node', state, reason: 'fan' }));
  for (const [reason, states, words] of [
    ['Resources', ['down*', 'drained', 'draining', 'fail'], 'every node that it may run on is down'],
    ['None', ['drained'], 'every node that it may run on is down'],
    ['Resources', ['mixed', 'drained'], 'it waits until what it needs is free, and some nodes are down'],
    ['Priority', ['mixed', 'drained'], 'it waits behind jobs of a higher priority'],
    ['Resources', ['idle', 'idle*', 'allocated', 'powered_down', 'idle~'], 'it waits until what it needs is free'],
    ['Resources', [], 'it waits until what it needs is free'],
  ] as const)
    assert.equal(waitsFor(reason, nodes(...states)), words, `${reason} ${states}`);
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
