import { hash } from 'node:crypto';
import { join } from 'node:path';
import { formatUsd, Nanos } from '../../../base/money.ts';
import { Refusal } from '../../../base/refusal.ts';
import type { Backend, Created, Extended, Machine, Offer, Owned, Quote, Spec, SpecTwo } from '../../backend.ts';
import { createRecent } from '../../kit/recent.ts';
import { beginOnChannel, LOGIN_SHELL } from '../../kit/ssh-program.ts';
import { createGuest } from '../../machine/guest.ts';
import type { Program, ProgramOrder } from '../../machine/program.ts';
import { checkHosts } from './check.ts';
import { createAsked } from './claim-records.ts';
import { createPoolHost, HostUnreachable, type PoolHost } from './host.ts';
import { POOL_EXIT } from './script.ts';
import type { SshSettings } from './settings.ts';

const MIN_SECONDS = 60;
const END_MILLISECONDS = 120_000;

/** Exit codes of a claim that left nothing on the host. */
const CLEAR_NO = new Set<number>([POOL_EXIT.taken, POOL_EXIT.quarantined, POOL_EXIT.unfit, POOL_EXIT.busy]);
const HEALTH_STATES = ['free', 'taken', 'quarantined'] as const;

/** A host's own report. Only a `free` host without faults is leased. */
type HostHealth = {
  host: string;
  chip: string;
  state: (typeof HEALTH_STATES)[number] | 'unreachable';
  faults: string[];
};
export type SshBackend = Backend & { health(): Promise<HostHealth[]> };

/**
 * A pool of the operator's own hosts, each with one tenant at a time: a throw-away user, and a deadline that the host
 * keeps by itself. The record of a tenant is kept on its host (`script.ts`). The reference is `address:port/user`.
 */
export function openSshBackend(
  settings: SshSettings,
  { leases, now }: { leases: string; now: () => number },
): SshBackend {
  const hosts = settings.hosts.map(createPoolHost);
  const asked = createAsked(join(leases, 'ssh'));
  const guest = createGuest(begin, {
    proofOf: async (ref) => ({ gpus: partsOf(ref).host.gpus }),
    loginShell: LOGIN_SHELL,
  });
  const reports = new Map(hosts.map((host) => [host, createRecent(() => healthOf(host))]));

  async function create({ tag, quote, deadline }: { tag: string; quote: Quote; deadline: number }): Promise<Created> {
    const { chip } = quote.spec as SpecTwo;
    if (asked.read(tag)) {
      const [earlier] = await find(tag);
      if (earlier) return { kind: 'created', ref: earlier.ref };
    }
    const user = userOf(tag);
    let heard = false;
    for (const host of hosts.filter((it) => it.chip === chip)) {
      reports.get(host)?.forget();
      asked.write(tag, host, deadline);
      let hasAnswered = false;
      try {
        const { code, fault } = await host.ask('claim', [
          tag,
          user,
          String(deadline),
          String(host.gpus),
          String(now()),
        ]);
        reports.get(host)?.forget();
        if (code === 0) return { kind: 'created', ref: `${host.name}/${user}` };
        hasAnswered = true;
        heard = true;
        if (CLEAR_NO.has(code)) continue;
        await end(host, user); // The claim broke off half-way: only a host without this tenant is a certain refusal.
        if ((await list(host)).some((it) => it.tag === tag)) return { kind: 'unknown', reason: fault };
      } catch (error) {
        // If the host was unreachable for its claim, it made nothing; if it became unreachable after that, it may keep half of a tenant.
        if (hasAnswered || !(error instanceof HostUnreachable))
          return { kind: 'unknown', reason: (error as Error).message };
      }
    }
    return {
      kind: 'refused',
      code: heard ? 'capacity_unavailable' : 'provider_unavailable',
      reason: `No host with ${JSON.stringify(chip)} ${heard ? 'is free' : 'can be reached'}. Nothing was charged.`,
    };
  }

  /** Returns the tenant of a host, if it has one. */
  async function list(host: PoolHost): Promise<Owned[]> {
    const { code, said, fault } = await host.ask('list', []);
    if (code !== 0) throw new Error(`the pool host ${host.name} cannot say who is on it: ${fault || code}`);
    if (said === '') return [];
    const [tag = '', user = '', created, deadline, state] = said.split('\n');
    return [
      {
        ref: `${host.name}/${user}`,
        tag,
        state: state === 'running' ? 'running' : 'ended',
        createdAt: Number(created),
        deadline: Number(deadline),
      },
    ];
  }

  async function listAll(some: PoolHost[]): Promise<Owned[]> {
    const results = await Promise.allSettled(some.map(list));
    return results.flatMap((it) => {
      if (it.status === 'rejected') throw it.reason; // A partial list must not count as complete.
      return it.value;
    });
  }

  async function find(tag: string): Promise<Machine[]> {
    const host = asked.read(tag);
    const some = host === undefined ? hosts : [hostOf(host.name)];
    return (await listAll(some)).filter((it) => it.tag === tag);
  }

  function hostOf(name: string): PoolHost {
    const host = hosts.find((it) => it.name === name);
    if (!host) throw new Error(`the pool host ${name} is no longer configured, and it has a lease`);
    return host;
  }

  function partsOf(ref: string): { host: PoolHost; user: string } {
    const slash = ref.lastIndexOf('/');
    return { host: hostOf(ref.slice(0, slash)), user: ref.slice(slash + 1) };
  }

  async function begin(ref: string, order: ProgramOrder): Promise<Program> {
    const { host, user } = partsOf(ref);
    const program = await beginOnChannel(host.channels, order, host.within(user));
    if (order.purpose !== 'exec') return program;
    const judge: Program['judge'] = (exitCode, stderr) => {
      if (exitCode === POOL_EXIT.gone && stderr.toString() === 'purser: the lease has ended\n')
        throw new Error('the lease has ended on its host');
      return stderr;
    };
    return { ...program, judge };
  }

  async function end(host: PoolHost, user: string): Promise<void> {
    const { code, fault } = await host.ask('end', [user], END_MILLISECONDS);
    reports.get(host)?.forget();
    if (code !== 0) throw new Error(`the pool host ${host.name} could not end ${user}: ${fault || code}`);
  }

  async function healthOf(host: PoolHost): Promise<HostHealth> {
    const { name, chip } = host;
    try {
      const { code, said, fault } = await host.ask('check', [String(host.gpus), String(now())]);
      const [first, ...faults] = said.split('\n').filter(Boolean);
      const state = HEALTH_STATES.find((it) => it === first);
      if (code !== 0 || !state) throw new Error(fault || `the check answered ${code}`);
      return { host: name, chip, state, faults };
    } catch (error) {
      return { host: name, chip, state: 'unreachable', faults: [(error as Error).message] };
    }
  }

  /** Returns the report of each host. A slow host delays no other report, and delays the caller by a limited time. */
  function health(waitMilliseconds?: number): Promise<HostHealth[]> {
    return Promise.all(
      [...reports].map(async ([{ name, chip }, report]): Promise<HostHealth> => {
        const silent = { host: name, chip, state: 'unreachable' as const, faults: ['it did not answer in time'] };
        return (await report.get(waitMilliseconds)) ?? silent;
      }),
    );
  }

  function quoteOf(spec: Spec): Quote {
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
    partOf: (ref) => ref.slice(0, ref.lastIndexOf('/')),
    absence: { lists: 2, apartSeconds: 15 }, // A claim that was cut off may still wait for the host's lock.
    health,
    offers,
    quote: async (spec) => quoteOf(spec),
    freeFor: async (spec) => countFree(await health(), (spec as SpecTwo).chip),
    create,
    find,
    listOwned: async (prefix) => (await listAll(hosts)).filter((it) => it.tag.startsWith(prefix)),
    async close() {
      for (const host of hosts) host.close();
    },
    doctor: { check: () => checkHosts(hosts, now), trial: 'free' },

    misses({ tag, ref }) {
      const record = asked.read(tag);
      const name = ref === null ? record?.name : ref.slice(0, ref.lastIndexOf('/'));
      if (name === undefined) return undefined; // Every host is asked.
      const host = hosts.find((it) => it.name === name);
      if (!host) return `the pool host ${name}`;
      if (record?.name === name && record.place !== undefined && record.place !== host.place)
        return `the pool host ${name} with the host key and state_directory that it had`;
      return undefined;
    },

    async inspect(ref) {
      const { host } = partsOf(ref);
      return (await list(host)).find((it) => it.ref === ref);
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
      await end(host, user);
    },

    guest,
  };
}

/** Returns the name of a tenant's user: as unique as the tag, and short enough for every system. */
const userOf = (tag: string) => `purser-${hash('sha256', tag).slice(0, 20)}`;
