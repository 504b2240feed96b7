import { setTimeout as sleep } from 'node:timers/promises';
import type { Machine, Ref } from '../../backend.ts';
import { isAbsent, type LxdApi, STATUS, textOf } from './api.ts';
import { isLeaseName, isMachine, isOwnName, type LxdInstance } from './describe.ts';

export const CHANGE_MILLISECONDS = 60_000;
const BUSY_MILLISECONDS = 10_000;
const BUSY_POLL_MILLISECONDS = 100;
/** The time within which LXD starts a virtual machine whose guest restarts: its QEMU ends, and LXD begins another. */
const RESTART_MILLISECONDS = 10_000;
const RESTART_POLL_MILLISECONDS = 500;

/** Finds and removes the instances of leases. */
export function createInstances(lxd: LxdApi, restartMilliseconds = RESTART_MILLISECONDS) {
  const sightings = createSightings();

  /**
   * Returns the instance of a reference; undefined when the server says that there is none, which proves that only in a project that
   * can be seen (`confirmed`).
   */
  async function look(ref: Ref): Promise<LxdInstance | undefined> {
    try {
      const instance = await lxd.ask<LxdInstance>('GET', `/1.0/instances/${ref}`);
      // Only the server's own message proves that there is no such instance; an answer about another proves nothing about this one.
      if (typeof instance?.status_code !== 'number' || instance.name !== ref)
        throw new Error(`LXD does not say the state of ${ref}`);
      // It tells whose the instance is.
      if (!instance.config) throw new Error(`LXD does not say the configuration of ${ref}`);
      sightings.note(instance);
      return instance;
    } catch (error) {
      if (isAbsent(error)) return undefined;
      throw error;
    }
  }

  /** Looks at an instance, as `look` does. Throws where an absence is not proven. */
  async function confirmed(ref: Ref): Promise<LxdInstance | undefined> {
    const instance = await look(ref);
    if (!instance) await lxd.confirmProject();
    return instance;
  }

  /** Looks at an instance, as `confirmed` does. A virtual machine counts as off only once it has not been started again for a while. */
  async function settled(ref: Ref): Promise<LxdInstance | undefined> {
    const until = performance.now() + restartMilliseconds;
    for (;;) {
      const instance = await confirmed(ref);
      const mayRestart = instance && isMachine(instance) && stateOf(instance) === 'ended';
      if (!mayRestart || performance.now() > until) return instance;
      await sleep(RESTART_POLL_MILLISECONDS);
    }
  }

  /** Returns whether an instance is a virtual machine, which never changes. Throws when the server cannot be asked. */
  async function isMachineAt(ref: Ref): Promise<boolean> {
    if (sightings.isMachine(ref) === undefined) await look(ref);
    return sightings.isMachine(ref) ?? false;
  }

  /** Lists every instance of the project. Throws when a member of the cluster does not answer for one that may belong to a lease. */
  async function list(): Promise<LxdInstance[]> {
    const all = await lxd.ask<LxdInstance[]>('GET', '/1.0/instances?recursion=1');
    all.forEach(sightings.note);
    const silent = all.find((it) => it.status_code === STATUS.error && isOwnName(it.name) && !hasFailed(it));
    if (silent) throw new Error(`${lxd.socket}: the member ${silent.location} does not answer for ${silent.name}`);
    return all;
  }

  /** Stops and removes an instance in any state; succeeds if it is gone. */
  async function remove(ref: Ref): Promise<void> {
    const stop = { action: 'stop', force: true, timeout: 30 };
    await whenIdle(() => lxd.run('PUT', `/1.0/instances/${ref}/state`, stop, CHANGE_MILLISECONDS)).catch((error) => {
      if (!isAbsent(error) && !/already stopped|not running/i.test(textOf(error))) throw error;
    });
    await whenIdle(() => lxd.run('DELETE', `/1.0/instances/${ref}`, undefined, CHANGE_MILLISECONDS)).catch((error) => {
      if (!isAbsent(error)) throw error;
    });
  }

  return {
    look,
    confirmed,
    settled,
    list,
    remove,
    locationOf: sightings.locationOf,
    isMachine: isMachineAt,
    forget: sightings.forget,
  };
}
export type LxdInstances = ReturnType<typeof createInstances>;

/** Remembers what was last seen of the instances of leases: the member of the cluster, and whether it is a virtual machine. */
function createSightings() {
  const locations = new Map<Ref, string>();
  const machines = new Map<Ref, boolean>();
  return {
    note(instance: LxdInstance): void {
      const { name, location } = instance;
      if (!isLeaseName(name)) return;
      if (location && location !== 'none') locations.set(name, location); // Outside a cluster there is only one place.
      machines.set(name, isMachine(instance));
    },
    locationOf: (ref: Ref) => locations.get(ref),
    /** Returns undefined for an instance that was not seen yet. */
    isMachine: (ref: Ref) => machines.get(ref),
    forget(ref: Ref): void {
      locations.delete(ref);
      machines.delete(ref);
    },
  };
}

/** Repeats work on an instance while LXD is busy with it: one whose deadline has just passed is being stopped. */
async function whenIdle<T>(work: () => Promise<T>): Promise<T> {
  const until = performance.now() + BUSY_MILLISECONDS;
  for (;;)
    try {
      return await work();
    } catch (error) {
      if (!/is busy running/i.test(textOf(error)) || performance.now() > until) throw error;
      await sleep(BUSY_POLL_MILLISECONDS);
    }
}

const STARTING = 106;
const ENDED: readonly number[] = [102, 107, 108]; // Stopped, stopping, aborting.

/**
 * Returns whether this is a virtual machine that LXD shows as failed: QEMU is there, and its guest may have stopped it by a fault.
 * Of an instance whose member does not answer there is no configuration.
 */
const hasFailed = (it: LxdInstance) => it.status_code === STATUS.error && isMachine(it) && Boolean(it.config);

/**
 * Returns the state of an instance. Throws when LXD reports none. One that was made and not started counts as ended: its creator
 * died in between.
 */
export function stateOf(instance: LxdInstance): Machine['state'] {
  const { name, status, status_code: code } = instance;
  if (hasFailed(instance)) return 'running';
  if (code === STATUS.error) throw new Error(`LXD cannot say the state of ${name} (${status})`);
  return ENDED.includes(code) ? 'ended' : code === STARTING ? 'provisioning' : 'running';
}
