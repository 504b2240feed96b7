import assert from 'node:assert/strict';
import { createHmac, createPublicKey } from 'node:crypto';
import test, { suite, type TestContext } from 'node:test';
import { holdTimeouts } from '../helper/held-timeouts.ts';
import { openedOnce } from '../helper/opened-once.ts';
import { handClock, openTestServer, type TestServer } from '../helper/server.ts';
import { AUDIENCE, type FakeIssuer, type Key, newKey, openIssuer } from './issuer.ts';

async function open(
  t: Pick<TestContext, 'after'>,
  identity: object = {},
): Promise<{ purser: TestServer; issuer: FakeIssuer; now: () => number }> {
  const time = handClock();
  const now = () => Math.floor(time.wall() / 1000);
  const issuer = await openIssuer(t, now);
  const purser = await openTestServer(t, {
    time,
    settings: { identity: { issuer: issuer.url, audience: AUDIENCE, ...identity } },
  });
  return { purser, issuer, now };
}
const account = (purser: TestServer, token: string) => purser.ask('GET', '/v1/account', { token });
const accounts = async (purser: TestServer) => (await purser.run('account.list', {})).accounts;
const WELCOME = { welcome_credit_cents: 500, required_claim: { name: 'groups', value: 'agents' } };

test('a first sign-in opens an account with its welcome credit, once, however many come at the same time', async (t) => {
  const { purser, issuer } = await open(t, WELCOME);
  const token = await issuer.token({ groups: ['staff', 'agents'] });
  const answers = await Promise.all(Array.from({ length: 50 }, () => account(purser, token)));
  for (const it of answers)
    assert.deepEqual(it.body, { available_cents: 500, reserved_cents: 0, spent_cents: 0, welcome_credit_cents: 500 });
  assert.equal((await accounts(purser)).length, 2, 'the default account and one more');
  const again = await issuer.token({ groups: 'agents', jti: 'another' });
  assert.equal((await account(purser, again)).body.available_cents, 500);
  const bob = await issuer.token({ sub: 'bob', groups: ['agents'] });
  assert.equal((await account(purser, bob)).body.available_cents, 500);
  assert.equal((await accounts(purser)).length, 3);
  assert.deepEqual(purser.problems(), []);
});

test('a session is taken wherever an account key is, and where the interface asks for one', async (t) => {
  const { purser, issuer } = await open(t);
  const token = await issuer.token();
  assert.equal((await account(purser, token)).status, 200);
  const created = await purser.ask('POST', '/v1/keys', { token, body: { name: 'ci' } });
  assert.equal(created.status, 201, created.text);
  assert.equal((await account(purser, created.body.key)).status, 200);
  const deleted = await purser.ask('DELETE', `/v1/keys/${created.body.id}`, { token });
  assert.equal(deleted.body.revoked, true);
  assert.equal((await account(purser, created.body.key)).status, 401);
  assert.equal((await purser.ask('GET', '/v1/wallets', { token })).status, 200);
  const poor = await purser.ask('POST', '/v1/wallets', { token, key: 'k', body: { name: 'a', budget_cents: 100 } });
  assert.equal(poor.body.error.code, 'insufficient_funds');
  assert.equal((await purser.ask('GET', '/v1/budget', { token })).body.error.code, 'wrong_token_scope');
  assert.equal((await purser.ask('GET', '/v1/router/models', { token })).body.error.code, 'wrong_token_scope');
});

test('account link lets an identity sign in as an account that the CLI made; an identity is one account only', async (t) => {
  const { purser, issuer } = await open(t, WELCOME);
  const link = (id: string, subject: string) => purser.run('account.link', { id, issuer: issuer.url, subject });
  await link(purser.accountId, 'alice');
  await link(purser.accountId, 'alice');
  await link(purser.accountId, 'alice-at-work');
  const token = await issuer.token({ groups: ['agents'] });
  assert.equal((await account(purser, token)).body.available_cents, 100_000, 'no welcome credit for an old account');
  const other = await purser.run('account.create', { name: 'other' });
  await assert.rejects(link(other.id, 'alice'), { code: 'conflict' });
  await assert.rejects(link('acct_none', 'carol'), { code: 'not_found' });
});

const CLAIMS: [what: string, claims: Record<string, unknown>, header?: Record<string, unknown>][] = [
  ['another audience', { aud: 'somebody-else' }],
  ['no audience', { aud: undefined }],
  ['an audience that only begins alike', { aud: 'purser-admin' }],
  ['another issuer', { iss: 'https://evil.example' }],
  ['no issuer', { iss: undefined }],
  ['no subject', { sub: undefined }],
  ['an empty subject', { sub: '' }],
  ['no expiry', { exp: undefined }],
  ['an expiry long ago', { exp: 1 }],
  ['a beginning in the future', { nbf: 4_000_000_000 }],
  ['a nonce: an ID token', { nonce: 'n' }],
  ['an at_hash: an ID token', { at_hash: 'h' }],
  ['a c_hash: an ID token', { c_hash: 'h' }],
  ['the payload type of Keycloak’s ID tokens', { typ: 'ID' }],
  ['the header type of a logout token', {}, { typ: 'logout+jwt' }],
  [
    'the event of a logout token, whatever its type',
    { events: { 'http://schemas.openid.net/event/backchannel-logout': {} } },
  ],
  ['any security event', { events: {} }, { typ: 'JWT' }],
  ['the payload type of Keycloak’s logout tokens', { typ: 'Logout' }, { typ: 'JWT' }],
  ['the payload type of a refresh token', { typ: 'Refresh' }, { typ: 'JWT' }],
  ['a critical header that we do not know', {}, { crit: ['x-mine'], 'x-mine': 1 }],
];
suite('a token that is not one of ours', () => {
  const opened = openedOnce(open);
  for (const [what, claims, header] of CLAIMS)
    test(`a token with ${what} is 401, and opens no account`, async () => {
      const { purser, issuer } = opened();
      const answer = await account(purser, await issuer.token(claims, header));
      assert.deepEqual([answer.status, answer.body.error.code], [401, 'unauthenticated'], answer.text);
      assert.equal((await accounts(purser)).length, 1);
    });
});

test('where the type is asked for, only tokens that say they are access tokens sign in: an ID token without a nonce does not', async (t) => {
  const { purser, issuer } = await open(t, { token_type: 'at+jwt' });
  const status = async (header: object) => (await account(purser, await issuer.token({}, { ...header }))).status;
  assert.equal(await status({ typ: 'at+jwt' }), 200);
  assert.equal(await status({ typ: 'application/at+JWT' }), 200);
  for (const typ of ['JWT', 'logout+jwt', 'dpop+jwt', undefined]) assert.equal(await status({ typ }), 401, typ);
});

test('where applications are named, the tokens of others do not sign in', async (t) => {
  const { purser, issuer } = await open(t, { client_ids: ['dashboard', 'cli'] });
  const status = async (claims: object) => (await account(purser, await issuer.token({ ...claims }))).status;
  assert.equal(await status({ client_id: 'dashboard' }), 200);
  assert.equal(await status({ azp: 'cli' }), 200, 'as issuers before RFC 9068 write it');
  assert.equal(await status({ client_id: 'game' }), 401);
  assert.equal(await status({ client_id: 'game', azp: 'dashboard' }), 401);
  assert.equal(await status({ azp: 'game' }), 401);
  assert.equal(await status({}), 401, 'nobody knows whose it is');
  assert.equal(await status({ client_id: ['dashboard', 'x'] }), 401);
  assert.equal((await accounts(purser)).length, 2);
});

test('the issuer is compared to the letter, and times with thirty seconds of tolerance', async (t) => {
  const { purser, issuer, now } = await open(t);
  const status = async (claims: object) => (await account(purser, await issuer.token({ ...claims }))).status;
  assert.equal(await status({ iss: `${issuer.url}/` }), 401);
  assert.equal(await status({ iss: issuer.url.toUpperCase() }), 401);
  assert.equal(await status({ exp: now() - 31 }), 401);
  assert.equal(await status({ exp: now() - 29 }), 200);
  assert.equal(await status({ nbf: now() + 31 }), 401);
  assert.equal(await status({ nbf: now() + 30 }), 200);
  const token = await issuer.token({ exp: now() + 60 });
  assert.equal((await account(purser, token)).status, 200);
  purser.clock.advance(91);
  assert.equal((await account(purser, token)).status, 401, 'the same token, later');
});

const encode = (value: unknown) =>
  Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url');

test('alg none, HS256 with the public key, a torn signature and a key of somebody else are 401', async (t) => {
  const { purser, issuer, now } = await open(t);
  const payload = encode({ iss: issuer.url, aud: AUDIENCE, sub: 'alice', exp: now() + 300 });
  const good = await issuer.token();
  const pem = createPublicKey({ key: issuer.keys[0]?.jwk as never, format: 'jwk' }).export({
    type: 'spki',
    format: 'pem',
  });
  const hs = `${encode({ alg: 'HS256', kid: 'one', typ: 'JWT' })}.${payload}`;
  const forged = [
    `${encode({ alg: 'none', typ: 'JWT' })}.${payload}.`,
    `${encode({ alg: 'NONE', kid: 'one' })}.${payload}.`,
    `${hs}.${createHmac('sha256', pem).update(hs).digest('base64url')}`,
    `${hs}.${createHmac('sha256', JSON.stringify(issuer.keys[0]?.jwk)).update(hs).digest('base64url')}`,
    `${good.slice(0, -4)}AAAA`,
    good.replace(/\.[^.]+\./, `.${payload}.`),
    await issuer.token({}, {}, { ...(await newKey('one')) }),
    await issuer.token({}, { jwk: (await newKey('x')).jwk, kid: undefined }, await newKey('x')),
    'eyJ.eyJ.x',
    'just-a-string',
    `${good}.${good}`,
    'a'.repeat(12_000),
  ];
  for (const token of forged) {
    const answer = await account(purser, token);
    assert.deepEqual([answer.status, answer.body.error?.code], [401, 'unauthenticated'], token.slice(0, 80));
  }
  assert.ok((await account(purser, good)).status === 200);
  assert.ok(!purser.log.join('').includes(good), 'no token is in the log');
});

test('a token of 100 KB is refused before anybody looks at it', async (t) => {
  const { purser, issuer } = await open(t);
  const answer = await account(purser, await issuer.token({ padding: 'x'.repeat(100_000) }));
  assert.ok(answer.status === 400 || answer.status === 431, String(answer.status));
  assert.equal(issuer.asked.keys, 0);
});

test('a string that starts like one of our own tokens is never asked of the issuer', async (t) => {
  const { purser, issuer } = await open(t);
  for (const prefix of ['cnv_live_', 'cnv_operator_', 'svc_agent_', 'svc_router_', 'svc_', 'cnv_'])
    assert.equal((await account(purser, prefix + (await issuer.token()))).status, 401);
  assert.equal(issuer.asked.discovery, 0);
});

test('unknown key ids do not flood the issuer', async (t) => {
  const { purser, issuer } = await open(t);
  const good = await issuer.token();
  assert.equal((await account(purser, good)).status, 200);
  const otherKey = await newKey('stranger');
  const forged = await Promise.all(Array.from({ length: 200 }, (_, i) => issuer.token({}, { kid: `k${i}` }, otherKey)));
  for (const it of await Promise.all(forged.map((token) => account(purser, token)))) assert.equal(it.status, 401);
  assert.equal(issuer.asked.keys, 2);
  purser.clock.advance(30);
  for (const token of forged.slice(0, 20)) assert.equal((await account(purser, token)).status, 401);
  assert.equal(issuer.asked.keys, 3);
  assert.equal((await account(purser, good)).status, 200);
});

test('keys rotate: a new one is taken at once, the one it replaces while it is published, and no longer', async (t) => {
  const { purser, issuer } = await open(t);
  const [one, two] = [issuer.keys[0] as Key, await newKey('two')];
  const exp = 4_000_000_000;
  const old = await issuer.token({ exp });
  assert.equal((await account(purser, old)).status, 200);
  issuer.keys = [two, one];
  const fresh = await issuer.token({ exp }, {}, two);
  const answers = await Promise.all(Array.from({ length: 20 }, () => account(purser, fresh)));
  for (const it of answers) assert.equal(it.status, 200, it.text);
  assert.equal(issuer.asked.keys, 2, 'one question for twenty tokens');
  assert.equal((await account(purser, old)).status, 200);
  issuer.keys = [two];
  purser.clock.advance(600);
  assert.equal((await account(purser, fresh)).status, 200);
  assert.equal((await account(purser, old)).status, 401, 'it is published no longer');
});

test('a key that rotated while the issuer is down is 503, not 401: nobody knows', async (t) => {
  const { purser, issuer } = await open(t);
  const good = await issuer.token({ exp: 4_000_000_000 });
  assert.equal((await account(purser, good)).status, 200);
  const two = await newKey('two');
  const fresh = await issuer.token({ exp: 4_000_000_000 }, {}, two);
  issuer.broken = 'down';
  for (let i = 0; i < 20; i++) assert.equal((await account(purser, fresh)).status, 503);
  assert.equal(issuer.asked.discovery, 2, 'it is left alone');
  assert.equal((await account(purser, good)).status, 200);
  issuer.broken = undefined;
  issuer.keys = [two];
  purser.clock.advance(30);
  assert.equal((await account(purser, fresh)).status, 200);
});

test('an issuer that does not answer is waited for once, and its kept keys are good however old', async (t) => {
  const { purser, issuer } = await open(t);
  const token = await issuer.token({ exp: 4_000_000_000 });
  assert.equal((await account(purser, token)).status, 200);
  issuer.broken = 'slow';
  purser.clock.advance(86_400);
  const limits = holdTimeouts(t, 5000);
  const asking = Array.from({ length: 20 }, () => account(purser, token));
  await limits.set(1);
  limits.expire();
  for (const it of await Promise.all(asking)) assert.equal(it.status, 200);
  assert.equal(limits.count(), 1);
  assert.equal((await account(purser, token)).status, 200);
  assert.equal(limits.count(), 1, 'nobody waits for it so soon again');
  const failures = purser.log.filter((line) => line.includes('"event":"issuer.failed"'));
  assert.equal(failures.length, 1);
  assert.match(failures[0] as string, /no answer within 5000 ms/);
});

test('a word in a claim is no word of a list, except in scope', async (t) => {
  const claim = (name: string) => ({ welcome_credit_cents: 100, required_claim: { name, value: 'agents' } });
  const { purser, issuer } = await open(t, claim('title'));
  assert.equal((await account(purser, await issuer.token({ title: 'head of agents' }))).status, 403);
  assert.equal((await account(purser, await issuer.token({ title: 'agents' }))).status, 200);
  const other = await open(t, claim('scope'));
  assert.equal((await account(other.purser, await other.issuer.token({ scope: 'openid agents' }))).status, 200);
  const nothing = await open(t, { required_claim: { name: 'x', value: 'undefined' } });
  for (const x of [undefined, null, {}, []])
    assert.equal((await account(nothing.purser, await nothing.issuer.token({ x }))).status, 403);
});

test('an issuer that is down locks nobody out while its keys are cached, and is 503 where they are not', async (t) => {
  const { purser, issuer } = await open(t);
  issuer.broken = 'down';
  const token = await issuer.token();
  const first = await account(purser, token);
  assert.deepEqual([first.status, first.body.error.code], [503, 'provider_unavailable']);
  assert.ok(Number(first.headers['retry-after']) > 0);
  const asked = issuer.asked.discovery;
  for (let i = 0; i < 20; i++) assert.equal((await account(purser, token)).status, 503);
  assert.equal(issuer.asked.discovery, asked, 'it is left alone for a while');
  assert.equal((await account(purser, purser.accountKey)).status, 200, 'keys of our own do not need it');
});

for (const broken of ['down', '500', 'garbage'] as const)
  test(`with its keys cached an issuer that is ${broken} is not missed`, async (t) => {
    const { purser, issuer } = await open(t);
    assert.equal((await account(purser, await issuer.token())).status, 200);
    issuer.broken = broken;
    assert.equal((await account(purser, await issuer.token({ sub: 'bob' }))).status, 200);
  });

test('an issuer whose document names another issuer is not believed', async (t) => {
  const { purser, issuer } = await open(t);
  issuer.discovery = { issuer: `${issuer.url}/` };
  assert.equal((await account(purser, await issuer.token())).status, 503);
});

test('who is not verified, or lacks what is asked for, is 403 and gets no account', async (t) => {
  const { purser, issuer } = await open(t, { ...WELCOME, require_verified_email: true });
  const good = { groups: ['agents'], email_verified: true };
  for (const claims of [
    { ...good, email_verified: false },
    { ...good, email_verified: undefined },
    { ...good, email_verified: 'false' },
    { ...good, groups: ['agents-of-others'] },
    { ...good, groups: undefined },
  ]) {
    const answer = await account(purser, await issuer.token(claims));
    assert.deepEqual([answer.status, answer.body.error.code], [403, 'wrong_token_scope'], JSON.stringify(claims));
  }
  assert.equal((await accounts(purser)).length, 1);
  assert.equal((await account(purser, await issuer.token(good))).status, 200);
});

/** Access tokens as four issuers shape them (facts, 3.2); each has its recipe in docs/sign-in.md. */
const SHAPES: Record<string, { claims: Record<string, unknown>; header: Record<string, unknown>; identity: object }> = {
  Keycloak: {
    claims: {
      aud: [AUDIENCE, 'account'],
      typ: 'Bearer',
      azp: 'dashboard',
      scope: 'openid email profile',
      email_verified: true,
      realm_access: { roles: ['offline_access', 'agents'] },
    },
    header: { typ: 'JWT' },
    identity: { required_claim: { name: 'realm_access.roles', value: 'agents' } },
  },
  Authentik: {
    claims: {
      aud: AUDIENCE,
      azp: AUDIENCE,
      auth_time: 1,
      acr: 'goauthentik.io/providers/oauth2/default',
      groups: ['agents'],
    },
    header: { typ: undefined },
    identity: { required_claim: { name: 'groups', value: 'agents' } },
  },
  Authelia: {
    claims: { aud: [AUDIENCE], client_id: 'dashboard', scp: ['openid', 'groups'], scope: 'openid agents' },
    header: { typ: 'at+jwt' },
    identity: { required_claim: { name: 'scope', value: 'agents' } },
  },
  Zitadel: {
    claims: { aud: ['281234567890', AUDIENCE], 'urn:zitadel:iam:org:project:roles': { agents: { 2812: 'x.example' } } },
    header: { typ: 'JWT' },
    identity: { required_claim: { name: 'urn:zitadel:iam:org:project:roles', value: 'agents' } },
  },
};
for (const [name, { claims, header, identity }] of Object.entries(SHAPES))
  test(`a token as ${name} shapes it signs in`, async (t) => {
    const { purser, issuer } = await open(t, { ...identity, welcome_credit_cents: 100 });
    const answer = await account(purser, await issuer.token(claims, header));
    assert.equal(answer.body.available_cents, 100, answer.text);
  });

for (const alg of ['RS256', 'PS256', 'ES256', 'EdDSA'])
  test(`${alg} is taken`, async (t) => {
    const { purser, issuer } = await open(t);
    issuer.keys = [await newKey('k', alg)];
    assert.equal((await account(purser, await issuer.token())).status, 200);
  });

test('a suspended account signs in, reads, and opens nothing new', async (t) => {
  const { purser, issuer } = await open(t);
  const token = await issuer.token();
  await account(purser, token);
  const mine = (await accounts(purser)).find(({ id }) => id !== purser.accountId);
  await purser.run('account.suspend', { id: mine?.id as string });
  assert.equal((await account(purser, token)).status, 200);
  const key = await purser.ask('POST', '/v1/keys', { token, body: { name: 'ci' } });
  assert.deepEqual([key.status, key.body.error.code], [403, 'account_suspended']);
});
