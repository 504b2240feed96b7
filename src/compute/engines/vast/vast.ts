import type { Backend, Extended, Machine, Owned, SpecThree } from '../../backend.ts';
import { separateChannels } from '../../kit/channel.ts';
import { beginOnChannel, LOGIN_SHELL } from '../../kit/ssh-program.ts';
import { createGuest } from '../../machine/guest.ts';
import { createAccount } from './account.ts';
import { openVastApi, type Spacing, VAST_SPACING, VAST_TIME_LIMITS, type VastTimeLimits } from './api.ts';
import { checkVast } from './check.ts';
import { createCreate } from './create.ts';
import { createInstances, type VastInstance } from './instances.ts';
import { createVastOffers } from './offers.ts';
import { createRentals } from './rentals.ts';
import type { VastSettings } from './settings.ts';
import { createVastSsh } from './ssh.ts';

/** A new instance may be missing from every list for this long; until then its absence proves nothing. */
const LAG_SECONDS = 60;
const PROBE_MILLISECONDS = 5_000;

type VastOptions = {
  /** The directory for the records of the machines. */
  leases: string;
  now: () => number;
  spacing?: Spacing;
  timeLimits?: VastTimeLimits;
};

/**
 * Opens machines rented at Vast.ai. The tag is the instance's label, which Vast can search but does not keep unique. Vast cannot
 * end a machine at a chosen time: the deadline is a dead man's switch inside it; the end of its contract only stops it. Everything
 * inside goes over SSH, with a key of its own for each machine.
 */
export function openVastBackend(
  settings: VastSettings,
  { leases, now, spacing = VAST_SPACING, timeLimits = VAST_TIME_LIMITS }: VastOptions,
): Backend {
  const api = openVastApi(settings.base_url, settings.api_key.reveal(), { spacing, timeLimits });
  const account = createAccount(api, settings.base_url);
  const catalogue = createVastOffers(settings, api, now);
  const instances = createInstances(api);
  const rentals = createRentals(leases);
  const seen = (instance: VastInstance | undefined) => instance && rentals.see(instance);
  const show = async (ref: string) => seen(await instances.show(ref));
  const ssh = createVastSsh(api, rentals, show);

  async function inspect(ref: string): Promise<Machine | undefined> {
    const instance = seen(await instances.look(ref, rentals.of(ref).instance?.label)) ?? (await lookAgain(ref));
    const record = rentals.record(ref);
    if (!instance) {
      if (record && !record.seen && now() < record.madeAt + LAG_SECONDS) return { ref, state: 'provisioning' };
      rentals.drop(ref);
      return undefined;
    }
    const state = await stateOf(instance);
    if (state === 'running' && rentals.record(ref)?.deadline === undefined)
      await ssh.readDeadline(ref, PROBE_MILLISECONDS);
    return machineOf(instance, state);
  }

  /** Confirms an absence with a second query: one answer may come from a lagging or faulty replica. */
  async function lookAgain(ref: string): Promise<VastInstance | undefined> {
    const tag = rentals.tagOf(ref);
    return seen((await instances.list(tag ? { eq: tag } : undefined)).find((it) => it.ref === ref));
  }

  /** Returns the machine's state. It counts as running once its SSH server has accepted our key; until then it cannot be used. */
  async function stateOf({ ref, state }: VastInstance): Promise<Machine['state']> {
    const { isReached, destroyedTag } = rentals.of(ref);
    if (state !== 'running' || isReached || destroyedTag !== undefined) return state;
    try {
      (await ssh.connect(ref, PROBE_MILLISECONDS)).end();
      return 'running';
    } catch {
      return 'provisioning';
    }
  }

  function machineOf({ ref }: VastInstance, state: Machine['state']): Machine {
    const deadline = rentals.record(ref)?.deadline;
    return { ref, state, ...(deadline === undefined ? {} : { deadline }) };
  }

  async function destroy(ref: string): Promise<void> {
    const rental = rentals.of(ref);
    rental.destroyedTag = rentals.record(ref)?.tag ?? rental.instance?.label ?? '';
    // A machine that was never seen may only be late: its record stays until its absence is certain.
    if ((await instances.destroy(ref)) || rentals.record(ref)?.seen !== false) rentals.forget(ref);
  }

  async function extend(ref: string, deadline: number): Promise<Extended> {
    const instance = rentals.of(ref).instance ?? (await show(ref));
    if (!instance) return { kind: 'refused', reason: 'the machine is gone' };
    if (instance.endDate !== undefined && deadline > instance.endDate)
      return { kind: 'refused', reason: `its contract ends at ${Math.floor(instance.endDate)}` };
    return ssh.moveDeadline(ref, deadline);
  }

  return {
    name: 'vast',
    identity: account.identity,
    absence: { lists: 2, apartSeconds: 60 },
    offers: catalogue.offers,
    quote: (spec) => catalogue.quote(spec as SpecThree),
    create: createCreate(settings, api, rentals, now),
    inspect,
    extend,
    destroy,
    find: async (tag) => (await instances.labelled(tag)).map((it) => machineOf(rentals.see(it), it.state)),

    async listOwned(prefix): Promise<Owned[]> {
      const owned = (await instances.list()).filter((it) => it.label.startsWith(prefix));
      return owned.map((it) => {
        const createdAt = it.createdAt ?? rentals.firstSeenAt(it.ref, now());
        return { ...machineOf(it, it.state), tag: it.label, createdAt };
      });
    },

    guest: createGuest(
      (ref, order) =>
        beginOnChannel(
          separateChannels(() => ssh.connect(ref)),
          order,
        ),
      {
        pause: 'Vast charges for a machine whether it is paused or not',
        snapshots: 'Vast does not keep the disk of a machine',
        proofOf: async (ref) => ({ gpus: rentals.of(ref).instance?.gpus, mayLackTool: true }),
        gpus: (ref) => rentals.of(ref).instance?.gpus ?? 0,
        loginShell: LOGIN_SHELL,
      },
    ),
    doctor: { check: () => checkVast(account.read, instances.list, catalogue.offers), trial: 'costs_money' },
    close: () => api.close(),
  };
}
