import type { Ref, Snapshots } from '../../backend.ts';
import { GIB } from '../../kit/claim.ts';
import { createTake, type NotTaken, notTaken, OURS, type SnapshotParts, sizeIn } from '../../kit/snapshots.ts';
import { isDiskFull, type LxdApi, LxdRefusal, orAbsent, STATUS, textOf } from './api.ts';
import {
  CREATED_KEY,
  claimIn,
  isMachine,
  type LxdInstance,
  nameOf,
  SHARED_CONFIG,
  targetOf,
  withoutOthers,
} from './describe.ts';
import { bytesHeld } from './disk-held.ts';
import { diskSize } from './disk-size.ts';
import { filePath } from './files.ts';
import { type LxdInstances, stateOf } from './instances.ts';
import { COPYING_DRIVERS, type LxdSettings } from './settings.ts';

/** The tag of a snapshot, on its instance and on that of its template. */
const SNAPSHOT_KEY = 'user.purser.snapshot';
/** The bytes that it keeps beyond its template's image. An instance without them is what a take that broke off has left. */
const BYTES_KEY = 'user.purser.snapshot_bytes';
/** The bytes on its disk, with those of the image. */
const DISK_BYTES_KEY = 'user.purser.snapshot_disk_bytes';
/** The disk of the lease that it was taken of. */
const DISK_KEY = 'user.purser.snapshot_disk_gb';
const FULL = 'Its disk is full, and LXD has to write something there';
const IMAGE_KEY = 'volatile.base_image';
/**
 * The storage driver that limits a disk by all that it holds, shared blocks included: on it the size of a snapshot is found by
 * trying.
 */
const SHARING_DRIVER = 'btrfs';
const COPY_MILLISECONDS = 300_000;
const TEMPLATE_MILLISECONDS = 120_000;

const snapshotName = (tag: string) => nameOf(tag).replace('purser-', 'purser-snapshot-');
/** The name of the instance of a snapshot's template, and of copies of the snapshot: each is there only while it is measured. */
const templateName = (tag: string) => nameOf(tag).replace('purser-', 'purser-template-');
const namesOf = (tag: string) => [snapshotName(tag), templateName(tag)];
const SNAPSHOT_NAME = /^purser-(snapshot|template)-[0-9a-f]{32}$/;

/** Returns the tag of the snapshot that an instance belongs to; not for a copy of one. */
function snapshotTag({ name, config }: LxdInstance): string | undefined {
  const tag = config?.[SNAPSHOT_KEY];
  return tag !== undefined && namesOf(tag).includes(name) ? tag : undefined;
}

/** Returns the instance of a snapshot that was taken whole; undefined when the server says that there is none. */
export async function lookAtSnapshot(instances: LxdInstances, tag: string): Promise<LxdInstance | undefined> {
  const instance = await instances.look(snapshotName(tag));
  return instance && snapshotTag(instance) === tag && instance.config?.[BYTES_KEY] ? instance : undefined;
}

/** Awaits work on what has been made already, and makes nothing: that it failed is as clear as a refusal. */
const orRefused = <T>(work: Promise<T>): Promise<T> =>
  work.catch((error) => {
    throw new LxdRefusal(`its copy cannot be prepared: ${textOf(error)}`, 400);
  });

/** Returns whether what is on the disk of a snapshot, with its image, has no room on a smaller disk than its lease had. */
export function isTooLargeFor({ config }: LxdInstance, diskGb: number): boolean {
  return diskGb < Number(config?.[DISK_KEY]) && diskGb * GIB < Number(config?.[DISK_BYTES_KEY]);
}

/**
 * Creates the snapshots of containers: copies of the instance that share its blocks and never run, without its configuration and
 * Purser's files. LXD would freeze the watchdog during the copy; so Purser stops the other processes instead (docs/decisions/0083).
 */
export function createLxdSnapshots(
  lxd: LxdApi,
  { snapshot_gib_day_usd: price }: LxdSettings,
  { instances, signals, gibMax, now }: SnapshotParts & { instances: LxdInstances },
): Snapshots {
  /** The bytes of the images that templates have, by fingerprint. */
  const imageBytes = new Map<string, number>();

  async function remove(tag: string): Promise<void> {
    for (const name of namesOf(tag)) if (await instances.look(name)) await instances.remove(name);
  }

  /** Returns the driver of the storage pool that an instance is on. */
  async function driverOf({ devices }: LxdInstance): Promise<string> {
    const { pool = '' } = devices?.root ?? {};
    return (await lxd.ask<{ driver: string }>('GET', `/1.0/storage-pools/${encodeURIComponent(pool)}`)).driver;
  }

  async function whyNot(ref: Ref): Promise<NotTaken | undefined> {
    const instance = await instances.look(ref);
    if (!instance || stateOf(instance) === 'ended') return notTaken('The machine is gone');
    if (isMachine(instance)) return notTaken('None are taken of virtual machines');
    const driver = await driverOf(instance);
    if (!COPYING_DRIVERS.includes(driver))
      return notTaken(`The driver ${driver} of its storage pool copies every file`);
    const image = instance.config?.[IMAGE_KEY];
    if (image === undefined) return notTaken('The engine does not say its image');
    if (!imageBytes.has(image) && !(await orAbsent(lxd.ask('GET', `/1.0/images/${image}`))))
      return notTaken('The engine does not have its image');
    return undefined;
  }

  /** Returns the configuration and the devices of what is made under a tag for the disk of an instance. */
  function described(tag: string, like: LxdInstance) {
    const disk = { [DISK_KEY]: String(claimIn(like).diskGb) };
    const labels = { [SNAPSHOT_KEY]: tag, [CREATED_KEY]: String(now()), ...disk };
    return { config: { ...SHARED_CONFIG, ...labels }, devices: { root: like.devices?.root ?? {} } };
  }

  /** Makes an instance that never runs where another one is. */
  const make = (like: LxdInstance, wanted: object, milliseconds = COPY_MILLISECONDS) =>
    lxd.run('POST', `/1.0/instances${targetOf(like)}`, { type: 'container', profiles: [], ...wanted }, milliseconds);

  /** Returns the bytes of the files of an image, counted as those of a snapshot are. */
  async function bytesOfImage(fingerprint: string, tag: string, like: LxdInstance): Promise<number> {
    const known = imageBytes.get(fingerprint);
    if (known !== undefined) return known;
    const name = templateName(tag);
    const wanted = { name, source: { type: 'image', fingerprint }, ...described(tag, like) };
    await make(like, wanted, TEMPLATE_MILLISECONDS);
    const bytes = await orRefused(diskSize(lxd, name, Number.POSITIVE_INFINITY));
    await instances.remove(name);
    imageBytes.set(fingerprint, bytes);
    return bytes;
  }

  /** Returns whether a disk of this size holds a snapshot: LXD makes no copy of one that takes more than its limit. */
  async function fits(tag: string, like: LxdInstance, bytes: number): Promise<boolean> {
    const name = templateName(tag);
    const { config, devices } = described(tag, like);
    const source = { type: 'copy', source: snapshotName(tag), instance_only: true };
    const limited = { root: { ...devices.root, size: String(bytes) } };
    const isMade = await make(like, { name, source, config, devices: limited }).then(
      () => true,
      (error) => {
        if (isDiskFull(error)) return false;
        throw error;
      },
    );
    await instances.remove(name);
    return isMade;
  }

  /** Removes what was Purser's, and the templates: LXD writes those as the host's root, through links that a tenant has made. */
  async function clean(name: string): Promise<void> {
    for (const path of OURS) await orAbsent(lxd.ask('DELETE', filePath(name, path)));
    const path = `/1.0/instances/${name}/metadata`;
    const metadata = await orAbsent(lxd.ask<object>('GET', path));
    if (metadata) await lxd.ask('PUT', path, { ...metadata, templates: {} });
  }

  const taking = createTake({
    ...{ signals, whyNot, remove, textOf },
    // Another member of a cluster may have received what an answer of 500 and more is about.
    isAnswer: (error) => error instanceof LxdRefusal && error.status < 500,
    meaningOf: (error) => (isDiskFull(error) ? notTaken(FULL, textOf(error), 'lease_limit_exceeded') : undefined),

    async keep({ ref, tag, bytesMax }, whileStopped) {
      const instance = await instances.look(ref);
      const image = instance?.config?.[IMAGE_KEY];
      if (!instance || image === undefined) throw new LxdRefusal('the machine is gone', 404);
      const below = await bytesOfImage(image, tag, instance);
      const name = snapshotName(tag);
      const source = { type: 'copy', source: ref, instance_only: true, allow_inconsistent: true };
      const kept = withoutOthers(instance, described(tag, instance));
      await whileStopped(() => make(instance, { name, source, ...kept }));
      await orRefused(clean(name));
      const all = await orRefused(diskSize(lxd, name, below + bytesMax));
      const counted = Math.max(0, all - below);
      const isShared = counted <= bytesMax && (await driverOf(instance)) === SHARING_DRIVER;
      const bytes = isShared ? await bytesHeld(counted, bytesMax, (it) => fits(tag, instance, below + it)) : counted;
      if (bytes > bytesMax) {
        await remove(tag);
        return notTaken(`It takes more than the ${bytesMax / GIB} GiB of its disk`, undefined, 'lease_limit_exceeded');
      }
      const sizes = { [BYTES_KEY]: String(bytes), [DISK_BYTES_KEY]: String(all) };
      await lxd.ask('PATCH', `/1.0/instances/${name}`, { config: sizes });
      return { kind: 'taken', bytes };
    },
  });

  return {
    price,
    gibMax,
    remove,
    ...taking,

    async letRun(ref) {
      if (!(await instances.isMachine(ref))) await taking.letRun(ref);
    },

    async find(tag) {
      const instance = await lookAtSnapshot(instances, tag);
      if (!instance) await lxd.confirmProject();
      return instance && sizeIn(instance.config?.[BYTES_KEY], instance.name);
    },

    async list(prefix) {
      const all = await instances.list();
      const silent = all.find((it) => it.status_code === STATUS.error && SNAPSHOT_NAME.test(it.name) && !it.config);
      if (silent) throw new Error(`${lxd.socket}: the member ${silent.location} does not answer for ${silent.name}`);
      return all.flatMap((it) => {
        const tag = snapshotTag(it);
        return tag?.startsWith(prefix) ? [{ tag, createdAt: Number(it.config?.[CREATED_KEY]) }] : [];
      });
    },
  };
}
