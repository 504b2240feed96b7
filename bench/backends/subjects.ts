import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { cpus } from 'node:os';
import type { TestContext } from 'node:test';
import Docker from 'dockerode';
import { type Engine, IMAGE, openDocker } from '../../test/compute/engines/docker.ts';
import { type ApiObject, openKubernetes } from '../../test/compute/engines/kubernetes.ts';
import { allowPurser, NAMESPACE, settingsOn } from '../../test/compute/engines/kubernetes-subject.ts';
import { LXD_IMAGE, openLxd } from '../../test/compute/engines/lxd.ts';
import { openPodman } from '../../test/compute/engines/podman.ts';
import { openSlurm } from '../../test/compute/engines/slurm.ts';
import { openSshd, type Sshd } from '../../test/compute/engines/sshd.ts';
import { run, sleep } from '../process.ts';

/** Something that rents machines. What it does not have is left out. */
export type Machines = {
  /** Makes a machine and returns its id when it runs. */
  create(): Promise<string>;
  /** Runs `true` in a machine. */
  exec(id: string): Promise<unknown>;
  upload?(id: string, content: Buffer): Promise<unknown>;
  /** Runs `true` over a new SSH connection. */
  ssh?(id: string): Promise<unknown>;
  /** Ends a machine; resolves when it is gone. */
  stop(id: string): Promise<unknown>;
};

/** The engine without Purser, used as its own client would use it. */
export type Bare = Machines & {
  /** Returns the beginning of a command of the engine's own client that runs the program behind it in a machine, with its input. */
  road(id: string): [program: string, ...args: string[]];
};

/** A backend and the real engine behind it. */
export type Subject = {
  /** The slot of Purser's settings, and what stands there. */
  slot: 'provider_one' | 'provider_two' | 'provider_three';
  settings: object;
  /** What is leased, without `max_seconds`. */
  spec: object;
  /** How many machines it has room for at once. */
  room: number;
  /** How many of them are kept made, and another size of which none is; none unless given. */
  warm?: { count: number; cold: object };
  bare: Bare;
};

/** The part of a test that the starters of the engines use. A starter that would be skipped returns undefined. */
export type Starter = Pick<TestContext, 'after' | 'skip'>;

const MANY = 50;
const CHIP = 'test-chip';
const HOSTS = 4;
const PODS = 4;
const INSTANCES = 4;
const NOBODY = 65_534;
const POLL_MILLISECONDS = 50;
const CHANGE_MILLISECONDS = 120_000;

/** Returns the backends, each with the code that starts its engine. Where the machine lacks one, it returns undefined. */
export const SUBJECTS: Record<string, (t: Starter) => Promise<Subject | undefined>> = {
  container: async (t) => containerOn(await openDocker(t)),
  'container-warm': async (t) => keptWarm(containerOn(await openDocker(t))),
  podman,
  kubernetes,
  lxd,
  slurm,
  ssh,
};

async function podman(t: Starter): Promise<Subject | undefined> {
  const engine = await openPodman(t as TestContext);
  if (engine) t.after(() => engine.stop());
  return containerOn(engine, false);
}

function keptWarm(subject: Subject | undefined): Subject | undefined {
  if (!subject) return undefined;
  const { settings, room: count } = subject;
  // As the bare engine's: a tenth of a processor would decide how long a command takes.
  const spec = { ...subject.spec, cpus: 1 };
  const warm = { count, cold: { ...spec, memory_gib: 0.2 } };
  return { ...subject, spec, settings: { ...settings, warm: [{ count, ...spec }] }, warm };
}

/** With `Init`, process 1 of the bare engine's container is its own, as Purser's is the watchdog; Debian's Podman has none. */
function containerOn(engine: Engine | undefined, Init = true): Subject | undefined {
  if (!engine) return undefined;
  const docker = new Docker({ socketPath: engine.socket.replace('unix://', '') });
  const HostConfig = { NetworkMode: 'none', Init };
  return {
    slot: 'provider_one',
    settings: {
      backend: 'container',
      socket: engine.socket,
      image: IMAGE,
      prices: { cpu_hourly_usd: '0.01', memory_gib_hourly_usd: '0.01' },
      limits: { cpus: 1, memory_gib: 1 },
      capacity: { cpus: 1000, memory_gib: 1000 },
    },
    spec: { cpus: 0.1, memory_gib: 0.1 },
    room: MANY,
    bare: {
      async create() {
        const made = await docker.createContainer({ Image: IMAGE, Cmd: ['sleep', '3600'], HostConfig });
        await made.start();
        return made.id;
      },
      async exec(id) {
        const exec = await docker.getContainer(id).exec({ Cmd: ['true'], AttachStdout: true, AttachStderr: true });
        const stream = await exec.start({});
        stream.resume();
        await new Promise((resolve) => stream.once('end', resolve));
        const { ExitCode } = await exec.inspect();
        assert.equal(ExitCode, 0);
      },
      upload: (id, content) => docker.getContainer(id).putArchive(tarOf(content), { path: '/tmp' }),
      road: (id) => ['docker', '-H', engine.socket, 'exec', '-i', id],
      stop: (id) => docker.getContainer(id).remove({ force: true }),
    },
  };
}

/** An archive with one file (POSIX ustar). */
function tarOf(content: Buffer): Buffer {
  const head = Buffer.alloc(512);
  const size = content.length.toString(8).padStart(11, '0');
  head.write('file');
  head.write('0000644\0', 100);
  head.write('0000000\0', 108);
  head.write('0000000\0', 116);
  head.write(`${size}\0`, 124);
  head.write('00000000000\0', 136);
  head.write('        0', 148);
  head.write('ustar\x0000', 257);
  const sum = head.reduce((all, byte) => all + byte, 0);
  head.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return Buffer.concat([head, content, Buffer.alloc(1024 + ((512 - (content.length % 512)) % 512))]);
}

/** The bare engine makes the same kind of object, a Job of one pod, and kubectl runs the commands. */
async function kubernetes(t: Starter): Promise<Subject | undefined> {
  const cluster = await openKubernetes(t);
  if (!cluster) return undefined;
  const jobs = `/apis/batch/v1/namespaces/${NAMESPACE}/jobs`;
  const podsOf = async (job: string): Promise<ApiObject[]> => {
    const { body } = await cluster.api('GET', `/api/v1/namespaces/${NAMESPACE}/pods?labelSelector=job-name%3D${job}`);
    return body.items;
  };
  const inside = (pod: string, argv: readonly string[], input?: string) =>
    cluster.kubectl(['exec', '-n', NAMESPACE, ...(input === undefined ? [] : ['-i']), pod, '--', ...argv], input);
  const resources = { cpu: '100m', memory: '103Mi' };
  return {
    slot: 'provider_one',
    settings: { ...settingsOn(cluster, await allowPurser(cluster)), provision_seconds: 300 },
    spec: { cpus: 0.1, memory_gib: 0.1 },
    room: PODS,
    bare: {
      async create() {
        const { status, body } = await cluster.api('POST', jobs, {
          apiVersion: 'batch/v1',
          kind: 'Job',
          metadata: { name: `bare-${randomUUID()}` },
          spec: {
            backoffLimit: 0,
            template: {
              spec: {
                restartPolicy: 'Never',
                terminationGracePeriodSeconds: 2, // As Purser's.
                containers: [
                  {
                    name: 'bare',
                    image: cluster.image,
                    imagePullPolicy: 'Never',
                    command: ['sleep', '3600'],
                    resources: { requests: resources, limits: resources },
                  },
                ],
              },
            },
          },
        });
        assert.equal(status, 201, JSON.stringify(body));
        for (;;) {
          const [pod] = await podsOf(body.metadata.name);
          if (pod?.status.phase === 'Running') return pod.metadata.name;
          await sleep(POLL_MILLISECONDS);
        }
      },
      exec: (pod) => inside(pod, ['true']),
      upload: (pod, content) => inside(pod, ['sh', '-c', 'cat > /tmp/file'], content.toString('latin1')),
      road: (pod) => ['kubectl', '--kubeconfig', cluster.kubeconfig, 'exec', '-n', NAMESPACE, '-i', pod, '--'],
      async stop(pod) {
        const job = pod.replace(/-[^-]*$/, '');
        await cluster.api('DELETE', `${jobs}/${job}`, { propagationPolicy: 'Foreground' });
        while ((await podsOf(job)).length > 0 || (await cluster.api('GET', `${jobs}/${job}`)).status !== 404)
          await sleep(POLL_MILLISECONDS);
      },
    },
  };
}

async function lxd(t: Starter): Promise<Subject | undefined> {
  const engine = await openLxd(t);
  if (!engine) return undefined;
  t.after(() => engine.stop());
  const { api, socket } = engine;
  const change = (method: 'POST' | 'PUT' | 'DELETE', path: string, body?: object) =>
    api.run(method, `/1.0/instances${path}`, body, CHANGE_MILLISECONDS);
  return {
    slot: 'provider_one',
    settings: {
      backend: 'lxd',
      socket,
      image: LXD_IMAGE,
      prices: { cpu_hourly_usd: '0.01', memory_gib_hourly_usd: '0.01' },
      limits: { cpus: 1, memory_gib: 1 },
      capacity: { cpus: 1000, memory_gib: 1000 },
    },
    spec: { cpus: 0.1, memory_gib: 0.1 },
    room: INSTANCES,
    bare: {
      async create() {
        const name = `bare-${randomUUID()}`;
        await change('POST', '', {
          name,
          source: { type: 'image', alias: LXD_IMAGE },
          profiles: [],
          config: { 'raw.lxc': 'lxc.init.cmd = /bin/sleep 3600' },
          devices: { root: { type: 'disk', path: '/', pool: 'default' } },
        });
        await change('PUT', `/${name}/state`, { action: 'start', timeout: 30 });
        return name;
      },
      async exec(name) {
        const { metadata } = await change('POST', `/${name}/exec`, { command: ['true'], 'record-output': true });
        assert.equal(metadata?.return, 0);
      },
      upload: (name, content) => api.ask('POST', `/1.0/instances/${name}/files?path=/tmp/file`, content),
      road: (name) => ['env', `LXD_DIR=${engine.data}`, 'lxc', 'exec', '-T', name, '--'],
      async stop(name) {
        await change('PUT', `/${name}/state`, { action: 'stop', force: true, timeout: 30 });
        await change('DELETE', `/${name}`);
      },
    },
  };
}

async function slurm(t: Starter): Promise<Subject | undefined> {
  const cluster = await openSlurm(t as TestContext);
  if (!cluster) return undefined;
  t.after(() => cluster.stop());
  const environment = [`SLURM_CONF=${cluster.conf}`, 'LC_ALL=C', `PATH=${process.env.PATH}`];
  const inside = (id: string, ...argv: string[]) => [
    '-i',
    ...environment,
    'srun',
    '--overlap',
    `--jobid=${id}`,
    ...argv,
  ];
  const asNobody = ['-C', '/', 'setpriv', `--reuid=${NOBODY}`, `--regid=${NOBODY}`, '--clear-groups', 'env'];
  const road = (id: string): [string, ...string[]] => ['env', ...asNobody, ...inside(id)];
  const step = (id: string, argv: readonly string[], input = '') => {
    const [program, ...args] = road(id);
    return run(program, [...args, ...argv], { input });
  };
  return {
    slot: 'provider_two',
    settings: {
      backend: 'slurm',
      job_user: 'nobody',
      slurm_conf: cluster.conf,
      chips: { [CHIP]: { cpus: 1, memory_gib: 0.1, price_hourly_usd: '0.01' } },
    },
    spec: { chip: CHIP },
    room: cpus().length,
    bare: {
      async create() {
        const size = ['--ntasks=1', '--mem=100', '--time=60', '--output=/dev/null', '--chdir=/tmp'];
        const id = (
          await cluster.slurm(
            'sbatch',
            '--parsable',
            `--uid=${NOBODY}`,
            `--gid=${NOBODY}`,
            ...size,
            '--wrap',
            'sleep 3600',
          )
        ).trim();
        while ((await cluster.slurm('squeue', '-h', '-j', id, '-o', '%T')).trim() !== 'RUNNING')
          await sleep(POLL_MILLISECONDS);
        return id;
      },
      exec: (id) => step(id, ['true']),
      upload: (id, content) =>
        step(id, ['sh', '-c', 'file=$(mktemp) && cat > "$file" && rm "$file"'], content.toString('latin1')),
      road,
      async stop(id) {
        await cluster.slurm('scancel', id);
        while ((await cluster.slurm('squeue', '-h', '-j', id, '-o', '%T').catch(() => '')).trim() !== '')
          await sleep(POLL_MILLISECONDS);
      },
    },
  };
}

async function ssh(t: Starter): Promise<Subject | undefined> {
  const hosts: Sshd['host'][] = [];
  for (let i = 0; i < HOSTS; i++) {
    const started = await openSshd(t, { chip: CHIP });
    if (!started) return undefined;
    hosts.push(started.host);
  }
  const to = ({ identity_file: key, port }: Sshd['host']) => [
    ...['-F', 'none', '-q', '-i', key, '-p', String(port)],
    ...['-o', 'StrictHostKeyChecking=no', '-o', 'UserKnownHostsFile=/dev/null', 'root@127.0.0.1'],
  ];
  const first = to(hosts[0] as Sshd['host']);
  const remote = (command: string, input?: string) =>
    run('ssh', [...first, command], input === undefined ? {} : { input });
  return {
    slot: 'provider_two',
    settings: { backend: 'ssh', hosts: hosts.map((it) => ({ ...it, price_hourly_usd: '0.01' })) },
    spec: { chip: CHIP },
    room: HOSTS,
    bare: {
      // The host is there: what it takes to be on it is one connection.
      create: async () => {
        await remote('true');
        return randomUUID();
      },
      exec: () => remote('true'),
      upload: (id, content) => remote(`cat > /tmp/${id}`, content.toString('latin1')),
      ssh: () => remote('true'),
      road: () => ['ssh', ...first],
      stop: (id) => remote(`rm -f /tmp/${id}`),
    },
  };
}
