import type { Chance } from './chance.ts';
import { type DockerEngine, openDockerEngine } from './docker.ts';
import { openPool, type PoolEngine } from './pool.ts';
import type { Stage } from './site.ts';
import { openCluster, type SlurmEngine } from './slurm.ts';

export type Machine = { tag: string; resourceId: string; running: boolean };

/** What is leased: a slot and its spec. */
export type Kind = { provider: string; spec(seconds: number): Record<string, unknown>; canExtend: boolean };

/** A real engine that machines are leased from. */
export type Engine = {
  /** The `compute` settings of the slots that use it. */
  settings: Record<string, object>;
  kinds: Kind[];
  /** Seconds after its deadline for which a machine may still run: the engine takes a while to stop it. */
  graceSeconds: number;
  /** Lists the machines and whatever else leases have left. Throws while the engine does not answer. */
  list(): Promise<Machine[]>;
  /** Ends a machine from outside, as a crash of it would. */
  kill?(machine: Machine): Promise<unknown>;
};

/** Backends of provider_two, which serves one of them at a time. */
export const SECONDS = ['slurm', 'ssh'] as const;
export type Second = (typeof SECONDS)[number];

export type Engines = {
  docker: DockerEngine | undefined;
  slurm: SlurmEngine | undefined;
  pool: PoolEngine | undefined;
  /** Those of them that are there. */
  all: Engine[];
};

/**
 * Opens the engines behind the three slots: Docker behind two of them, and a Slurm cluster or a pool of SSH hosts behind
 * provider_two, drawn unless `second` says which. One that is not installed is left out, and said.
 */
export async function openEngines(t: Stage, chance: Chance, second: Second | undefined): Promise<Engines> {
  const drawn = second ?? chance.pick(SECONDS);
  const docker = await openDockerEngine(t);
  let slurm = drawn === 'slurm' ? await openCluster(t) : undefined;
  const pool = slurm ? undefined : await openPool(t);
  if (drawn === 'ssh' && !pool) slurm = await openCluster(t);
  return { docker, slurm, pool, all: [docker, slurm, pool].filter((it) => it !== undefined) };
}
