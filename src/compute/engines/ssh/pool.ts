import { join } from 'node:path';
import type { Machine, Owned } from '../../backend.ts';
import { createRecent } from '../../kit/recent.ts';
import { createHostRecords } from './claim-records.ts';
import { createPoolHost, type PoolHost } from './host.ts';
import type { SshSettings } from './settings.ts';

const END_MILLISECONDS = 120_000;

const HEALTH_STATES = ['free', 'taken', 'quarantined'] as const;

/** A host's own report. Only a `free` host without faults is leased. */
export type HostHealth = {
  host: string;
  chip: string;
  state: (typeof HEALTH_STATES)[number] | 'unreachable';
  faults: string[];
};
/** Opens the hosts of a pool: their tenants, and their reports. */
export function openPool(settings: SshSettings, { leases, now }: { leases: string; now: () => number }) {
  const hosts = settings.hosts.map(createPoolHost);
  const records = createHostRecords(join(leases, 'ssh'));
  const reports = new Map(hosts.map((host) => [host, createRecent(() => healthOf(host, now()))]));

  /** Returns the tenant of a host, if it has one. */
  async function list(host: PoolHost): Promise<Owned[]> {
    const { code, output, fault } = await host.ask('list', []);
    if (code !== 0) throw new Error(`the pool host ${host.name} cannot say who is on it: ${fault || code}`);
    if (output === '') return [];
    const [tag = '', user = '', created, deadline, state] = output.split('\n');
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
    const host = records.read(tag);
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

  /** Ends a tenant of a host; succeeds if there is none. */
  async function end(host: PoolHost, user: string): Promise<void> {
    const { code, fault } = await host.ask('end', [user], END_MILLISECONDS);
    forgetReport(host);
    if (code !== 0) throw new Error(`the pool host ${host.name} could not end ${user}: ${fault || code}`);
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

  /** Makes the next reader of a host's report ask the host. */
  const forgetReport = (host: PoolHost) => reports.get(host)?.forget();

  return { hosts, records, list, listAll, find, partsOf, end, health, forgetReport };
}
export type Pool = ReturnType<typeof openPool>;

/** Asks a host for its report. Never rejects. */
async function healthOf(host: PoolHost, now: number): Promise<HostHealth> {
  const { name, chip } = host;
  try {
    const { code, output, fault } = await host.ask('check', [String(host.gpus), String(now)]);
    const [first, ...faults] = output.split('\n').filter(Boolean);
    const state = HEALTH_STATES.find((it) => it === first);
    if (code !== 0 || !state) throw new Error(fault || `the check answered ${code}`);
    return { host: name, chip, state, faults };
  } catch (error) {
    return { host: name, chip, state: 'unreachable', faults: [(error as Error).message] };
  }
}
