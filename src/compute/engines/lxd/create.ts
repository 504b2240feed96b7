import { setTimeout as sleep } from 'node:timers/promises';
import { createKeyedMutex } from '../../../base/keyed-mutex.ts';
import type { Backend, Created, Ref, SecretsOrder } from '../../backend.ts';
import type { Claim } from '../../kit/claim.ts';
import { refused } from '../../kit/created.ts';
import { IMAGE_ROOTS, ROOTS_BYTES_MAX, trustFiles } from '../../kit/trust.ts';
import type { Deadlines } from '../../kit/watchdog.ts';
import { isDiskFull, type LxdApi, LxdRefusal, LxdUnreachable, textOf } from './api.ts';
import { claimIn, describeInstance, isMachine, type LxdInstance, nameOf, targetOf } from './describe.ts';
import { filePath, putDirectory, putFile, putWatchdog } from './files.ts';
import type { LxdHost } from './host.ts';
import { CHANGE_MILLISECONDS, type LxdInstances, stateOf } from './instances.ts';
import type { Keepers } from './keeper.ts';
import { contentsOf, type LxdSettings } from './settings.ts';
import { filesAmong } from './sftp.ts';
import { isTooLargeFor, lookAtSnapshot } from './snapshots.ts';

/** An image may have to be unpacked, and copied to another member of a cluster. */
const CREATE_MILLISECONDS = 120_000;

export type LxdOrder = Parameters<Backend['create']>[0];

const AGENT_POLL_MILLISECONDS = 500;

/** The refusal of a lease whose disk its snapshot or its image fills. */
const TOO_LARGE = ['What it is made from is larger than its disk', undefined, 'lease_limit_exceeded'] as const;

type Needs = { host: LxdHost; instances: LxdInstances; keepers: Keepers; deadlines: Deadlines; now: () => number };

/**
 * Makes one instance after another, of all backends on a server: LXD 5.0 chooses the users of an instance by those of the others, but
 * ignores an instance that is still being made. Of several made at once some could not start.
 */
const inTurn = createKeyedMutex();

/** Creates the call that makes an instance for a claim and starts it. */
export function createMaker(lxd: LxdApi, settings: LxdSettings, { host, instances, keepers, deadlines, now }: Needs) {
  const { user, directory } = settings;

  /** Makes an instance and starts it. Throws when the outcome is unknown. */
  async function make({ tag, deadline, secrets, snapshot }: LxdOrder, claim: Claim): Promise<Created> {
    const ref = nameOf(tag);
    const isContainer = contentsOf(settings, claim.offer).type === 'container';
    let isFresh = true;
    try {
      const isIncus = await host.isIncus();
      const from = snapshot === undefined ? undefined : await lookAtSnapshot(instances, snapshot);
      if (snapshot !== undefined && !from) return refused('The snapshot is not on the engine');
      if (from && !isContainer) return refused('A snapshot of a container makes no virtual machine');
      if (from && isTooLargeFor(from, claim.diskGb as number)) return refused(...TOO_LARGE);
      const wanted = describeInstance(settings, { claim, deadline, created: now(), isIncus, secrets, from });
      const beside = isContainer ? from : await keepers.begin(tag, deadline, now());
      const place = beside ? targetOf(beside) : '';
      await inTurn(settings.socket, () => lxd.run('POST', `/1.0/instances${place}`, wanted, CREATE_MILLISECONDS));
    } catch (error) {
      if (error instanceof LxdUnreachable && isContainer)
        return refused('The provider cannot be reached', textOf(error));
      // A member of a cluster may have received the request, and its answer was lost.
      if (!(error instanceof LxdRefusal) || error.status >= 500) throw error;
      const existing = await instances.look(ref);
      if (!existing) {
        if (isContainer || (await removed(ref))) return refusedBy(error);
        throw error; // Its keeper is left.
      }
      if (claimIn(existing).tag !== tag) return refused('The provider has something else of this name', ref);
      // An earlier attempt has made it, and it has the deadline of that attempt.
      if (stateOf(existing) !== 'ended') return isMachine(existing) ? finish(existing) : { kind: 'created', ref };
      isFresh = false;
    }
    const started = await start(ref, secrets, snapshot !== undefined);
    // A keeper may be that of an earlier attempt, whose machine was never made.
    if (isFresh && isContainer && started.kind === 'created') deadlines.note(ref, deadline);
    return started;
  }

  /** Puts the watchdog and the tenant's directory into an instance that has not started, and starts it. */
  async function start(ref: Ref, secrets: SecretsOrder | undefined, isFromSnapshot: boolean): Promise<Created> {
    try {
      const instance = await instances.confirmed(ref);
      if (!instance) return refused('The machine was removed before it started', ref);
      if (!isMachine(instance)) {
        await prepare(instance);
        if (secrets) await putTrust(ref, secrets, isFromSnapshot);
      }
      await lxd.run('PUT', `/1.0/instances/${ref}/state`, { action: 'start', timeout: 30 }, CHANGE_MILLISECONDS);
      if (isMachine(instance)) return await finish(instance);
    } catch (error) {
      if (!(error instanceof LxdRefusal)) throw error;
      return withdraw(ref, error);
    }
    return { kind: 'created', ref };
  }

  /** Puts the watchdog's program and the tenant's directory into an instance. */
  async function prepare(instance: LxdInstance): Promise<void> {
    await putWatchdog(lxd, instance);
    await putDirectory(lxd, instance.name, directory, user);
  }

  /** Waits until a virtual machine that was started answers, and its keeper holds its power. Without both it is removed. */
  async function finish(machine: LxdInstance): Promise<Created> {
    const { name: ref } = machine;
    const until = performance.now() + settings.provision_seconds * 1000;
    const wait = async (what: string, isSo: () => Promise<boolean>) => {
      while (!(await isSo())) {
        if (performance.now() > until)
          throw new LxdRefusal(`${what} within ${settings.provision_seconds} s (provision_seconds)`, 504);
        await sleep(AGENT_POLL_MILLISECONDS);
      }
    };
    try {
      await wait('its keeper did not reach its power', () => keepers.holds(ref));
      await wait('the agent of LXD in it did not answer', async () => {
        const { processes } = await lxd.ask<{ processes: number }>('GET', `/1.0/instances/${ref}/state`);
        return processes > 0;
      });
      await prepare(machine);
    } catch (error) {
      if (!(error instanceof LxdRefusal)) throw error;
      return withdraw(ref, error);
    }
    return { kind: 'created', ref };
  }

  /** Removes an instance that exists and is of no use. Only a confirmed removal is a clear no. */
  async function withdraw(ref: Ref, error: LxdRefusal): Promise<Created> {
    if (!(await removed(ref))) throw error;
    return isDiskFull(error)
      ? refused(...TOO_LARGE)
      : refused('The provider could not start the machine', textOf(error));
  }

  /** Removes an instance and its keeper. Returns whether both are gone. */
  async function removed(ref: Ref): Promise<boolean> {
    await instances.remove(ref);
    if (await instances.confirmed(ref)) return false;
    if (await keepers.look(ref)) await keepers.remove(ref);
    return !(await keepers.look(ref));
  }

  /** Puts the authority of the lease's secrets beside the roots of its image. */
  async function putTrust(ref: Ref, secrets: SecretsOrder, isFromSnapshot: boolean): Promise<void> {
    // A tenant may have put a pipe in the place of a file: LXD would open it, and wait for ever.
    const paths = isFromSnapshot ? await filesAmong(lxd, ref, IMAGE_ROOTS) : IMAGE_ROOTS;
    let roots: Buffer | undefined;
    for (const path of paths) roots ??= await lxd.readFile(filePath(ref, path), ROOTS_BYTES_MAX);
    for (const { path, content } of trustFiles(secrets, roots))
      await putFile(lxd, ref, path, content, { owner: 0, mode: '0444' });
  }

  return make;
}

/** Returns the refusal for an error of LXD that proves that nothing was made. */
function refusedBy(error: LxdRefusal): Created {
  // Every container has 65536 users of its own, and a host has enough for a limited number of containers.
  if (/not enough uid\/gid/i.test(error.message))
    return refused('No users are left for another container', error.message, 'capacity_unavailable');
  if (isDiskFull(error)) return refused(...TOO_LARGE);
  return refused('The provider refused the machine', error.message);
}
