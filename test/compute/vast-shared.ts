import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext } from 'node:test';
import { Secret } from '../../src/base/secret.ts';
import { type Backend, type Created, tagOf } from '../../src/compute/backend.ts';
import type { Spacing } from '../../src/compute/engines/vast/api.ts';
import type { VastSettings } from '../../src/compute/engines/vast/settings.ts';
import { openVastBackend } from '../../src/compute/engines/vast/vast.ts';
import { type FakeVast, openFakeVast, VAST_KEY } from './engines/fake-vast.ts';

/** Quick enough for tests; one test keeps to Vast's own spacing. */
export const QUICK: Spacing = { search: 1, create: 1, show: 20, list: 5, attach: 1, destroy: 5, account: 1 };
export const INSTALLATION = `inst_${randomBytes(13).toString('hex')}`;
export const freshTag = () => tagOf(INSTALLATION, `res_${randomBytes(13).toString('hex')}`);
export const now = () => Math.floor(Date.now() / 1000);
export const settingsOf = (url: string, over: Partial<VastSettings> = {}): VastSettings => ({
  backend: 'vast',
  api_key: new Secret(VAST_KEY),
  base_url: url,
  markup_percent: 0,
  image: 'busybox',
  runtype: 'ssh_direct',
  provision_seconds: 900,
  ...over,
});

export const leases = mkdtempSync(join(tmpdir(), 'purser-leases-'));
after(() => rmSync(leases, { recursive: true, force: true }));

type Bench = {
  vast: FakeVast;
  backend: Backend;
  clock: { ahead: number };
  buy(over?: { offer?: number; tag?: string }): Promise<Created>;
};

/** A fake Vast of its own and a backend on it. */
export async function openBench(
  t: TestContext,
  over: Partial<VastSettings> = {},
  spacing = QUICK,
): Promise<Bench | undefined> {
  const vast = await openFakeVast(t);
  if (!vast) return undefined;
  const clock = { ahead: 0 };
  const backend = openVastBackend(settingsOf(vast.url, over), {
    leases,
    now: () => now() + clock.ahead,
    spacing,
  });
  t.after(() => backend.close());
  return {
    vast,
    backend,
    clock,
    async buy({ offer = vast.offer(), tag = freshTag() } = {}) {
      const quote = await backend.quote({ offer_id: String(offer), disk_gb: 16, max_seconds: 600 });
      return backend.create({ tag, quote, deadline: now() + 600 });
    },
  };
}
export const refOf = (created: Created) => {
  assert.equal(created.kind, 'created', JSON.stringify(created));
  return (created as { ref: string }).ref;
};
