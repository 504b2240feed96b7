import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { type LeaseServer, LONG, openMemoryServer, SPEC } from './leases.ts';

/** How long a create waits for its machine: `wait_seconds` of its query. */

const create = (purser: LeaseServer, token: string, key: string, wait?: string, spec: object = SPEC) =>
  purser.ask('POST', `/v1/compute/create${wait === undefined ? '' : `?wait_seconds=${wait}`}`, {
    token,
    key,
    body: { provider: 'provider_one', spec },
  });

test('wait_seconds 0 answers at once, and a larger one waits until the machine runs', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  purser.memory.ready = false;
  const atOnce = await create(purser, token, 'a', '0');
  assert.deepEqual([atOnce.status, atOnce.body.status], [200, 'provisioning'], atOnce.text);

  purser.app.answerSeconds = 0.05;
  assert.equal((await create(purser, token, 'b')).body.status, 'provisioning', 'without one, as long as ever');
  const waits = create(purser, token, 'c', '600');
  await until('its machine is made', () => purser.memory.machines.size === 3);
  for (const it of purser.memory.machines.values()) it.state = 'running';
  assert.equal((await waits).body.status, 'running');
  assert.deepEqual(purser.problems(), []);
});

test('wait_seconds is no part of what a key compares: a retry gets its lease with any', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  purser.memory.ready = false;
  const { id } = (await create(purser, token, 'k', '0')).body;
  const waits = create(purser, token, 'k', '600');
  let isAnswered = false;
  void waits.then(() => {
    isAnswered = true;
  });
  const { body, headers } = await create(purser, token, 'k', '0');
  assert.deepEqual([body.id, body.status, headers['idempotent-replayed']], [id, 'provisioning', 'true']);
  assert.equal(isAnswered, false, 'a retry waits as long as it says itself');
  for (const it of purser.memory.machines.values()) it.state = 'running';
  assert.deepEqual([(await waits).body.id, (await waits).body.status], [id, 'running']);
  assert.equal((await create(purser, token, 'k', '1', { ...SPEC, cpus: 1 })).body.error.code, 'idempotency_conflict');
  assert.equal(purser.memory.machines.size, 1);
  assert.deepEqual(purser.problems(), []);
});

test('whoever joins a create that waits for long is answered when it says, with the lease as it is', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  purser.memory.ready = false;
  const first = create(purser, token, 'k', '600');
  await until('its machine is made', () => purser.memory.machines.size === 1);
  const joined = await create(purser, token, 'k', '0');
  assert.deepEqual([joined.status, joined.body.status], [200, 'provisioning'], joined.text);
  for (const it of purser.memory.machines.values()) it.state = 'running';
  assert.deepEqual([(await first).body.id, (await first).body.status], [joined.body.id, 'running']);
  assert.equal((await purser.budget(token)).used_usd, (await first).body.charged_usd);
  assert.deepEqual(purser.problems(), []);
});

test('any other wait_seconds is refused, and rents nothing', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  for (const wait of ['-1', '601', '1000', '1.5', '', 'x', '1e2', '0x1', ' 1', '+1', 'Infinity', '٣']) {
    const { status, body } = await create(purser, token, 'k', encodeURIComponent(wait));
    assert.deepEqual([status, body.error?.code], [400, 'invalid_request'], wait);
    assert.match(body.error.message, /^wait_seconds: must be a whole number of seconds from 0 to 600/);
  }
  const twice = await create(purser, token, 'k', '1&wait_seconds=2');
  assert.match(twice.body.error.message, /^wait_seconds: send this query parameter once/);
  const inBody = await purser.ask('POST', '/v1/compute/create', {
    token,
    key: 'k',
    body: { provider: 'provider_one', spec: SPEC, wait_seconds: 1 },
  });
  assert.match(inBody.body.error.message, /^wait_seconds: unknown property/);
  assert.equal(purser.memory.machines.size, 0);
});
