import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { installation } from '../helper/executable.ts';
import { openSmallDisk, type SmallDisk } from '../helper/small-disk.ts';

const isFull = (directory: string) => new RegExp(`^The disk of ${directory} is full: free some space there\\.$`, 'm');

/** Fills the disk, with what the reserve took and what a stop freed as well. */
function useUp(disk: SmallDisk, directory: string): void {
  rmSync(join(directory, 'reserve'), { force: true });
  disk.fill();
}

test('a server whose disk has just become full ends well, starts with a sentence, and has lost nothing', async (t) => {
  const disk = openSmallDisk(t, 32);
  if (!disk) return;
  const purser = installation(t, { directory: join(disk.directory, 'data') });
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '10000c');
  disk.fill(); // Before the head of that is written, a second later.
  assert.deepEqual(await server.stop(), { code: 0, signal: null }, server.output.stderr);

  useUp(disk, purser.directory); // On a busy machine the reserve had been made, and a start would take it.
  const refused = purser.launch('serve');
  assert.equal((await refused.ended).code, 5);
  assert.match(refused.output.stderr, isFull(purser.directory));
  assert.doesNotMatch(refused.output.stderr, /suppressed/);

  disk.free();
  assert.equal((await purser.json('ledger', 'verify')).ok, true);
  const again = await purser.serve();
  assert.equal((await purser.json('account', 'show', accounts[0].id)).available_cents, 10_000);
  await again.stop();
});

test('what cannot be opened on a full disk says so, with the exit code of what is unavailable at the moment', async (t) => {
  const disk = openSmallDisk(t, 32);
  if (!disk) return;
  const purser = installation(t, { directory: join(disk.directory, 'data') });
  const refused = async (...args: string[]) => {
    const { code, stdout, stderr } = await purser.cli(...args);
    assert.deepEqual([code, stdout], [5, ''], `${args.join(' ')}: ${stderr}`);
    assert.match(stderr, isFull(purser.directory), args.join(' '));
  };
  disk.fill();
  await refused('serve'); // The first one.

  disk.free();
  await (await purser.serve()).stop();
  const { accounts } = await purser.json('account', 'list');
  useUp(disk, purser.directory);
  await refused('serve');
  await refused('account', 'credit', accounts[0].id, '100c');
  await refused('wallet', 'list');
  await refused('ledger', 'verify');
  const { code, stdout } = await purser.cli('--json', 'wallet', 'list');
  assert.deepEqual([code, JSON.parse(stdout).error.code], [5, 'read_only']);

  disk.free();
  assert.equal((await purser.json('ledger', 'verify')).ok, true);
});
