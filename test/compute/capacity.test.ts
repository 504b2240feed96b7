import assert from 'node:assert/strict';
import test from 'node:test';
import type { Spec } from '../../src/compute/backend.ts';
import { createReservations, type EngineRoom, roomAt } from '../../src/compute/kit/capacity.ts';
import { sizeOf } from '../../src/compute/kit/claim.ts';

test('of two backends on one engine one gets the last GPU, and on another engine each', async () => {
  const settings = {
    limits: { disk_gb: 1, gpus: 1 },
    prices: { cpu_hourly_usd: 1n, memory_gib_hourly_usd: 1n, gpu_hourly_usd: { a100: 1n } },
    gpu_devices: { a100: ['0'] },
  } as never;
  const spec: Spec = { gpu: 'a100', gpus: 1, cpus: 1, memory_gib: 1, max_seconds: 60 };
  const rooms = new Map<string, EngineRoom>();
  const capacity = async () => ({ cpus: 8, memory_gib: 8 });
  const open = (address: string) =>
    createReservations(settings, { prefix: 'us-' }, { list: async () => [], capacity }, roomAt(rooms, address));
  const backends = ['one', 'one', 'two'].map(open);
  const claims = await Promise.all(backends.map((it, at) => it.reserve(`us-${at}`, sizeOf(settings, spec))));
  assert.deepEqual(
    claims.map((it) => ('lacking' in it ? it.lacking : it.devices)),
    [['0'], '1 of 1 a100 are leased', ['0']],
  );
  backends[0]?.release('us-0');
  const again = await backends[1]?.reserve('us-1', sizeOf(settings, spec));
  assert.deepEqual(again && 'devices' in again && again.devices, ['0']);
});
