import { setTimeout as sleep } from 'node:timers/promises';
import type { Guest, Ref, Spec } from '../../backend.ts';
import { GIB, type LeaseSize, sizeOf } from '../../kit/claim.ts';
import { findUnlimited, READ_LIMITS } from '../../kit/limits.ts';
import type { Containers } from './containers.ts';
import type { Engine } from './engine.ts';
import { type ContainerSettings, contentsOf, sharesKernel } from './settings.ts';
import { readCounters } from './statistics.ts';

/** Tries the limits and the kernel of a running container, for doctor. */

const VERSION = /^Linux version (\S+)/;
const SPIN_SECONDS = 4;
const SPINNERS_MAX = 64;
/** The use of processors above the limit that is still within what one measurement may be wrong by. */
const CPU_SLACK = { factor: 1.3, cpus: 0.2 };
const MIB_PER_GIB = 1024;
/** The most memory that the trial takes; of more, only the limit that the kernel of the host counts by is compared. */
const TAKEN_MIB_MAX = 4 * MIB_PER_GIB;
const TAKE_SECONDS = 60;
const END_MILLISECONDS = 15_000;
const POLL_MILLISECONDS = 250;
const NOT_FOUND = 127;

type TriedMachine = { engine: Engine; containers: Containers; guest: Guest; ref: Ref };

/**
 * Returns what a running container lacks of its sold limits and kernel; undefined if nothing. May end one with a kernel of its own,
 * which has to use more than its memory to show that it cannot.
 */
export async function findMissing(
  machine: TriedMachine,
  settings: ContainerSettings,
  spec: Spec,
): Promise<string | undefined> {
  const { guest, ref } = machine;
  const size = sizeOf(settings, spec);
  const { runtime } = contentsOf(settings, size.offer);
  if (sharesKernel(runtime)) {
    const { stdout } = await guest.exec(ref, READ_LIMITS);
    return findUnlimited(stdout.toString(), size.memoryGib);
  }
  // A kernel of its own does not show the control groups that limit it from outside.
  return (
    (await findSharedKernel(machine, runtime as string)) ??
    (await findOveruse(machine, size, settings.pids)) ??
    (await takeMemory(machine, size))
  );
}

const order = (command: string, timeoutSeconds: number) => ({ command, timeoutSeconds, streamBytesMax: 4096 });

async function findSharedKernel({ engine, guest, ref }: TriedMachine, runtime: string): Promise<string | undefined> {
  const { KernelVersion: hosts } = await engine.request<{ KernelVersion?: string }>('GET', '/info');
  const { stdout } = await guest.exec(ref, order('read -r line </proc/version && echo "$line"', 10));
  const own = VERSION.exec(stdout.toString())?.[1];
  if (own === undefined || !hosts) return `nobody says whether it has a kernel of its own under ${runtime}`;
  if (own !== hosts) return undefined;
  return `it shares the kernel of its host (${hosts}), and ${runtime} is sold as a wall. Correct that runtime in the engine's daemon.json, or name another`;
}

const words = (what: string, found: string) =>
  `nothing limits its ${what} (${found}): the runtime leaves the engine's control groups out. For gVisor remove --ignore-cgroups`;

/** Keeps more processors busy than were sold, and compares what the kernel of the host counted; its processes likewise. */
async function findOveruse(
  { engine, guest, ref }: TriedMachine,
  { cpus }: LeaseSize,
  pids: number,
): Promise<string | undefined> {
  const loops = Math.min(SPINNERS_MAX, Math.ceil(cpus) + 1);
  const spin = `i=0; while [ $i -lt ${loops} ]; do (while :; do :; done) & i=$((i+1)); done; wait`;
  const before = await readCounters(engine, ref);
  await guest.exec(ref, order(spin, SPIN_SECONDS));
  const after = await readCounters(engine, ref);
  const used = (after.cpuSeconds - before.cpuSeconds) / (after.at - before.at);
  if (!(used > 0)) return words('CPU', 'nothing is counted');
  if (used > cpus * CPU_SLACK.factor + CPU_SLACK.cpus) return words('CPU', `${used.toFixed(1)} of ${cpus} were used`);
  if (!(after.processes > 0)) return words('processes', 'none is counted');
  if (!(after.processesMax > 0 && after.processesMax <= pids))
    return words('processes', `the limit is ${after.processesMax || 'none'}`);
  return undefined;
}

/** Takes more memory than was sold. Where that is limited, the engine ends the program, or the whole container. */
async function takeMemory(machine: TriedMachine, { memoryGib }: LeaseSize): Promise<string | undefined> {
  const { engine, containers, guest, ref } = machine;
  const mib = Math.ceil(memoryGib * MIB_PER_GIB * 1.25) + 64;
  if (mib > TAKEN_MIB_MAX) {
    const { memoryMaxBytes: limit } = await readCounters(engine, ref);
    if (limit > 0 && limit <= Math.ceil(memoryGib * GIB)) return undefined;
    return words('memory', `the limit is ${limit || 'none'}`);
  }
  let isTaking = true;
  const taking = guest
    .exec(ref, order(`dd if=/dev/zero of=/dev/null bs=${mib}M count=1`, TAKE_SECONDS))
    .catch((error: Error) => error)
    .finally(() => {
      isTaking = false;
    });
  // The stream of a command may outlive its container by half a minute.
  const ending = ends(containers, ref, () => isTaking).then(async (hasEnded) =>
    hasEnded ? ('ended' as const) : taking,
  );
  const taken = await Promise.race([taking, ending]);
  if (taken === 'ended') return undefined;
  if (taken instanceof Error || taken.timedOut) {
    const began = performance.now();
    if (await ends(containers, ref, () => performance.now() - began < END_MILLISECONDS)) return undefined;
    if (taken instanceof Error) throw taken;
    return `its memory cannot be tried: it took longer than ${TAKE_SECONDS} s`;
  }
  if (taken.exitCode === NOT_FOUND) return 'its memory cannot be tried: the image has no dd';
  return taken.exitCode === 0 ? words('memory', `it took ${mib} MiB`) : undefined;
}

/** Returns whether the container ends, or is gone, while that is awaited. */
async function ends(containers: Containers, ref: Ref, isAwaited: () => boolean): Promise<boolean> {
  while (isAwaited()) {
    const container = await containers.look(ref);
    if (!container?.State.Running) return true;
    await sleep(POLL_MILLISECONDS);
  }
  return false;
}
