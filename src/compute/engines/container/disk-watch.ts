import type { IncomingMessage } from 'node:http';
import type Docker from 'dockerode';
import { parseJson } from '../../../base/parse-json.ts';
import type { Ref } from '../../backend.ts';
import { GIB } from '../../kit/claim.ts';
import type { Engine } from './engine.ts';

/** A container is measured when its lease is polled, and not more often than this. */
const MEASURE_MILLISECONDS = 50_000;
/** The engine walks through all files of the container. It may spend a twentieth of the time on that. */
const REST_FACTOR = 19;
/** The longest wait for a measurement. One that takes longer is reported by the next poll. */
const PATIENCE_MILLISECONDS = 2_000;
const GIVE_UP_MILLISECONDS = 600_000;

/**
 * The engine's own files that it mounts into a container, by the member with their source, which is empty where one is not mounted.
 * The container's root may write them, and they are no part of its layer.
 */
const BESIDE_LAYER = {
  HostsPath: '/etc/hosts',
  HostnamePath: '/etc/hostname',
  ResolvConfPath: '/etc/resolv.conf',
};

/** Measures how much containers have written, for engines without quotas. Reports nothing for a container that cannot be measured. */
type DiskWatch = {
  /** Returns a sentence when a container wrote more than `diskGb`; undefined if it did not, or has not been measured yet. */
  exceeded(ref: Ref, diskGb: number): Promise<string | undefined>;
  /** Returns the bytes of the last measurement that succeeded. */
  measured(ref: Ref): number | undefined;
  forget(ref: Ref): void;
};

export function createDiskWatch({ ask, docker }: Engine, everyMilliseconds = MEASURE_MILLISECONDS): DiskWatch {
  const known = new Map<Ref, { dueAt: number; bytes?: number | undefined; fault?: string }>();

  async function measure(ref: Ref, diskGb: number): Promise<void> {
    const began = performance.now();
    const bytes = await ask('size', (abortSignal) => readSize(ref, abortSignal), GIVE_UP_MILLISECONDS).catch(
      () => undefined,
    );
    const before = known.get(ref);
    if (!before) return; // It was destroyed.
    const ended = performance.now();
    const dueAt = ended + Math.max(everyMilliseconds, REST_FACTOR * (ended - began));
    if (bytes === undefined) known.set(ref, { ...before, dueAt });
    else if (bytes <= diskGb * GIB) known.set(ref, { dueAt, bytes });
    else
      known.set(ref, {
        dueAt,
        bytes,
        fault: `it wrote ${(bytes / GIB).toFixed(1)} GiB to its disk and may write ${diskGb}`,
      });
  }

  async function readSize(ref: Ref, abortSignal: AbortSignal): Promise<number | undefined> {
    const container = docker.getContainer(ref);
    const found = (await container.inspect({ size: true, abortSignal } as object)) as object as Record<string, unknown>;
    const { SizeRw } = found;
    if (typeof SizeRw !== 'number') return undefined;
    const mounted = Object.entries(BESIDE_LAYER).filter(([source]) => found[source]);
    const beside = await Promise.all(mounted.map(([, path]) => readFileSize(container, path, abortSignal)));
    return beside.reduce((sum, it) => sum + it, SizeRw);
  }

  return {
    async exceeded(ref, diskGb) {
      const now = performance.now();
      const before = known.get(ref);
      // A container that was just made has written nothing.
      if (!before) known.set(ref, { dueAt: now + everyMilliseconds });
      else if (before.fault === undefined && now >= before.dueAt) {
        known.set(ref, { ...before, dueAt: Number.POSITIVE_INFINITY }); // Until this measurement is over.
        const pause = Promise.withResolvers<void>();
        const timer = setTimeout(pause.resolve, PATIENCE_MILLISECONDS);
        await Promise.race([measure(ref, diskGb), pause.promise]);
        clearTimeout(timer);
      }
      return known.get(ref)?.fault;
    },
    measured: (ref) => known.get(ref)?.bytes,
    forget: (ref) => void known.delete(ref),
  };
}

/** Returns the size of one file in a container; 0 where the engine finds none. */
async function readFileSize(container: Docker.Container, path: string, abortSignal: AbortSignal): Promise<number> {
  const answer = await container.infoArchive({ path, abortSignal } as { path: string }).catch(() => undefined);
  const header = (answer as IncomingMessage | undefined)?.headers['x-docker-container-path-stat'];
  answer?.resume();
  if (typeof header !== 'string') return 0;
  const { size } = parseJson(Buffer.from(header, 'base64').toString()) as { size?: unknown };
  return typeof size === 'number' && size > 0 ? size : 0;
}
