import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { installation, run } from '../helper/executable.ts';

test('PURSER_DATA, PURSER_CONFIG, PURSER_LISTEN and PURSER_PUBLIC_URL are obeyed, and a flag beats them', async (t) => {
  const other = mkdtempSync(join(tmpdir(), 'purser-environment-'));
  t.after(() => rmSync(other, { recursive: true, force: true }));
  const purser = installation(t, { settings: { listen: '192.0.2.1:1', close_wait_seconds: 7 } });
  const env = { PURSER_DATA: purser.directory };
  const print = async (args: string[], more: Record<string, string> = {}) => {
    const { code, stdout, stderr } = await run(['--json', ...args, 'config', 'print'], {
      env: { ...env, ...more },
      cwd: other,
    });
    assert.equal(code, 0, stderr);
    const { settings, ...found } = JSON.parse(stdout);
    return { ...settings, ...found };
  };
  const file = join(purser.directory, 'purser.yaml');
  const found = await print([]);
  assert.deepEqual([found.data_directory, found.file, found.close_wait_seconds], [purser.directory, file, 7]);
  assert.equal(found.listen, '192.0.2.1:1');
  assert.equal((await print([], { PURSER_LISTEN: '[::1]:7421' })).listen, '[::1]:7421');
  assert.equal(
    (await print([], { PURSER_PUBLIC_URL: 'https://purser.example/' })).public_url,
    'https://purser.example',
  );
  const flagged = await print(['--data', other]);
  assert.deepEqual([flagged.data_directory, flagged.file, flagged.close_wait_seconds], [other, null, 10]);
  const elsewhere = join(other, 'elsewhere.yaml');
  writeFileSync(elsewhere, 'close_wait_seconds: 3\n');
  assert.equal((await print([], { PURSER_CONFIG: elsewhere })).close_wait_seconds, 3);
  assert.equal((await print(['--config', file], { PURSER_CONFIG: elsewhere })).close_wait_seconds, 7);

  const faults: [Record<string, string>, RegExp][] = [
    [{ PURSER_LISTEN: '7420' }, /environment: PURSER_LISTEN: not an address/],
    [{ PURSER_LOG_LEVEL: 'loud' }, /environment: PURSER_LOG_LEVEL: /],
    [{ PURSER_MASTER_KEY: 'a' }, /environment: PURSER_MASTER_KEY: must be 32 bytes/],
    [{ PURSER_MASTER_KEY_FILE: '/nope' }, /environment: PURSER_MASTER_KEY_FILE: there is no file \/nope/],
    [{ PURSER_MASTER_KEY: 'a', PURSER_MASTER_KEY_FILE: 'b' }, /PURSER_MASTER_KEY or PURSER_MASTER_KEY_FILE, not both/],
  ];
  for (const [more, said] of faults) {
    const { code, stderr } = await run(['config', 'check'], { env: { ...env, ...more } });
    assert.equal(code, 1);
    assert.match(stderr, said);
  }
  assert.deepEqual(readdirSync(purser.directory), ['purser.yaml'], 'to look at the configuration changes nothing');
});

test('a server listens where PURSER_LISTEN says, and hands out PURSER_PUBLIC_URL as the base address', async (t) => {
  const env = { PURSER_LISTEN: '127.0.0.1:0', PURSER_PUBLIC_URL: 'https://purser.example' };
  const purser = installation(t, { settings: { listen: '192.0.2.1:1' }, env });
  const server = await purser.serve();
  assert.match(server.url, /^http:\/\/127\.0\.0\.1:\d+$/);
  await purser.operate('account.credit', { id: 'default', cents: 500 });
  const create = { account: 'default', name: 'n', budget_cents: 100 };
  assert.equal((await purser.operate('wallet.create', create)).env.SVC_BROKER_URL, 'https://purser.example');
});

test('an address that is taken is said in a sentence, with exit 1', async (t) => {
  const server = await installation(t).serve();
  const second = installation(t, { settings: { listen: new URL(server.url).host } }).launch('serve');
  assert.deepEqual(await second.ended, { code: 1, signal: null });
  assert.match(
    second.output.stderr,
    /127\.0\.0\.1:\d+ is in use by another program\. Set PURSER_LISTEN or `listen`\.\n$/,
  );
});

test('a generated master key is in the data directory, for its owner alone, and is kept', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const file = join(purser.directory, 'master.key');
  const text = readFileSync(file, 'utf8');
  assert.match(text, /^[0-9a-f]{64}\n$/);
  await (await purser.serve()).stop();
  assert.equal(readFileSync(file, 'utf8'), text);
  rmSync(file);
  const { code, stderr } = await purser.cli('serve');
  assert.equal(code, 1);
  assert.match(stderr, /^There is no master key in .*master\.key\. Without it no wallet token/);
  assert(!existsSync(file), 'a lost key is not replaced by a new one');
});
