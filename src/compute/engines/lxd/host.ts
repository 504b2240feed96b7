import { type Capacity, GIB } from '../../kit/claim.ts';
import type { LxdApi } from './api.ts';

/** The parts of `GET /1.0` that are used. */
export type Server = {
  auth: string;
  /** Missing for an untrusted client. */
  environment: {
    /** `lxd` or `incus`. */
    server: string;
    server_version: string;
    server_clustered: boolean;
    /** Of the server's certificate, or of its cluster's. */
    certificate_fingerprint?: string;
  };
};
type ClusterMember = { server_name: string; status: string; message: string };
type Resources = { cpu: { total: number }; memory: { total: number } };

/** The machine of a server, or the members of its cluster. */
export type LxdHost = {
  isIncus(): Promise<boolean>;
  /** Returns the server's identity (`Backend.identity`). */
  identity(): Promise<string | undefined>;
  /** Returns the CPUs and the memory, of all members of a cluster that are online. */
  capacity(): Promise<Capacity>;
};

export const membersOf = (lxd: LxdApi) => lxd.ask<ClusterMember[]>('GET', '/1.0/cluster/members?recursion=1');

export function createHost(lxd: LxdApi): LxdHost {
  let server: Server | undefined;
  const serverOnce = async () => {
    server ??= await lxd.ask<Server>('GET', '/1.0');
    return server;
  };
  return {
    isIncus: async () => (await serverOnce()).environment.server === 'incus',
    async identity() {
      // Asked each time: another server may have taken over the address. Members of a cluster have one certificate, and names of their own.
      const { environment } = await lxd.ask<Server>('GET', '/1.0');
      const fingerprint = environment?.certificate_fingerprint;
      return fingerprint && `${environment.server} ${fingerprint}`;
    },
    async capacity() {
      const { environment } = await serverOnce();
      const paths = environment.server_clustered
        ? (await membersOf(lxd))
            .filter(({ status }) => status === 'Online')
            .map((it) => `/1.0/resources?target=${encodeURIComponent(it.server_name)}`)
        : ['/1.0/resources'];
      const all = await Promise.all(paths.map((path) => lxd.ask<Resources>('GET', path)));
      const memory = all.reduce((sum, it) => sum + it.memory.total, 0);
      return {
        cpus: all.reduce((sum, it) => sum + it.cpu.total, 0),
        memory_gib: Math.floor((memory / GIB) * 100) / 100,
      };
    },
  };
}
