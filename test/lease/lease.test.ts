import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { until } from '../compute/conformance.ts';
import { deadlineInside } from '../compute/engines/docker.ts';
import { openLeaseHouse } from './docker-leases.ts';
import { LONG, openMemoryHouse, PRICE, SPEC } from './leases.ts';

test('a lease is prepaid, captured when ready, ended on request, and not refunded', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const { token } = await house.openWallet(LONG);
  const made = await house.lease(token, 'k');
  assert.equal(made.status, 200, made.text);
  const { id, charged_usd: charged, ...rest } = made.body;
  assert.equal(charged, PRICE);
  assert.deepEqual(
    [
      rest.status,
      rest.billing_state,
      rest.reserved_usd,
      rest.purchased_seconds,
      rest.expires_at - rest.ready_at,
      rest.supports_extension,
    ],
    ['running', 'settled', '0.00', 600, 600, false],
  );
  assert.equal((await house.lease(token, 'k')).headers['idempotent-replayed'], 'true');
  assert.equal((await house.machines()).length, 1);
  const stopped = await house.ask('POST', '/v1/compute/stop', { token, body: { id } });
  assert.deepEqual(
    [stopped.body.status, stopped.body.end_reason, stopped.body.charged_usd],
    ['stopped', 'requested', PRICE],
  );
  assert.deepEqual(await house.machines(), []);
  assert.equal((await house.budget(token)).used_usd, PRICE);
  const exec = await house.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'true' } });
  assert.equal(exec.body.error.code, 'resource_not_active');
  const other = await house.openWallet();
  assert.equal(
    (await house.ask('POST', '/v1/compute/status', { token: other.token, body: { id } })).body.error.code,
    'not_found',
  );
  assert.deepEqual(house.problems(), []);
});

test('a command that the end of its lease cuts short says so, and no other', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  const exec = async (command: string, timeout = 60) =>
    (await house.ask('POST', '/v1/compute/exec', { token, body: { id, command, timeout } })).body;
  for (const command of ['exit 3', 'exit 143', 'kill -TERM $$'])
    assert.equal('ended_by' in (await exec(command)), false, command);
  const late = await exec('sleep 600', 1);
  assert.deepEqual([late.exit_code, late.timed_out, 'ended_by' in late], [137, true, false]);
  const cut = exec('echo begun > /tmp/begun; sleep 600');
  await until('it runs', async () => (await exec('test -s /tmp/begun')).exit_code === 0);
  await house.stop(token, id);
  const { exit_code: code, timed_out: timedOut, ended_by: by } = await cut;
  assert.deepEqual([code, timedOut, by], [137, false, 'lease']);
});

test('every offer can be posted back unchanged', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const { token } = await house.openWallet(LONG);
  const { offers } = (await house.ask('GET', '/v1/compute/offers', { token })).body;
  assert.deepEqual(
    offers.map((it: { provider: string }) => it.provider),
    ['provider_one', 'provider_three'],
  );
  for (const { provider, spec } of offers) {
    const made = await house.ask('POST', '/v1/compute/create', { token, key: randomUUID(), body: { provider, spec } });
    assert.equal(made.status, 200, made.text);
  }
});

test('a wallet that is closing, closed or expired is told so before a backend is asked for a price', async (t) => {
  const house = await openMemoryHouse(t);
  const [closing, closed, expired] = [
    await house.openWallet(LONG),
    await house.openWallet(LONG),
    await house.openWallet({ expires_in_seconds: 60 }),
  ];
  await house.lease(closing.token);
  house.memory.before.destroy = () => Promise.reject(new Error('the engine will not'));
  assert.equal((await house.closeWallet(closing.id)).body.error.code, 'cleanup_pending');
  await house.closeWallet(closed.id);
  house.clock.advance(60);
  const quote = t.mock.method(house.backend, 'quote', () => Promise.reject(new Error('the provider is down')));
  const codeOf = async (token: string) => {
    const { status, body } = await house.lease(token);
    return [status, body.error.code];
  };
  assert.deepEqual(await codeOf(closing.token), [409, 'wallet_closed']);
  assert.deepEqual(await codeOf(closed.token), [409, 'wallet_closed']);
  assert.deepEqual(await codeOf(expired.token), [409, 'wallet_expired']);
  assert.equal(quote.mock.callCount(), 0);
  delete house.memory.before.destroy;
});

test('a lease ends at its deadline, and a lease of a closed wallet with it', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const one = await house.openWallet(LONG);
  const two = await house.openWallet(LONG);
  const first = (await house.lease(one.token)).body.id;
  await house.lease(two.token);
  house.clock.advance(600);
  assert.equal(
    (await house.ask('POST', '/v1/compute/exec', { token: one.token, body: { id: first, command: 'true' } })).body.error
      .code,
    'resource_not_active',
  );
  await house.app.reaper.runOnce();
  const ended = await house.ask('POST', '/v1/compute/status', { token: one.token, body: { id: first } });
  assert.deepEqual([ended.body.status, ended.body.end_reason], ['stopped', 'lease_expired']);
  await house.lease(two.token);
  const closed = await house.ask('POST', '/v1/run/close', { token: two.token });
  assert.equal(closed.status, 200, closed.text);
  assert.deepEqual(await house.machines(), []);
  const { resources } = (await house.ask('GET', `/v1/resources?wallet_id=${two.id}`, { token: house.accountKey })).body;
  assert.deepEqual(
    resources.map((it: { end_reason: string }) => it.end_reason),
    ['wallet_closed', 'lease_expired'],
  );
  assert.deepEqual(house.problems(), []);
});

test('an extension moves both deadlines and is paid; provider_one has none', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const { token } = await house.openWallet(LONG);
  const body = { provider: 'provider_three', spec: { offer_id: 'small', disk_gb: 5, max_seconds: 600 } };
  const made = (await house.ask('POST', '/v1/compute/create', { token, key: 'c', body })).body;
  assert.equal(made.charged_usd, '0.06');
  const extend = (seconds: number, key: string = randomUUID(), id = made.id) =>
    house.ask('POST', '/v1/compute/extend', { token, key, body: { id, additional_seconds: seconds } });
  const extended = await extend(300, 'e');
  assert.equal(extended.status, 200, extended.text);
  assert.deepEqual(
    [extended.body.charged_usd, extended.body.purchased_seconds, extended.body.expires_at - made.expires_at],
    ['0.09', 900, 300],
  );
  assert.equal((await extend(300, 'e')).headers['idempotent-replayed'], 'true');
  assert.equal(await deadlineInside(house.engine.docker, made.provider_id), extended.body.expires_at);
  assert.equal((await extend(86_400)).body.error.code, 'lease_limit_exceeded');
  const one = (await house.lease(token)).body.id;
  assert.equal((await extend(60, randomUUID(), one)).body.error.code, 'extension_not_supported');
  house.clock.advance(900);
  assert.equal((await extend(60)).body.error.code, 'resource_not_active');
  assert.equal((await house.budget(token)).held_usd, '0.00');
  assert.deepEqual(house.problems(), []);
});

test('a create whose answer is lost is uncertain; the same key finds what it made, and makes nothing twice', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const { token } = await house.openWallet(LONG);
  const { create } = house.backend;
  house.backend.create = async (order) => {
    await create(order);
    throw new Error('the connection was reset');
  };
  const lost = await house.lease(token, 'k');
  assert.deepEqual([lost.status, lost.body.error.code], [503, 'operation_uncertain']);
  const [hold] = (await house.budget(token)).holds;
  assert.deepEqual([hold.kind, hold.state, hold.amount_usd], ['compute_create', 'uncertain', PRICE]);
  house.backend.create = () => assert.fail('there is no second create');
  const found = await house.lease(token, 'k');
  assert.deepEqual([found.status, found.body.status, found.body.charged_usd], [200, 'running', PRICE]);
  assert.equal((await house.machines()).length, 1);
  assert.deepEqual(house.problems(), []);
});

test('a create that left nothing is released only after the proof of absence, and then its key is free', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const { token } = await house.openWallet(LONG);
  const { create } = house.backend;
  house.backend.create = async () => {
    throw new Error('the connection was reset');
  };
  assert.equal((await house.lease(token, 'k')).body.error.code, 'operation_uncertain');
  assert.equal((await house.lease(token, 'k')).body.error.code, 'operation_uncertain', 'one empty list is no proof');
  assert.notEqual((await house.budget(token)).held_usd, '0.00');
  house.clock.advance(house.backend.absence.apartSeconds);
  await house.app.reaper.runOnce();
  assert.equal((await house.budget(token)).held_usd, '0.00');
  house.backend.create = create;
  assert.equal((await house.lease(token, 'k')).status, 200);
  assert.equal((await house.machines()).length, 1);
  assert.deepEqual(house.problems(), []);
});

test('several machines with one tag: one is kept, the rest destroyed', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const { token } = await house.openWallet(LONG);
  const { create, find, destroy } = house.backend;
  house.backend.create = async (order) => {
    await create(order);
    throw new Error('the connection was reset');
  };
  await house.lease(token, 'k');
  const destroyed: string[] = [];
  house.backend.find = async (tag) => [...(await find(tag)), { ref: 'a-second-one', state: 'running' }];
  house.backend.destroy = async (ref) => (ref === 'a-second-one' ? void destroyed.push(ref) : destroy(ref));
  assert.equal((await house.lease(token, 'k')).body.status, 'running');
  assert.deepEqual(destroyed, ['a-second-one']);
  house.backend.find = find;
});

test('a backend that is down leaves the wallet closing, in our own words, and it finishes when the backend is back', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const { id, token } = await house.openWallet(LONG);
  const { id: lease } = (await house.lease(token)).body;
  const { destroy } = house.backend;
  const words = 'connect ENOENT /srv/secret-place/docker.sock';
  house.backend.destroy = () => Promise.reject(new Error(words));
  const pending = await house.ask('POST', `/v1/wallets/${id}/close`, { token: house.accountKey });
  assert.equal(pending.body.error.code, 'cleanup_pending');
  const record = (await house.ask('GET', `/v1/wallets/${id}`, { token: house.accountKey })).body;
  assert.deepEqual([record.status, record.cleanup.pending], ['closing', true]);
  const own = `${lease} on container: the backend failed or has not answered; it is asked again`;
  assert.equal(record.cleanup.last_error, own);
  const closing = await house.ask('POST', '/v1/run/close', { token });
  assert.deepEqual([closing.status, closing.body.error.code], [409, 'cleanup_pending']);
  assert.doesNotMatch(pending.text + closing.text, /secret-place/);
  const [shown] = (await house.run('resource.list', {})).resources;
  assert.equal(shown?.last_error, words);
  house.backend.destroy = destroy;
  house.clock.advance(300);
  await house.app.reaper.runOnce();
  assert.equal((await house.ask('GET', `/v1/wallets/${id}`, { token: house.accountKey })).body.status, 'closed');
  assert.deepEqual(await house.machines(), []);
  assert.deepEqual(house.problems(), []);
});

test('what ends at the backend by itself is noticed, and never called running', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const { token } = await house.openWallet(LONG);
  const { id, provider_id: ref } = (await house.lease(token)).body;
  await house.engine.docker.getContainer(ref).kill();
  house.clock.advance(61);
  await house.app.reaper.runOnce();
  const ended = (await house.ask('POST', '/v1/compute/status', { token, body: { id } })).body;
  assert.deepEqual([ended.status, ended.end_reason, ended.charged_usd], ['stopped', 'provider_ended', PRICE]);
  assert.deepEqual(await house.machines(), []);
});

test('an orphan with our tag is destroyed after its grace, and nothing else is touched', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const { token } = await house.openWallet(LONG);
  await house.lease(token);
  const prefix = tagPrefix(house.app.installationId);
  const quote = await house.backend.quote({ ...SPEC, gpu: null, gpus: 0 });
  const deadline = Math.floor(house.clock.wall() / 1000) + 660;
  await house.backend.create({ tag: `${prefix}res-orphan`, quote, deadline });
  await house.backend.create({ tag: 'purser-inst-somebodyelse-res-1', quote, deadline });
  assert.equal((await house.app.reaper.runOnce()).orphans, 0);
  assert.equal((await house.machines()).length, 2);
  house.clock.advance(301);
  assert.equal((await house.app.reaper.runOnce()).orphans, 1);
  assert.ok(!(await house.machines()).includes(`/${prefix}res-orphan`));
  assert.equal((await house.machines()).length, 1);
  assert.ok(await house.backend.inspect('purser-inst-somebodyelse-res-1'));
  await house.backend.destroy('purser-inst-somebodyelse-res-1');
});
