import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { installation } from '../helper/executable.ts';

/** Books that nobody serves, a place for backups, and a backup there. */
export async function openBackedUp(t: TestContext) {
  const purser = installation(t);
  const server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 1000 });
  await server.stop();
  const place = mkdtempSync(join(tmpdir(), 'purser-backups-'));
  t.after(() => rmSync(place, { recursive: true, force: true }));
  const backup = join(place, 'backup.db');
  await purser.json('backup', backup);
  return { purser, place, backup };
}
