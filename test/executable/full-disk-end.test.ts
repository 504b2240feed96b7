import assert from 'node:assert/strict';
import { join } from 'node:path';
import test from 'node:test';
import { installation } from '../helper/executable.ts';
import { openSmallDisk } from '../helper/small-disk.ts';

test('a server whose disk has just become full ends well, starts with a sentence, and has lost nothing', async (t) => {
  const disk = openSmallDisk(t, 32);
  if (!disk) return;
  const purser = installation(t, { directory: join(disk.directory, 'data') });
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '10000');
  disk.fill(); // Before the head of that is written, a second later.
  assert.deepEqual(await server.stop(), { code: 0, signal: null }, server.output.stderr);

  const refused = purser.launch('serve');
  assert.equal((await refused.ended).code, 1);
  assert.match(refused.output.stderr, /ENOSPC|full/);
  assert.doesNotMatch(refused.output.stderr, /suppressed/);

  disk.free();
  assert.equal((await purser.json('ledger', 'verify')).ok, true);
  const again = await purser.serve();
  assert.equal((await purser.json('account', 'show', accounts[0].id)).available_cents, 10_000);
  await again.stop();
});
