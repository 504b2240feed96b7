import type { Backend, Extended, Ref } from '../../backend.ts';
import { beginOnChannel, LOGIN_SHELL } from '../../kit/ssh-program.ts';
import { createGuest } from '../../machine/guest.ts';
import type { Program, ProgramOrder } from '../../machine/program.ts';
import { checkHosts } from './check.ts';
import { createClaimer } from './create.ts';
import { HostUnreachable } from './host.ts';
import { createPoolOffers } from './offers.ts';
import { type HostHealth, openPool, type Pool } from './pool.ts';
import { POOL_EXIT } from './script.ts';
import type { SshSettings } from './settings.ts';

export type SshBackend = Backend & { health(): Promise<HostHealth[]> };

/**
 * Opens a pool of the operator's own hosts, each with one tenant at a time: a throw-away user, with a deadline that the host keeps
 * by itself. The tenant's record is on its host (`script.ts`). The reference is `address:port/user`.
 */
export function openSshBackend(
  settings: SshSettings,
  { leases, now }: { leases: string; now: () => number },
): SshBackend {
  const pool = openPool(settings, { leases, now });
  const { hosts, records, partsOf, health } = pool;
  const guest = createGuest((ref, order) => beginIn(pool, ref, order), {
    proofOf: async (ref) => ({ gpus: partsOf(ref).host.gpus }),
    gpus: (ref) => partsOf(ref).host.gpus,
    loginShell: LOGIN_SHELL,
    pause: 'a host of the pool cannot take the processors of one tenant away',
    snapshots: 'a host of the pool does not keep the files of a tenant',
  });

  return {
    name: 'ssh',
    // Each host proves its own key on every connection, and the record of a lease keeps that key (`misses`).
    identity: async () => 'hosts with pinned keys',
    partOf: (ref) => ref.slice(0, ref.lastIndexOf('/')),
    absence: { lists: 2, apartSeconds: 15 }, // A claim that was cut off may still wait for the host's lock.
    health,
    ...createPoolOffers(settings, pool),
    create: createClaimer(pool, now),
    extend: (ref, deadline) => extend(pool, ref, deadline, now()),
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

    async destroy(ref) {
      const { host, user } = partsOf(ref);
      await pool.end(host, user);
    },

    guest,
  };
}

async function beginIn(pool: Pool, ref: Ref, order: ProgramOrder): Promise<Program> {
  const { host, user } = pool.partsOf(ref);
  const program = await beginOnChannel(host.channels, order, host.within(user));
  if (order.purpose !== 'exec') return program;
  const judge: Program['judge'] = (exitCode, stderr) => {
    if (exitCode === POOL_EXIT.gone && stderr.toString() === 'purser: the lease has ended\n')
      throw new Error('the lease has ended on its host');
    return program.judge?.(exitCode, stderr) ?? stderr;
  };
  return { ...program, judge };
}

async function extend(pool: Pool, ref: Ref, deadline: number, now: number): Promise<Extended> {
  const { host, user } = pool.partsOf(ref);
  try {
    const { code, fault } = await host.ask('extend', [user, String(deadline), String(now)]);
    if (code === 0) return { kind: 'done' };
    if (code === POOL_EXIT.gone) return { kind: 'refused', reason: 'the lease has ended' };
    if (code === POOL_EXIT.busy) return { kind: 'refused', reason: 'the host is busy' };
    return { kind: 'unknown', reason: `the pool host ${host.name} answered ${fault || code}` };
  } catch (error) {
    // The host received nothing, so its deadline stands.
    const kind = error instanceof HostUnreachable ? 'refused' : 'unknown';
    return { kind, reason: (error as Error).message };
  }
}
