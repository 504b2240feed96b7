import assert from 'node:assert/strict';
import test, { suite } from 'node:test';
import { openedOnce } from '../helper/opened-once.ts';
import { openTestServer } from '../helper/server.ts';
import { INTERFACE, WITH_BODY } from './interface.ts';
import { sendRaw } from './raw.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

/** What somebody might write where an id belongs, as it stands in a path. */
// biome-ignore format: a list of odd things
const ODD_IDS = [
  '..%2f..%2fetc%2fpasswd', '..%2f', '%2e%2e%2faccount', '..;', '...', '%00', 'wal_%00', '%20', '%20%20wal',
  '%0d%0aX-Injected:%201',
  '%', '%zz', '%ff', '%c3%28', '%ed%a0%80', '%F0%9F%A4%96', '*', "'%20or%20'1'='1", '%25', '%3Fa=b', '%23', '%5c', '~',
  '__proto__', 'constructor', 'null', 'undefined', '-1', '0', 'wal_01k9v3c2mq8r5t7w1x4z6b0d2f', 'a'.repeat(8000),
];

/** The same as they stand in a body. */
// biome-ignore format: a list of odd things
const ODD_TEXTS = [
  '../../etc/passwd', '/', '.', ' ', 'a\u0000', '\u0000', '\r\n', '\ud800', '🤖', "' or '1'='1", '__proto__',
  'a'.repeat(200),
];

suite('any endpoint with an id', () => {
  const opened = openedOnce(openTestServer);
  for (const { method, path, auth } of INTERFACE.filter((line) => line.path.includes('{id}')))
    test(`${method} ${path} is a 404 for every id that is not the caller's, however it is written`, async () => {
      const purser = opened();
      const token = auth === 'Session' ? purser.operatorKey : purser.accountKey;
      await assertNothingMoves(purser, async () => {
        for (const id of ODD_IDS)
          assertRefused(await sendRaw(purser, method, path.replace('{id}', id), { token }), 404, 'not_found', id);
      });
    });

  for (const { path, key, body } of WITH_BODY.filter((line) => 'id' in line.body))
    test(`POST ${path} is a 404 for every id that is not the wallet's, however it is written`, async () => {
      const purser = opened();
      const { token } = await purser.openWallet();
      await assertNothingMoves(purser, async () => {
        for (const id of ODD_TEXTS) {
          const answer = await purser.ask('POST', path, { token, key: key ? 'a' : undefined, body: { ...body, id } });
          assertRefused(answer, 404, 'not_found', JSON.stringify(id));
        }
      });
    });
});

test('GET /v1/resources refuses a filter or a cursor of more than 200 characters', async (t) => {
  const purser = await openTestServer(t);
  const get = (query: string) => purser.ask('GET', `/v1/resources?${query}`, { token: purser.accountKey });
  await assertNothingMoves(purser, async () => {
    for (const name of ['wallet_id', 'before']) {
      const answer = await get(`${name}=${'a'.repeat(201)}`);
      assertRefused(answer, 400, 'invalid_request');
      assert.match(answer.body.error.message, new RegExp(name));
      assertRefused(await get(`${name}=${'%00'.repeat(201)}`), 400, 'invalid_request');
      assertRefused(await get(`${name}=${encodeURIComponent('🤖'.repeat(201))}`), 400, 'invalid_request');
      assertRefused(await get(`${name}=${'a'.repeat(10_000)}`), 400, 'invalid_request');
    }
  });
});

test('GET /v1/resources knows no foreign wallet and no cursor that it never gave', async (t) => {
  const purser = await openTestServer(t);
  const get = (query: string) => purser.ask('GET', `/v1/resources?${query}`, { token: purser.accountKey });
  await assertNothingMoves(purser, async () => {
    for (const odd of [
      'a'.repeat(200),
      encodeURIComponent('🤖'.repeat(200)),
      '%00',
      '%ff',
      '..%2f',
      '%20',
      "'%20or%201=1",
    ]) {
      assertRefused(await get(`wallet_id=${odd}`), 404, 'not_found', odd);
      assertRefused(await get(`before=${odd}`), 400, 'invalid_cursor', odd);
    }
    for (const nothing of ['', 'wallet_id=', 'before=', 'wallet_id=&before=', '&&'])
      assert.equal((await get(nothing)).status, 200, nothing);
    for (const unknown of ['other=1', 'wallet=x', '%'])
      assertRefused(await get(unknown), 400, 'invalid_request', unknown);
  });
});

suite('any endpoint with an Idempotency-Key', () => {
  const opened = openedOnce(openTestServer);
  for (const { path, auth, body } of WITH_BODY.filter((line) => line.key)) {
    const tokenOf = { Account: 'accountKey', Session: 'operatorKey' } as const;

    test(`POST ${path} demands an Idempotency-Key of 1 to 128 printable ASCII characters`, async () => {
      const purser = opened();
      const token = auth === 'Wallet' ? (await purser.openWallet()).token : purser[tokenOf[auth]];
      const post = (key: string | undefined) => {
        const keyed = key === undefined ? {} : { 'idempotency-key': key };
        return sendRaw(purser, 'POST', path, {
          token,
          headers: { 'content-type': 'application/json', ...keyed },
          body: JSON.stringify(body),
        });
      };
      await assertNothingMoves(purser, async () => {
        assertRefused(await post(undefined), 400, 'idempotency_key_required');
        const wrong = [
          '',
          '   ',
          'a'.repeat(129),
          'a'.repeat(5000),
          'schl\u00fcssel',
          Buffer.from('ключ').toString('latin1'),
          'a\tb',
          '\u00ff',
        ];
        for (const key of wrong) assertRefused(await post(key), 400, 'invalid_idempotency_key', JSON.stringify(key));
      });
    });

    test(`POST ${path} takes an Idempotency-Key of 1 and of 128 characters, and every printable one`, async (t) => {
      const purser = await openTestServer(t);
      const token = auth === 'Wallet' ? (await purser.openWallet()).token : purser[tokenOf[auth]];
      const printable = String.fromCharCode(...Array.from({ length: 95 }, (_, i) => 0x20 + i)).trim();
      for (const key of ['a', '0', 'k'.repeat(128), printable, '"', '../..', '%00', "'; drop table wallet; --"]) {
        const answer = await purser.ask('POST', path, { token, key, body });
        assert.ok(!/idempotency/.test(answer.body.error?.code ?? ''), `${key}: ${answer.text}`);
        assert.notEqual(answer.status, 500, answer.text);
      }
      assert.deepEqual(purser.problems(), []);
    });
  }
});

test('a path that does not exist is a 404, and a method that a path does not have a 405 with Allow', async (t) => {
  const purser = await openTestServer(t);
  const token = purser.accountKey;
  await assertNothingMoves(purser, async () => {
    for (const path of [
      '/v1',
      '/v1/',
      '/v1/account/',
      '//v1/account',
      '/V1/account',
      '/v2/account',
      '/v1/wallets//token',
      '/v1/wallets/a/b/c',
      '/v1/wallets/%2e%2e',
      '/account',
    ])
      assertRefused(await sendRaw(purser, 'GET', path, { token }), 404, 'not_found', path);
    for (const [method, path, allow] of [
      ['PUT', '/v1/account', 'GET, HEAD'],
      ['DELETE', '/v1/wallets', 'GET, HEAD, POST'],
      ['PATCH', '/v1/wallets/wal_a', 'GET, HEAD'],
      ['GET', '/v1/chat/completions', 'POST'],
      ['OPTIONS', '/v1/keys', 'GET, HEAD, POST'],
      ['POST', '/v1/openapi.json', 'GET, HEAD'],
    ] as const) {
      const answer = await sendRaw(purser, method, path, { token });
      assertRefused(answer, 405, 'method_not_allowed', `${method} ${path}`);
      assert.equal(answer.headers.allow, allow);
    }
  });
});

test('a request that cannot be read as HTTP gets an error of the documented shape too', async (t) => {
  const purser = await openTestServer(t);
  const token = purser.accountKey;
  await assertNothingMoves(purser, async () => {
    for (const [method, path, headers] of [
      ['OPTIONS', '*', {}],
      ['GET', '/v1/account', { host: 'a b' }],
      ['GET', '/v1/account', { host: 'a/b?c' }],
      ['GET', 'http://[/v1/account', {}],
      ['POST', '/v1/run/close', { 'content-length': '1', 'transfer-encoding': 'chunked' }],
    ] as const)
      assertRefused(
        await sendRaw(purser, method, path, { token, headers: { ...headers } }),
        400,
        'invalid_request',
        path.slice(0, 40),
      );
  });
});
