import type { Ref } from '../../backend.ts';
import { GIB } from '../../kit/claim.ts';
import { type Engine, statusOf } from './engine.ts';

/** A container is measured when its lease is polled, and not more often than this. */
const MEASURE_MILLISECONDS = 50_000;
/** The engine walks through all files of the container. It may spend a twentieth of the time on that. */
const REST_FACTOR = 19;
/** The longest wait for a measurement. One that takes longer is reported by the next poll. */
const PATIENCE_MILLISECONDS = 2_000;
const GIVE_UP_MILLISECONDS = 600_000;
/** The engine's failures in a row after which a container is over its limit: a path that is too long makes every one fail. */
const FAILURES_MAX = 3;

/** Measures how much containers have written, for engines without quotas. */
type DiskWatch = {
  /**
   * Returns a sentence when a container wrote more than `diskGb`, or can no longer be measured; undefined if it did not, or has not
   * been measured yet.
   */
  exceeded(ref: Ref, diskGb: number): Promise<string | undefined>;
  /** Returns the bytes of the last measurement that succeeded. */
  measured(ref: Ref): number | undefined;
  forget(ref: Ref): void;
};

type KnownDisk = { dueAt: number; failures: number; bytes?: number | undefined; fault?: string | undefined };

export function createDiskWatch({ ask, docker }: Engine, everyMilliseconds = MEASURE_MILLISECONDS): DiskWatch {
  const known = new Map<Ref, KnownDisk>();
  /** True once this engine has measured a container. Until then its failures are not taken for the tenant's doing. */
  let canMeasure = false;

  async function measure(ref: Ref, diskGb: number): Promise<void> {
    const began = performance.now();
    const bytes = await ask(
      'size',
      (abortSignal) => readSize({ docker }, ref, abortSignal),
      GIVE_UP_MILLISECONDS,
    ).catch(() => 'unknown' as const);
    const before = known.get(ref);
    if (!before) return; // It was destroyed.
    const ended = performance.now();
    const dueAt = ended + Math.max(everyMilliseconds, REST_FACTOR * (ended - began));
    if (bytes === 'unknown') known.set(ref, { ...before, dueAt });
    else if (bytes === 'failed') {
      const failures = before.failures + (canMeasure ? 1 : 0);
      const fault =
        failures < FAILURES_MAX ? undefined : 'its disk can no longer be measured: a path in it is too long';
      known.set(ref, { ...before, dueAt, failures, fault });
    } else {
      canMeasure = true;
      const wrote = `it wrote ${(bytes / GIB).toFixed(1)} GiB to its disk and may write ${diskGb}`;
      known.set(ref, { dueAt, failures: 0, bytes, fault: bytes <= diskGb * GIB ? undefined : wrote });
    }
  }

  return {
    async exceeded(ref, diskGb) {
      const now = performance.now();
      // A container that was just made has written nothing. It shows once whether its engine measures at all.
      if (!known.has(ref)) known.set(ref, { dueAt: canMeasure ? now + everyMilliseconds : now, failures: 0 });
      const before = known.get(ref) as KnownDisk;
      if (before.fault === undefined && now >= before.dueAt) {
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

/** Returns the bytes that a container wrote, or that the engine failed to count them. Throws when it does not answer. */
export async function readSize(
  { docker }: Pick<Engine, 'docker'>,
  ref: Ref,
  abortSignal: AbortSignal,
): Promise<number | 'failed'> {
  const container = docker.getContainer(ref);
  const options = { size: true, abortSignal } as object;
  try {
    const { SizeRw } = (await container.inspect(options)) as { SizeRw?: unknown };
    if (typeof SizeRw !== 'number' || SizeRw < 0) return 'failed';
    // Podman reports 0 when it fails as well; then it cannot list the changes either.
    if (SizeRw === 0) await container.changes({ abortSignal });
    return SizeRw;
  } catch (error) {
    if (statusOf(error) === 500) return 'failed';
    throw error;
  }
}
