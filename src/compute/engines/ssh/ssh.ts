import { formatUsd, Nanos } from '../../../base/money.ts';
import { Refusal } from '../../../base/refusal.ts';
import type { Backend, Extended, MachineQuote, Offer, Spec, SpecTwo } from '../../backend.ts';
import { beginOnChannel, LOGIN_SHELL } from '../../kit/ssh-program.ts';
import { createGuest } from '../../machine/guest.ts';
import type { Program, ProgramOrder } from '../../machine/program.ts';
import { checkHosts } from './check.ts';
import { createClaimer } from './create.ts';
import { HostUnreachable } from './host.ts';
import { type HostHealth, openPool } from './pool.ts';
import { POOL_EXIT } from './script.ts';
import type { SshSettings } from './settings.ts';

const MIN_SECONDS = 60;

export type SshBackend = Backend & { health(): Promise<HostHealth[]> };

/**
 * Opens a pool of the operator's own hosts, each with one tenant at a time: a throw-away user, and a deadline that the host
 * keeps by itself. The record of a tenant is kept on its host (`script.ts`). The reference is `address:port/user`.
 */
export function openSshBackend(
  settings: SshSettings,
  { leases, now }: { leases: string; now: () => number },
): SshBackend {
  const pool = openPool(settings, { leases, now });
  const { hosts, records, partsOf, health } = pool;
  const guest = createGuest(begin, {
    proofOf: async (ref) => ({ gpus: partsOf(ref).host.gpus }),
    loginShell: LOGIN_SHELL,
    pause: 'a host of the pool cannot take the processors of one tenant away',
    snapshots: 'a host of the pool does not keep the files of a tenant',
  });

  async function begin(ref: string, order: ProgramOrder): Promise<Program> {
    const { host, user } = partsOf(ref);
    const program = await beginOnChannel(host.channels, order, host.within(user));
    if (order.purpose !== 'exec') return program;
    const judge: Program['judge'] = (exitCode, stderr) => {
      if (exitCode === POOL_EXIT.gone && stderr.toString() === 'purser: the lease has ended\n')
        throw new Error('the lease has ended on its host');
      return program.judge?.(exitCode, stderr) ?? stderr;
    };
    return { ...program, judge };
  }

  function quoteOf(spec: Spec): MachineQuote {
    const host = settings.hosts.find((it) => it.chip === (spec as SpecTwo).chip);
    if (!host) throw new Refusal('offer_not_found');
    return { spec, priceHourly: host.price_hourly_usd, maxSeconds: settings.limits.max_seconds };
  }

  /** Returns the number of hosts of a chip that take a tenant now. */
  const countFree = (all: readonly HostHealth[], chip: string) =>
    all.filter((it) => it.chip === chip && it.state === 'free' && it.faults.length === 0).length;

  async function offers(waitMilliseconds?: number): Promise<Offer[]> {
    const all = await health(waitMilliseconds);
    return [...new Set(hosts.map((it) => it.chip))].map((chip) => {
      const spec = { chip, max_seconds: Math.min(3600, settings.limits.max_seconds) };
      const { priceHourly, maxSeconds } = quoteOf(spec);
      return {
        offerId: null,
        description: `a whole host with ${chip}, ${formatUsd(Nanos(priceHourly))} USD an hour`,
        spec,
        priceHourly,
        minSeconds: MIN_SECONDS,
        maxSeconds,
        available: countFree(all, chip) > 0,
      };
    });
  }

  return {
    name: 'ssh',
    // Each host proves its own key on every connection, and the record of a lease keeps that key (`misses`).
    identity: async () => 'hosts with pinned keys',
    partOf: (ref) => ref.slice(0, ref.lastIndexOf('/')),
    absence: { lists: 2, apartSeconds: 15 }, // A claim that was cut off may still wait for the host's lock.
    health,
    offers,
    quote: async (spec) => quoteOf(spec),
    freeFor: async (spec) => countFree(await health(), (spec as SpecTwo).chip),
    create: createClaimer(pool, now),
    find: pool.find,
    listOwned: async (prefix) => (await pool.listAll(hosts)).filter((it) => it.tag.startsWith(prefix)),
    async close() {
      for (const host of hosts) host.close();
    },
    doctor: { check: () => checkHosts(hosts, now), trial: 'free' },

    misses({ tag, ref }) {
      const record = records.read(tag);
      const name = ref === null ? record?.name : ref.slice(0, ref.lastIndexOf('/'));
      if (name === undefined) return undefined; // Every host is asked.
      const host = hosts.find((it) => it.name === name);
      if (!host) return `the pool host ${name}`;
      if (record?.name === name && record.identity !== host.identity)
        return `the pool host ${name} with the host key and state_directory that it had`;
      return undefined;
    },

    async inspect(ref) {
      const { host } = partsOf(ref);
      return (await pool.list(host)).find((it) => it.ref === ref);
    },

    async extend(ref, deadline): Promise<Extended> {
      const { host, user } = partsOf(ref);
      try {
        const { code, fault } = await host.ask('extend', [user, String(deadline)]);
        if (code === 0) return { kind: 'done' };
        if (code === POOL_EXIT.gone) return { kind: 'refused', reason: 'the lease has ended' };
        if (code === POOL_EXIT.busy) return { kind: 'refused', reason: 'the host is busy' };
        return { kind: 'unknown', reason: `the pool host ${host.name} answered ${fault || code}` };
      } catch (error) {
        // The host received nothing, so its deadline stands.
        const kind = error instanceof HostUnreachable ? 'refused' : 'unknown';
        return { kind, reason: (error as Error).message };
      }
    },

    async destroy(ref) {
      const { host, user } = partsOf(ref);
      await pool.end(host, user);
    },

    guest,
  };
}
