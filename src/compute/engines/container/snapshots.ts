import type { Ref, Snapshots } from '../../backend.ts';
import { GIB } from '../../kit/claim.ts';
import { createTake, type NotTaken, notTaken, OURS, type SnapshotParts, sizeIn } from '../../kit/snapshots.ts';
import { createCleanImage, type ImageFacts } from './clean-image.ts';
import type { Containers } from './containers.ts';
import { type Engine, statusOf, textOf } from './engine.ts';
import { lacksImage } from './image.ts';
import { type ContainerSettings, sharesKernel } from './settings.ts';
import { WATCHDOG_DIRECTORY } from './watchdog.ts';

/** The images of snapshots. The host in the name keeps an engine from looking for them anywhere else. */
const REPOSITORY = 'localhost/purser-snapshot';
/** The image as the engine commits it, with the settings of the lease, until the one without them is there. */
const RAW = '.raw';
/** The label with the bytes that a snapshot keeps beyond the template's image. */
const BYTES_LABEL = 'purser.snapshot_bytes';
/** The engine copies what the lease has written, or walks through it. */
const COPY_MILLISECONDS = 300_000;
/** The paths that the image of a snapshot hides. */
const HIDDEN = [...OURS, WATCHDOG_DIRECTORY];

/** Returns the name of a snapshot's image. */
export const imageOfSnapshot = (tag: string): string => `${REPOSITORY}:${tag}`;

/** Returns the bytes of an image that a snapshot has put there: none in that of a template. */
const bytesIn = ({ Config }: ImageFacts): number => sizeIn(Config.Labels?.[BYTES_LABEL] ?? '0', 'the image');

/**
 * Creates the snapshots of containers: the engine commits what a container has written as a layer, and gets an image of that layer
 * with the settings of the image below it. The engine's own pause would stop process 1, and with it the deadline; so only the other
 * processes are stopped (docs/decisions/0083).
 */
export function createContainerSnapshots(
  engine: Engine,
  { snapshot_gib_day_usd: price }: ContainerSettings,
  { containers, signals, gibMax, now }: SnapshotParts & { containers: Containers },
): Snapshots {
  const { docker, ask, request } = engine;
  const loadImage = createCleanImage(engine);

  /** Returns the facts of an image; undefined when the engine confirms that there is none. */
  async function look(image: string): Promise<ImageFacts | undefined> {
    try {
      return await request<ImageFacts>('GET', `/images/${image}/json`);
    } catch (error) {
      if (lacksImage(error)) return undefined;
      throw error;
    }
  }

  async function removeImage(image: string): Promise<void> {
    try {
      await ask('remove', (abortSignal) => docker.getImage(image).remove({ abortSignal } as object), COPY_MILLISECONDS);
    } catch (error) {
      if (!lacksImage(error)) throw error;
    }
  }

  async function remove(tag: string): Promise<void> {
    for (const image of [imageOfSnapshot(tag), imageOfSnapshot(tag + RAW)]) await removeImage(image);
  }

  /** Returns why no snapshot of a container is taken; undefined if it may be. */
  async function whyNot(ref: Ref, bytesMax: number): Promise<NotTaken | undefined> {
    const container = await containers.inspect(ref);
    if (!sharesKernel(container.HostConfig.Runtime))
      return notTaken('Under its runtime the engine does not see what a lease writes');
    const measure = (abortSignal: AbortSignal) =>
      docker.getContainer(ref).inspect({ size: true, abortSignal } as object);
    const { SizeRw = -1 } = (await ask('size', measure, COPY_MILLISECONDS)) as { SizeRw?: number };
    // Docker reports -1 where a path is too long for it.
    if (SizeRw < 0) return notTaken('The engine does not say how much the lease has written');
    const below = await look(container.Image);
    if (!below) return notTaken('The engine does not have its image');
    if (SizeRw + bytesIn(below) > bytesMax)
      return notTaken(
        `With the snapshot that it was made from it takes more than the ${bytesMax / GIB} GiB of its disk`,
        undefined,
        'lease_limit_exceeded',
      );
    const free = await engine.diskFree();
    // Podman copies the layer a second time before it drops the first.
    const needed = SizeRw * ((await engine.isPodman()) ? 2 : 1);
    if (free !== undefined && free < needed)
      return notTaken('There is no room for it on the disk of the engine', undefined, 'capacity_unavailable');
    return undefined;
  }

  const commit = (ref: Ref, tag: string) => {
    const order = { repo: REPOSITORY, tag: tag + RAW, pause: false };
    const committing = (abortSignal: AbortSignal) =>
      docker.getContainer(ref).commit({ ...order, abortSignal } as object);
    return ask('commit', committing, COPY_MILLISECONDS);
  };

  const taking = createTake({
    ...{ signals, whyNot, remove, textOf },
    isAnswer: (error) => statusOf(error) !== undefined,

    async keep({ ref, tag }, whileStopped) {
      const { Image } = await containers.inspect(ref);
      await whileStopped(() => commit(ref, tag));
      const [below, raw] = await Promise.all([look(Image), look(imageOfSnapshot(tag + RAW))]);
      if (!below || !raw) throw new Error(`the engine does not have ${below ? 'what it has committed' : Image}`);
      // The snapshot below may go while this one needs its layers: then no other snapshot pays for them.
      const bytes = bytesIn(below) + Math.max(0, raw.Size - below.Size);
      const config = { ...below.Config, Labels: { ...below.Config.Labels, [BYTES_LABEL]: String(bytes) } };
      await loadImage(imageOfSnapshot(tag), { ...raw, Config: config }, { hidden: HIDDEN, now: now() });
      await removeImage(imageOfSnapshot(tag + RAW));
      return { kind: 'taken', bytes };
    },
  });

  return {
    price,
    gibMax,
    remove,
    ...taking,

    async find(tag) {
      const image = await look(imageOfSnapshot(tag));
      if (!image) return undefined;
      if (image.Config.Labels?.[BYTES_LABEL] === undefined)
        throw new Error(`the image ${imageOfSnapshot(tag)} has no size`);
      return bytesIn(image);
    },

    async list(prefix) {
      const filters = { reference: [REPOSITORY] };
      const images = await ask('images', (abortSignal) => docker.listImages({ filters, abortSignal } as object));
      return images.flatMap(({ RepoTags, Created }) =>
        (RepoTags ?? [])
          .filter((it) => it.startsWith(imageOfSnapshot(prefix)))
          .map((it) => ({ tag: it.slice(REPOSITORY.length + 1).replace(RAW, ''), createdAt: Created })),
      );
    },
  };
}
