import { Refusal } from '../../../base/refusal.ts';
import type { Backend, Created, Machine, Owned, Ref, Spec } from '../../backend.ts';
import { createReservations } from '../../kit/capacity.ts';
import { type Claim, claimOf, labelsOf, sizeOf, TAG_LABEL } from '../../kit/claim.ts';
import { refused } from '../../kit/created.ts';
import { gpuDevices } from '../../kit/gpus.ts';
import { findUnlimited, READ_LIMITS } from '../../kit/limits.ts';
import { offersOf, quoteOf } from '../../kit/priced.ts';
import { createRecent } from '../../kit/recent.ts';
import { hasWatchdog, WATCHDOG_PATH } from '../../kit/watchdog.ts';
import { createGuest } from '../../machine/guest.ts';
import { checkContainers } from './check.ts';
import { makeContainer } from './describe.ts';
import { createDiskWatch } from './disk-watch.ts';
import { openEngine, statusOf, textOf, wasNeverSent, wasRemoved } from './engine.ts';
import { createPuller, lacksImage } from './image.ts';
import { createWalletNetworks, NETWORK_LABEL, NoSubnet } from './network.ts';
import { beginIn } from './program.ts';
import { type ContainerSettings, contentsOf } from './settings.ts';
import { createDeadlines, putWatchdog } from './watchdog.ts';
import { whyEnded } from './why-ended.ts';

const CREATED_LABEL = 'purser.created';

type ContainerSurroundings = {
  /** The prefix of all tags of this installation. */
  prefix: string;
  /** A directory on the file system of Purser's database, for `check`. */
  books?: string;
  /** The interval at which a container's disk is measured. */
  measureMilliseconds?: number;
  /** Unix seconds. */
  now: () => number;
};

type Order = Parameters<Backend['create']>[0];

/** A container that waits for its image. `failed` is the reason why it is never made. */
type Coming = {
  image: string;
  wanted: boolean;
  making: Promise<Created | 'no_image'> | undefined;
  failed: string | undefined;
};

/**
 * Containers of a Docker Engine or Podman. The tag is the container's name, its label and its reference; its first
 * process is a watchdog, which keeps the deadline. Nothing of this machine's file system is used, so the engine may run
 * on another machine.
 */
export function openContainerBackend(
  settings: ContainerSettings,
  { prefix, books, measureMilliseconds, now }: ContainerSurroundings,
): Backend {
  const engine = openEngine(settings);
  const { docker, ask } = engine;
  const deadlines = createDeadlines(engine);
  const disk = createDiskWatch(engine, measureMilliseconds);
  const networks = createWalletNetworks(engine, settings.network);
  const images = createPuller(engine);
  const reservations = createReservations(settings, prefix, {
    list: async () => (await labelled()).map(({ Labels }) => claimOf(Labels)),
    capacity: () => engine.capacity(),
  });
  const free = createRecent(reservations.free);
  const coming = new Map<Ref, Coming>();
  const guest = createGuest((ref, order) => beginIn(engine, ref, order), {
    relay: WATCHDOG_PATH,
    /** Engines may silently leave a GPU out. */
    async proofOf(ref) {
      const found = await look(ref);
      return found ? { gpus: claimOf(found.Config.Labels).devices.length } : 'the container is gone';
    },
  });

  async function create(order: Order): Promise<Created> {
    let claim: Claim | { lacking: string };
    try {
      const architecture = await engine.architecture();
      if (!hasWatchdog(architecture))
        return refused(`There is no watchdog for the architecture of the engine's machine (${architecture})`);
      claim = await reservations.reserve(order.tag, sizeOf(settings, order.quote.spec));
      free.forget();
      if ('lacking' in claim) return refused(`There is no room: ${claim.lacking}`, undefined, 'capacity_unavailable');
    } catch (error) {
      // Nothing has been requested yet.
      return settle(order.tag, refused('The container cannot be ordered', textOf(error)));
    }
    const made = await make(order, claim).catch(unknown);
    if (made !== 'no_image') return settle(order.tag, made);
    if (settings.pull === 'missing') return awaitImage(order, claim);
    return settle(order.tag, refused(`The image ${contentsOf(settings, claim.offer).image} is not on the engine`));
  }

  /** Releases the reservation: whatever the outcome, the engine's list shows the container from now on, if there is one. */
  function settle(tag: string, made: Created): Created {
    reservations.release(tag, made.kind === 'unknown');
    free.forget();
    return made;
  }

  /** Pulls the image, which may take long. The machine is `provisioning` until then, and is made when the image is there. */
  function awaitImage(order: Order, claim: Claim): Created {
    const { image } = contentsOf(settings, claim.offer);
    const it: Coming = { image, wanted: true, making: undefined, failed: undefined };
    coming.set(order.tag, it);
    void arrive(order, claim, it);
    return { kind: 'created', ref: order.tag };
  }

  async function arrive(order: Order, claim: Claim, it: Coming): Promise<void> {
    const { image } = it;
    const fault = await images.pull(image).then(() => undefined, textOf);
    if (!it.wanted) return;
    it.making =
      fault === undefined
        ? make(order, claim).catch(unknown)
        : Promise.resolve(refused(`The image ${image} cannot be pulled`, fault));
    const made = await it.making;
    const outcome = made === 'no_image' ? refused(`The image ${image} was pulled and is not there`) : made;
    if (outcome.kind === 'created') coming.delete(order.tag);
    else it.failed = 'words' in outcome && outcome.words ? `${outcome.reason} (${outcome.words})` : outcome.reason;
    settle(order.tag, outcome);
  }

  /** Makes a container, and the network of its wallet, and starts it. Throws when the outcome is unknown. */
  async function make(order: Order, claim: Claim): Promise<Created | 'no_image'> {
    const { tag, walletId } = order;
    const name = walletId === undefined ? tag : prefix + walletId.replace('_', '-');
    try {
      return await networks.within(name, (network) => makeIn(network, order, claim));
    } catch (error) {
      if (!(error instanceof NoSubnet)) throw error;
      return refused('No subnet is left for a network of this wallet', error.message, 'capacity_unavailable');
    }
  }

  async function makeIn(
    network: string,
    { tag, deadline, isTrial = false }: Order,
    claim: Claim,
  ): Promise<Created | 'no_image'> {
    let isFresh = true;
    try {
      await makeContainer(engine, {
        name: tag,
        ...contentsOf(settings, claim.offer),
        labels: {
          ...labelsOf(claim),
          [CREATED_LABEL]: String(now()),
          ...(network === 'none' ? {} : { [NETWORK_LABEL]: network }),
        },
        cpus: claim.cpus,
        memoryGib: claim.memoryGib,
        pids: settings.pids,
        network,
        deadline,
        devices: claim.devices,
        gpuMode: 'offers' in settings ? 'nvidia' : settings.gpu_mode,
        diskGb: claim.diskGb,
        keepsLog: isTrial,
      });
    } catch (error) {
      if (wasNeverSent(error)) return refused('The provider cannot be reached', textOf(error));
      if (statusOf(error) === undefined) throw error;
      if (lacksImage(error)) return 'no_image';
      // An answer means that nothing is under way: an earlier attempt has made the container, or there is none.
      const there = await look(tag);
      if (!there) return refused('The provider refused the machine', textOf(error));
      if (there.State.Status !== 'created') return { kind: 'created', ref: tag };
      isFresh = false; // It has the deadline of that attempt.
    }
    const started = await start(tag);
    if (isFresh && started.kind === 'created') deadlines.note(tag, deadline);
    return started;
  }

  /** Starts an existing container. Throws when the outcome is unknown. */
  async function start(tag: string): Promise<Created> {
    try {
      await engine.defaultsOf(tag); // Nobody should pay for a container in which no command can be run.
      await putWatchdog(engine, tag, await engine.architecture());
      await ask('start', (abortSignal) => docker.getContainer(tag).start({ abortSignal }));
    } catch (error) {
      if (statusOf(error) !== 304) {
        // It exists and does not run: it is removed, and only a confirmed removal is a clear no.
        await remove(tag);
        if (await look(tag)) throw error;
        return refused('The provider could not start the machine', textOf(error));
      }
    }
    return { kind: 'created', ref: tag };
  }

  async function look(ref: Ref) {
    try {
      const found = await ask('inspect', (abortSignal) => docker.getContainer(ref).inspect({ abortSignal }));
      // Only the engine's own message proves that there is no such container; an answer about another container proves nothing
      // about this one.
      if (nameOf(found) !== ref) throw new Error(`the engine does not answer for ${ref}`);
      return found;
    } catch (error) {
      if (wasRemoved(error)) return undefined;
      throw error;
    }
  }

  async function inspect(ref: Ref): Promise<Machine | undefined> {
    const awaited = coming.get(ref);
    if (awaited && awaited.failed === undefined)
      return {
        ref,
        state: 'provisioning',
        note: `the image ${awaited.image} is being pulled`,
        waitsFor: 'its image is being pulled',
      };
    const found = await look(ref);
    if (!found) return awaited && { ref, state: 'ended', note: awaited.failed };
    const state = STATES.get(found.State?.Status);
    // Podman has a state `unknown`.
    if (state === undefined) throw new Error(`the engine does not say the state of ${ref}`);
    if (state === 'ended') return { ref, state, note: await whyEnded(engine, found) };
    if (state !== 'running') return { ref, state };
    const claim = claimOf(found.Config.Labels);
    const exceeded = claim.diskGb === undefined ? undefined : await disk.exceeded(ref, claim.diskGb);
    if (exceeded !== undefined) return { ref, state: 'ended', exceeded: 'disk', note: exceeded };
    const deadline = await deadlines.read(ref);
    return { ref, state, ...(deadline === undefined ? {} : { deadline }) };
  }

  /** Every container with our label, of all installations. */
  const labelled = () =>
    ask('list', (abortSignal) => docker.listContainers({ all: true, filters: { label: [TAG_LABEL] }, abortSignal }));

  /** Lists containers, and networks that outlived theirs. */
  async function listOwned(prefix: string): Promise<Owned[]> {
    const unused = (await networks.listUnused(prefix)).map(({ name, createdAt }) => ({
      ...{ ref: name, tag: name, createdAt },
      state: 'ended' as const,
    }));
    return [...(await listContainers(prefix)), ...unused];
  }

  /**
   * Lists only containers whose name is their tag: an image committed from a lease passes its labels on to every container made
   * from it, and Purser must not remove those.
   */
  async function listContainers(prefix: string): Promise<Owned[]> {
    return (await labelled())
      .filter(({ Labels, Names }) => Labels[TAG_LABEL]?.startsWith(prefix) && Names.includes(`/${Labels[TAG_LABEL]}`))
      .map(({ Labels, State, Created }) => ({
        ref: Labels[TAG_LABEL] as string,
        tag: Labels[TAG_LABEL] as string,
        state: STATES.get(State) ?? 'provisioning', // It exists; inspecting it alone shows more.
        createdAt: Number(Labels[CREATED_LABEL] ?? Created),
      }));
  }

  async function destroy(ref: Ref): Promise<void> {
    const awaited = coming.get(ref);
    if (awaited) {
      awaited.wanted = false;
      await awaited.making;
      coming.delete(ref);
    }
    const found = await look(ref);
    await remove(ref);
    // A reference without a container may name a network. A network that cannot be removed with its container is left to the sweep.
    const network = found ? found.Config.Labels[NETWORK_LABEL] : ref;
    if (network !== undefined)
      await networks.release(network).catch((error) => {
        if (!found) throw error;
      });
    deadlines.forget(ref);
    disk.forget(ref);
    reservations.release(ref);
    free.forget();
  }

  async function remove(ref: Ref): Promise<void> {
    try {
      await ask('remove', (abortSignal) => docker.getContainer(ref).remove({ force: true, v: true, abortSignal }));
    } catch (error) {
      const isBeingRemoved = statusOf(error) === 409 && /already in progress/.test(textOf(error));
      if (!wasRemoved(error) && !isBeingRemoved) throw error;
    }
  }

  return {
    name: 'container',
    absence: { lists: 2, apartSeconds: 10 },
    create,
    inspect,
    destroy,
    listOwned,
    find: async (tag) => (await listContainers(tag)).filter((it) => it.tag === tag),
    doctor: {
      check: () => checkContainers(engine, settings, books),
      trial: 'free',
      async unlimited(ref, quote) {
        const { stdout } = await guest.exec(ref, READ_LIMITS);
        return findUnlimited(stdout.toString(), sizeOf(settings, quote.spec).memoryGib);
      },
    },
    guest,

    async quote(spec) {
      const quote = quoteOf(settings, spec);
      const { gpu, gpus } = sizeOf(settings, spec);
      const devices = 'offers' in settings || gpu === null ? [] : (gpuDevices(settings)[gpu] ?? []);
      if (gpus > devices.length)
        throw new Refusal('invalid_request', `spec.gpus: at most ${devices.length} ${gpu} here.`);
      return quote;
    },

    freeFor: async (spec) => (await free.get())?.(sizeOf(settings, spec)) ?? 0,

    async offers(waitMilliseconds) {
      const count = await free.get(waitMilliseconds);
      const isAvailable = (spec: Spec) => (count?.(sizeOf(settings, spec)) ?? 0) > 0;
      return offersOf(settings, 'container').map((it) => ({ ...it, available: isAvailable(it.spec) }));
    },

    async extend(ref, deadline) {
      if (!(await look(ref))) return { kind: 'refused', reason: 'the container is gone' };
      return deadlines.move(ref, deadline);
    },

    async close() {
      images.stop();
      for (const it of coming.values()) it.wanted = false;
      await Promise.all([...coming.values()].map((it) => it.making));
      engine.close();
    },
  };
}

const unknown = (error: unknown): Created => ({ kind: 'unknown', reason: textOf(error) });

/**
 * The states of Docker and of Podman. A container that was made and not started never runs: its creator died in between, and it is
 * made again.
 */
const STATES = new Map<unknown, Machine['state']>([
  ['running', 'running'],
  ['paused', 'running'],
  ['restarting', 'provisioning'],
  ...['created', 'configured', 'initialized', 'exited', 'stopped', 'stopping', 'removing', 'dead'].map(
    (it) => [it, 'ended'] as const,
  ),
]);

const nameOf = (found: { Name?: unknown } | null | undefined) =>
  typeof found?.Name === 'string' ? found.Name.replace(/^\//, '') : undefined;
