import assert from 'node:assert/strict';
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs';
import { basename, join } from 'node:path';
import test from 'node:test';
import { EXECUTABLE, installation, run } from '../helper/executable.ts';
import { minimalDebian } from '../helper/minimal-debian.ts';

test('the executable alone serves in a minimal Debian 12, where there is no Node', async (t) => {
  const tree = await minimalDebian(t);
  if (!tree) return;
  const empty = mkdtempSync(join(tree, 'srv', 'purser-'));
  const folder = `/srv/${basename(empty)}`;
  const bin = mkdtempSync(join(tree, 'opt', 'purser-'));
  t.after(() => {
    for (const it of [empty, bin]) rmSync(it, { recursive: true, force: true });
  });
  copyFileSync(EXECUTABLE, join(bin, 'purser'));
  const inside = ['chroot', tree, '/usr/bin/env', '-C', folder];
  for (const program of ['node', 'nodejs', 'npm', 'python3', 'curl'])
    assert.equal(
      (await run(['-c', `command -v ${program}`], { command: [...inside, 'sh'] })).stdout,
      '',
      `${program} is in there`,
    );

  const command = [...inside, `/opt/${basename(bin)}/purser`];
  const env = { PURSER_LISTEN: '127.0.0.1:0' };
  const directory = join(empty, 'purser-data');
  const purser = installation(t, { settings: null, env, command, directory, globals: [] });
  rmSync(directory, { recursive: true });
  const version = await purser.cli('version');
  assert.deepEqual([version.code, version.stderr], [0, ''], 'nothing is missing that it needs');
  assert.match(version.stdout, /^\d+\.\d+\.\d+\n$/);
  assert.equal((await purser.cli('account', 'list')).code, 3);

  const server = await purser.serve();
  assert.match(server.output.stderr, new RegExp(`^Creating a new installation in ${folder}/purser-data\\.\n`));
  const ready = await server.ask('GET', '/readyz');
  assert.deepEqual([ready.status, ready.body], [200, { ready: true }]);
  const { key } = await purser.json('operator-key', 'mint');
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '500c');
  assert.equal((await server.ask('GET', '/v1/account', { token: key })).body.available_cents, 500);
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  assert.equal((await purser.json('ledger', 'verify')).ok, true);

  const bare = await purser.cli('demo', '--once');
  assert.deepEqual([bare.code, bare.stderr], [0, '']);
  assert.match(bare.stdout, /^Leases are left out: .* no \/proc/m);
  const withProc = ['unshare', '--fork', '--pid', `--mount-proc=${join(tree, 'proc')}`];
  const demo = await run(['demo', '--once'], { command: [...withProc, ...command] });
  assert.deepEqual([demo.code, demo.stderr], [0, ''], demo.stdout);
  assert.match(demo.stdout, /✓ it reads the same: true\n[\s\S]*skipped: there is no ssh client/);
});
