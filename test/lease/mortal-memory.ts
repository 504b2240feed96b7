import type { TestContext } from 'node:test';
import { type Backend, type Pausing, resourceIdOf, tagOf, tagPrefix } from '../../src/compute/backend.ts';
import type { Containers } from '../../src/compute/engines/container/containers.ts';
import type { Engine } from '../../src/compute/engines/container/engine.ts';
import { createContainerSnapshots } from '../../src/compute/engines/container/snapshots.ts';
import { createPausing, type Signals } from '../../src/compute/kit/pausing.ts';
import { allLiveResources } from '../../src/ledger/resource.ts';
import { findSnapshot } from '../../src/ledger/snapshot.ts';
import type { Kept, Memory } from '../compute/engines/memory.ts';
import { openMemoryServer } from './leases.ts';
import { createLife, type Life, type Moment, type Mortal, stepThroughWrites } from './mortal.ts';

const READS =
  /^(identity|freeFor|find|inspect|listOwned|guest\.(prove|usage|exec)|.*\.(look|find|list|takeRoom|GET \S+|size|images))$/;
/** Members of a backend that call no engine. */
const LOCAL = /^(quote|offers|close|partOf|misses|listOf|gibMax|letGo)$/;

const momentsOf = (step: string, isEvery: boolean): Moment[] => [
  'before',
  ...(isEvery ? (['after'] as const) : []),
  ...(step.startsWith('write ') || READS.test(step) ? [] : (['late'] as const)),
];

/** Makes every call of a backend a step. */
function stepThrough(target: object, life: Life, prefix = ''): void {
  for (const [name, member] of Object.entries(target)) {
    if (LOCAL.test(name)) continue;
    if (typeof member === 'function')
      Object.assign(target, {
        [name]: (...args: unknown[]) => life.step(prefix + name, async () => member.apply(target, args)),
      });
    else if (['guest', 'pause', 'snapshots', 'egress'].includes(name) && typeof member === 'object')
      stepThrough(member, life, `${prefix}${name}.`);
  }
}

/** A remembered machine whose processes can be stopped. */
type Machine = Kept & { isStopped?: boolean; cpus?: 'least' | 'sold' };

/** Gives a remembering backend the pause of machines with a watchdog, and the snapshots of containers: each call of theirs is a step. */
function takeApart({ guest }: Backend, memory: Memory, life: Life, now: () => number): void {
  const machineOf = (ref: string): Machine => {
    const machine = memory.machines.get(ref);
    if (!machine || machine.deadline <= now()) throw new Error('the machine does not run');
    return machine;
  };
  const signals: Signals = {
    signal: (ref, what) =>
      life.step(`engine.${what}`, async () => {
        machineOf(ref).isStopped = what === 'stop';
        return 0;
      }),
    look: (ref) => life.step('engine.look', async () => (machineOf(ref).isStopped ? 0 : 1)),
  };
  const { takeRoom, letGo } = guest.pause as Pausing;
  const move = (ref: string, deadline: number) =>
    life.step('engine.move', async () => {
      const machine = memory.machines.get(ref);
      if (!machine || machine.deadline <= now()) return { kind: 'refused', reason: 'it has ended' } as const;
      machine.deadline = deadline;
      return { kind: 'done' } as const;
    });
  const limitCpu = (ref: string, to: 'least' | 'sold') =>
    life.step(`engine.limit ${to}`, async () => {
      machineOf(ref).cpus = to;
    });
  const room = { takeRoom: (tag: string) => life.step('engine.takeRoom', () => takeRoom(tag)), letGo };
  guest.pause = createPausing({ limitCpu, ...signals }, { move }, room);
  if (typeof guest.snapshots === 'object')
    guest.snapshots = createContainerSnapshots(
      remembersImages(memory, life, now),
      { snapshot_gib_day_usd: guest.snapshots.price } as Parameters<typeof createContainerSnapshots>[1],
      {
        ...{ signals, gibMax: guest.snapshots.gibMax, now },
        containers: {
          inspect: async (ref: string) => ({ Image: TEMPLATE, HostConfig: {}, Config: {}, Ref: machineOf(ref) }),
        } as unknown as Containers,
      },
    );
}

const TEMPLATE = 'sha256:template';
const REPOSITORY = 'localhost/purser-snapshot';

/** An engine of images that are only remembered, by their tags in `memory.snapshots`. */
function remembersImages(memory: Memory, life: Life, now: () => number): Engine {
  const images = memory.snapshots;
  const tagIn = (name: string) => name.slice(REPOSITORY.length + 1);
  const missing = () => Object.assign(new Error('404'), { statusCode: 404, json: { message: 'No such image: it' } });
  const docker = {
    getContainer: () => ({
      inspect: async () => ({ SizeRw: memory.snapshotBytes }),
      commit: async ({ tag }: { tag: string }) =>
        void images.set(tag, { bytes: memory.snapshotBytes, createdAt: now() }),
    }),
    getImage: (name: string) => ({
      async remove() {
        if (!images.delete(tagIn(name))) throw missing();
      },
    }),
    listImages: async () =>
      [...images].map(([tag, { createdAt }]) => ({ RepoTags: [`${REPOSITORY}:${tag}`], Created: createdAt })),
    async loadImage(archive: Buffer) {
      const text = archive.toString('latin1');
      const [, tag = ''] = /purser-snapshot:([\w.-]+)/.exec(text) ?? [];
      const [, bytes] = /"purser\.snapshot_bytes":"(\d+)"/.exec(text) ?? [];
      images.set(tag, { bytes: Number(bytes), createdAt: now() });
    },
    modem: { followProgress: (_: unknown, done: () => void) => done() },
  };
  return {
    docker,
    ask: (what: string, call: (signal: AbortSignal) => Promise<unknown>) =>
      life.step(`engine.${what}`, () => call(new AbortController().signal)),
    request: (method: string, path: string) =>
      life.step(`engine.${method} /images`, async () => {
        const [, name = ''] = /^\/images\/(.*)\/json$/.exec(path) ?? [];
        const { bytes } = name === TEMPLATE ? { bytes: 0 } : (images.get(tagIn(name)) ?? {});
        if (bytes === undefined) throw missing();
        const Labels = name === TEMPLATE ? {} : { 'purser.snapshot_bytes': String(bytes) };
        return { Size: bytes, Architecture: 'amd64', Os: 'linux', Config: { Labels }, RootFS: { Layers: [] } };
      }),
    diskFree: async () => undefined,
    isPodman: async () => false,
  } as unknown as Engine;
}

const newLife = () => createLife((step, isEvery) => isEvery || !READS.test(step));

export type Remembering = Mortal & { memory: Memory };

/** Opens a server that can die, whose machines are only remembered. `prepare` changes the backend of each that takes its place. */
export async function openMortal(
  t: TestContext,
  options: Parameters<typeof openMemoryServer>[1] = {},
  prepare: (backend: Backend, life: Life) => void = () => {},
): Promise<Remembering> {
  // No caller of a dead server is waited for, and no pass looks at a second slot.
  const compute = { provider_three: undefined, ...(options.settings?.compute as object) };
  const settings = { drain_seconds: 0, ...options.settings, compute };
  const purser = Object.assign(await openMemoryServer(t, { ...options, settings }), { life: newLife() });
  const now = () => Math.floor(purser.clock.wall() / 1000);
  const begin = (life: Life) => {
    purser.life = life;
    for (const { backend } of purser.app.slots.list) {
      prepare(backend, life);
      const { pause, snapshots, ...guest } = backend.guest;
      stepThrough(guest, life, 'guest.');
      Object.assign(backend.guest, guest);
      const { guest: _, ...calls } = backend;
      stepThrough(calls, life);
      Object.assign(backend, calls);
      takeApart(backend, purser.memory, life, now);
    }
    stepThroughWrites(purser.app.ledger, life);
  };
  begin(purser.life);
  const { reopen } = purser;
  return Object.assign(purser, {
    momentsOf,
    mayLive: false,
    strangers: async () => strangersOf(purser),
    faults: async () => faultsOf(purser),
    async reopen() {
      await reopen();
      begin(newLife());
    },
    async succeed() {
      const { life } = purser;
      life.die().catch(() => {});
      await purser.crash(life.bury);
      begin(newLife());
    },
  });
}

type Books = Pick<Remembering, 'app' | 'memory'>;
function strangersOf({ app, memory }: Books): string[] {
  const known = new Set(app.warm.ids().map((id) => tagOf(app.installationId, id)));
  for (const { tag } of allLiveResources(app.ledger.read)) known.add(tag);
  return [...memory.machines.values()].filter(({ tag }) => !known.delete(tag)).map(({ ref }) => `${ref} is a stranger`);
}

/** Returns what is wrong with the machines and snapshots of a server that has settled. */
function faultsOf(purser: Books): string[] {
  const { app, memory } = purser;
  const faults = strangersOf(purser);
  const rows = allLiveResources(app.ledger.read);
  for (const { id, ref, status, expiresAt } of rows) {
    const machine = memory.machines.get(ref ?? '') as Machine | undefined;
    const { isStopped = false, cpus = 'sold', deadline } = machine ?? {};
    if (!machine) faults.push(`the machine of ${id} is gone`);
    else if (status !== 'running' && status !== 'paused') faults.push(`${id} is still ${status}`);
    else if (deadline !== expiresAt) faults.push(`${id} ends at ${expiresAt}, and its machine at ${deadline}`);
    else if (isStopped !== (status === 'paused')) faults.push(`${id} is ${status}, and its processes are not`);
    else if (cpus !== (status === 'paused' ? 'least' : 'sold')) faults.push(`${id} is ${status}, and has ${cpus} CPU`);
  }
  const idle = memory.machines.size - rows.length;
  const ready = app.slots.list.reduce((sum, { backend }) => sum + app.warm.count(backend), 0);
  if (idle !== ready) faults.push(`there are ${idle} warm machines, and ${ready} are ready`);
  const prefix = tagPrefix(app.installationId);
  for (const tag of memory.snapshots.keys()) {
    // What a take that broke off has left goes with its snapshot.
    const snapshot = findSnapshot(app.ledger.read, resourceIdOf(prefix, tag.replace('.raw', '')));
    if (snapshot?.endedAt !== null) faults.push(`no row names the image ${tag}`);
  }
  const live = app.ledger.client.prepare('select tag, status from snapshot where ended_at is null').all();
  for (const { tag, status } of live as { tag: string; status: string }[]) {
    if (status !== 'ready') faults.push(`a snapshot is still ${status}`);
    if (!memory.snapshots.has(tag)) faults.push('the image of a snapshot is gone');
  }
  return faults;
}
