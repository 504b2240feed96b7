import type { Config } from '../config.ts';
import { type Backend, SLOTS } from './backend.ts';
import { type ConfiguredSlot, createSlots, type Slots } from './slots.ts';

type SlotSettings = NonNullable<Config['compute'][keyof Config['compute']]>;

/**
 * Opens the backend of every configured slot. What drives it is loaded only then: commands and idle starts stay quick.
 * `leases` is the directory for what a backend keeps of its machines, their deadlines above all.
 */
export async function openSlots(config: Pick<Config, 'compute'>, leases: string): Promise<Slots> {
  const list: ConfiguredSlot[] = [];
  for (const slot of SLOTS) {
    const settings = config.compute[slot];
    if (settings)
      list.push({ slot, backend: await openBackend(settings, leases), provisionSeconds: settings.provision_seconds });
  }
  return createSlots(list);
}

async function openBackend(settings: SlotSettings, leases: string): Promise<Backend> {
  const { openContainerBackend } = await import('./backends/container.ts');
  return openContainerBackend(settings, leases);
}
