import { type Capacity, GIB } from '../../kit/claim.ts';
import { type LxdApi, LxdRefusal, orAbsent } from './api.ts';
import { imagePath } from './describe.ts';
import type { Contents } from './settings.ts';

/** The parts of `GET /1.0` that are used. */
export type Server = {
  auth: string;
  /** Missing for an untrusted client. */
  environment: {
    /** `lxd` or `incus`. */
    server: string;
    server_version: string;
    /** The drivers of instances, and their versions, each with `|` between them. */
    driver?: string;
    driver_version?: string;
    server_clustered: boolean;
    /** The first is the machine's own. */
    architectures: string[];
    /** Of the server's certificate, or of its cluster's. */
    certificate_fingerprint?: string;
  };
};
type ClusterMember = { server_name: string; status: string; message: string };
type Resources = { cpu: { total: number }; memory: { total: number } };
type PoolResources = { space?: { used?: number; total?: number } };

/** The machine of a server, or the members of its cluster. */
export type LxdHost = {
  isIncus(): Promise<boolean>;
  architecture(): Promise<string>;
  /** Returns the server's identity (`Backend.identity`). */
  identity(): Promise<string | undefined>;
  /** Returns the CPUs and the memory, of all members of a cluster that are online. */
  capacity(): Promise<Capacity>;
  /**
   * Returns the bytes that are free in a storage pool, of a cluster where the most are; undefined where the server does not report
   * them.
   */
  diskFree(pool: string): Promise<number | undefined>;
  /** Returns those of the contents that the server cannot make: it has no image of that type, or runs no virtual machines. */
  missing(contents: readonly Contents[]): Promise<Contents[]>;
};

/** Returns whether a server has the driver of virtual machines. */
export const runsMachines = ({ environment: { driver = '' } }: Server): boolean =>
  driver.split('|').some((it) => it.trim() === 'qemu');

export const membersOf = (lxd: LxdApi) => lxd.ask<ClusterMember[]>('GET', '/1.0/cluster/members?recursion=1');

export function createHost(lxd: LxdApi): LxdHost {
  let server: Server | undefined;
  const serverOnce = async () => {
    server ??= await lxd.ask<Server>('GET', '/1.0');
    return server;
  };
  /** Asks for what a server has, or each member of its cluster that is online. */
  async function askAll<T>(path: string): Promise<T[]> {
    const { environment } = await serverOnce();
    if (!environment.server_clustered) return [await lxd.ask<T>('GET', path)];
    const online = (await membersOf(lxd)).filter(({ status }) => status === 'Online');
    return Promise.all(online.map((it) => lxd.ask<T>('GET', `${path}?target=${encodeURIComponent(it.server_name)}`)));
  }
  return {
    architecture: async () => (await serverOnce()).environment.architectures[0] ?? '',
    isIncus: async () => (await serverOnce()).environment.server === 'incus',
    async identity() {
      // Asked each time: another server may have taken over the address. Members of a cluster have one certificate, and names of their own.
      const { environment } = await lxd.ask<Server>('GET', '/1.0');
      const fingerprint = environment?.certificate_fingerprint;
      // Nothing of another project is found in this one.
      return fingerprint && `${environment.server} ${fingerprint} ${lxd.project}`;
    },
    async capacity() {
      const all = await askAll<Resources>('/1.0/resources');
      const memory = all.reduce((sum, it) => sum + it.memory.total, 0);
      return {
        cpus: all.reduce((sum, it) => sum + it.cpu.total, 0),
        memory_gib: Math.floor((memory / GIB) * 100) / 100,
      };
    },
    async diskFree(pool) {
      const path = `/1.0/storage-pools/${encodeURIComponent(pool)}/resources`;
      // A certificate that is restricted to a project may not see the pool: then a lease is sold without it.
      const all = await askAll<PoolResources>(path).catch((error) => {
        if (error instanceof LxdRefusal) return [];
        throw error;
      });
      const free = all.flatMap(({ space: { used = 0, total = 0 } = {} }) => (total > 0 ? [total - used] : []));
      return free.length ? Math.max(...free) : undefined;
    },
    async missing(contents) {
      const sellsMachines = contents.some(({ type }) => type === 'virtual-machine');
      const [hasMachines, found] = await Promise.all([
        // Asked each time: a restarted server may have lost its driver, or have got it.
        sellsMachines ? lxd.ask<Server>('GET', '/1.0').then(runsMachines) : false,
        Promise.all(contents.map(({ image }) => orAbsent(lxd.ask<{ type: string }>('GET', imagePath(image))))),
      ]);
      return contents.filter(
        ({ type }, at) => found[at]?.type !== type || (type === 'virtual-machine' && !hasMachines),
      );
    },
  };
}
