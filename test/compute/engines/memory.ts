import type { Backend, Guest, Machine, Owned, Pausing, Snapshots } from '../../../src/compute/backend.ts';

const GIB = 1024 ** 3;

type Asked =
  | Exclude<keyof Backend | keyof Guest, 'name' | 'absence' | 'close' | 'doctor' | 'guest' | 'pause' | 'snapshots'>
  | `pause.${keyof Pausing}`
  | `snapshots.${Exclude<keyof Snapshots, 'price' | 'gibMax'>}`;
export type Kept = Owned & {
  deadline: number;
  /** Whether its processes are stopped; whether its processors are taken away. */
  paused?: boolean;
  limited?: boolean;
  /** The snapshot that it was made from. */
  from?: string | undefined;
};

/** An error text of an engine. It names a path that no agent may see. */
export const SECRET_WORDS = 'connect ENOENT /srv/secret-place/docker.sock';

/** Machines that exist only in memory, controlled by the test: for many machines, and for a backend that fails. */
export type Memory = {
  machines: Map<string, Kept>;
  /** The bytes of each snapshot, and when it was taken, by its tag. */
  snapshots: Map<string, { bytes: number; createdAt: number }>;
  /** The bytes that a snapshot takes; why one is refused. */
  snapshotBytes: number;
  snapshotRefused?: string | undefined;
  /** The number of machines that were ever made, which names them. */
  made: number;
  /** Every call that arrived, in order. */
  calls: Asked[];
  /** Runs before a call does its work; it may wait, or throw. Nothing by default. */
  before: Partial<Record<Asked, (...args: never[]) => Promise<unknown> | unknown>>;
  /** Runs after a call has done its work, before it returns. */
  after: Partial<Record<Asked, (...args: never[]) => Promise<unknown> | unknown>>;
  /** Maximum number of machines. More are refused. */
  room: number;
  /** Whether every create is refused, as if the engine could not be reached. */
  unreachable: boolean;
  /** Whether a machine runs as soon as it is made. */
  ready: boolean;
  /** Whether `inspect` reports the deadline: a backend may be unable to read it. */
  readable: boolean;
  /** Why a pause is refused, after the processes were stopped; what a resumption lacks. */
  pauseRefused?: string | undefined;
  lacking?: string | undefined;
  /** What a machine that is provisioning waits for. */
  waitsFor?: string;
  /** The identity of the engine; undefined for one that does not tell. */
  identity?: string;
  /** Processor seconds that every machine has used, as it says itself; without it nothing inside can say. */
  cpuSeconds?: number;
  /** What `nvidia-smi` in every machine prints of its GPUs. */
  gpus?: string;
  /** What the engine says that a machine uses; without it, nothing. */
  usage?: Guest['usage'];
};

export function createMemory(): Memory {
  return {
    machines: new Map(),
    snapshots: new Map(),
    snapshotBytes: GIB / 4,
    made: 0,
    calls: [],
    before: {},
    after: {},
    room: Number.POSITIVE_INFINITY,
    unreachable: false,
    ready: true,
    readable: true,
  };
}

/** Replaces the calls of an opened backend with ones on the machines of `memory`. `now` is in Unix seconds. */
export function replaceBackend(backend: Backend, memory: Memory, now: () => number): void {
  /** Returns a machine's state. Past its deadline it has ended by itself, like a real one. */
  const show = (it: Kept): Machine => ({
    ref: it.ref,
    state: it.deadline <= now() ? 'ended' : it.state,
    ...(memory.readable ? { deadline: it.deadline } : {}),
    ...(memory.waitsFor === undefined || it.state !== 'provisioning' ? {} : { waitsFor: memory.waitsFor }),
  });
  const calls: Required<Pick<Backend, 'identity'>> &
    Pick<Backend, 'create' | 'freeFor' | 'find' | 'inspect' | 'extend' | 'destroy' | 'listOwned'> = {
    async create({ tag, deadline, snapshot }) {
      if (snapshot !== undefined && !memory.snapshots.has(snapshot))
        return { kind: 'refused', code: 'provider_unavailable', reason: 'There is no such snapshot.' };
      if (memory.unreachable)
        return { kind: 'refused', code: 'provider_unavailable', reason: 'Nobody answers. Nothing was charged.' };
      if (memory.machines.size >= memory.room)
        return {
          kind: 'refused',
          code: 'capacity_unavailable',
          reason: 'No room. Nothing was charged.',
          words: SECRET_WORDS,
        };
      const ref = `${memory.identity ?? ''}m${++memory.made}`;
      memory.machines.set(ref, {
        ref,
        tag,
        deadline,
        state: memory.ready ? 'running' : 'provisioning',
        createdAt: now(),
        from: snapshot,
      });
      return { kind: 'created', ref };
    },
    identity: async () => memory.identity,
    freeFor: async () => memory.room - memory.machines.size,
    find: async (tag) => [...memory.machines.values()].filter((it) => it.tag === tag).map(show),
    async inspect(ref) {
      const found = memory.machines.get(ref);
      return found && show(found);
    },
    async extend(ref, deadline) {
      const found = memory.machines.get(ref);
      if (!found || show(found).state === 'ended') return { kind: 'refused', reason: 'the machine has ended' };
      found.deadline = deadline;
      return { kind: 'done' };
    },
    destroy: async (ref) => void memory.machines.delete(ref),
    listOwned: async (prefix) =>
      [...memory.machines.values()]
        .filter((it) => it.tag.startsWith(prefix))
        .map((it) => ({ ...show(it), tag: it.tag, createdAt: it.createdAt })),
  };
  const guest: Pick<Guest, 'exec' | 'upload'> = {
    upload: async () => {},
    async exec(_, { command, streamBytesMax }) {
      const cpu =
        memory.cpuSeconds !== undefined && command.includes('purser-cpu')
          ? `purser-cpu cgroup ${Math.round(memory.cpuSeconds * 1e6)} 1000000 ${now()}.25\n`
          : '';
      const gpus = memory.gpus !== undefined && command.includes('purser-gpus') ? `purser-gpus\n${memory.gpus}` : '';
      const stdout = Buffer.from(cpu + gpus || 'hello\n');
      return {
        exitCode: 0,
        stdout: stdout.subarray(0, streamBytesMax),
        stderr: Buffer.alloc(0),
        stdoutTruncated: stdout.length > streamBytesMax,
        stderrTruncated: false,
        timedOut: false,
      };
    },
  };
  const pause: Pausing = {
    async begin(ref, deadline, stopped) {
      const found = memory.machines.get(ref);
      if (!found || show(found).state === 'ended') return { kind: 'refused', reason: 'the machine has ended' };
      found.paused = true;
      if (memory.pauseRefused !== undefined) return { kind: 'refused', reason: memory.pauseRefused };
      await stopped?.();
      Object.assign(found, { deadline, limited: true });
      return { kind: 'done' };
    },
    async complete(ref) {
      Object.assign(memory.machines.get(ref) ?? {}, { limited: true });
    },
    async end(ref, deadline) {
      const found = memory.machines.get(ref);
      if (!found || show(found).state === 'ended') return { kind: 'refused', reason: 'the machine has ended' };
      Object.assign(found, { deadline, paused: false, limited: false });
      return { kind: 'done' };
    },
    takeRoom: async () => memory.lacking,
    letGo() {},
  };
  const snapshots: Omit<Snapshots, 'price' | 'gibMax'> = {
    async take({ tag }) {
      if (memory.snapshotRefused !== undefined)
        return { kind: 'refused', code: 'provider_unavailable', reason: memory.snapshotRefused, words: SECRET_WORDS };
      memory.snapshots.set(tag, { bytes: memory.snapshotBytes, createdAt: now() });
      return { kind: 'taken', bytes: memory.snapshotBytes };
    },
    letRun: async () => {},
    find: async (tag) => memory.snapshots.get(tag)?.bytes,
    remove: async (tag) => void memory.snapshots.delete(tag),
    list: async (prefix) =>
      [...memory.snapshots]
        .filter(([tag]) => tag.startsWith(prefix))
        .map(([tag, { createdAt }]) => ({ tag, createdAt })),
  };
  if (typeof backend.guest.snapshots === 'object') {
    const { price, gibMax } = backend.guest.snapshots;
    const own = { price, gibMax, ...snapshots };
    backend.guest.snapshots = own;
    replace(own, snapshots, 'snapshots.');
  }
  backend.guest.pause = { ...pause };
  const { begin, complete, end, takeRoom } = pause;
  replace(backend.guest.pause, { begin, complete, end, takeRoom }, 'pause.');
  backend.guest.usage = async (ref) => (await memory.usage?.(ref)) ?? {};
  backend.guest.prove = async () => undefined;
  replace(backend, calls);
  replace(backend.guest, guest);
  function replace(target: object, calls: object, prefix = '') {
    for (const [name, call] of Object.entries(calls) as [string, (...args: never[]) => Promise<unknown>][]) {
      const asked = `${prefix}${name}` as Asked;
      Object.assign(target, {
        async [name](...args: never[]) {
          if (name !== 'identity' && name !== 'freeFor') memory.calls.push(asked);
          await memory.before[asked]?.(...args);
          const answer = await call(...args);
          await memory.after[asked]?.(...args);
          return answer;
        },
      });
    }
  }
}
