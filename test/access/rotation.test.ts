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

const keyFile = (house: TestServer) => join(house.directory, 'master.key');
const rowOf = (house: TestServer, id: string) => masterKeyRows(house.app.ledger.read).find((it) => it.id === id);

/** What a wallet's holder relies on: its token opens it, it can be shown again, and so can its gateway key. */
async function assertWhole(house: TestServer, { id, token }: { id: string; token: string }, apiKey?: string) {
  assert.equal((await house.chat(token)).status, 200);
  const shown = await house.ask('GET', `/v1/wallets/${id}/token`, { token: house.accountKey });
  assert.equal(shown.body.agent_token, token);
  if (apiKey === undefined) return;
  const again = await house.ask('POST', '/v1/router/key', { token, key: randomUUID(), body: {} });
  assert.equal(again.body.api_key, apiKey);
  assert.equal((await house.ask('GET', '/v1/router/models', { token: apiKey })).status, 200);
}
const gatewayKey = async (house: TestServer, token: string) =>
  (await house.ask('POST', '/v1/router/key', { token, key: randomUUID(), body: {} })).body.api_key as string;

test('a running server uses the new key at once, and what it handed out before goes on working', async (t) => {
  const house = await openTestServer(t);
  const old = await house.openWallet();
  const oldKey = await gatewayKey(house, old.token);
  const before = readFileSync(keyFile(house), 'utf8');
  const { master_key_id: id, previous_master_key_id: previous, ...rest } = await house.run('master-key.rotate', {});
  assert.deepEqual(rest, { from: 'data directory', file: keyFile(house), is_in_place: true, key: null });
  assert.notEqual(id, previous);
  assert.notEqual(readFileSync(keyFile(house), 'utf8'), before);
  assert.equal(statSync(keyFile(house)).mode & 0o777, 0o600);
  assert.equal(existsSync(`${keyFile(house)}.new`), false);

  await assertWhole(house, old, oldKey);
  const fresh = await house.openWallet();
  assert.equal(house.wallet(fresh.id).masterKeyId, id);
  assert.equal(house.wallet(old.id).masterKeyId, previous);
  const freshKey = await gatewayKey(house, fresh.token);

  await house.reopen();
  await assertWhole(house, old, oldKey);
  await assertWhole(house, fresh, freshKey);
  assert.deepEqual(house.problems(), []);
});

test('the old key is in the database only encrypted, and is dropped with the last wallet that needs it', async (t) => {
  const house = await openTestServer(t);
  const [one, two] = [await house.openWallet(), await house.openWallet()];
  const old = readFileSync(keyFile(house), 'utf8').trim();
  const { previous_master_key_id: previous, master_key_id: current } = await house.run('master-key.rotate', {});
  const dropped = async () => (await house.app.reaper.runOnce()).keysDropped;
  assert.equal(rowOf(house, previous)?.sealedBy, current);
  assert.equal(rowOf(house, current)?.sealed, null, 'the new key is nowhere in the database');
  assert.equal(await dropped(), 0);
  for (const { token } of [one, two]) {
    assert.equal(rowOf(house, previous)?.sealed?.length, 60);
    await house.ask('POST', '/v1/run/close', { token });
  }
  const closed = await house.openWallet();
  assert.equal(await dropped(), 1);
  assert.deepEqual([rowOf(house, previous)?.sealed, rowOf(house, previous)?.sealedBy], [null, null]);
  assert.equal(await dropped(), 0);
  await house.reopen();
  await assertWhole(house, closed);
  assert.deepEqual(house.problems(), []);

  await house.app.ledger.client.exec('vacuum');
  const everything = readFileSync(join(house.directory, 'purser.db'));
  assert.equal(everything.includes(Buffer.from(old, 'hex')), false);
  assert.equal(everything.includes(old), false);
});

test('rotated again and again, every live wallet keeps its token', async (t) => {
  const house = await openTestServer(t);
  const wallets = [await house.openWallet()];
  for (let i = 0; i < 4; i++) {
    await house.run('master-key.rotate', {});
    wallets.push(await house.openWallet());
  }
  await house.ask('POST', '/v1/run/close', { token: wallets[2]?.token });
  await house.app.reaper.runOnce();
  await house.reopen();
  for (const [i, wallet] of wallets.entries()) if (i !== 2) await assertWhole(house, wallet);
  assert.equal(masterKeyRows(house.app.ledger.read).filter((it) => it.sealed !== null).length, 3);
});

test('two rotations asked for at once come one after the other', async (t) => {
  const house = await openTestServer(t);
  const wallet = await house.openWallet();
  const [one, two] = await Promise.all([house.run('master-key.rotate', {}), house.run('master-key.rotate', {})]);
  assert.equal(two.previous_master_key_id, one.master_key_id);
  await house.reopen();
  await assertWhole(house, wallet);
});

/** A house whose master key comes from outside its data directory. */
async function openOutside(t: TestContext, from: 'PURSER_MASTER_KEY' | 'PURSER_MASTER_KEY_FILE') {
  const first = generateMasterKey();
  const env: Record<string, string> = {};
  const file = join(temporaryDirectory(t), 'key');
  const give = (key: string) => {
    writeFileSync(file, `${key}\n`);
    env[from] = from === 'PURSER_MASTER_KEY' ? key : file;
  };
  give(first.key.toString('hex'));
  return { house: await openTestServer(t, { env }), first, give, file };
}

for (const from of ['PURSER_MASTER_KEY', 'PURSER_MASTER_KEY_FILE'] as const)
  test(`a key from ${from} is the operator's to replace: the new one is printed, and until then both open the books`, async (t) => {
    const { house, first, give, file } = await openOutside(t, from);
    const old = await house.openWallet();
    const rotated = await house.run('master-key.rotate', {});
    assert.equal(rotated.is_in_place, false);
    assert.match(rotated.key ?? '', /^[0-9a-f]{64}$/);
    assert.equal(readFileSync(file, 'utf8'), `${first.key.toString('hex')}\n`, 'we write only in our own directory');
    const fresh = await house.openWallet();

    await house.reopen();
    assert(house.log.some((line) => line.includes('"event":"master_key.old"')));
    await assertWhole(house, old);
    await assertWhole(house, fresh);
    assert.notEqual(rowOf(house, rotated.master_key_id)?.sealed, null);

    give(rotated.key as string);
    await house.reopen();
    await assertWhole(house, old);
    await assertWhole(house, fresh);
    assert.equal(rowOf(house, rotated.master_key_id)?.sealed, null, 'the old key opens the new one no more');
    assert.equal(rowOf(house, rotated.previous_master_key_id)?.sealedBy, rotated.master_key_id);

    give(first.key.toString('hex'));
    await assert.rejects(house.reopen(), /The master key is mk_\w+, but this database belongs to mk_\w+\. .*rotated/);
    give(rotated.key as string);
    await house.reopen();
    assert.equal(house.log.join('\n').includes(rotated.key as string), false);
  });

test('rotated twice before the configuration was changed, the first key still opens the third', async (t) => {
  const { house, give } = await openOutside(t, 'PURSER_MASTER_KEY');
  const wallets = [await house.openWallet()];
  await house.run('master-key.rotate', {});
  wallets.push(await house.openWallet());
  await house.reopen();
  const { key } = await house.run('master-key.rotate', {});
  wallets.push(await house.openWallet());
  await house.reopen();
  for (const it of wallets) await assertWhole(house, it);
  give(key as string);
  await house.reopen();
  for (const it of wallets) await assertWhole(house, it);
});

test('a key that is given is taken; a malformed one and one that was used before are refused', async (t) => {
  const house = await openTestServer(t);
  const old = await house.openWallet();
  const before = readFileSync(keyFile(house), 'utf8');
  const next = generateMasterKey();
  const rotated = await house.run('master-key.rotate', { key: next.key.toString('base64') });
  assert.deepEqual([rotated.master_key_id, rotated.key], [next.id, null]);
  await assertWhole(house, old);
  await assert.rejects(house.run('master-key.rotate', { key: 'short' }), /must be 32 bytes/);
  await assert.rejects(house.run('master-key.rotate', { key: before }), /has been used here before/);
  await assert.rejects(house.run('master-key.rotate', { key: next.key.toString('hex') }), /has been used here before/);
  assert.equal(house.app.keyring.current.id, next.id);
});

test('a key file that cannot be written is said; nothing is lost, and the next start writes it', async (t) => {
  const house = await openTestServer(t);
  const old = await house.openWallet();
  const { keyPlace } = house.app;
  house.app.keyPlace = { ...keyPlace, path: join(house.directory, 'no', 'such', 'directory') };
  await assert.rejects(house.run('master-key.rotate', {}), /is in force, but .* could not be written \(ENOENT\)/);
  const fresh = await house.openWallet();
  const file = readFileSync(keyFile(house), 'utf8');
  await house.reopen();
  assert.notEqual(readFileSync(keyFile(house), 'utf8'), file);
  await assertWhole(house, old);
  await assertWhole(house, fresh);
});

test('a sealed predecessor that cannot be opened is a clear error', async (t) => {
  const house = await openTestServer(t);
  await house.openWallet();
  const { previous_master_key_id: previous } = await house.run('master-key.rotate', {});
  house.app.ledger.client.prepare('update master_key set sealed = randomblob(60) where id = ?').run(previous);
  await assert.rejects(
    house.reopen(),
    RegExp(`The master key ${previous} cannot be opened with mk_\\w+: its sealed copy in the database is damaged`),
  );
});

test('a sealed key opens only as what it is, with what it was sealed under, and unchanged', () => {
  const [key, under, other] = [generateMasterKey(), generateMasterKey(), generateMasterKey()];
  const sealed = wrapKey(key, under);
  assert.deepEqual(unwrapKey(key.id, sealed, under), key);
  assert.notDeepEqual(wrapKey(key, under), sealed, 'a nonce is never used twice');
  assert.equal(sealed.includes(key.key), false);
  assert.throws(() => unwrapKey(other.id, sealed, under), /cannot be opened/);
  assert.throws(() => unwrapKey(key.id, sealed, other), /cannot be opened/);
  for (const damaged of [Buffer.alloc(0), sealed.subarray(0, 40), randomBytes(60)])
    assert.throws(() => unwrapKey(key.id, damaged, under), /cannot be opened/);
  for (let bit = 0; bit < sealed.length * 8; bit++) {
    const flipped = Buffer.from(sealed);
    flipped[bit >> 3] = (flipped[bit >> 3] as number) ^ (1 << (bit & 7));
    assert.throws(() => unwrapKey(key.id, flipped, under), /cannot be opened/);
  }
});
