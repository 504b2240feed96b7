import type { ComputeSettings } from './compute.ts';

type Slots = { [K in keyof ComputeSettings]-?: NonNullable<ComputeSettings[K]> };
type Settings = Slots[keyof Slots];
type Of<B extends Settings['backend']> = Extract<Settings, { backend: B }>;

const NOTES: { [B in Settings['backend']]: (settings: Of<B>) => string[] } = {
  container: (it) => [
    ...(it.network === 'none'
      ? []
      : [`leases reach whatever the network ${it.network} reaches; Purser filters nothing`]),
    ...('prices' in it ? notesOnGpus(it) : []),
    'containers share the kernel of their host, which does not isolate a hostile tenant',
  ],
  slurm: ({ job_users: users, job_user: user }) => [
    users
      ? 'each lease has a user of its own; what else keeps tenants apart is the cluster’s configuration, and `purser doctor` says what that is'
      : `all tenants are the one user ${user}, so they can read, signal and enter each other; give job_users where they do not trust each other`,
  ],
  ssh: (it) => [
    ...it.hosts
      .filter((host) => host.gpus === 0)
      .map(
        (host) => `GPUs of ${host.address}:${host.port} are not counted before it is leased; set gpus if it has some`,
      ),
    'a tenant has the whole host and its network; disk and traffic are not limited',
  ],
  vast: (it) => [
    'the deadline is kept by Purser, and while it is down by a watchdog in the machine, where the tenant is root',
    ...(it.markup_percent === 0
      ? ['Vast bills traffic separately, and markup_percent is 0: nobody pays you for it']
      : []),
  ],
};

function notesOnGpus({ limits, prices }: Slots['provider_one']): string[] {
  const priced = Object.keys(prices.gpu_hourly_usd).length;
  if (limits.gpus > 0 && priced === 0) return ['limits.gpus has no use: prices.gpu_hourly_usd names no GPU'];
  if (limits.gpus === 0 && priced > 0) return ['no GPU is on offer: limits.gpus is 0'];
  return [];
}

/** Notes for the operator on what each configured backend does not enforce, as far as its settings show. They are not faults. */
export function adviceOn(compute: ComputeSettings): string[] {
  return Object.entries(compute).flatMap(([slot, settings]) => {
    if (!settings) return [];
    const notes = NOTES[settings.backend] as (it: Settings) => string[];
    return notes(settings).map((note) => `compute.${slot}: ${note}.`);
  });
}
