import assert from 'node:assert/strict';
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { Refusal } from '../../src/base/refusal.ts';
import { readConfig } from '../../src/config/config.ts';
import { files } from '../../src/files/data-directory.ts';
import { deliverSandbox } from '../../src/ledger/sandbox.ts';
import { replaceLostKey } from '../../src/recovery/lost-key.ts';
import { until, waitFor } from '../helper/waiting.ts';
import { hold, LONG } from '../lease/leases.ts';
import { inside, openE2b, PRICE, TEMPLATES } from './shared.ts';

/** Seconds of a sandbox that cost 2 USD. */
const DEAR = 20_000;
const seconds = (time: string) => Date.parse(time) / 1000;

test('a sandbox is created, described, listed and killed with the key of a wallet', async (t) => {
  const { purser, wallet, api, create } = await openE2b(t);
  const made = await create({ metadata: { job: 'a b' } });
  assert.equal(made.status, 201, made.text);
  assert.match(made.body.sandboxID, /^[0-9a-z]{26}$/);
  assert.match(made.body.envdAccessToken, /^[0-9a-f]{64}$/);
  assert.match(made.body.trafficAccessToken, /^[0-9a-f]{64}$/);
  assert.notEqual(made.body.envdAccessToken, made.body.trafficAccessToken);
  assert.equal(made.body.domain, `localhost:${new URL(purser.url).port}`);
  assert.equal(made.headers['x-purser-cost-usd'], PRICE);
  assert.equal(made.headers['x-purser-available-usd'], '4.97');
  const info = await api('GET', `/sandboxes/${made.body.sandboxID}`);
  assert.equal(info.status, 200, info.text);
  assert.deepEqual(info.body.metadata, { job: 'a b' });
  assert.equal(seconds(info.body.endAt) - seconds(info.body.startedAt), 300);
  const encoded = encodeURIComponent('job=a%2520b');
  assert.equal((await api('GET', `/v2/sandboxes?metadata=${encoded}`)).body.length, 1);
  assert.equal((await api('GET', '/v2/sandboxes?metadata=job%3Db')).body.length, 0);
  assert.equal((await api('GET', '/v2/sandboxes?state=paused')).body.length, 0);
  assert.equal((await api('DELETE', `/sandboxes/${made.body.sandboxID}`)).status, 204);
  const again = await api('DELETE', `/sandboxes/${made.body.sandboxID}`);
  assert.deepEqual([again.status, again.body.code], [404, 404]);
  assert.deepEqual(await purser.machines(), []);
  assert.equal(purser.wallet(wallet.id).spent, 30_000_000n);
  assert.deepEqual(purser.problems(), []);
});

test('lists come in pages, in either order', async (t) => {
  const { api, create } = await openE2b(t);
  const ids: string[] = [];
  for (let i = 0; i < 3; i++) ids.push((await create()).body.sandboxID);
  const first = await api('GET', '/v2/sandboxes?limit=2');
  assert.deepEqual(
    first.body.map((it: { sandboxID: string }) => it.sandboxID),
    [ids[2], ids[1]],
  );
  const next = await api('GET', `/v2/sandboxes?limit=2&nextToken=${first.headers['x-next-token']}`);
  assert.deepEqual(
    next.body.map((it: { sandboxID: string }) => it.sandboxID),
    [ids[0]],
  );
  assert.equal(next.headers['x-next-token'], undefined);
  const oldest = await api('GET', '/v2/sandboxes?order=asc&limit=1');
  assert.equal(oldest.body[0].sandboxID, ids[0]);
});

test('another wallet sees and touches nothing', async (t) => {
  const { purser, api, create } = await openE2b(t);
  const { sandboxID } = (await create()).body;
  const { token: as } = await purser.openWallet(LONG);
  assert.deepEqual((await api('GET', '/v2/sandboxes', { as })).body, []);
  for (const [method, path, body] of [
    ['GET', '', undefined],
    ['DELETE', '', undefined],
    ['POST', '/connect', {}],
    ['POST', '/timeout', { timeout: 5 }],
    ['GET', '/metrics', undefined],
  ] as const) {
    const refused = await api(method, `/sandboxes/${sandboxID}${path}`, { as, body });
    assert.deepEqual([refused.status, refused.body.code], [404, 404], `${method} ${path}`);
  }
  assert.equal((await purser.machines()).length, 1);
});

test('errors have the shape that the SDKs read', async (t) => {
  const { purser, api, create } = await openE2b(t);
  const wrong = await create({}, { as: 'e2b_0123' });
  assert.deepEqual([wrong.status, wrong.body.code, typeof wrong.body.message], [401, 401, 'string']);
  assert.equal((await purser.ask('POST', '/v1/e2b/v2/sandboxes', { body: {} })).status, 401);
  const { token } = await purser.openWallet(LONG);
  for (const authorization of ['Bearer sk_e2b_0123', 'Basic cm9vdDo='])
    assert.equal((await api('GET', '/v2/sandboxes', { as: token, headers: { authorization } })).status, 200);
  const scoped = await create({}, { as: purser.accountKey });
  assert.deepEqual([scoped.status, scoped.body.code], [403, 403]);
  const unknown = await create({ templateID: 'none' });
  assert.equal(unknown.status, 400);
  assert.match(unknown.body.message, /no template "none".*base, fixed/);
  for (const [body, words] of [
    [{ timeout: null }, /timeout/],
    [{ timeout: 0 }, /timeout/],
    [{ envVars: { 'A-B': '1' } }, /envVars/],
    [{ autoPause: true }, /not paused/],
    [{ allow_internet_access: false }, /network/],
    [{ network: { denyOut: ['0.0.0.0/0'] } }, /network/],
    [{ volumeMounts: [{ name: 'v', path: '/v' }] }, /volumes/],
  ] as const) {
    const refused = await create(body);
    assert.equal(refused.status, 400, JSON.stringify(body));
    assert.match(refused.body.message, words);
  }
  assert.equal((await create({ network: { allowPublicTraffic: true }, autoResume: { enabled: false } })).status, 201);
  assert.equal((await api('POST', '/v2/templates', { body: {} })).status, 404);
  const { sandboxID } = (await create()).body;
  for (const path of ['pause', 'fork', 'snapshots'])
    assert.equal((await api('POST', `/sandboxes/${sandboxID}/${path}`, { body: {} })).status, 400);
});

test('an unknown outcome is a 504, and the same create again does not rent a second machine', async (t) => {
  const { purser, create } = await openE2b(t);
  purser.memory.after.create = () => {
    throw new Error('the connection was reset');
  };
  const first = await create();
  assert.deepEqual([first.status, first.body.code], [504, 504]);
  purser.memory.after = {};
  const second = await create();
  assert.equal(second.status, 201, second.text);
  assert.equal((await purser.machines()).length, 1);
});

test('a sandbox that is paid for and cannot be noted as answered is an unknown outcome, and is taken over', async (t) => {
  const { purser, create } = await openE2b(t);
  const { ledger } = purser.app;
  const { write } = ledger;
  ledger.write = ((it, data) =>
    it === (deliverSandbox as unknown) ? Promise.reject(new Refusal('read_only')) : write(it, data)) as typeof write;
  assert.equal((await create()).status, 504);
  ledger.write = write;
  assert.equal((await create()).status, 201);
  assert.equal((await purser.machines()).length, 1);
});

test('a wallet without the money is told what is missing, and nothing is rented', async (t) => {
  const { purser, create } = await openE2b(t, { wallet: { budget_cents: 100, expires_in_seconds: 172_800 } });
  const refused = await create({ timeout: DEAR });
  assert.deepEqual([refused.status, refused.body.code], [402, 402]);
  assert.match(refused.body.message, /needs 2\.00 USD.* has 1\.00 USD/);
  assert.deepEqual(await purser.machines(), []);
});

test('a short timeout ends a lease that is paid for longer', async (t) => {
  const { purser, api, create } = await openE2b(t);
  const made = await create({ timeout: 10 });
  assert.equal(made.headers['x-purser-cost-usd'], '0.006'); // 60 s.
  const path = `/sandboxes/${made.body.sandboxID}`;
  purser.clock.advance(9);
  await purser.app.reaper.runOnce();
  assert.equal((await api('GET', path)).status, 200);
  purser.clock.advance(1);
  assert.equal((await api('GET', path)).status, 404);
  assert.equal((await api('POST', `${path}/timeout`, { body: { timeout: 60 } })).status, 404);
  await purser.app.reaper.runOnce();
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(purser.problems(), []);
});

test('a timeout within the paid time costs nothing, and a longer one extends the lease to it', async (t) => {
  const { purser, wallet, api, create } = await openE2b(t);
  const { sandboxID } = (await create({ timeout: 300 })).body;
  const path = `/sandboxes/${sandboxID}`;
  const started = purser.clock.wall() / 1000;
  const available = async () => (await purser.budget(wallet.token)).available_cents;
  const before = await available();
  const set = async (timeout: number) => (await api('POST', `${path}/timeout`, { body: { timeout } })).status;
  assert.equal(await set(60), 204);
  assert.equal(await set(200), 204);
  assert.equal(await available(), before);
  const longer = await api('POST', `${path}/timeout`, { body: { timeout: 400 } });
  assert.deepEqual([longer.status, longer.headers['x-purser-cost-usd']], [204, '0.01']);
  const { endAt } = (await api('GET', path)).body;
  assert.equal(seconds(endAt), Math.floor(started) + 400);
  assert.equal((await api('POST', `${path}/timeout`, { body: { timeout: 1e9 } })).status, 400);
});

test('two clients that lengthen at once pay for the time once', async (t) => {
  const { purser, wallet, api, create } = await openE2b(t);
  const { sandboxID } = (await create()).body;
  const lengthen = () => api('POST', `/sandboxes/${sandboxID}/timeout`, { body: { timeout: 600 } });
  const answers = await Promise.all([lengthen(), lengthen()]);
  assert.deepEqual(
    answers.map((it) => it.status),
    [204, 204],
  );
  const row = await purser.status(wallet.token, `res_${sandboxID}`);
  assert.equal(row.purchased_seconds, 600);
});

test('however many clients lengthen at once, none is refused because others came first', async (t) => {
  const { purser, wallet, api, create } = await openE2b(t);
  const { sandboxID } = (await create()).body;
  const ends = Array.from({ length: 12 }, (_, at) => 600 + at);
  const answers = await Promise.all(
    ends.map((timeout) => api('POST', `/sandboxes/${sandboxID}/timeout`, { body: { timeout } })),
  );
  assert.deepEqual(
    answers.map((it) => it.status),
    ends.map(() => 204),
  );
  const row = await purser.status(wallet.token, `res_${sandboxID}`);
  assert.equal(row.purchased_seconds, 611);
  assert.deepEqual(purser.problems(), []);
});

test('a lease that cannot be extended refuses a longer timeout, and a client connects to it all the same', async (t) => {
  const { purser, api, create } = await openE2b(t);
  const { sandboxID } = (await create({ templateID: 'fixed' })).body;
  const path = `/sandboxes/${sandboxID}`;
  purser.clock.advance(10);
  const refused = await api('POST', `${path}/timeout`, { body: { timeout: 300 } });
  assert.deepEqual([refused.status, refused.body.code], [409, 409]);
  assert.equal((await api('POST', `${path}/timeout`, { body: { timeout: 20 } })).status, 204);
  assert.equal((await api('POST', `/v2${path}/connect`, { body: {} })).status, 200);
  const { startedAt, endAt } = (await api('GET', path)).body;
  assert.equal(seconds(endAt) - seconds(startedAt), 300, 'it has all that was paid for');
});

test('connect only ever lengthens, and connects without that on a dry wallet', async (t) => {
  const { purser, wallet, api, create } = await openE2b(t, {
    wallet: { budget_cents: 100, expires_in_seconds: 172_800 },
  });
  const made = (await create()).body;
  const connect = (body: object = {}) => api('POST', `/v2/sandboxes/${made.sandboxID}/connect`, { body });
  const again = await connect({ timeout: 5 });
  assert.equal(again.status, 200);
  assert.deepEqual(again.body, made);
  const end = async () => seconds((await api('GET', `/sandboxes/${made.sandboxID}`)).body.endAt);
  const whole = await end();
  const dry = await connect({ timeout: DEAR });
  assert.equal(dry.status, 200, dry.text);
  assert.equal(await end(), whole);
  const longer = await connect({ timeout: 350 });
  assert.equal(longer.headers['x-purser-cost-usd'], '0.005');
  assert.equal(await end(), whole + 50);
  assert.equal(purser.wallet(wallet.id).spent, 35_000_000n);
});

test('a create whose client has gone is adopted by the next identical one, and by no other', async (t) => {
  const { purser, create } = await openE2b(t);
  const held = hold();
  purser.memory.before.create = held.wait;
  const leaving = new AbortController();
  const left = create({ metadata: { n: '1' } }, { signal: leaving.signal }).catch(() => undefined);
  await waitFor('the machine is being made', held.arrived);
  leaving.abort();
  await left;
  purser.memory.before = {};
  const other = await create({ metadata: { n: '2' } });
  assert.equal(other.status, 201, other.text);
  held.go();
  const adopted = await create({ metadata: { n: '1' } });
  assert.equal(adopted.status, 201, adopted.text);
  assert.equal((await purser.machines()).length, 2);
  const separate = await create({ metadata: { n: '1' } });
  assert.notEqual(separate.body.sandboxID, adopted.body.sandboxID);
  assert.equal((await purser.machines()).length, 3);
});

test('a create that went on without its client is adopted when it is over, and after a restart', async (t) => {
  const { purser, wallet, create } = await openE2b(t);
  const held = hold();
  purser.memory.before.create = held.wait;
  const leaving = new AbortController();
  const left = create({}, { signal: leaving.signal }).catch(() => undefined);
  await waitFor('the machine is being made', held.arrived);
  leaving.abort();
  await left;
  held.go();
  const isPaid = () => purser.wallet(wallet.id).spent > 0n;
  await until('the machine is paid for', isPaid);
  await purser.app.inFlight.whenWalletIdle(wallet.id, 20);
  await purser.reopen();
  assert.equal((await create()).status, 201);
  assert.equal((await purser.machines()).length, 1);
  assert.equal((await create()).status, 201);
  assert.equal((await purser.machines()).length, 2);
});

test('a create that no client got is adopted after a restart', async (t) => {
  const { purser, create } = await openE2b(t);
  purser.memory.after.create = () => {
    throw new Error('the connection was reset');
  };
  assert.equal((await create()).status, 504);
  purser.memory.after = {};
  await purser.reopen();
  assert.equal((await create()).status, 201);
  assert.equal((await purser.machines()).length, 1);
});

test('a sandbox that a client found by its id, as no answer of its create came, is that client’s alone', async (t) => {
  const { purser, api, create } = await openE2b(t);
  purser.memory.after.create = () => {
    throw new Error('the connection was reset');
  };
  assert.equal((await create()).status, 504);
  purser.memory.after = {};
  await purser.app.reaper.runOnce();
  const [found] = (await api('GET', '/v2/sandboxes')).body;
  assert.equal((await api('POST', `/v2/sandboxes/${found.sandboxID}/connect`, { body: {} })).status, 200);
  const separate = await create();
  assert.equal(separate.status, 201);
  assert.notEqual(separate.body.sandboxID, found.sandboxID);
  assert.equal((await purser.machines()).length, 2);
});

test('a sandbox that a client found by its id while its create went on without its client is not taken over', async (t) => {
  const base = { ...TEMPLATES.base, start: 'true' };
  const { purser, api, create } = await openE2b(t, { templates: { base } });
  const held = hold();
  const session = async () => {
    await held.wait();
    throw new Error('the connection was reset');
  };
  for (const { backend } of purser.app.slots.list) Object.assign(backend.guest, { session });
  const leaving = new AbortController();
  const left = create({}, { signal: leaving.signal }).catch(() => undefined);
  await waitFor('the template is being started', held.arrived);
  leaving.abort();
  await left;
  const [found] = (await api('GET', '/v2/sandboxes')).body;
  assert.equal((await api('POST', `/v2/sandboxes/${found.sandboxID}/connect`, { body: {} })).status, 200);
  const separate = create();
  await until('it has a machine of its own', async () => (await purser.machines()).length === 2);
  held.go();
  assert.equal((await separate).status, 504, 'its start fails as well');
});

test('an Idempotency-Key gives the same sandbox to the same request, and is refused for another', async (t) => {
  const { purser, create } = await openE2b(t);
  const [first, second] = [await create({}, { key: 'k' }), await create({}, { key: 'k' })];
  assert.deepEqual(second.body, first.body);
  assert.equal((await create({ timeout: 60 }, { key: 'k' })).status, 409);
  assert.equal((await create()).status, 201);
  assert.equal((await purser.machines()).length, 2);
});

test('the tokens are those of one sandbox, survive a restart, and are stored nowhere', async (t) => {
  const { purser, api, create } = await openE2b(t);
  const [one, two] = [(await create({ envVars: { KEY: 'canary-4711' } })).body, (await create()).body];
  assert.notEqual(one.envdAccessToken, two.envdAccessToken);
  await purser.reopen();
  const connected = await api('POST', `/sandboxes/${one.sandboxID}/connect`, { body: {} });
  assert.equal(connected.body.envdAccessToken, one.envdAccessToken);
  assert.equal(connected.body.trafficAccessToken, one.trafficAccessToken);
  await purser.close();
  const stored = readFileSync(files(purser.directory).database).toString('latin1') + purser.log.join('\n');
  for (const secret of [one.envdAccessToken, one.trafficAccessToken, 'canary-4711'])
    assert.ok(!stored.includes(secret), 'no secret is in the database or the log');
});

test('a command of a sandbox whose variables went with a lost master key is refused with that reason', async (t) => {
  const { purser, wallet, api, create } = await openE2b(t);
  const { sandboxID } = (await create({ envVars: { KEY: 'value' } })).body;
  await purser.close();
  rmSync(join(purser.directory, 'master.key'));
  await replaceLostKey(readConfig({ data: purser.directory }, {}), { apply: true });
  await purser.reopen();
  const { agent_token: as } = await purser.run('wallet.token', { id: wallet.id });
  const connected = await api('POST', `/sandboxes/${sandboxID}/connect`, { body: {}, as });
  assert.equal(connected.status, 200, connected.text);
  const it = await inside(purser, connected.body).run('true');
  const { error } = await it.end();
  assert.equal(error.code, 'invalid_argument', error.message);
  assert.match(error.message, /master key/);
  assert.ok(!purser.log.some((line) => line.includes('request.failed')), 'it is no fault of the server');
});
