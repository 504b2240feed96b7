import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { deadlineInside } from '../compute/engines/docker.ts';
import { until } from '../helper/waiting.ts';
import { openLeaseServer } from './docker-leases.ts';
import { LONG, openMemoryServer, PRICE, SPEC } from './leases.ts';

test('a lease is prepaid, captured when ready, ended on request, and not refunded', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const made = await purser.lease(token, 'k');
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
  assert.equal((await purser.lease(token, 'k')).headers['idempotent-replayed'], 'true');
  assert.equal((await purser.machines()).length, 1);
  const stopped = await purser.ask('POST', '/v1/compute/stop', { token, body: { id } });
  assert.deepEqual(
    [stopped.body.status, stopped.body.end_reason, stopped.body.charged_usd],
    ['stopped', 'requested', PRICE],
  );
  assert.deepEqual(await purser.machines(), []);
  assert.equal((await purser.budget(token)).used_usd, PRICE);
  const exec = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'true' } });
  assert.equal(exec.body.error.code, 'resource_not_active');
  const other = await purser.openWallet();
  assert.equal(
    (await purser.ask('POST', '/v1/compute/status', { token: other.token, body: { id } })).body.error.code,
    'not_found',
  );
  assert.deepEqual(purser.problems(), []);
});

test('a command that the end of its lease cuts short says so, and no other', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const exec = async (command: string, timeout = 60) =>
    (await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command, timeout } })).body;
  for (const command of ['exit 3', 'exit 143', 'kill -TERM $$'])
    assert.equal('ended_by' in (await exec(command)), false, command);
  const late = await exec('sleep 600', 1);
  assert.deepEqual([late.exit_code, late.timed_out, 'ended_by' in late], [137, true, false]);
  const cut = exec('echo begun > /tmp/begun; sleep 600');
  await until('it runs', async () => (await exec('test -s /tmp/begun')).exit_code === 0);
  await purser.stop(token, id);
  const { exit_code: code, timed_out: timedOut, ended_by: by } = await cut;
  assert.deepEqual([code, timedOut, by], [137, false, 'lease']);
});

test('every offer can be posted back unchanged', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { offers } = (await purser.ask('GET', '/v1/compute/offers', { token })).body;
  assert.deepEqual(
    offers.map((it: { provider: string }) => it.provider),
    ['provider_one', 'provider_three'],
  );
  for (const { provider, spec } of offers) {
    const made = await purser.ask('POST', '/v1/compute/create', { token, key: randomUUID(), body: { provider, spec } });
    assert.equal(made.status, 200, made.text);
  }
});

test('a wallet that is closing, closed or expired is told so before a backend is asked for a price', async (t) => {
  const purser = await openMemoryServer(t, { settings: { close_wait_seconds: 1 } });
  const [closing, closed, expired] = [
    await purser.openWallet(LONG),
    await purser.openWallet(LONG),
    await purser.openWallet({ expires_in_seconds: 60 }),
  ];
  await purser.lease(closing.token);
  purser.memory.before.destroy = () => Promise.reject(new Error('the engine will not'));
  assert.equal((await purser.closeWallet(closing.id)).body.error.code, 'cleanup_pending');
  await purser.closeWallet(closed.id);
  purser.clock.advance(60);
  const quote = t.mock.method(purser.backend, 'quote', () => Promise.reject(new Error('the provider is down')));
  const codeOf = async (token: string) => {
    const { status, body } = await purser.lease(token);
    return [status, body.error.code];
  };
  assert.deepEqual(await codeOf(closing.token), [409, 'wallet_closed']);
  assert.deepEqual(await codeOf(closed.token), [409, 'wallet_closed']);
  assert.deepEqual(await codeOf(expired.token), [409, 'wallet_expired']);
  assert.equal(quote.mock.callCount(), 0);
  delete purser.memory.before.destroy;
});

test('a lease ends at its deadline, and a lease of a closed wallet with it', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const one = await purser.openWallet(LONG);
  const two = await purser.openWallet(LONG);
  const first = (await purser.lease(one.token)).body.id;
  await purser.lease(two.token);
  purser.clock.advance(600);
  assert.equal(
    (await purser.ask('POST', '/v1/compute/exec', { token: one.token, body: { id: first, command: 'true' } })).body
      .error.code,
    'resource_not_active',
  );
  await purser.app.reaper.runOnce();
  const ended = await purser.ask('POST', '/v1/compute/status', { token: one.token, body: { id: first } });
  assert.deepEqual([ended.body.status, ended.body.end_reason], ['stopped', 'lease_expired']);
  await purser.lease(two.token);
  const closed = await purser.ask('POST', '/v1/run/close', { token: two.token });
  assert.equal(closed.status, 200, closed.text);
  assert.deepEqual(await purser.machines(), []);
  const { resources } = (await purser.ask('GET', `/v1/resources?wallet_id=${two.id}`, { token: purser.accountKey }))
    .body;
  assert.deepEqual(
    resources.map((it: { end_reason: string }) => it.end_reason),
    ['wallet_closed', 'lease_expired'],
  );
  assert.deepEqual(purser.problems(), []);
});

test('an extension moves both deadlines and is paid; provider_one has none', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const body = { provider: 'provider_three', spec: { offer_id: 'small', disk_gb: 5, max_seconds: 600 } };
  const made = (await purser.ask('POST', '/v1/compute/create', { token, key: 'c', body })).body;
  assert.equal(made.charged_usd, '0.06');
  const extend = (seconds: number, key: string = randomUUID(), id = made.id) =>
    purser.ask('POST', '/v1/compute/extend', { token, key, body: { id, additional_seconds: seconds } });
  const extended = await extend(300, 'e');
  assert.equal(extended.status, 200, extended.text);
  assert.deepEqual(
    [extended.body.charged_usd, extended.body.purchased_seconds, extended.body.expires_at - made.expires_at],
    ['0.09', 900, 300],
  );
  assert.equal((await extend(300, 'e')).headers['idempotent-replayed'], 'true');
  assert.equal(await deadlineInside(purser.engine.docker, made.provider_id), extended.body.expires_at);
  assert.equal((await extend(86_400)).body.error.code, 'lease_limit_exceeded');
  const one = (await purser.lease(token)).body.id;
  assert.equal((await extend(60, randomUUID(), one)).body.error.code, 'extension_not_supported');
  purser.clock.advance(900);
  assert.equal((await extend(60)).body.error.code, 'resource_not_active');
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  assert.deepEqual(purser.problems(), []);
});

test('a create whose answer is lost is uncertain; the same key finds what it made, and makes nothing twice', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { create } = purser.backend;
  purser.backend.create = async (order) => {
    await create(order);
    throw new Error('the connection was reset');
  };
  const lost = await purser.lease(token, 'k');
  assert.deepEqual([lost.status, lost.body.error.code], [503, 'operation_uncertain']);
  const [hold] = (await purser.budget(token)).holds;
  assert.deepEqual([hold.kind, hold.state, hold.amount_usd], ['compute_create', 'uncertain', PRICE]);
  purser.backend.create = () => assert.fail('there is no second create');
  const found = await purser.lease(token, 'k');
  assert.deepEqual([found.status, found.body.status, found.body.charged_usd], [200, 'running', PRICE]);
  assert.equal((await purser.machines()).length, 1);
  assert.deepEqual(purser.problems(), []);
});

test('a create that left nothing is released only after the proof of absence, and then its key is free', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { create } = purser.backend;
  purser.backend.create = async () => {
    throw new Error('the connection was reset');
  };
  assert.equal((await purser.lease(token, 'k')).body.error.code, 'operation_uncertain');
  assert.equal((await purser.lease(token, 'k')).body.error.code, 'operation_uncertain', 'one empty list is no proof');
  assert.notEqual((await purser.budget(token)).held_usd, '0.00');
  purser.clock.advance(purser.backend.absence.apartSeconds);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  purser.backend.create = create;
  assert.equal((await purser.lease(token, 'k')).status, 200);
  assert.equal((await purser.machines()).length, 1);
  assert.deepEqual(purser.problems(), []);
});

test('several machines with one tag: one is kept, the rest destroyed', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { create, find, destroy } = purser.backend;
  purser.backend.create = async (order) => {
    await create(order);
    throw new Error('the connection was reset');
  };
  await purser.lease(token, 'k');
  const destroyed: string[] = [];
  purser.backend.find = async (tag) => [...(await find(tag)), { ref: 'a-second-one', state: 'running' }];
  purser.backend.destroy = async (ref) => (ref === 'a-second-one' ? void destroyed.push(ref) : destroy(ref));
  assert.equal((await purser.lease(token, 'k')).body.status, 'running');
  assert.deepEqual(destroyed, ['a-second-one']);
  purser.backend.find = find;
});

test('a backend that is down leaves the wallet closing, in our own words, and it finishes when the backend is back', async (t) => {
  const purser = await openLeaseServer(t, { settings: { close_wait_seconds: 1 } });
  if (!purser) return;
  const { id, token } = await purser.openWallet(LONG);
  const { id: lease } = (await purser.lease(token)).body;
  const { destroy } = purser.backend;
  const words = 'connect ENOENT /srv/secret-place/docker.sock';
  purser.backend.destroy = () => Promise.reject(new Error(words));
  const pending = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  assert.equal(pending.body.error.code, 'cleanup_pending');
  const record = (await purser.ask('GET', `/v1/wallets/${id}`, { token: purser.accountKey })).body;
  assert.deepEqual([record.status, record.cleanup.pending], ['closing', true]);
  const own = `${lease} on container: the backend failed or has not answered; it is asked again`;
  assert.equal(record.cleanup.last_error, own);
  const closing = await purser.ask('POST', '/v1/run/close', { token });
  assert.deepEqual([closing.status, closing.body.error.code], [409, 'cleanup_pending']);
  assert.doesNotMatch(pending.text + closing.text, /secret-place/);
  const [shown] = (await purser.run('resource.list', {})).resources;
  assert.equal(shown?.last_error, words);
  purser.backend.destroy = destroy;
  purser.clock.advance(300);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.ask('GET', `/v1/wallets/${id}`, { token: purser.accountKey })).body.status, 'closed');
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(purser.problems(), []);
});

test('what ends at the backend by itself is noticed, and never called running', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { id, provider_id: ref } = (await purser.lease(token)).body;
  await purser.engine.docker.getContainer(ref).kill();
  purser.clock.advance(61);
  await purser.app.reaper.runOnce();
  const ended = (await purser.ask('POST', '/v1/compute/status', { token, body: { id } })).body;
  assert.deepEqual([ended.status, ended.end_reason, ended.charged_usd], ['stopped', 'provider_ended', PRICE]);
  assert.deepEqual(await purser.machines(), []);
});

test('an orphan with our tag is destroyed after its grace, and nothing else is touched', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  await purser.lease(token);
  const prefix = tagPrefix(purser.app.installationId);
  const quote = await purser.backend.quote({ ...SPEC, gpu: null, gpus: 0 });
  const deadline = Math.floor(purser.clock.wall() / 1000) + 660;
  await purser.backend.create({ tag: `${prefix}res-orphan`, quote, deadline });
  await purser.backend.create({ tag: 'purser-inst-somebodyelse-res-1', quote, deadline });
  assert.equal((await purser.app.reaper.runOnce()).orphans, 0);
  assert.equal((await purser.machines()).length, 2);
  purser.clock.advance(240);
  await until('it is taken away', async () => {
    purser.clock.advance(61); // A pass does not wait for a sweep that takes long, nor begin another.
    await purser.app.reaper.runOnce();
    return !(await purser.machines()).includes(`/${prefix}res-orphan`);
  });
  assert.equal((await purser.machines()).length, 1);
  assert.ok(await purser.backend.inspect('purser-inst-somebodyelse-res-1'));
  await purser.backend.destroy('purser-inst-somebodyelse-res-1');
});
