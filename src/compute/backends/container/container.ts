import { Refusal } from '../../../refusal.ts';
import type { Backend, Created, Machine, Owned, Quote, Ref, Spec } from '../../backend.ts';
import { offersOf, quoteOf } from '../priced.ts';
import { createRoom } from './capacity.ts';
import { checkContainers } from './check.ts';
import { type Claim, claimOf, labelsOf, sizeOf, TAG_LABEL } from './claim.ts';
import { makeContainer } from './describe.ts';
import { openEngine, statusOf, textOf, wasNeverSent } from './engine.ts';
import { countGpus, gpuDevices, LIST_GPUS } from './gpus.ts';
import { createPuller, lacksImage } from './image.ts';
import { findUnlimited, READ_LIMITS } from './limits.ts';
import { openSession, runInside, uploadInto } from './session.ts';
import type { ContainerSettings } from './settings.ts';
import { createDeadlines, hasWatchdog, putWatchdog } from './watchdog.ts';

const CREATED_LABEL = 'purser.created';
const OFFERS_MILLISECONDS = 5_000;
const COUNT_GPUS = { command: LIST_GPUS, timeoutSeconds: 10, streamBytesMax: 64 * 1024 };

type Order = { tag: string; quote: Quote; deadline: number };

/** A container that waits for its image. `failed` says why it will never be made. */
type Coming = { wanted: boolean; making: Promise<Created | 'no_image'> | undefined; failed: string | undefined };

/**
 * Containers of a Docker Engine or Podman. The tag is the container's name, its label and its reference; its first
 * process is a watchdog, which keeps the deadline. Nothing of this machine's file system is used, so the engine may run
 * on another machine. `prefix` begins all tags of this installation.
 */
export function openContainerBackend(settings: ContainerSettings, { prefix }: { prefix: string }): Backend {
  const engine = openEngine(settings.socket);
  const { docker, ask } = engine;
  const deadlines = createDeadlines(engine);
  const image = createPuller(engine, settings.image);
  const room = createRoom(settings, prefix, {
    list: async (milliseconds) => (await labelled(milliseconds)).map(({ Labels }) => claimOf(Labels)),
    capacity: engine.capacity,
  });
  const coming = new Map<Ref, Coming>();
  const counted = new Set<Ref>();

  async function create(order: Order): Promise<Created> {
    let claim: Claim | { lacking: string };
    try {
      const architecture = await engine.architecture();
      if (!hasWatchdog(architecture))
        return refused(`There is no watchdog for the architecture of the engine's machine (${architecture})`);
      claim = await room.take(order.tag, sizeOf(settings, order.quote.spec));
      if ('lacking' in claim) return refused(`There is no room: ${claim.lacking}`, undefined, 'capacity_unavailable');
    } catch (error) {
      // Nothing was asked for yet.
      return settle(order.tag, refused('The container cannot be ordered', textOf(error)));
    }
    const made = await make(order, claim).catch(unknown);
    if (made !== 'no_image') return settle(order.tag, made);
    if (settings.pull === 'missing') return awaitImage(order, claim);
    return settle(order.tag, refused(`The image ${settings.image} is not on the engine`));
  }

  /** Whatever the outcome, the engine's list shows it from now on. */
  function settle(tag: string, made: Created): Created {
    room.leave(tag, made.kind === 'unknown');
    return made;
  }

  /** A pull may take long: the machine is `provisioning` meanwhile, and is made when the image is there. */
  function awaitImage(order: Order, claim: Claim): Created {
    const it: Coming = { wanted: true, making: undefined, failed: undefined };
    coming.set(order.tag, it);
    void arrive(order, claim, it);
    return { kind: 'created', ref: order.tag };
  }

  async function arrive(order: Order, claim: Claim, it: Coming): Promise<void> {
    const fault = await image.pull().then(() => undefined, textOf);
    if (!it.wanted) return;
    it.making =
      fault === undefined
        ? make(order, claim).catch(unknown)
        : Promise.resolve(refused(`The image ${settings.image} cannot be pulled`, fault));
    const made = await it.making;
    const outcome = made === 'no_image' ? refused(`The image ${settings.image} was pulled and is not there`) : made;
    if (outcome.kind === 'created') coming.delete(order.tag);
    else it.failed = 'words' in outcome && outcome.words ? `${outcome.reason} (${outcome.words})` : outcome.reason;
    settle(order.tag, outcome);
  }

  /** Makes a container and starts it. Throws when the outcome is unknown. */
  async function make({ tag, quote, deadline }: Order, claim: Claim): Promise<Created | 'no_image'> {
    const created = String(deadline - quote.spec.max_seconds - settings.provision_seconds);
    let isFresh = true;
    try {
      await makeContainer(engine, {
        name: tag,
        image: settings.image,
        labels: { ...labelsOf(claim), [CREATED_LABEL]: created },
        cpus: claim.cpus,
        memoryGib: claim.memoryGib,
        pids: settings.pids,
        network: settings.network,
        deadline,
        devices: claim.devices,
        gpuMode: 'offers' in settings ? 'nvidia' : settings.gpu_mode,
        diskGb: sizeOf(settings, quote.spec).diskGb,
      });
    } catch (error) {
      if (wasNeverSent(error)) return refused('The provider cannot be reached', textOf(error));
      if (statusOf(error) === undefined) throw error;
      if (lacksImage(error)) return 'no_image';
      // An answer means that nothing is under way: an earlier attempt has made the container, or there is none.
      const there = await look(tag);
      if (!there) return refused('The provider refused the machine', textOf(error));
      if (there.State.Status !== 'created') return { kind: 'created', ref: tag };
      isFresh = false; // Its deadline is the one of that attempt.
    }
    const started = await start(tag);
    if (isFresh && started.kind === 'created') deadlines.note(tag, deadline);
    return started;
  }

  /** Starts an existing container. Throws when the outcome is unknown. */
  async function start(tag: string): Promise<Created> {
    try {
      await engine.userOf(tag); // Nobody should pay for a container in which no command can be run.
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
      return await ask('inspect', (abortSignal) => docker.getContainer(ref).inspect({ abortSignal }));
    } catch (error) {
      if (statusOf(error) === 404) return undefined;
      throw error;
    }
  }

  async function inspect(ref: Ref): Promise<Machine | undefined> {
    const awaited = coming.get(ref);
    if (awaited && awaited.failed === undefined)
      return { ref, state: 'provisioning', note: `the image ${settings.image} is being pulled` };
    const found = await look(ref);
    if (!found) return awaited && { ref, state: 'ended', note: awaited.failed };
    const state = stateOf(found.State.Status);
    if (state === 'ended') return { ref, state, note: whyEnded(found.State) };
    if (state !== 'running') return { ref, state };
    const lacking = await lackingGpus(ref, claimOf(found.Config.Labels));
    const deadline = await deadlines.read(ref);
    return {
      ref,
      ...(lacking === undefined ? { state } : { state: 'provisioning', note: lacking }),
      ...(deadline === undefined ? {} : { deadline }),
    };
  }

  /** Engines may silently leave a GPU out, so they are counted inside, once, before the machine counts as running. */
  async function lackingGpus(ref: Ref, { devices }: Claim): Promise<string | undefined> {
    if (!devices.length || counted.has(ref)) return undefined;
    const { stdout, stderr } = await runInside(engine, ref, COUNT_GPUS);
    const count = countGpus(stdout.toString());
    if (count < devices.length) {
      const said = stderr.toString().trim().split('\n').at(-1);
      return `${LIST_GPUS} shows ${count} of ${devices.length} GPUs inside${said ? ` (${said.slice(0, 200)})` : ''}`;
    }
    counted.add(ref);
    return undefined;
  }

  /** Every container with our label, of all installations. */
  const labelled = (milliseconds?: number) =>
    ask(
      'list',
      (abortSignal) => docker.listContainers({ all: true, filters: { label: [TAG_LABEL] }, abortSignal }),
      milliseconds,
    );

  async function listOwned(prefix: string): Promise<Owned[]> {
    return (await labelled())
      .filter(({ Labels }) => Labels[TAG_LABEL]?.startsWith(prefix))
      .map(({ Labels, State, Created }) => ({
        ref: Labels[TAG_LABEL] as string,
        tag: Labels[TAG_LABEL] as string,
        state: stateOf(State),
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
    await remove(ref);
    deadlines.forget(ref);
    room.leave(ref);
    counted.delete(ref);
  }

  async function remove(ref: Ref): Promise<void> {
    try {
      await ask('remove', (abortSignal) => docker.getContainer(ref).remove({ force: true, v: true, abortSignal }));
    } catch (error) {
      const status = statusOf(error);
      if (status !== 404 && !(status === 409 && /already in progress/.test(textOf(error)))) throw error;
    }
  }

  return {
    name: 'container',
    absence: { lists: 2, apartSeconds: 10 },
    create,
    inspect,
    destroy,
    listOwned,
    find: async (tag) => (await listOwned(tag)).filter((it) => it.tag === tag),
    check: () => checkContainers(engine, settings),
    trial: 'free',
    async unlimited(ref, quote) {
      const { stdout } = await runInside(engine, ref, READ_LIMITS);
      return findUnlimited(stdout.toString(), sizeOf(settings, quote.spec).memoryGib);
    },
    exec: (ref, order) => runInside(engine, ref, order),
    upload: (ref, path, content) => uploadInto(engine, ref, path, content),
    session: (ref, order) => openSession(engine, ref, order),

    async quote(spec) {
      const quote = quoteOf(settings, spec);
      const { gpu, gpus } = sizeOf(settings, spec);
      const devices = 'offers' in settings || gpu === null ? [] : (gpuDevices(settings)[gpu] ?? []);
      if (gpus > devices.length)
        throw new Refusal('invalid_request', `spec.gpus: at most ${devices.length} ${gpu} here.`);
      return quote;
    },

    async offers() {
      const hasRoom = await room.look(OFFERS_MILLISECONDS).catch(() => () => false);
      const isAvailable = (spec: Spec) => hasRoom(sizeOf(settings, spec));
      return offersOf(settings, 'container').map((it) => ({ ...it, available: isAvailable(it.spec) }));
    },

    async extend(ref, deadline) {
      if (!(await look(ref))) return { kind: 'refused', reason: 'the container is gone' };
      return deadlines.move(ref, deadline);
    },

    async close() {
      image.stop();
      for (const it of coming.values()) it.wanted = false;
      await Promise.all([...coming.values()].map((it) => it.making));
    },
  };
}

const unknown = (error: unknown): Created => ({ kind: 'unknown', reason: textOf(error) });
const refused = (
  reason: string,
  words?: string,
  code: 'provider_unavailable' | 'capacity_unavailable' = 'provider_unavailable',
): Created & { kind: 'refused' } => ({
  kind: 'refused',
  code,
  reason: `${reason}. Nothing was charged.`,
  ...(words === undefined ? {} : { words }),
});

/** In words, why a container does not run. Its first process says so by its exit code (watchdog.c). */
function whyEnded({ Status, ExitCode, OOMKilled }: { Status: string; ExitCode: number; OOMKilled: boolean }): string {
  if (Status === 'created') return 'it was made and never started';
  if (ExitCode === 0) return "its deadline has passed by the clock of the engine's machine";
  if (ExitCode === 143) return 'somebody stopped it';
  if (OOMKilled) return 'it ran out of memory';
  return ExitCode === 137 ? 'somebody killed it' : `its watchdog ended with exit code ${ExitCode}`;
}

function stateOf(status: string): Machine['state'] {
  if (status === 'running' || status === 'paused') return 'running';
  // One that was made and not started never will be: whoever made it died in between, and it is made anew.
  return status === 'restarting' ? 'provisioning' : 'ended';
}
