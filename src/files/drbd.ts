import { readdirSync, realpathSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { parseJson } from '../base/parse-json.ts';
import type { Mount } from './mount.ts';
import { askProgram, findPrograms } from './programs.ts';

/** Another box's copy of a disk. `behind`: it is connected, and does not have everything. `away`: it is not connected. */
export type Replica = { peer: string; state: (typeof REPLICA_STATES)[number] };
export const REPLICA_STATES = ['up_to_date', 'behind', 'away'] as const;

/** The copies of a disk that replicates itself; `unknown` is the reason why nothing is known of them. */
export type Replicas = { device: string; peers: Replica[]; unknown: string | null };

type DrbdSources = {
  /** Directories in which `drbdsetup` is searched for. */
  searchPath?: readonly string[];
  /** The kernel's description of devices. */
  sys?: string;
};

/** Root's programs, which the path of a service need not have. */
const ROOTS_PROGRAMS = ['/usr/local/sbin', '/usr/sbin', '/sbin'];

/**
 * Asks DRBD for the copies of the disk under a mount. Undefined where it is not under it: then only the storage itself knows.
 * Never throws, and takes seconds at most.
 */
export async function readReplicas(
  mount: Mount | undefined,
  { searchPath = ROOTS_PROGRAMS, sys = '/sys' }: DrbdSources = {},
): Promise<Replicas | undefined> {
  const device = mount && drbdUnder(join(sys, 'dev/block', mount.device));
  if (device === undefined) return undefined;
  const unknown = (reason: string): Replicas => ({ device, peers: [], unknown: reason });
  const [program] = findPrograms('drbdsetup', searchPath);
  if (!program) return unknown('drbdsetup is not installed');
  const asked = await askProgram(program, 'status', '--json');
  if (asked.outcome !== 'done') return unknown(asked.reason);
  const peers = peersOf(asked.output, Number(device.slice(DRBD.length)));
  return peers ? { device, peers, unknown: null } : unknown(`drbdsetup does not describe ${device}`);
}

const DRBD = 'drbd';

/** Returns the name of the DRBD device that a block device is, or lies on: a partition, a volume or an encrypted one of it. */
function drbdUnder(device: string): string | undefined {
  try {
    const at = realpathSync(device);
    const isPartition = statSync(join(at, 'partition'), { throwIfNoEntry: false }) !== undefined;
    const whole = isPartition ? join(at, '..') : at;
    if (/^drbd\d+$/.test(basename(whole))) return basename(whole);
    for (const below of readdirSync(join(whole, 'slaves'))) {
      const found = drbdUnder(join(whole, 'slaves', below));
      if (found) return found;
    }
  } catch {} // btrfs and others invent a number that no device has.
  return undefined;
}

type Volume = { volume?: unknown };
type DrbdStatus = {
  devices?: (Volume & { minor?: unknown })[];
  connections?: {
    name?: unknown;
    'connection-state'?: unknown;
    peer_devices?: (Volume & { 'peer-disk-state'?: unknown; 'peer-client'?: unknown })[];
  }[];
};

/** Reads `drbdsetup status --json` (drbdsetup-9.0(8)). Returns the copies of a device, or undefined where it is not described. */
function peersOf(json: string, minor: number): Replica[] | undefined {
  try {
    for (const { devices = [], connections = [] } of parseJson(json) as DrbdStatus[]) {
      const own = devices.find((it) => it.minor === minor);
      if (!own) continue;
      return connections.flatMap((it) => {
        const copy = it.peer_devices?.find(({ volume }) => volume === own.volume);
        // A box without a disk of its own, which has a vote only.
        if (copy?.['peer-client'] === true) return [];
        const isConnected = it['connection-state'] === 'Connected';
        const isWhole = copy?.['peer-disk-state'] === 'UpToDate';
        return [{ peer: String(it.name), state: !isConnected ? 'away' : isWhole ? 'up_to_date' : 'behind' } as const];
      });
    }
  } catch {} // It is no JSON, or another.
  return undefined;
}

const SAYS = { up_to_date: 'is up to date', behind: 'is behind', away: 'is not connected' };

/** Describes what is known of the copies. */
export function describeReplicas({ device, peers, unknown }: Replicas): string {
  if (unknown !== null) return `whether another copy of ${device} is up to date is not known: ${unknown}`;
  if (!peers.length) return `${device} has no other copy`;
  return peers.map(({ peer, state }) => `the copy of ${device} on ${peer} ${SAYS[state]}`).join(', ');
}

/** Returns whether a box could take over now and would have everything. */
export const hasFullCopy = ({ peers }: Replicas): boolean => peers.some(({ state }) => state === 'up_to_date');
