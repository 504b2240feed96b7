import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { crc32 } from 'node:zlib';
import {
  deriveToken,
  hashToken,
  kindOfToken,
  lastFour,
  looksLikeOurs,
  mintToken,
  type TokenKind,
} from '../../src/access/token.ts';
import fc from '../helper/property.ts';
import { openTestServer } from '../helper/server.ts';

const PREFIXES: Record<TokenKind, string> = {
  account: 'cnv_live_',
  operator: 'cnv_operator_',
  wallet: 'svc_agent_',
  router: 'svc_router_',
};
const KINDS = Object.keys(PREFIXES) as TokenKind[];
const BASE62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const KEY = Buffer.alloc(32, 1);

/** A number in base 62, written once more and in another way than in src. */
function base62(value: bigint, length: number): string {
  if (length === 0) return '';
  return base62(value / 62n, length - 1) + BASE62.charAt(Number(value % 62n));
}

const rowId = fc.string({ minLength: 1, maxLength: 40 });
/** A token of any kind. */
const token = fc
  .tuple(fc.constantFrom(...KINDS), rowId)
  .map(([kind, row]) => (kind === 'wallet' || kind === 'router' ? deriveToken(kind, KEY, row) : mintToken(kind)));
const position = fc.nat({ max: 200 });

test('a token is a prefix, 43 characters of secret and 6 of checksum', () => {
  for (const kind of KINDS) {
    const text = kind === 'wallet' || kind === 'router' ? deriveToken(kind, KEY, 'row') : mintToken(kind);
    assert.match(text, new RegExp(`^${PREFIXES[kind]}[0-9A-Za-z]{49}$`));
    assert.equal(kindOfToken(text), kind);
    assert.equal(looksLikeOurs(text), true);
  }
});

test('the checksum is the CRC-32 of all before it, in base 62: anybody can check it offline', () => {
  fc.assert(
    fc.property(token, (text) => {
      const body = text.slice(0, -6);
      assert.equal(text.slice(-6), base62(BigInt(crc32(body)), 6));
    }),
  );
});

test('any single changed character is detected', () => {
  const any = fc.oneof(fc.constantFrom(...BASE62), fc.string({ unit: 'binary', minLength: 1, maxLength: 1 }));
  fc.assert(
    fc.property(token, position, any, (text, at, character) => {
      const i = at % text.length;
      fc.pre(text.charAt(i) !== character);
      assert.equal(kindOfToken(text.slice(0, i) + character + text.slice(i + 1)), undefined);
    }),
    { numRuns: 5000 },
  );
});

test('every single changed character of one token is detected, all 62 at every place', () => {
  const text = deriveToken('wallet', KEY, 'wal_1');
  for (let i = 0; i < text.length; i++)
    for (const character of `${BASE62}_-. `)
      if (text.charAt(i) !== character)
        assert.equal(kindOfToken(text.slice(0, i) + character + text.slice(i + 1)), undefined, `${i} ${character}`);
});

test('a lost, doubled or swapped character is detected, and so is anything before or behind', () => {
  fc.assert(
    fc.property(token, position, (text, at) => {
      const i = at % text.length;
      assert.equal(kindOfToken(text.slice(0, i) + text.slice(i + 1)), undefined);
      assert.equal(kindOfToken(text.slice(0, i) + text.charAt(i) + text.slice(i)), undefined);
      const swapped = text.slice(0, i) + text.charAt(i + 1) + text.charAt(i) + text.slice(i + 2);
      if (swapped !== text) assert.equal(kindOfToken(swapped), undefined);
      for (const more of ['\n', ' ', '\0', 'a']) {
        assert.equal(kindOfToken(text + more), undefined);
        assert.equal(kindOfToken(more + text), undefined);
      }
    }),
    { numRuns: 1000 },
  );
});

test('nothing else is a token', () => {
  fc.assert(fc.property(fc.string({ unit: 'binary', maxLength: 100 }), (text) => kindOfToken(text) === undefined));
  const body = fc.string({ unit: fc.constantFrom(...BASE62), minLength: 43, maxLength: 49 });
  fc.assert(
    fc.property(fc.constantFrom(...KINDS), body, (kind, text) => kindOfToken(PREFIXES[kind] + text) === undefined),
  );
});

test('a derived token is HMAC-SHA256 under the master key over its purpose and its row, for ever the same', () => {
  const secret = createHmac('sha256', KEY).update('purser/wallet-token/v1\0wal_1').digest();
  const body = `svc_agent_${base62(BigInt(`0x${secret.toString('hex')}`), 43)}`;
  const expected = body + base62(BigInt(crc32(body)), 6);
  assert.equal(deriveToken('wallet', KEY, 'wal_1'), expected);
  assert.equal(deriveToken('wallet', Buffer.from(KEY), 'wal_1'), expected);
  // Written down: if this changes, every wallet token that was ever handed out is dead.
  assert.equal(expected, 'svc_agent_IYCf5SCOULiRYkFe7Hw1xl1MUR4qCb7nBp6VSSguKAd03F4RT');
});

test('derived tokens differ by row, by purpose and by key', () => {
  const key = fc.uint8Array({ minLength: 32, maxLength: 32 }).map((it) => Buffer.from(it));
  const secretOf = (text: string) => text.slice(text.lastIndexOf('_') + 1, -6);
  fc.assert(
    fc.property(key, key, rowId, rowId, (one, two, row, other) => {
      const wallet = secretOf(deriveToken('wallet', one, row));
      assert.equal(secretOf(deriveToken('wallet', one, row)), wallet);
      assert.notEqual(secretOf(deriveToken('router', one, row)), wallet);
      if (row !== other) assert.notEqual(secretOf(deriveToken('wallet', one, other)), wallet);
      if (!one.equals(two)) assert.notEqual(secretOf(deriveToken('wallet', two, row)), wallet);
    }),
  );
});

test('no two minted tokens are the same', () => {
  const minted = Array.from({ length: 2000 }, () => mintToken('account'));
  assert.equal(new Set(minted).size, 2000);
});

test('wallet tokens are derived under the master key that the server was given', async (t) => {
  const purser = await openTestServer(t, { env: { PURSER_MASTER_KEY: KEY.toString('hex') } });
  const { id, token: given } = await purser.openWallet();
  assert.equal(given, deriveToken('wallet', KEY, id));
});

test('a wallet token can be read again, and is the same after a restart', async (t) => {
  const purser = await openTestServer(t);
  const { id, token: first } = await purser.openWallet();
  const read = async () =>
    (await purser.ask('GET', `/v1/wallets/${id}/token`, { token: purser.accountKey })).body.agent_token;
  assert.equal(await read(), first);
  await purser.reopen();
  assert.equal(await read(), first);
  assert.equal((await purser.budget(first)).wallet_id, id);
});

test('the database has hashes and last four characters, and no token, no secret and no master key', async (t) => {
  const purser = await openTestServer(t);
  const { id, token: walletToken } = await purser.openWallet();
  const minted = (await purser.ask('POST', '/v1/keys', { token: purser.operatorKey, body: { name: 'minted' } })).body
    .key;
  assert.equal((await purser.chat(walletToken)).status, 200);
  await purser.ask('GET', `/v1/wallets/${id}/token`, { token: purser.accountKey });
  await purser.ask('GET', '/v1/account', { token: minted });
  await purser.ask('GET', '/v1/account', { token: `${minted.slice(0, -1)}!` });
  await purser.app.reaper.runOnce();

  const masterKey = readFileSync(join(purser.directory, 'master.key'), 'utf8').trim();
  const names = readdirSync(purser.directory).filter((it) => /^purser\.db/.test(it));
  assert.ok(names.length >= 1, readdirSync(purser.directory).join());
  const rows = Buffer.concat(names.map((it) => readFileSync(join(purser.directory, it))));
  const log = purser.log.join('');
  for (const text of [walletToken, minted, purser.accountKey, purser.operatorKey]) {
    const secret = text.slice(text.lastIndexOf('_') + 1);
    for (const part of [text, secret, secret.slice(0, 20), secret.slice(0, 43)]) {
      assert.equal(rows.includes(part), false, 'a secret is in the database');
      assert.equal(log.includes(part), false, 'a secret is in the log');
    }
    assert.equal(rows.includes(hashToken(text)), true, 'its hash is there');
    assert.equal(rows.includes(lastFour(text)), true);
  }
  for (const part of [masterKey, Buffer.from(masterKey, 'hex')]) assert.equal(rows.includes(part), false);
  assert.equal(log.includes(masterKey), false);
});

test('lists and records show no credential', async (t) => {
  const purser = await openTestServer(t);
  const { id, token: walletToken } = await purser.openWallet();
  const { key } = (await purser.ask('POST', '/v1/keys', { token: purser.operatorKey, body: { name: 'minted' } })).body;
  const account = [
    '/v1/account',
    '/v1/keys',
    '/v1/wallets',
    `/v1/wallets/${id}`,
    `/v1/wallets/${id}/resources`,
    '/v1/resources',
  ];
  const texts = await Promise.all([
    ...account.map((path) => purser.ask('GET', path, { token: purser.accountKey })),
    ...['/v1/budget', '/v1/compute/list', '/v1/models'].map((path) => purser.ask('GET', path, { token: walletToken })),
  ]);
  for (const { status, text } of texts) {
    assert.equal(status, 200);
    for (const secret of [walletToken, key, purser.accountKey, purser.operatorKey])
      assert.equal(text.includes(secret.slice(-49)), false);
    assert.doesNotMatch(text, /[0-9A-Za-z]{40}/);
  }
});
