import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { parse, stringify } from 'yaml';
import { AUDIENCE, type FakeIssuer, newKey, openIssuer } from '../access/issuer.ts';
import { handClock, openTestServer, type TestServer } from '../helper/server.ts';
import { openAuthenticator } from './authenticator.ts';
import { at, byLink, here, make, signIn as signInByPasskey } from './passkeys-shared.ts';
import { asAccount, asOperator, type Browser, openBrowser } from './sample.ts';

const CLIENT = 'purser-page';
const OPERATORS = { claim: 'groups', value: 'purser-admins' };

/** A server whose issuer is in the test's hand: it answers a code with the tokens that a test makes. */
async function open(t: TestContext, identity: object = { operators: OPERATORS }) {
  const time = handClock();
  const issuer = await openIssuer(t, () => Math.floor(time.wall() / 1000));
  issuer.discovery = {
    authorization_endpoint: `${issuer.url}/authorize`,
    token_endpoint: `${issuer.url}/token`,
    userinfo_endpoint: `${issuer.url}/userinfo`,
  };
  issuer.answers['/userinfo'] = async () => ({ sub: 'alice' });
  const purser = await openTestServer(t, {
    time,
    settings: { identity: { issuer: issuer.url, audience: AUDIENCE, client_id: CLIENT, ...identity } },
  });
  return { purser, issuer };
}

type Tokens = (nonce: string) => Promise<{ id_token: string; access_token?: string }>;

/** Signs in with the tokens that the issuer gives for the code; returns the status of the way back. */
async function signIn(issuer: FakeIssuer, browser: Browser, tokens: Tokens): Promise<number> {
  const { headers } = await browser.get('/sign-in/issuer');
  const asked = new URL(headers.location as string).searchParams;
  issuer.answers['/token'] = () => tokens(asked.get('nonce') as string);
  return (await browser.get(`/sign-in/callback?code=c&state=${asked.get('state')}`)).status;
}

const idToken =
  (issuer: FakeIssuer, claims: object): Tokens =>
  async (nonce) => ({ id_token: await issuer.token({ aud: CLIENT, nonce, ...claims }, { typ: 'JWT' }) });

/** Tells as whom a browser is signed in. */
async function whoIs(browser: Browser): Promise<'operator' | 'account' | 'nobody'> {
  const { status, html } = await browser.get('/');
  if (status === 303) return 'nobody';
  return html.includes('<span>Operator</span>') ? 'operator' : 'account';
}

const settingsOf = async (browser: Browser) => (await browser.get('/settings')).html;
const accountsOf = async (purser: TestServer) => (await purser.run('account.list', {})).accounts.length;

const CLAIMS: [what: string, claims: object, who: 'operator' | 'account', operators?: object][] = [
  ['the value', { groups: 'purser-admins' }, 'operator'],
  ['a list with the value', { groups: ['staff', 'purser-admins'] }, 'operator'],
  [
    'a nested list',
    { realm_access: { roles: ['admin'] } },
    'operator',
    { claim: 'realm_access.roles', value: 'admin' },
  ],
  [
    'a verified address',
    { email: 'a@b.example', email_verified: true },
    'operator',
    { claim: 'email', value: 'a@b.example' },
  ],
  ['no such claim', {}, 'account'],
  ['another value', { groups: ['purser-admins2'] }, 'account'],
  ['another case', { groups: ['Purser-Admins'] }, 'account'],
  ['a string with the value among words', { groups: 'staff purser-admins' }, 'account'],
  ['an object with such a member', { groups: { 'purser-admins': true } }, 'account'],
  ['a list in a list', { groups: [['purser-admins']] }, 'account'],
  ['a list of objects', { groups: [{ name: 'purser-admins' }] }, 'account'],
  ['true', { groups: true }, 'account', { claim: 'groups', value: 'true' }],
  ['a number', { groups: 7 }, 'account', { claim: 'groups', value: '7' }],
  ['null', { groups: null }, 'account', { claim: 'groups', value: 'null' }],
  ['an address that nobody verified', { email: 'a@b.example' }, 'account', { claim: 'email', value: 'a@b.example' }],
  ['the name one level down', { user: { groups: ['purser-admins'] } }, 'account'],
  [
    'the value at the start of the path',
    { realm_access: ['admin'] },
    'account',
    { claim: 'realm_access.roles', value: 'admin' },
  ],
  ['an inherited name', {}, 'account', { claim: 'constructor.name', value: 'Object' }],
];
for (const [what, claims, who, operators = OPERATORS] of CLAIMS)
  test(`a user whose claim is ${what} signs in as ${who === 'operator' ? 'an operator' : 'the holder of an account'}`, async (t) => {
    const { purser, issuer } = await open(t, { operators });
    const browser = openBrowser(purser);
    assert.equal(await signIn(issuer, browser, idToken(issuer, claims)), 303);
    assert.equal(await whoIs(browser), who);
    assert.equal(await accountsOf(purser), who === 'operator' ? 1 : 2, 'an operator gets no account');
    const logged = purser.log.filter((line) => line.includes('"event":"operator.signed_in"'));
    assert.equal(logged.length, who === 'operator' ? 1 : 0);
  });

test('without operators in the settings the claim makes nobody one', async (t) => {
  const { purser, issuer } = await open(t, {});
  const browser = openBrowser(purser);
  await signIn(issuer, browser, idToken(issuer, { groups: ['purser-admins'] }));
  assert.equal(await whoIs(browser), 'account');
});

test('a token that is not for this page, or not of this user, makes no operator', async (t) => {
  const { purser, issuer } = await open(t);
  const groups = ['purser-admins'];
  const plain = (nonce: string) => issuer.token({ aud: CLIENT, nonce }, { typ: 'JWT' });
  const stranger = await newKey('one');
  const refused: [what: string, tokens: Tokens][] = [
    ['for another audience', idToken(issuer, { groups, aud: 'another-app' })],
    ['for the API', idToken(issuer, { groups, aud: AUDIENCE })],
    ['made by another application', idToken(issuer, { groups, aud: [CLIENT, 'x'], azp: 'x' })],
    ['from another issuer', idToken(issuer, { groups, iss: 'https://evil.example' })],
    ['of another sign-in', idToken(issuer, { groups, nonce: 'earlier' })],
    ['that has expired', idToken(issuer, { groups, exp: 1 })],
    [
      'signed by another key',
      async (nonce) => ({ id_token: await issuer.token({ groups, aud: CLIENT, nonce }, { typ: 'JWT' }, stranger) }),
    ],
  ];
  for (const [what, tokens] of refused) {
    const browser = openBrowser(purser);
    assert.equal(await signIn(issuer, browser, tokens), 401, what);
    assert.equal(await whoIs(browser), 'nobody', what);
  }
  const others: [what: string, access: () => Promise<string>][] = [
    ['an access token of another user', () => issuer.token({ groups, sub: 'root' })],
    ['an access token for another audience', () => issuer.token({ groups, aud: 'another-api' })],
  ];
  for (const [what, access] of others) {
    const browser = openBrowser(purser);
    const tokens: Tokens = async (nonce) => ({ id_token: await plain(nonce), access_token: await access() });
    assert.equal(await signIn(issuer, browser, tokens), 303, what);
    assert.equal(await whoIs(browser), 'account', what);
  }
  const browser = openBrowser(purser);
  issuer.answers['/userinfo'] = async () => ({ sub: 'root', groups });
  const opaque: Tokens = async (nonce) => ({ id_token: await plain(nonce), access_token: 'opaque' });
  await signIn(issuer, browser, opaque);
  assert.equal(await whoIs(browser), 'account', 'the user information of another user');
  issuer.answers['/userinfo'] = async () => ({ sub: 'alice', groups });
  await signIn(issuer, browser, opaque);
  assert.equal(await whoIs(browser), 'operator', 'the user information of this user');
});

test('a claim that neither token has is asked for at the userinfo endpoint, also where the access token is one for us', async (t) => {
  const { purser, issuer } = await open(t, {
    operators: OPERATORS,
    required_claim: { name: 'groups', value: 'agents' },
  });
  const both = ['purser-admins', 'agents'];
  const signedIn = async (
    access: Record<string, unknown>,
    told: object,
  ): Promise<[number, Awaited<ReturnType<typeof whoIs>>]> => {
    const browser = openBrowser(purser);
    issuer.answers['/userinfo'] = async () => told;
    const status = await signIn(issuer, browser, async (nonce) => ({
      id_token: await issuer.token({ aud: CLIENT, nonce }, { typ: 'JWT' }),
      access_token: await issuer.token(access),
    }));
    return [status, await whoIs(browser)];
  };
  assert.deepEqual(await signedIn({}, { sub: 'alice', groups: both }), [303, 'operator']);
  assert.deepEqual(await signedIn({}, { sub: 'alice', groups: ['agents'] }), [303, 'account']);
  assert.deepEqual(await signedIn({}, { sub: 'alice' }), [403, 'nobody']);
  assert.deepEqual(await signedIn({}, { sub: 'root', groups: both }), [403, 'nobody'], 'of another user');
  const ofAgent = { groups: ['agents'] };
  assert.deepEqual(await signedIn(ofAgent, { sub: 'alice', groups: both }), [303, 'account'], 'a token comes first');
  assert.deepEqual(await signedIn({ sub: 'root' }, { sub: 'alice', groups: both }), [403, 'nobody']);
});

test('the claim in the ID token is the word that counts: an access token does not add to it', async (t) => {
  const { purser, issuer } = await open(t);
  const browser = openBrowser(purser);
  await signIn(issuer, browser, async (nonce) => ({
    id_token: await issuer.token({ aud: CLIENT, nonce, groups: ['staff'] }, { typ: 'JWT' }),
    access_token: await issuer.token({ groups: ['purser-admins'] }),
  }));
  assert.equal(await whoIs(browser), 'account');
});

test('an operator needs the required claim and a verified address as everyone does', async (t) => {
  const { purser, issuer } = await open(t, {
    operators: OPERATORS,
    required_claim: { name: 'groups', value: 'agents' },
  });
  const browser = openBrowser(purser);
  assert.equal(await signIn(issuer, browser, idToken(issuer, { groups: ['purser-admins'] })), 403);
  const both = { groups: ['purser-admins', 'agents'] };
  assert.equal(await signIn(issuer, browser, idToken(issuer, { ...both, email_verified: false })), 403);
  assert.equal(await whoIs(browser), 'nobody');
  assert.equal(await signIn(issuer, browser, idToken(issuer, both)), 303);
  assert.equal(await whoIs(browser), 'operator');
});

test('over HTTP an operator’s token is an account’s: the claim opens the page alone', async (t) => {
  const { purser, issuer } = await open(t);
  const token = await issuer.token({ groups: ['purser-admins'] });
  const { status, body } = await purser.ask('GET', '/v1/account', { token });
  assert.deepEqual([status, body.available_cents], [200, 0]);
  const browser = openBrowser(purser);
  assert.equal((await browser.get('/', { authorization: `Bearer ${token}` })).status, 303);
});

test('a session from the issuer ends after twelve hours, however much it is used, and is recorded as this user’s', async (t) => {
  const { purser, issuer } = await open(t);
  const browser = openBrowser(purser);
  await signIn(issuer, browser, idToken(issuer, { groups: 'purser-admins', sub: 'alice' }));
  const { client } = purser.app.ledger;
  assert.deepEqual(client.prepare('select kind, account_id, subject from browser_session').all(), [
    { kind: 'operator', account_id: null, subject: 'alice' },
  ]);
  for (let hour = 0; hour < 11; hour++) {
    purser.clock.advance(3600);
    assert.equal(await whoIs(browser), 'operator');
  }
  purser.clock.advance(3600);
  assert.equal(await whoIs(browser), 'nobody');
});

test('a user has at most twenty sessions as an operator, and those of others and of links are not touched', async (t) => {
  const { purser, issuer } = await open(t);
  const alice = openBrowser(purser);
  const bob = openBrowser(purser);
  const byLink = await asOperator(purser);
  const groups = OPERATORS.value;
  await signIn(issuer, alice, idToken(issuer, { groups, sub: 'alice' }));
  await signIn(issuer, bob, idToken(issuer, { groups, sub: 'bob' }));
  for (let at = 0; at < 20; at++) {
    purser.clock.advance(1);
    assert.equal(await signIn(issuer, openBrowser(purser), idToken(issuer, { groups, sub: 'alice' })), 303);
  }
  assert.deepEqual(await Promise.all([alice, bob, byLink].map(whoIs)), ['nobody', 'operator', 'operator']);
});

test('an operator whom the issuer names makes no passkey: it would sign in without asking the issuer', async (t) => {
  const { purser, issuer } = await open(t);
  const browser = at(purser);
  await signIn(issuer, browser, idToken(issuer, { groups: OPERATORS.value, sub: 'alice' }));
  const { html } = await browser.get('/settings');
  assert.match(html, /Your identity provider signs you in/);
  assert.doesNotMatch(html, /data-passkey/);
  const link = await byLink(purser);
  const options = JSON.parse((await link.post('/settings/passkeys/options')).html);
  assert.equal((await browser.post('/settings/passkeys/options')).status, 409);
  browser.cookies.set('purser-passkey', link.cookies.get('purser-passkey') as string);
  const credential = openAuthenticator(here(purser)).make(options);
  assert.equal((await browser.post('/settings/passkeys', { name: 'hers', credential })).status, 409);
  assert.deepEqual((await purser.run('passkey.list', {})).passkeys, []);
});

test('“everywhere” ends the sessions that were opened in the same way, and another button those of all operators', async (t) => {
  const { purser, issuer } = await open(t);
  const groups = OPERATORS.value;
  const [linked, account] = [await byLink(purser), await asAccount(purser)];
  const [laptop, telephone] = [openAuthenticator(here(purser)), openAuthenticator(here(purser))];
  await make(linked, laptop);
  await make(linked, telephone);
  const pairOf = async (start: (browser: Browser) => Promise<unknown>) => {
    const browsers = [at(purser), at(purser)] as const;
    for (const it of browsers) await start(it);
    return browsers;
  };
  const byLaptop = await pairOf((it) => signInByPasskey(it, laptop));
  const byTelephone = await pairOf((it) => signInByPasskey(it, telephone));
  const alice = await pairOf((it) => signIn(issuer, it, idToken(issuer, { groups, sub: 'alice' })));
  const bob = await pairOf((it) => signIn(issuer, it, idToken(issuer, { groups, sub: 'bob' })));
  const unused = await purser.run('ui.link', {});
  const all = [linked, ...byLaptop, ...byTelephone, ...alice, ...bob];
  const tell = async () => (await Promise.all(all.map(whoIs))).map((it) => Number(it === 'operator')).join('');

  assert.match(await settingsOf(byLaptop[0]), /Ends the sessions that this passkey opened/);
  assert.match(await settingsOf(alice[0]), /Ends the sessions of alice by the identity provider/);
  assert.match(await settingsOf(linked), /Ends the sessions that links opened, this one included, and unused links/);
  await byLaptop[0].post('/sign-out/everywhere');
  assert.equal(await tell(), '100111111');
  await alice[1].post('/sign-out/everywhere');
  assert.equal(await tell(), '100110011');
  const another = await byLink(purser);
  await linked.post('/sign-out/everywhere');
  assert.equal(await tell(), '000110011');
  assert.equal(await whoIs(another), 'nobody');
  assert.equal((await at(purser).get(new URL(unused.url).pathname)).status, 401, 'unused links are over, too');
  const later = await purser.run('ui.link', {});
  assert.equal((await account.post('/sign-out/operators')).status, 404);
  assert.equal(await tell(), '000110011');
  await bob[0].post('/sign-out/operators');
  assert.equal(await tell(), '000000000');
  assert.equal((await at(purser).get(new URL(later.url).pathname)).status, 401);
  assert.equal(await whoIs(account), 'account');
});

for (const [what, change] of [
  ['goes', ({ operators: _, ...rest }: Record<string, unknown>) => rest],
  ['has another value', (it: Record<string, unknown>) => ({ ...it, operators: { ...OPERATORS, value: 'owners' } })],
  ['has another claim', (it: Record<string, unknown>) => ({ ...it, operators: { ...OPERATORS, claim: 'roles' } })],
  ['is of another client', (it: Record<string, unknown>) => ({ ...it, client_id: 'other-page' })],
] as const)
  test(`where the setting ${what}, the sessions that it opened end for good, and those of links stay`, async (t) => {
    const { purser, issuer } = await open(t);
    const browser = openBrowser(purser);
    const byLink = await asOperator(purser);
    await signIn(issuer, browser, idToken(issuer, { groups: OPERATORS.value }));
    const file = join(purser.directory, 'purser.yaml');
    const before = readFileSync(file, 'utf8');
    const settings = parse(before) as { identity: Record<string, unknown> };
    await purser.reopen();
    assert.equal(await whoIs(browser), 'operator', 'a start alone ends nothing');
    await purser.reopen(() => writeFileSync(file, stringify({ ...settings, identity: change(settings.identity) })));
    assert.equal(await whoIs(browser), 'nobody');
    assert.equal(await whoIs(byLink), 'operator');
    await purser.reopen(() => writeFileSync(file, before));
    assert.equal(await whoIs(browser), 'nobody', 'it does not come back with the setting');
  });
