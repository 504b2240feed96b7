import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { type Backend, tagOf } from '../../src/compute/backend.ts';
import { openLocalBackend } from '../../src/compute/engines/local/local.ts';
import type { LocalSettings } from '../../src/compute/engines/local/settings.ts';

export const now = () => Math.floor(Date.now() / 1000);

export const SETTINGS: LocalSettings = {
  backend: 'local',
  provision_seconds: 60,
  chips: { h100: { price_hourly_usd: 360_000_000n } },
  limits: { max_seconds: 3600 },
};

export const SPEC = { chip: 'h100', max_seconds: 600 };

export function open(t: TestContext): { backend: Backend; leases: string } {
  const directory = mkdtempSync(join(tmpdir(), 'purser-leases-'));
  const leases = join(directory, 'leases');
  const backend = openLocalBackend(SETTINGS, { leases, now });
  t.after(async () => {
    await backend.close();
    assert.deepEqual(
      readdirSync(directory).flatMap((it) => readdirSync(join(directory, it))),
      [],
    );
    rmSync(directory, { recursive: true, force: true });
  });
  return { backend, leases };
}

export const freshTag = () =>
  tagOf(`inst_${randomBytes(13).toString('hex')}`, `res_${randomBytes(13).toString('hex')}`);

/** A lease that runs, and what is of it on this machine. */
export async function openLease(t: TestContext) {
  const { backend, leases } = open(t);
  const tag = freshTag();
  const made = await backend.create({ tag, quote: await backend.quote(SPEC), deadline: now() + 600 });
  assert.deepEqual(made, { kind: 'created', ref: tag });
  const run = async (command: string) => {
    const said = await backend.guest.exec(tag, { command, timeoutSeconds: 60, streamBytesMax: 1024 * 1024 });
    return { ...said, stdout: said.stdout.toString(), stderr: said.stderr.toString() };
  };
  return { backend, tag, home: join(leases, tag, 'home'), directory: join(leases, tag), run };
}

/** The numbers of all processes that have a text in their environment. */
export function processesWith(text: string): string[] {
  return readdirSync('/proc').filter((it) => {
    if (!/^\d+$/.test(it)) return false;
    try {
      return readFileSync(join('/proc', it, 'environ'), 'utf8').includes(text);
    } catch {
      return false; // It has just ended.
    }
  });
}
