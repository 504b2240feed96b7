import { hash } from 'node:crypto';
import { join } from 'node:path';
import { files } from '../files/data-directory.ts';
import type { Backend, Slot, Surroundings } from './backend.ts';
import { type BackendCalled, countedBackend } from './counted-backend.ts';
import * as backends from './engines/index.ts';
import * as local from './engines/local/settings.ts';
import { type ComputeSettings, type Fill, type LocalCompute, listBackends, type PlacedSettings } from './settings.ts';
import { type ConfiguredBackend, createSlots, type Slots } from './slots.ts';

const BACKENDS = { ...backends, local };

type SlotSurroundings = Omit<Surroundings, 'leases'>;

/** Opens the backends of every configured slot. `called` is called for each of their calls. */
export async function openSlots(
  { compute }: { compute: ComputeSettings | LocalCompute },
  around: SlotSurroundings,
  called?: (slot: string, backend: string, ...call: Parameters<BackendCalled>) => void,
): Promise<Slots> {
  const list: ConfiguredBackend[] = [];
  for (const it of listBackends(compute)) {
    const opened = await openBackend(it, around);
    const { slot, backend } = opened;
    const counted = called ? countedBackend(backend, (...call) => called(slot, backend.name, ...call)) : backend;
    list.push({ ...opened, backend: counted });
  }
  const fills = Object.entries(compute).flatMap(([slot, it]) => (it && 'fill' in it ? [[slot, it.fill] as const] : []));
  return createSlots(list, new Map(fills as [Slot, Fill][]));
}

/** Opens one backend, under its name among those of its slot. */
export async function openBackend(
  { slot, name, slotPath, settings }: PlacedSettings,
  around: SlotSurroundings,
): Promise<ConfiguredBackend> {
  const { backend: kind, provision_seconds: provisionSeconds } = settings;
  const open = BACKENDS[kind].open as (of: typeof settings, around: Surroundings) => Promise<Backend>;
  const shared = files(around.dataDirectory).leases;
  // Two backends of a kind keep their files apart. The one without a name has those of a slot with one backend.
  const leases = name === kind ? shared : join(shared, slot, name);
  const backend = await open(settings, { ...around, leases });
  const digest = hash(
    'sha256',
    JSON.stringify(settings, (_, it) => (typeof it === 'bigint' ? String(it) : it)),
  );
  return { slot, slotPath, provisionSeconds, digest, backend: { ...backend, name } };
}
