import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { deriveToken, mintToken } from '../../src/access/token.ts';
import { ROUTES } from '../../src/http/routes.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { INTERFACE, type Line } from './interface.ts';
import { assertRefused, footprint } from './refused.ts';

/** Who is let in where (interface, sections 4 and 5; design 2.12): written by hand, whole. */
type Known = 'account key' | 'operator key' | 'wallet token';
const LETS_IN: Record<Line['auth'], Record<Known, boolean>> = {
  Account: { 'account key': true, 'operator key': true, 'wallet token': false },
  Session: { 'account key': false, 'operator key': true, 'wallet token': false },
  Wallet: { 'account key': false, 'operator key': false, 'wallet token': true },
};

const JWT = 'eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUiLCJzdWIiOiJyb290In0.c2ln';

async function known(purser: TestServer): Promise<Record<Known, string>> {
  const wallet = await purser.openWallet();
  return { 'account key': purser.accountKey, 'operator key': purser.operatorKey, 'wallet token': wallet.token };
}

/** Authorization headers that nobody in this purser has, or has any more. */
async function otherCredentials(purser: TestServer): Promise<Record<string, string | undefined>> {
  const tokens = await known(purser);
  const revokedKey = await purser.run('key.create', { account: purser.accountId, name: 'revoked' });
  const revokedOperator = await purser.run('operator-key.mint', { name: 'revoked' });
  await purser.run('key.revoke', { id: revokedKey.id });
  await purser.run('operator-key.revoke', { id: revokedOperator.id });
  const elsewhere = Buffer.alloc(32, 7);
  const all: Record<string, string | undefined> = {
    nothing: undefined,
    'an empty header': '',
    'a scheme alone': 'Bearer',
    'a scheme and a space': 'Bearer ',
    'a JWT': `Bearer ${JWT}`,
    'a word': 'Bearer secret',
    'an unknown account key': `Bearer ${mintToken('account')}`,
    'an unknown operator key': `Bearer ${mintToken('operator')}`,
    "another installation's wallet token": `Bearer ${deriveToken('wallet', elsewhere, 'wal_1')}`,
    "another installation's router key": `Bearer ${deriveToken('router', elsewhere, 'key_1')}`,
    'a prefix alone': 'Bearer cnv_live_',
    'a revoked account key': `Bearer ${revokedKey.key}`,
    'a revoked operator key': `Bearer ${revokedOperator.key}`,
  };
  for (const [kind, token] of Object.entries(tokens)) {
    const secret = token.split('_').at(-1) as string;
    all[`the ${kind} with a wrong checksum`] = `Bearer ${token.slice(0, -1)}${token.endsWith('a') ? 'b' : 'a'}`;
    all[`the ${kind} cut short`] = `Bearer ${token.slice(0, -1)}`;
    all[`the ${kind} twice`] = `Bearer ${token} ${token}`;
    all[`the ${kind} without its prefix`] = `Bearer ${secret}`;
    all[`the ${kind} without a scheme`] = token;
    all[`the ${kind} under Basic`] = `Basic ${Buffer.from(`${token}:`).toString('base64')}`;
    all[`the ${kind} under Token`] = `Token ${token}`;
    all[`the ${kind} in capitals`] = `Bearer ${token.toUpperCase()}`;
    all[`the ${kind} in quotes`] = `Bearer "${token}"`;
  }
  all['the account key under the prefix of an operator key'] =
    `Bearer ${tokens['account key'].replace('cnv_live_', 'cnv_operator_')}`;
  return all;
}

/** Asks one endpoint with all that it demands, but for the token. */
function ask(
  purser: TestServer,
  { method, path, key, body }: Line,
  headers: Record<string, string>,
  ids: Record<string, string>,
) {
  const real = path.replace('{id}', path.startsWith('/v1/keys') ? (ids.key as string) : (ids.wallet as string));
  return purser.ask(method, real, { key: key ? randomUUID() : undefined, body, headers });
}

test('the routes are the endpoints of the interface, in its order, and no others', () => {
  const routes = ROUTES.map(([method, path]) => `${method} ${path.replace(/:(\w+)/g, '{$1}')}`);
  assert.deepEqual(
    routes,
    INTERFACE.map(({ method, path }) => `${method} ${path}`),
  );
});

for (const line of INTERFACE) {
  const title = `${line.method} ${line.path}`;
  const lets = Object.entries(LETS_IN[line.auth]).flatMap(([kind, isIn]) => (isIn ? [kind] : []));

  test(`${title} lets in ${lets.join(' and ')}, and answers 403 to every other token that is known`, async (t) => {
    const purser = await openTestServer(t);
    const tokens = await known(purser);
    const ids = {
      wallet: (await purser.openWallet()).id,
      key: (await purser.run('key.create', { account: purser.accountId, name: 'a' })).id,
    };
    // Those that are refused come first: what they must not do is then still to be done.
    for (const [kind, token] of Object.entries(tokens) as [Known, string][]) {
      if (LETS_IN[line.auth][kind]) continue;
      const before = await footprint(purser);
      assertRefused(await ask(purser, line, { authorization: `Bearer ${token}` }, ids), 403, 'wrong_token_scope', kind);
      assert.deepEqual(await footprint(purser), before, kind);
    }
    for (const kind of lets as Known[]) {
      const { status, text } = await ask(purser, line, { authorization: `Bearer ${tokens[kind]}` }, ids);
      assert.ok(status !== 401 && status !== 403 && status !== 500, `${kind}: ${status} ${text}`);
    }
  });

  test(`${title} answers 401 to whoever is not known, and does nothing`, async (t) => {
    const purser = await openTestServer(t);
    const { id: wallet } = await purser.openWallet();
    const { id: key } = await purser.run('key.create', { account: purser.accountId, name: 'a' });
    const all = await otherCredentials(purser);
    const before = await footprint(purser);
    for (const [who, authorization] of Object.entries(all)) {
      const answer = await ask(purser, line, authorization === undefined ? {} : { authorization }, { wallet, key });
      assertRefused(answer, 401, 'unauthenticated', who);
      assert.equal(answer.headers['www-authenticate'], 'Bearer');
      assert.doesNotMatch(answer.body.error.message, /redacted/, 'what helps is not struck out');
    }
    assert.deepEqual(await footprint(purser), before);
  });
}

test('the scheme is Bearer in any case, and spaces around the token do not matter', async (t) => {
  const purser = await openTestServer(t);
  for (const scheme of ['Bearer ', 'bearer ', 'BEARER ', 'Bearer   '])
    assert.equal(
      (await purser.ask('GET', '/v1/account', { headers: { authorization: `${scheme}${purser.accountKey}  ` } }))
        .status,
      200,
    );
});

test('the API document and the health of the server need no token', async (t) => {
  const purser = await openTestServer(t);
  for (const path of ['/v1/openapi.json', '/healthz', '/readyz']) {
    assert.equal((await purser.ask('GET', path)).status, 200, path);
    assert.equal((await purser.ask('GET', path, { token: 'nonsense' })).status, 200, path);
  }
});

test("another account's wallets and keys are not found, as if they did not exist", async (t) => {
  const purser = await openTestServer(t);
  const { id: account } = await purser.run('account.create', { name: 'other', creditCents: 5000 });
  const other = (await purser.run('key.create', { account, name: 'other' })).key;
  const operator = (await purser.run('operator-key.mint', { account })).key;
  const { id } = await purser.openWallet();
  const key = await purser.run('key.create', { account: purser.accountId, name: 'ours' });
  const before = await footprint(purser);
  for (const token of [other, operator]) {
    for (const [method, path] of [
      ['GET', `/v1/wallets/${id}`],
      ['GET', `/v1/wallets/${id}/token`],
      ['POST', `/v1/wallets/${id}/close`],
      ['GET', `/v1/wallets/${id}/resources`],
      ['GET', `/v1/resources?wallet_id=${id}`],
    ] as const) {
      const foreign = await purser.ask(method, path, { token });
      assertRefused(foreign, 404, 'not_found', path);
      const unknown = await purser.ask(method, path.replace(id, 'wal_00000000000000000000000000'), { token });
      assert.deepEqual(
        foreign.body.error,
        unknown.body.error,
        'a foreign id and an unknown one are told apart by nothing',
      );
    }
    assert.deepEqual((await purser.ask('GET', '/v1/wallets', { token })).body, { wallets: [] });
    assert.equal((await purser.ask('GET', '/v1/account', { token })).body.available_cents, 5000);
  }
  assertRefused(await purser.ask('DELETE', `/v1/keys/${key.id}`, { token: operator }), 404, 'not_found');
  assert.deepEqual(await footprint(purser), before);
  assert.equal(
    (await purser.ask('GET', '/v1/account', { token: key.key })).status,
    200,
    'our key still opens our account',
  );
});

test('an operator key acts for the account that it was bound to at minting', async (t) => {
  const purser = await openTestServer(t);
  const { id: account } = await purser.run('account.create', { name: 'other', creditCents: 5000 });
  const { key: token } = await purser.run('operator-key.mint', { account });
  const minted = await purser.ask('POST', '/v1/keys', { token, body: { name: 'minted' } });
  assert.equal(minted.status, 201);
  assert.equal((await purser.ask('GET', '/v1/account', { token: minted.body.key })).body.available_cents, 5000);
  assert.equal((await purser.ask('GET', '/v1/account', { token: purser.operatorKey })).body.available_cents, 100_000);
});

test('no operator key can be revoked where account keys are', async (t) => {
  const purser = await openTestServer(t);
  const { id, key } = await purser.run('operator-key.mint', {});
  assertRefused(await purser.ask('DELETE', `/v1/keys/${id}`, { token: purser.operatorKey }), 404, 'not_found');
  assert.equal((await purser.ask('GET', '/v1/account', { token: key })).status, 200);
});
