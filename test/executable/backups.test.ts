import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { installation } from '../helper/executable.ts';

test('the executable makes its first backup at the start, and it can be restored', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-backups-'));
  t.after(() => rmSync(directory, { recursive: true }));
  const purser = installation(t, { settings: { backup: { every: '1d', directory } } });
  const server = await purser.serve();
  const { file } = await server.logged('backup.made');
  assert.deepEqual(readdirSync(directory), [String(file).slice(directory.length + 1)]);
  assert.equal((await server.stop()).code, 0);
  const restored = await purser.cli('restore', '--force', String(file));
  assert.equal(restored.code, 0, restored.stderr);
});
