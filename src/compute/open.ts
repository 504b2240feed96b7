import type { ComputeSettings, LocalCompute, LocalSettings } from '../config/compute.ts';
import type { Secrets } from '../config/config.ts';
import { type Backend, SLOTS } from './backend.ts';
import { type ConfiguredSlot, createSlots, type Slots } from './slots.ts';

type SlotSettings = NonNullable<ComputeSettings[keyof ComputeSettings]> | LocalSettings;

/**
 * `leases` is the directory for what a backend keeps of its machines, their deadlines above all; `prefix` is what the
 * tags of this installation begin with.
 */
export type Surroundings = { leases: string; prefix: string; now: () => number };

/** Opens the backend of every configured slot. What drives it is loaded only then: commands and idle starts stay quick. */
export async function openSlots(
  { compute }: { compute: ComputeSettings | LocalCompute },
  secrets: Pick<Secrets, 'slotKeys'>,
  around: Surroundings,
): Promise<Slots> {
  const list: ConfiguredSlot[] = [];
  for (const slot of SLOTS) {
    const settings = compute[slot];
    if (!settings) continue;
    const backend = await openBackend(settings, secrets.slotKeys.get(slot), around);
    list.push({ slot, backend, provisionSeconds: settings.provision_seconds });
  }
  return createSlots(list);
}

async function openBackend(
  settings: SlotSettings,
  key: string | undefined,
  { leases, prefix, now }: Surroundings,
): Promise<Backend> {
  if (settings.backend === 'vast') {
    const { openVastBackend } = await import('./backends/vast/vast.ts');
    return openVastBackend(settings, key as string, { leases, now });
  }
  if (settings.backend === 'ssh') {
    const { openSshBackend } = await import('./backends/ssh/ssh.ts');
    return openSshBackend(settings, { leases, now });
  }
  if (settings.backend === 'slurm') {
    const { openSlurmBackend } = await import('./backends/slurm/slurm.ts');
    return openSlurmBackend(settings, { prefix });
  }
  if (settings.backend === 'local') {
    const { openLocalBackend } = await import('./backends/local/local.ts');
    return openLocalBackend(settings, { leases, now });
  }
  const { openContainerBackend } = await import('./backends/container/container.ts');
  return openContainerBackend(settings, { prefix });
}
