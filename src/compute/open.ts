import { hash } from 'node:crypto';
import { join } from 'node:path';
import { files } from '../files/data-directory.ts';
import type { Backend, Slot, Surroundings } from './backend.ts';
import { confirmedBackend } from './confirmed-backend.ts';
import { type BackendCalled, countedBackend } from './counted-backend.ts';
import * as backends from './engines/index.ts';
import * as local from './engines/local/settings.ts';
import { warmOf } from './kit/warm.ts';
import { type ComputeSettings, type Fill, type LocalCompute, listBackends, type PlacedSettings } from './settings.ts';
import { type ConfiguredBackend, createSlots, type Slots } from './slots.ts';

const BACKENDS = { ...backends, local };

type SlotSurroundings = Omit<Surroundings, 'leases'>;

/** Functions that a server has called around each call of its backends. */
type Watched = {
  /** Called after each call. */
  called: (slot: string, backend: string, ...call: Parameters<BackendCalled>) => void;
  /** Awaited before a machine is ended or extended: throws where the books may be another server's by now. */
  confirm: () => Promise<void>;
};

/** Opens the backends of every configured slot. */
export async function openSlots(
  { compute }: { compute: ComputeSettings | LocalCompute },
  around: SlotSurroundings,
  watched?: Watched,
): Promise<Slots> {
  const list: ConfiguredBackend[] = [];
  const sharing = { ...around, rooms: new Map() };
  for (const it of listBackends(compute)) {
    const opened = await openBackend(it, sharing);
    const { slot, backend } = opened;
    if (watched) {
      const called: BackendCalled = (...call) => watched.called(slot, backend.name, ...call);
      list.push({ ...opened, backend: confirmedBackend(countedBackend(backend, called), watched.confirm) });
    } else list.push(opened);
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
  return {
    slot,
    slotPath,
    provisionSeconds,
    warm: 'limits' in settings ? warmOf(settings) : [],
    digest,
    backend: { ...backend, name },
  };
}
