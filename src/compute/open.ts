import { type Backend, SLOTS, type Surroundings } from './backend.ts';
import * as backends from './backends/index.ts';
import * as local from './backends/local/settings.ts';
import type { ComputeSettings, LocalCompute } from './settings.ts';
import { type ConfiguredSlot, createSlots, type Slots } from './slots.ts';

const BACKENDS = { ...backends, local };

/** Opens the backend of every configured slot. `slotKeys` are the providers' keys, by slot. */
export async function openSlots(
  { compute }: { compute: ComputeSettings | LocalCompute },
  { slotKeys }: { slotKeys: ReadonlyMap<string, string> },
  around: Omit<Surroundings, 'key'>,
): Promise<Slots> {
  const list: ConfiguredSlot[] = [];
  for (const slot of SLOTS) {
    const settings = compute[slot];
    if (!settings) continue;
    const open = BACKENDS[settings.backend].open as (of: typeof settings, around: Surroundings) => Promise<Backend>;
    const backend = await open(settings, { ...around, key: slotKeys.get(slot) });
    list.push({ slot, backend, provisionSeconds: settings.provision_seconds });
  }
  return createSlots(list);
}
