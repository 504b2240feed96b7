import assert from 'node:assert/strict';
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { listPasskeys, type Passkey } from '../../src/access/passkeys.ts';
import { openByPasskey } from '../../src/access/writes.ts';
import { withNewChecksum } from '../../src/db/checksum.ts';
import { passkeys } from '../../src/db/schema.ts';
import { freePort } from '../helper/free-port.ts';
import { openTestServer } from '../helper/server.ts';
import { type Kind, openAuthenticator, PRESENT, RECOGNISED, type Twist } from './authenticator.ts';
import { at, byLink, here, make, OPTIONS, signIn } from './passkeys-shared.ts';
import { asAccount, type Browser, openBrowser } from './sample.ts';
import { isIn } from './sessions-shared.ts';

/** A server with a passkey that was made after the first link. */
async function open(t: TestContext, kind: Kind = 'ec', isCounting = true, settings: Record<string, unknown> = {}) {
  const purser = await openTestServer(t, { settings });
  const authenticator = openAuthenticator(here(purser), kind, isCounting);
  const operator = await byLink(purser);
  const { status, headers } = await make(operator, authenticator);
  assert.deepEqual([status, headers.location], [303, '/settings?done=passkey-added#passkeys']);
  return { purser, authenticator, operator };
}

for (const [kind, isCounting] of [
  ['ec', true],
  ['ec', false],
  ['rsa', true],
  ['ed25519', true],
] as const)
  test(`after the first link an operator signs in with a passkey (${kind}${isCounting ? '' : ', without a counter'})`, async (t) => {
    const { purser, authenticator, operator } = await open(t, kind, isCounting);
    const browser = at(purser);
    assert.match((await browser.get('/sign-in')).html, /data-passkey="\/sign-in\/passkey\/options"/);
    for (let time = 0; time < 2; time++) {
      const { status, headers } = await signIn(browser, authenticator);
      assert.deepEqual([status, headers.location], [303, '/']);
    }
    assert.match((await browser.get('/')).html, /<span>Operator<\/span>/);
    const { html } = await operator.get('/settings');
    assert.match(html, /laptop/);
    assert.match(html, /passkey laptop/);
    const { passkeys } = await purser.run('passkey.list', {});
    assert.deepEqual(
      passkeys.map((it) => [it.name, it.origin, it.removed_at]),
      [['laptop', here(purser), null]],
    );
    assert.deepEqual(purser.problems(), []);
  });

const REFUSED: [what: string, twist: Twist, why: RegExp][] = [
  ['another page of this machine', { origin: 'http://localhost:1' }, /another page/],
  ['a foreign page', { origin: 'https://evil.example' }, /another page/],
  ['a frame', { crossOrigin: true }, /another page/],
  ['a frame, as newer browsers tell it', { topOrigin: 'https://evil.example' }, /another page/],
  ['another site', { site: 'evil.example' }, /another site/],
  ['another challenge', { challenge: randomBytes(32).toString('base64url') }, /another challenge/],
  ['nobody who was present', { flags: RECOGNISED }, /nobody was present/],
  ['a device that recognised nobody', { flags: PRESENT }, /did not recognise you/],
  ['a copy that may not be one', { flags: PRESENT | RECOGNISED | 0x10 }, /cannot be read/],
];
const REFUSED_ANSWERS: typeof REFUSED = [
  ['the making of a passkey', { type: 'webauthn.create' }, /another question/],
  ['a payment', { type: 'payment.get' }, /another question/],
  ['a passkey that is not known', { rawId: randomBytes(32) }, /not known here/],
  ['another user', { handle: randomBytes(32) }, /another user/],
  ['another key', { signer: generateKeyPairSync('ec', { namedCurve: 'prime256v1' }).privateKey }, /signature is wrong/],
  ['a broken signature', { spoil: 'signature' }, /signature is wrong/],
  ['data that was changed', { spoil: 'data' }, /signature is wrong/],
  ['a question that was changed', { spoil: 'client' }, /signature is wrong/],
  ['a counter that stands still', { count: 1 }, /may be a copy/],
  ['a counter that goes back', { count: 0 }, /may be a copy/],
];

test('an answer that is not this passkey’s, for this page and this challenge, signs nobody in', async (t) => {
  const { purser, authenticator } = await open(t);
  for (const [what, twist, why] of [...REFUSED, ...REFUSED_ANSWERS]) {
    const browser = at(purser);
    const { status, html } = await signIn(browser, authenticator, twist);
    assert.equal(status, 401, what);
    assert.match(html, why, what);
    assert.equal(browser.cookies.has('purser-session'), false, what);
  }
  for (const credential of [
    '',
    '{',
    '{}',
    'null',
    '[]',
    JSON.stringify({ rawId: 'a', type: 'public-key', response: {} }),
  ]) {
    const browser = at(purser);
    await browser.post(OPTIONS);
    const { status } = await browser.post('/sign-in/passkey', { credential });
    assert.equal(status, 401, credential);
  }
  assert.equal((await signIn(at(purser), authenticator)).status, 303, 'the honest one does');
  assert.equal(purser.log.filter((line) => line.includes('"event":"passkey.copied"')).length, 2);
});

test('a passkey that was not made for this page and this challenge is not added', async (t) => {
  const purser = await openTestServer(t);
  const browser = await byLink(purser);
  const has = 0x40;
  const more: typeof REFUSED = [
    ['an answer to a challenge', { type: 'webauthn.get' }, /another question/],
    ['no credential', { flags: PRESENT | RECOGNISED }, /no credential/],
    ['another credential than it says', { rawId: randomBytes(32) }, /no credential/],
  ];
  for (const [what, twist, why] of [...REFUSED, ...more]) {
    const bits = twist.flags;
    const twisted = bits !== undefined && !more.some((it) => it[1] === twist) ? { ...twist, flags: bits | has } : twist;
    const { status, html } = await make(browser, openAuthenticator(here(purser)), twisted);
    assert.equal(status, 400, what);
    assert.match(html, why, what);
  }
  for (const kind of ['p384', 'weak'] as const) {
    const { status, html } = await make(browser, openAuthenticator(here(purser), kind));
    assert.deepEqual([status, /a kind that was not asked for/.test(html)], [400, true], kind);
  }
  for (const name of ['', ' ', 'x'.repeat(81)])
    assert.equal((await make(browser, openAuthenticator(here(purser)), {}, name)).status, 400, 'a name');
  assert.deepEqual((await purser.run('passkey.list', {})).passkeys, []);
});

test('a statement on the maker of the device, which was not asked for, is not read', async (t) => {
  const purser = await openTestServer(t);
  const operator = await byLink(purser);
  const certificates = new Map([['alg', -7 as const]]);
  for (const fmt of ['none', 'packed', 'fido-u2f', 'tpm', 'apple', 'android-key', 'android-safetynet', 'another']) {
    const authenticator = openAuthenticator(here(purser));
    const { status } = await make(operator, authenticator, { attestation: { fmt, attStmt: certificates } }, fmt);
    assert.equal(status, 303, fmt);
    assert.equal((await signIn(at(purser), authenticator)).status, 303, fmt);
  }
});

test('a challenge is one browser’s, for one purpose, one answer and five minutes', async (t) => {
  const { purser, authenticator, operator } = await open(t);
  const send = (browser: Browser, credential: string) => browser.post('/sign-in/passkey', { credential });
  const ask = async (browser: Browser) => JSON.parse((await browser.post(OPTIONS)).html);

  const [alice, mallory] = [at(purser), at(purser)];
  const options = await ask(alice);
  await ask(mallory);
  assert.equal((await send(mallory, authenticator.answer(options))).status, 401, 'in another browser');
  assert.equal((await send(at(purser), authenticator.answer(options))).status, 401, 'in one that asked for nothing');
  const cookies = new Map(alice.cookies);
  const credential = authenticator.answer(options);
  assert.equal((await send(alice, credential)).status, 303);
  for (const [name, value] of cookies) mallory.cookies.set(name, value);
  assert.equal((await send(mallory, credential)).status, 401, 'a second time');
  assert.equal((await send(mallory, authenticator.answer(options))).status, 401, 'signed a second time');

  const late = at(purser);
  const kept = await ask(late);
  purser.clock.advance(300);
  assert.equal((await send(late, authenticator.answer(kept))).status, 401, 'too late');
  const wrong = at(purser);
  const once = await ask(wrong);
  assert.equal((await send(wrong, authenticator.answer(once, { spoil: 'signature' }))).status, 401);
  assert.equal((await send(wrong, authenticator.answer(once))).status, 401, 'after a wrong answer');
  const soon = at(purser);
  const intime = await ask(soon);
  purser.clock.advance(299);
  assert.equal((await send(soon, authenticator.answer(intime))).status, 303, 'just in time');

  // What was asked for to sign in adds no passkey, and what another session asked for neither.
  const own = JSON.parse((await operator.post('/settings/passkeys/options')).html);
  const other = openAuthenticator(here(purser));
  await operator.post(OPTIONS);
  const signInKept = operator.cookies.get('purser-passkey') as string;
  const challenge = signInKept.split('.')[0] as string;
  const made = other.make(own, { challenge });
  assert.equal((await operator.post('/settings/passkeys', { name: 'x', credential: made })).status, 400);
  const second = await byLink(purser);
  const theirs = JSON.parse((await second.post('/settings/passkeys/options')).html);
  operator.cookies.set('purser-passkey', second.cookies.get('purser-passkey') as string);
  assert.equal((await operator.post('/settings/passkeys', { name: 'x', credential: other.make(theirs) })).status, 400);
  assert.equal((await purser.run('passkey.list', {})).passkeys.length, 1);
});

test('a removed passkey signs nobody in, and ends the sessions that it opened, and no other', async (t) => {
  const { purser, authenticator, operator } = await open(t);
  const other = openAuthenticator(here(purser));
  await make(operator, other, {}, 'telephone');
  const [byFirst, bySecond] = [at(purser), at(purser)];
  await signIn(byFirst, authenticator);
  await signIn(bySecond, other);
  const { passkeys } = await purser.run('passkey.list', {});
  const id = passkeys.find((it) => it.name === 'laptop')?.id as string;
  assert.match((await operator.get(`/settings/passkeys/${id}/remove`)).html, /Remove it for good/);
  assert.equal((await operator.post(`/settings/passkeys/${id}/remove`)).status, 303);
  assert.deepEqual(await Promise.all([byFirst, bySecond, operator].map(isIn)), [false, true, true]);
  assert.equal((await signIn(at(purser), authenticator)).status, 401);
  const again = await make(operator, authenticator);
  assert.equal(again.status, 409, 'nor does it come back under its old name');
  const [first] = passkeys;
  const removed = await purser.run('passkey.remove', { id: first?.id as string });
  assert.ok(removed.removed_at !== null);
  assert.deepEqual(await purser.run('passkey.remove', { id: removed.id.slice(0, -3) }), removed, 'a second time');
  assert.deepEqual([await isIn(bySecond), (await signIn(at(purser), other)).status], [false, 401]);
  await assert.rejects(purser.run('passkey.remove', { id: 'pass_none' }), { code: 'not_found' });
  assert.doesNotMatch((await at(purser).get('/sign-in')).html, /data-passkey/, 'none is offered');
});

test('of uses of the same count at the same time one signs in', async (t) => {
  const { purser, authenticator } = await open(t);
  const browsers = await Promise.all(
    Array.from({ length: 8 }, async () => {
      const browser = at(purser);
      const options = JSON.parse((await browser.post(OPTIONS)).html);
      return { browser, credential: authenticator.answer(options, { count: 9 }) };
    }),
  );
  const answers = browsers.map(({ browser, credential }) => browser.post('/sign-in/passkey', { credential }));
  const statuses = (await Promise.all(answers)).map((it) => it.status);
  assert.deepEqual(statuses.toSorted(), [303, ...Array(7).fill(401)]);
  // The write decides, however many were verified before it.
  const [passkey] = (await purser.run('passkey.list', {})).passkeys;
  const use = { passkeyId: passkey?.id as string, tokenHash: randomBytes(32), earlierId: undefined };
  const now = purser.app.clock.now();
  const write = (useCount: number) => purser.app.ledger.write(openByPasskey, { ...use, useCount, now });
  await assert.rejects(write(9), { code: 'unauthenticated' });
  await write(10);
  await purser.run('passkey.remove', { id: use.passkeyId });
  await assert.rejects(write(11), { code: 'unauthenticated' });
});

test('wrong answers are limited, whatever challenge they answer', async (t) => {
  const purser = await openTestServer(t, { settings: { limits: { failed_auth_per_minute: 3 } } });
  const authenticator = openAuthenticator(here(purser));
  await make(await byLink(purser), authenticator);
  const statuses = [];
  for (let time = 0; time < 4; time++)
    statuses.push((await signIn(at(purser), authenticator, { spoil: 'signature' })).status);
  assert.deepEqual(statuses, [401, 401, 401, 429]);
  assert.equal((await signIn(at(purser), authenticator)).status, 429, 'not even read');
});

test('an account makes no passkey, and neither does a visitor or another site', async (t) => {
  const { purser, operator } = await open(t);
  const account = await asAccount(purser);
  for (const path of ['/settings/passkeys/options', '/settings/passkeys'])
    assert.equal((await account.post(path)).status, 404, path);
  for (const path of ['/settings/passkeys/options', '/settings/passkeys'])
    assert.equal((await at(purser).post(path)).status, 401, path);
  for (const path of ['/settings/passkeys/options', OPTIONS])
    assert.equal((await operator.post(path, {}, { origin: 'http://localhost:1' })).status, 403, path);
});

test('elsewhere than at localhost and under https the page says why there are none', async (t) => {
  const { purser, authenticator } = await open(t);
  const browser = openBrowser(purser);
  const { url } = await purser.run('ui.link', {});
  await browser.get(new URL(url).pathname);
  const { html } = await browser.get('/settings');
  assert.match(html, new RegExp(`and this is ${purser.url}. Open ${here(purser)} instead`));
  assert.doesNotMatch(html, /data-passkey/);
  assert.equal((await browser.post('/settings/passkeys/options')).status, 409);
  assert.equal((await browser.post(OPTIONS)).status, 409);
  assert.doesNotMatch((await openBrowser(purser).get('/sign-in')).html, /data-passkey/);
  const { status } = await openBrowser(purser).post('/sign-in/passkey', {
    credential: authenticator.answer({ challenge: 'a', rpId: 'localhost' }),
  });
  assert.equal(status, 401);
});

test('a passkey signs in at the address where it was made, and at no other', async (t) => {
  const purser = await openTestServer(t, { settings: { public_url: 'https://purser.example' } });
  const authenticator = openAuthenticator(here(purser));
  await make(await byLink(purser), authenticator);
  const proxied = openBrowser(purser);
  const headers = { host: 'purser.example', origin: 'https://purser.example' };
  const { html } = await proxied.post(OPTIONS, {}, headers);
  assert.equal(JSON.parse(html).rpId, 'purser.example');
  const credential = authenticator.answer(JSON.parse(html), { origin: 'https://purser.example' });
  assert.equal((await proxied.post('/sign-in/passkey', { credential }, headers)).status, 401);
  assert.equal((await signIn(at(purser), authenticator)).status, 303);
});

test('the books have the public key alone, and keep it over a restart, with a counter that goes on', async (t) => {
  const settings = { listen: `127.0.0.1:${await freePort()}` }; // A passkey is of one address.
  const { purser, authenticator, operator } = await open(t, 'ec', true, settings);
  const { client } = purser.app.ledger;
  const [row] = client.prepare('select * from passkey').all() as Record<string, unknown>[];
  assert.deepEqual(row?.public_key, authenticator.publicKey);
  assert.deepEqual(row?.credential_id, authenticator.credentialId);
  await signIn(at(purser), authenticator, { count: 7 });
  await purser.reopen();
  assert.equal(await isIn(operator), true);
  const kept = await at(purser).post(OPTIONS);
  assert.doesNotMatch(kept.html, /allowCredentials/, 'a visitor does not learn which passkeys there are');
  assert.equal((await signIn(at(purser), authenticator, { count: 7 })).status, 401);
  assert.equal((await signIn(at(purser), authenticator, { count: 8 })).status, 303);
  assert.deepEqual(purser.problems(), []);
  const log = purser.log.join('\n');
  for (const [name, value] of operator.cookies) assert.ok(!log.includes(value), name);
});

test('there are at most fifty passkeys', async (t) => {
  const purser = await openTestServer(t);
  const browser = await byLink(purser);
  for (let count = 0; count < 50; count++)
    assert.equal((await make(browser, openAuthenticator(here(purser)))).status, 303);
  const { status, html } = await make(browser, openAuthenticator(here(purser)));
  assert.equal(status, 409);
  assert.match(html, /There are 50 passkeys already/);
});

test('a passkey that was made for a user of the identity provider signs nobody in', async (t) => {
  const settings = { listen: `127.0.0.1:${await freePort()}` };
  const { purser, authenticator, operator } = await open(t, 'ec', true, settings);
  const other = openAuthenticator(here(purser));
  await make(operator, other, {}, 'telephone');
  const row = listPasskeys(purser.app.ledger.read).find((it) => it.name === 'laptop') as Passkey;
  const { subject, rule, seal } = withNewChecksum(passkeys, row, { subject: 'alice', rule: randomBytes(32) });
  await purser.reopen(() => {
    const client = new Client(join(purser.directory, 'purser.db'));
    client.prepare(`update passkey set subject = ?, rule = ?, seal = ? where id = ?`).run(subject, rule, seal, row.id);
    client.close();
  });
  const { status, html } = await signIn(at(purser), authenticator);
  assert.deepEqual([status, /This passkey is not known here, or was removed/.test(html)], [401, true]);
  assert.equal((await signIn(at(purser), other)).status, 303);
  assert.match((await operator.get('/settings')).html, /no operator’s any more/);
});
