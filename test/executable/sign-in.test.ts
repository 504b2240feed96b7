import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { decodeJwt, decodeProtectedHeader } from 'jose';
import { openOidcIssuer, signIn } from '../access/oidc-issuer.ts';
import { installation } from '../helper/executable.ts';

test('whoever signs in at a real issuer, as a browser does it, reaches a fresh account; the ID token reaches nothing', async (t) => {
  const issuer = await openOidcIssuer(t);
  const identity = {
    issuer: issuer.url,
    audience: 'purser',
    required_claim: { name: 'scope', value: 'api' },
    welcome_credit_cents: 500,
  };
  const purser = installation(t, { settings: { identity } });
  const serving = await purser.serve();
  const { access_token: token, id_token: idToken } = await signIn(issuer, 'alice');
  assert.deepEqual(
    [decodeProtectedHeader(token).typ, decodeJwt(token).aud, decodeJwt(token).sub],
    ['at+jwt', 'purser', 'alice'],
  );

  const account = await serving.ask('GET', '/v1/account', { token });
  assert.equal(account.status, 200, account.text);
  assert.deepEqual(account.body, {
    available_cents: 500,
    reserved_cents: 0,
    spent_cents: 0,
    welcome_credit_cents: 500,
  });
  const refused = await serving.ask('GET', '/v1/account', { token: idToken });
  assert.deepEqual([refused.status, refused.body.error.code], [401, 'unauthenticated']);

  const key = await serving.ask('POST', '/v1/keys', { token, body: { name: 'ci' } });
  assert.equal(key.status, 201);
  const body = { name: 'agent', budget_cents: 300 };
  const wallet = await serving.ask('POST', '/v1/wallets', { token: key.body.key, key: randomUUID(), body });
  assert.equal(wallet.status, 201);

  const again = await signIn(issuer, 'alice');
  assert.notEqual(again.access_token, token);
  assert.equal((await serving.ask('GET', '/v1/account', { token: again.access_token })).body.reserved_cents, 300);
  const bob = await signIn(issuer, 'bob');
  assert.equal((await serving.ask('GET', '/v1/account', { token: bob.access_token })).body.reserved_cents, 0);
  assert.equal((await purser.json('account', 'list')).accounts.length, 3);

  const { id } = await purser.json('account', 'create', 'by hand', '--credit-cents', '700');
  await purser.json('account', 'link', id, '--issuer', issuer.url, '--subject', 'carol');
  const carol = await signIn(issuer, 'carol');
  assert.equal((await serving.ask('GET', '/v1/account', { token: carol.access_token })).body.available_cents, 700);
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
});

test('a real issuer that rotates its keys is followed at once', async (t) => {
  const issuer = await openOidcIssuer(t);
  const purser = installation(t, { settings: { identity: { issuer: issuer.url, audience: 'purser' } } });
  const serving = await purser.serve();
  const ask = (token: string) => serving.ask('GET', '/v1/account', { token });
  const { access_token: old } = await signIn(issuer, 'alice');
  assert.equal((await ask(old)).status, 200);
  await issuer.rotate(true);
  const { access_token: fresh } = await signIn(issuer, 'alice');
  assert.notEqual(decodeProtectedHeader(fresh).kid, decodeProtectedHeader(old).kid);
  assert.equal((await ask(fresh)).status, 200);
  assert.equal((await ask(old)).status, 200, 'it is published still');
});
