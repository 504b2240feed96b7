import { Refusal } from '../../../base/refusal.ts';
import type { Backend, Created, Machine, Owned, Ref, Spec, Surroundings } from '../../backend.ts';
import { createReservations, roomAt } from '../../kit/capacity.ts';
import { type Claim, claimOf, type LeaseSize, sizeOf, TAG_LABEL } from '../../kit/claim.ts';
import { refused } from '../../kit/created.ts';
import { egressLists } from '../../kit/egress.ts';
import { gpuDevices } from '../../kit/gpus.ts';
import { roomOfPaused } from '../../kit/pausing.ts';
import { offersOf, quoteOf } from '../../kit/priced.ts';
import { createRecent } from '../../kit/recent.ts';
import { SECRETS_LABEL } from '../../kit/trust.ts';
import { hasWatchdog, WATCHDOG_PATH, wroteBesideDisk } from '../../kit/watchdog.ts';
import { createGuest } from '../../machine/guest.ts';
import { checkContainers } from './check.ts';
import { createComing, unknownOutcome } from './coming.ts';
import { createContainers, STATES } from './containers.ts';
import { type ContainerOrder, CREATED_LABEL, createMaker } from './create.ts';
import { createDiskWatch } from './disk-watch.ts';
import { openEngine, textOf } from './engine.ts';
import { createPuller, missingImages } from './image.ts';
import { createWalletNetworks, NETWORK_LABEL } from './network.ts';
import { createContainerPause, createSignals } from './pause.ts';
import { beginEgress, beginIn } from './program.ts';
import { type ContainerSettings, contentsOf, imagesOf, sharesKernel } from './settings.ts';
import { createContainerSnapshots } from './snapshots.ts';
import { readStatistics } from './statistics.ts';
import { findMissing } from './trial.ts';
import { tryDisk } from './trial-disk.ts';
import { createDeadlines, runningWatchdog } from './watchdog.ts';
import { whyEnded } from './why-ended.ts';

type ContainerSurroundings = {
  /** The prefix of all tags of this installation. */
  prefix: string;
  isPaused?: Surroundings['isPaused'];
  isWarm?: Surroundings['isWarm'];
  rooms?: Surroundings['rooms'];
  /** A directory on the file system of Purser's database, for `check`. */
  books?: string;
  /** The interval at which a container's disk is measured. */
  measureMilliseconds?: number;
  /** Unix seconds. */
  now: () => number;
};

/**
 * Opens the containers of a Docker Engine or Podman. The tag is a container's name, label and reference; process 1 is a watchdog,
 * which keeps the deadline. Nothing of this machine's file system is used: the engine may be remote.
 */
export function openContainerBackend(
  settings: ContainerSettings,
  { prefix, isPaused, isWarm, rooms, books, measureMilliseconds, now }: ContainerSurroundings,
): Backend {
  const engine = openEngine(settings, prefix);
  const containers = createContainers(engine);
  const deadlines = createDeadlines(engine, containers);
  const disk = createDiskWatch(engine, measureMilliseconds);
  const networks = createWalletNetworks(engine, settings.network);
  const make = createMaker(engine, settings, { prefix, now, containers, networks, deadlines });
  const reservations = createReservations(
    settings,
    { prefix, isPaused, isWarm },
    {
      list: async () => (await containers.labelled()).map(({ Labels }) => claimOf(Labels)),
      capacity: () => engine.capacity(),
      diskFree: () => engine.diskFree(),
    },
    roomAt(rooms, settings.socket),
  );
  const free = createRecent(async () => {
    // Whether an image can be pulled is not known before that is tried.
    const needed = settings.pull === 'never' ? imagesOf(settings) : [];
    const [count, missing] = await Promise.all([reservations.free(), missingImages(engine, needed)]);
    return (size: LeaseSize) => (missing.includes(contentsOf(settings, size.offer).image) ? 0 : count(size));
  });
  const egress = egressLists(settings);
  const pause = createContainerPause(engine, containers, deadlines, roomOfPaused(reservations, free));
  const gibMax = (spec: Spec) => sizeOf(settings, spec).diskGb;
  const snapshots = createContainerSnapshots(engine, settings, {
    ...{ containers, gibMax, now },
    signals: createSignals(engine, containers),
  });
  const coming = createComing(createPuller(engine), make, settle);
  const guest = createGuest((ref, order) => beginIn(engine, ref, order), {
    relay: WATCHDOG_PATH,
    usage: async (ref) => ({ ...(await readStatistics(engine, ref)), diskBytes: disk.measured(ref) }),
    gpus: (_, spec) => sizeOf(settings, spec).gpus,
    egress: {
      listOf: (spec) => egress(sizeOf(settings, spec).offer),
      async begin(ref) {
        const container = await containers.inspect(ref);
        const [program] = runningWatchdog(container);
        const hasSecrets = container.Config.Labels[SECRETS_LABEL] === ref;
        return { ...(await beginEgress(engine, ref, program)), hasSecrets };
      },
    },
    pause,
    snapshots,
    /** Engines may silently leave a GPU out. */
    async proofOf(ref) {
      const container = await containers.look(ref);
      return container ? { gpus: claimOf(container.Config.Labels).devices.length } : 'the container is gone';
    },
  });

  async function create(order: ContainerOrder): Promise<Created> {
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
    const outcome = await make(order, claim).catch(unknownOutcome);
    if (outcome !== 'no_image') return settle(order.tag, outcome);
    if (order.snapshot !== undefined) return settle(order.tag, refused('The snapshot is not on the engine'));
    const { image } = contentsOf(settings, claim.offer);
    if (settings.pull === 'missing') return coming.awaitImage(image, order, claim);
    return settle(order.tag, refused(`The image ${image} is not on the engine`));
  }

  /** Releases the reservation: whatever the outcome, the engine's list shows the container from now on, if there is one. */
  function settle(tag: string, outcome: Created): Created {
    reservations.release(tag, outcome.kind === 'unknown');
    free.forget();
    return outcome;
  }

  async function inspect(ref: Ref): Promise<Machine | undefined> {
    const awaited = coming.inspect(ref);
    if (awaited?.state === 'provisioning') return awaited;
    const container = await containers.look(ref);
    if (!container) return awaited;
    const state = STATES.get(container.State?.Status);
    // Podman has a state `unknown`.
    if (state === undefined) throw new Error(`the engine does not say the state of ${ref}`);
    if (state === 'ended') {
      const note = await whyEnded(engine, container);
      return { ref, state, note, ...(wroteBesideDisk(container.State.ExitCode) ? { exceeded: 'disk' } : {}) };
    }
    if (state !== 'running') return { ref, state };
    const claim = claimOf(container.Config.Labels);
    const exceeded = claim.diskGb === undefined ? undefined : await disk.exceeded(ref, claim.diskGb);
    if (exceeded !== undefined) return { ref, state: 'ended', exceeded: 'disk', note: exceeded };
    const deadline = await deadlines.read(ref);
    return { ref, state, ...(deadline === undefined ? {} : { deadline }) };
  }

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
    return (await containers.labelled())
      .filter(({ Labels, Names }) => Labels[TAG_LABEL]?.startsWith(prefix) && Names.includes(`/${Labels[TAG_LABEL]}`))
      .map(({ Labels, State, Created }) => ({
        ref: Labels[TAG_LABEL] as string,
        tag: Labels[TAG_LABEL] as string,
        state: STATES.get(State) ?? 'provisioning', // It exists; inspecting it alone shows more.
        createdAt: Number(Labels[CREATED_LABEL] ?? Created),
      }));
  }

  async function destroy(ref: Ref): Promise<void> {
    await coming.cancel(ref);
    const container = await containers.look(ref);
    await containers.remove(ref);
    // A reference without a container may name a network. A network that cannot be removed with its container is left to the sweep.
    const network = container ? container.Config.Labels[NETWORK_LABEL] : ref;
    if (network !== undefined)
      await networks.release(network).catch((error) => {
        if (!container) throw error;
      });
    deadlines.forget(ref);
    disk.forget(ref);
    reservations.release(ref);
    free.forget();
  }

  return {
    name: 'container',
    identity: engine.identity,
    absence: { lists: 2, apartSeconds: 10 },
    create,
    inspect,
    destroy,
    listOwned,
    find: async (tag) => (await listContainers(tag)).filter((it) => it.tag === tag),
    doctor: {
      check: () => checkContainers(engine, settings, books),
      trial: 'free',
      async tryDisk(ref, { spec }) {
        const { offer, diskGb } = sizeOf(settings, spec);
        const { image, runtime } = contentsOf(settings, offer);
        // A kernel of its own may keep /tmp in memory.
        return sharesKernel(runtime) ? tryDisk({ engine, guest, ref }, { image, diskGb }) : '';
      },
      unlimited: (ref, quote) => findMissing({ engine, containers, guest, ref }, settings, quote.spec),
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
      return offersOf(settings, 'container').map((it) => ({
        ...it,
        runtime: contentsOf(settings, it.offerId ?? undefined).runtime,
        available: isAvailable(it.spec),
      }));
    },

    extend: deadlines.move,

    async close() {
      await coming.close();
      engine.close();
    },
  };
}
