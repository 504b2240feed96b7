import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { generateMasterKey } from '../../src/access/master-key.ts';
import { unwrapKey, wrapKey } from '../../src/access/wrapped-key.ts';
import { masterKeyRows } from '../../src/ledger/master-keys.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { temporaryDirectory } from '../ledger/books.ts';

const keyFile = (purser: TestServer) => join(purser.directory, 'master.key');
const rowOf = (purser: TestServer, id: string) => masterKeyRows(purser.app.ledger.read).find((it) => it.id === id);

/** What a wallet's holder relies on: its token opens it, it can be shown again, and so can its gateway key. */
async function assertWhole(purser: TestServer, { id, token }: { id: string; token: string }, apiKey?: string) {
  assert.equal((await purser.chat(token)).status, 200);
  const shown = await purser.ask('GET', `/v1/wallets/${id}/token`, { token: purser.accountKey });
  assert.equal(shown.body.agent_token, token);
  if (apiKey === undefined) return;
  const again = await purser.ask('POST', '/v1/router/key', { token, key: randomUUID(), body: {} });
  assert.equal(again.body.api_key, apiKey);
  assert.equal((await purser.ask('GET', '/v1/router/models', { token: apiKey })).status, 200);
}
const gatewayKey = async (purser: TestServer, token: string) =>
  (await purser.ask('POST', '/v1/router/key', { token, key: randomUUID(), body: {} })).body.api_key as string;

test('a running server uses the new key at once, and what it handed out before goes on working', async (t) => {
  const purser = await openTestServer(t);
  const old = await purser.openWallet();
  const oldKey = await gatewayKey(purser, old.token);
  const before = readFileSync(keyFile(purser), 'utf8');
  const rotated = await purser.run('master-key.rotate', {});
  const { master_key_id: id, previous_master_key_id: previous, kept, ...rest } = rotated;
  assert.match(kept ?? '', /\/master\.key\.before-\d{8}T\d{6}Z$/);
  assert.equal(readFileSync(kept as string, 'utf8'), before);
  assert.deepEqual(rest, { from: 'data directory', file: keyFile(purser), is_in_place: true, key: null });
  assert.notEqual(id, previous);
  assert.notEqual(readFileSync(keyFile(purser), 'utf8'), before);
  assert.equal(statSync(keyFile(purser)).mode & 0o777, 0o600);
  assert.equal(existsSync(`${keyFile(purser)}.new`), false);

  await assertWhole(purser, old, oldKey);
  const fresh = await purser.openWallet();
  assert.equal(purser.wallet(fresh.id).masterKeyId, id);
  assert.equal(purser.wallet(old.id).masterKeyId, previous);
  const freshKey = await gatewayKey(purser, fresh.token);

  await purser.reopen();
  await assertWhole(purser, old, oldKey);
  await assertWhole(purser, fresh, freshKey);
  assert.deepEqual(purser.problems(), []);
});

test('the old key is in the database only encrypted, and is dropped with the last wallet that needs it', async (t) => {
  const purser = await openTestServer(t);
  const [one, two] = [await purser.openWallet(), await purser.openWallet()];
  const old = readFileSync(keyFile(purser), 'utf8').trim();
  const { previous_master_key_id: previous, master_key_id: current } = await purser.run('master-key.rotate', {});
  const dropped = async () => (await purser.app.reaper.runOnce()).keysDropped;
  assert.equal(rowOf(purser, previous)?.wrappedBy, current);
  assert.equal(rowOf(purser, current)?.wrapped, null, 'the new key is nowhere in the database');
  assert.equal(await dropped(), 0);
  for (const { token } of [one, two]) {
    assert.equal(rowOf(purser, previous)?.wrapped?.length, 60);
    await purser.ask('POST', '/v1/run/close', { token });
  }
  const closed = await purser.openWallet();
  assert.equal(await dropped(), 1);
  assert.deepEqual([rowOf(purser, previous)?.wrapped, rowOf(purser, previous)?.wrappedBy], [null, null]);
  assert.equal(await dropped(), 0);
  await purser.reopen();
  await assertWhole(purser, closed);
  assert.deepEqual(purser.problems(), []);

  purser.tamper('vacuum');
  const everything = readFileSync(join(purser.directory, 'purser.db'));
  assert.equal(everything.includes(Buffer.from(old, 'hex')), false);
  assert.equal(everything.includes(old), false);
});

test('rotated again and again, every live wallet keeps its token', async (t) => {
  const purser = await openTestServer(t);
  const wallets = [await purser.openWallet()];
  for (let i = 0; i < 4; i++) {
    await purser.run('master-key.rotate', {});
    wallets.push(await purser.openWallet());
  }
  await purser.ask('POST', '/v1/run/close', { token: wallets[2]?.token });
  await purser.app.reaper.runOnce();
  await purser.reopen();
  for (const [i, wallet] of wallets.entries()) if (i !== 2) await assertWhole(purser, wallet);
  assert.equal(masterKeyRows(purser.app.ledger.read).filter((it) => it.wrapped !== null).length, 3);
});

test('two rotations asked for at once come one after the other', async (t) => {
  const purser = await openTestServer(t);
  const wallet = await purser.openWallet();
  const [one, two] = await Promise.all([purser.run('master-key.rotate', {}), purser.run('master-key.rotate', {})]);
  assert.equal(two.previous_master_key_id, one.master_key_id);
  await purser.reopen();
  await assertWhole(purser, wallet);
});

/** A purser whose master key comes from outside its data directory. */
async function openWithOwnKey(t: TestContext, from: 'PURSER_MASTER_KEY' | 'PURSER_MASTER_KEY_FILE') {
  const first = generateMasterKey();
  const env: Record<string, string> = {};
  const file = join(temporaryDirectory(t), 'key');
  const give = (key: string) => {
    writeFileSync(file, `${key}\n`);
    env[from] = from === 'PURSER_MASTER_KEY' ? key : file;
  };
  give(first.key.toString('hex'));
  return { purser: await openTestServer(t, { env }), first, give, file };
}

for (const from of ['PURSER_MASTER_KEY', 'PURSER_MASTER_KEY_FILE'] as const)
  test(`a key from ${from} is the operator's to replace: the new one is printed, and until then both open the books`, async (t) => {
    const { purser, first, give, file } = await openWithOwnKey(t, from);
    const old = await purser.openWallet();
    const rotated = await purser.run('master-key.rotate', {});
    assert.equal(rotated.is_in_place, false);
    assert.match(rotated.key ?? '', /^[0-9a-f]{64}$/);
    assert.equal(readFileSync(file, 'utf8'), `${first.key.toString('hex')}\n`, 'we write only in our own directory');
    const fresh = await purser.openWallet();

    await purser.reopen();
    assert(purser.log.some((line) => line.includes('"event":"master_key.old"')));
    await assertWhole(purser, old);
    await assertWhole(purser, fresh);
    assert.notEqual(rowOf(purser, rotated.master_key_id)?.wrapped, null);

    give(rotated.key as string);
    await purser.reopen();
    await assertWhole(purser, old);
    await assertWhole(purser, fresh);
    assert.equal(rowOf(purser, rotated.master_key_id)?.wrapped, null, 'the old key opens the new one no more');
    assert.equal(rowOf(purser, rotated.previous_master_key_id)?.wrappedBy, rotated.master_key_id);

    give(first.key.toString('hex'));
    await assert.rejects(purser.reopen(), /The master key is mk_\w+, but this database belongs to mk_\w+\. .*rotated/);
    give(rotated.key as string);
    await purser.reopen();
    assert.equal(purser.log.join('\n').includes(rotated.key as string), false);
  });

test('rotated twice before the configuration was changed, the first key still opens the third', async (t) => {
  const { purser, give } = await openWithOwnKey(t, 'PURSER_MASTER_KEY');
  const wallets = [await purser.openWallet()];
  await purser.run('master-key.rotate', {});
  wallets.push(await purser.openWallet());
  await purser.reopen();
  const { key } = await purser.run('master-key.rotate', {});
  wallets.push(await purser.openWallet());
  await purser.reopen();
  for (const it of wallets) await assertWhole(purser, it);
  give(key as string);
  await purser.reopen();
  for (const it of wallets) await assertWhole(purser, it);
});

test('a key that is given is taken; a malformed one and one that was used before are refused', async (t) => {
  const purser = await openTestServer(t);
  const old = await purser.openWallet();
  const before = readFileSync(keyFile(purser), 'utf8');
  const next = generateMasterKey();
  const rotated = await purser.run('master-key.rotate', { key: next.key.toString('base64') });
  assert.deepEqual([rotated.master_key_id, rotated.key], [next.id, null]);
  await assertWhole(purser, old);
  await assert.rejects(purser.run('master-key.rotate', { key: 'short' }), /must be 32 bytes/);
  await assert.rejects(purser.run('master-key.rotate', { key: before }), /has been used here before/);
  await assert.rejects(purser.run('master-key.rotate', { key: next.key.toString('hex') }), /has been used here before/);
  assert.equal(purser.app.keyring.current.id, next.id);
});

test('a key file that cannot be written is said; nothing is lost, and the next start writes it', async (t) => {
  const purser = await openTestServer(t);
  const old = await purser.openWallet();
  const { keySource } = purser.app;
  purser.app.keySource = { ...keySource, path: join(purser.directory, 'no', 'such', 'directory') };
  await assert.rejects(purser.run('master-key.rotate', {}), /is in force, but .* could not be written \(ENOENT\)/);
  const fresh = await purser.openWallet();
  const file = readFileSync(keyFile(purser), 'utf8');
  await purser.reopen();
  assert.notEqual(readFileSync(keyFile(purser), 'utf8'), file);
  await assertWhole(purser, old);
  await assertWhole(purser, fresh);
});

test('a wrapped predecessor that cannot be opened is a clear error', async (t) => {
  const purser = await openTestServer(t);
  await purser.openWallet();
  const { previous_master_key_id: previous } = await purser.run('master-key.rotate', {});
  purser.tamper('update master_key set sealed = randomblob(60) where id = ?', previous);
  await assert.rejects(
    purser.reopen(),
    RegExp(`The master key ${previous} cannot be opened with mk_\\w+: its wrapped copy in the database is damaged`),
  );
});

test('a wrapped key opens only as what it is, with what it was wrapped with, and unchanged', () => {
  const [key, under, other] = [generateMasterKey(), generateMasterKey(), generateMasterKey()];
  const wrapped = wrapKey(key, under);
  assert.deepEqual(unwrapKey(key.id, wrapped, under), key);
  assert.notDeepEqual(wrapKey(key, under), wrapped, 'a nonce is never used twice');
  assert.equal(wrapped.includes(key.key), false);
  assert.throws(() => unwrapKey(other.id, wrapped, under), /cannot be opened/);
  assert.throws(() => unwrapKey(key.id, wrapped, other), /cannot be opened/);
  for (const damaged of [Buffer.alloc(0), wrapped.subarray(0, 40), randomBytes(60)])
    assert.throws(() => unwrapKey(key.id, damaged, under), /cannot be opened/);
  for (let bit = 0; bit < wrapped.length * 8; bit++) {
    const flipped = Buffer.from(wrapped);
    flipped[bit >> 3] = (flipped[bit >> 3] as number) ^ (1 << (bit & 7));
    assert.throws(() => unwrapKey(key.id, flipped, under), /cannot be opened/);
  }
});
