import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { after, type TestContext } from 'node:test';
import { type Created, tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { openSlurmBackend } from '../../src/compute/engines/slurm/slurm.ts';
import { until } from '../helper/waiting.ts';
import { FOLDERS } from './conformance.ts';
import { type Cluster, openSlurm } from './engines/slurm.ts';

export const NOBODY = 65_534;
export const installation = `inst_${randomBytes(13).toString('hex')}`;

let cluster: Cluster | undefined;
/** One cluster for the whole file: it takes some seconds to start. */
export async function openCluster(t: TestContext): Promise<Cluster | undefined> {
  cluster ??= await openSlurm(t);
  return cluster;
}
after(async () => {
  await cluster?.stop();
  for (const name of readdirSync('/tmp').map((it) => join('/tmp', it)))
    if (name.startsWith(FOLDERS)) rmSync(name, { recursive: true, force: true });
});

export const chip = (gres?: string) => ({
  ...(gres === undefined ? {} : { gres }),
  cpus: 1,
  memory_gib: 0.25,
  price_hourly_usd: 2_500_000_000n,
});
export const CHIPS = {
  h100: chip('gpu:h100:1'),
  both: chip('gpu:h100:2'),
  a100: chip('gpu:a100:1'),
  huge: { ...chip(), memory_gib: 10_000 },
};

export function open({ conf, directory }: Cluster, change: object = {}, lostSeconds?: number) {
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

export const freshTag = () => tagOf(installation, `res_${randomBytes(13).toString('hex')}`);
export const now = () => Math.floor(Date.now() / 1000);

/** A backend, and what a test needs of it. What a test made is gone when it ends. */
export async function subject(t: TestContext, change: object = {}, lostSeconds?: number) {
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
export const jobOf = (ref: string) => ref.split(':')[0] as string;

/** What the check of a backend finds, by name. */
export const checked = async (own: Cluster, change: object = {}) =>
  new Map((await open(own, change).doctor.check()).map((it) => [it.name, it]));

/** Environments of processes of this machine, which is the cluster's node, that have this variable. */
export function environmentsOf(variable: string): string[] {
  return filesOf('environ').flatMap(([, text]) => (text.split('\0').includes(variable) ? [text] : []));
}

/** Whether a process belongs to a job. */
export const isOf = (pid: string, job: string) =>
  filesOf('environ').some(([it, text]) => it === pid && text.split('\0').includes(`SLURM_JOB_ID=${job}`));

/** Processes whose command line is exactly this. */
export function processesOf(commandLine: string): string[] {
  return filesOf('cmdline').flatMap(([pid, text]) => (text === commandLine ? [pid] : []));
}

export function filesOf(name: 'environ' | 'cmdline'): [pid: string, text: string][] {
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
