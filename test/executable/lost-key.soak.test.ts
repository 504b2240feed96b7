import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import test from 'node:test';
import { installation } from '../helper/executable.ts';
import { openUpstream } from '../helper/upstream.ts';

async function open(t: TestContext, env: Record<string, string> = {}) {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, env });
  const account = async () => (await purser.json('account', 'list')).accounts[0].id as string;
  const wallet = async (name: string) =>
    purser.json('wallet', 'create', '--account', await account(), '--name', name, '--budget-cents', '100');
  return { purser, account, wallet, key: join(purser.directory, 'master.key') };
}

test('without its master key an installation gets a new one: open wallets new tokens, and all else stays', async (t) => {
  const { purser, account, wallet, key } = await open(t);
  const server = await purser.serve();
  assert.match(server.output.stderr, new RegExp(`^Copy ${key} to another place`, 'm'));
  await purser.json('account', 'credit', await account(), '1000c');
  const { key: accountKey } = await purser.json('key', 'create', '--account', await account(), '--name', 'k');
  const { key: operatorKey } = await purser.json('operator-key', 'mint');
  const [one, two, closed] = [await wallet('one'), await wallet('two'), await wallet('three')];
  await purser.json('wallet', 'close', closed.id);
  const chat = (at: typeof server, token: string) =>
    at.ask('POST', '/v1/chat/completions', {
      token,
      key: 'k1',
      body: { model: 'flat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 10 },
    });
  const answered = await chat(server, one.agent_token);
  assert.equal(answered.status, 200);
  const opened = await server.ask('POST', '/v1/router/key', { token: one.agent_token, key: 'r', body: {} });
  const backup = join(purser.directory, 'b.db');
  await purser.json('backup', backup);
  const running = await purser.cli('master-key', 'replace', '--lost', '--yes');
  assert.equal(running.code, 5, 'not while a server runs');
  await server.stop();

  const needless = await purser.cli('master-key', 'replace', '--lost', '--yes');
  assert.equal(needless.code, 4);
  assert.match(needless.stderr, /not lost: it opens these books/);
  rmSync(key);
  const refused = purser.launch('serve');
  assert.equal((await refused.ended).code, 1);
  assert.match(
    refused.output.stderr,
    /There is no master key in .*from PURSER_MASTER_KEY or PURSER_MASTER_KEY_FILE, set the same.*run: purser master-key replace --lost/,
  );

  const plan = await purser.cli('master-key', 'replace', '--lost', '--dry-run');
  assert.equal(plan.code, 0, plan.stderr);
  for (const said of [one.id, two.id, /^Open wallets, .*: 2$/m, /^Gateway keys .*: 1$/m, /Account keys, operator keys/])
    assert.match(plan.stdout, typeof said === 'string' ? RegExp(said) : said);
  assert.doesNotMatch(plan.stdout, RegExp(closed.id));
  assert.match(
    plan.stdout,
    /^It is not lost where the service gets it from PURSER_MASTER_KEY or PURSER_MASTER_KEY_FILE/m,
  );
  assert.match(plan.stdout, /^ID +NAME +ACCOUNT ID +STATUS$/m); // No mark of a tone is left in a pipe.
  assert.equal(existsSync(key), false);
  const unasked = await purser.cli('master-key', 'replace', '--lost');
  assert.equal(unasked.code, 4);
  assert.match(unasked.stderr, /Nothing was changed. To do it, add --yes\./);
  assert.equal(existsSync(key), false);
  assert.equal((await purser.cli('master-key', 'replace')).code, 2);

  const done = await purser.json('master-key', 'replace', '--lost', '--yes');
  assert.deepEqual([done.is_done, done.wallets.length, done.gateway_keys, done.kept], [true, 2, 1, null]);
  assert.equal(statSync(key).mode & 0o777, 0o600);

  const again = await purser.serve();
  assert.equal((await again.ask('GET', '/v1/budget', { token: one.agent_token })).status, 401);
  assert.equal((await again.ask('GET', '/v1/router/models', { token: opened.body.api_key })).status, 401);
  for (const { id } of [one, two]) {
    const { agent_token: token } = await purser.json('wallet', 'token', id);
    assert.equal((await again.ask('GET', '/v1/budget', { token })).status, 200);
  }
  const { agent_token: token } = await purser.json('wallet', 'token', one.id);
  assert.equal((await chat(again, token)).text, answered.text, 'its history goes on: the same key is the same answer');
  const anew = await again.ask('POST', '/v1/router/key', { token, key: 'r', body: {} });
  assert.equal((await again.ask('GET', '/v1/router/models', { token: anew.body.api_key })).status, 200);
  for (const credential of [accountKey, operatorKey])
    assert.equal((await again.ask('GET', '/v1/wallets', { token: credential })).status, 200);
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
  await purser.json('master-key', 'rotate');
  assert.equal((await purser.json('wallet', 'token', one.id)).agent_token, token, 'a rotation works as ever');
  await again.stop();

  const locked = await purser.cli('restore', backup);
  assert.equal(locked.code, 4);
  assert.match(locked.stderr, /it needs the master key mk_/);
  const unlocked = await purser.cli('restore', '--without-key', backup);
  assert.match(unlocked.stderr, /were not compared with these books: run `purser master-key replace --lost` first\./);
  assert.doesNotMatch(unlocked.stderr + unlocked.stdout, /0 leases|Give Purser the key/);
  await purser.json('master-key', 'replace', '--lost', '--yes');
  const restored = await purser.serve();
  const { agent_token: third } = await purser.json('wallet', 'token', two.id);
  assert.equal((await restored.ask('GET', '/v1/budget', { token: third })).status, 200);
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
});

test('a key file that does not open the books is kept under another name, and one from elsewhere must be fresh', async (t) => {
  const { purser, key } = await open(t);
  await (await purser.serve()).stop();
  writeFileSync(key, 'garbage\n', { mode: 0o600 });
  const { kept } = await purser.json('master-key', 'replace', '--lost', '--yes');
  assert.match(kept, /\/master\.key\.before-\d{8}T\d{6}Z$/);
  assert.equal(readFileSync(kept, 'utf8'), 'garbage\n');
  await (await purser.serve()).stop();

  const own = join(purser.directory, 'own.key');
  const there = installation(t, { directory: purser.directory, env: { PURSER_MASTER_KEY_FILE: own } });
  const missing = await there.cli('master-key', 'replace', '--lost', '--yes');
  assert.equal(missing.code, 4);
  assert.match(missing.stderr, /Put a fresh key there first/);
  writeFileSync(own, `${'ab'.repeat(32)}\n`, { mode: 0o600 });
  const { master_key_id: id, file } = await there.json('master-key', 'replace', '--lost', '--yes');
  assert.equal(file, own);
  await (await there.serve()).stop();
  await there.json('master-key', 'rotate', '--key-file', key).then(
    () => assert.fail('a key that was used before'),
    () => {},
  );
  writeFileSync(own, `${'cd'.repeat(32)}\n`, { mode: 0o600 });
  assert.notEqual((await there.json('master-key', 'replace', '--lost', '--yes')).master_key_id, id);
  writeFileSync(own, `${'ab'.repeat(32)}\n`, { mode: 0o600 });
  const former = await there.cli('wallet', 'list');
  assert.match(
    former.stderr,
    /since it was rotated or replaced: the one that `purser master-key rotate` or `replace --lost`/,
  );
  const absent = await there.cli('master-key', 'rotate', '--yes', '--key-file', join(purser.directory, 'absent'));
  assert.deepEqual([absent.code, absent.stderr], [3, `${join(purser.directory, 'absent')} cannot be read (ENOENT).\n`]);
  writeFileSync(own, `${'ab'.repeat(32)}\n`, { mode: 0o600 });
  const used = await there.cli('master-key', 'replace', '--lost', '--yes');
  assert.equal(used.code, 4);
  assert.match(used.stderr, /has been used here before/);
});

test('a rotation keeps the previous key beside the new one, also where the file was lost under a running server', async (t) => {
  const { purser, key } = await open(t);
  const server = await purser.serve();
  const first = readFileSync(key, 'utf8');
  const backup = join(purser.directory, 'b.db');
  await purser.json('backup', backup);
  const said = await purser.cli('master-key', 'rotate');
  assert.match(said.stderr, /The previous key is kept in .*master\.key\.before-/);
  const keptOf = () => readdirSync(purser.directory).filter((name) => name.startsWith('master.key.before-'));
  const [kept] = keptOf();
  assert.equal(readFileSync(join(purser.directory, kept as string), 'utf8'), first);
  assert.equal(statSync(join(purser.directory, kept as string)).mode & 0o777, 0o600);

  const second = readFileSync(key, 'utf8');
  rmSync(key);
  await purser.json('master-key', 'rotate');
  assert.ok(keptOf().some((name) => readFileSync(join(purser.directory, name), 'utf8') === second));
  await server.stop();
  renameSync(join(purser.directory, kept as string), key);
  const restored = await purser.cli('restore', backup);
  assert.equal(restored.code, 0, `the kept key opens the backup: ${restored.stderr}`);
});
