import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../compute/conformance.ts';
import { hold, LONG, openMemoryHouse, PRICE } from './leases.ts';

const HALF = 300; // seconds, at 0.36 USD an hour: 0.03 USD

test('ten creates with one key make one machine; of ten keys for the last place one gets it', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const same = await Promise.all(Array.from({ length: 10 }, () => house.lease(token, 'k')));
  assert.deepEqual([...new Set(same.map((it) => `${it.status} ${it.body.id}`))], [`200 ${same[0]?.body.id}`]);
  assert.equal(house.memory.machines.size, 1);

  house.memory.room = 2;
  const race = await Promise.all(Array.from({ length: 10 }, (_, i) => house.lease(token, `r${i}`)));
  assert.deepEqual(race.map((it) => it.body.error?.code ?? it.body.status).sort(), [
    ...Array.from({ length: 9 }, () => 'capacity_unavailable'),
    'running',
  ]);
  const { used_usd: used, held_usd: held } = await house.budget(token);
  assert.deepEqual([used, held], ['0.007083334', '0.00']);
  assert.deepEqual(house.problems(), []);
});

test('of extensions that come at once each adds its own seconds, and is paid for them', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id, expires_at: end } = (await house.rent(token)).body;
  const extended = await Promise.all(['a', 'b', 'c'].map((key) => house.extend(token, id, HALF, key)));
  assert.deepEqual(
    extended.map((it) => it.status),
    [200, 200, 200],
  );
  const now = await house.status(token, id);
  assert.deepEqual([now.expires_at - end, now.purchased_seconds, now.charged_usd], [3 * HALF, 600 + 3 * HALF, '0.15']);
  assert.equal([...house.memory.machines.values()][0]?.deadline, end + 3 * HALF);
  assert.equal((await house.budget(token)).used_usd, '0.15');
  assert.deepEqual(house.problems(), []);
});

test('while an extension is in doubt there is no other: it is told to come again, and nothing is held for it', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id, expires_at: end } = (await house.rent(token)).body;
  house.memory.after.extend = () => {
    throw new Error('the line died');
  };
  const lost = await house.extend(token, id, HALF, 'a');
  assert.deepEqual([lost.status, lost.body.error.code], [503, 'operation_uncertain']);
  const other = await house.extend(token, id, HALF, 'b');
  assert.deepEqual([other.status, other.body.error.code], [503, 'operation_uncertain']);
  assert.match(other.body.error.message, /earlier extension/);
  assert.equal((await house.budget(token)).held_usd, '0.03');
  delete house.memory.after.extend;
  assert.equal((await house.extend(token, id, HALF, 'a')).body.expires_at, end + HALF, 'the backend did move it');
  assert.equal((await house.extend(token, id, HALF, 'b')).body.expires_at, end + 2 * HALF);
  assert.equal((await house.budget(token)).used_usd, '0.12');
  assert.deepEqual(house.problems(), []);
});

test('an extension that is under way when the deadline comes moves it, and the lease goes on', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.rent(token)).body;
  house.clock.advance(599);
  const slow = hold();
  house.memory.after.extend = slow.wait;
  const extended = house.extend(token, id, HALF);
  await slow.arrived;
  house.clock.advance(2);
  const pass = house.app.reaper.runOnce();
  slow.go();
  assert.equal((await extended).status, 200);
  await pass;
  assert.equal((await house.status(token, id)).status, 'running');
  assert.equal(house.memory.machines.size, 1);
  assert.equal((await house.budget(token)).used_usd, '0.09');
});

test('an extension that comes while the lease is being ended is refused, and costs nothing', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.rent(token)).body;
  const slow = hold();
  house.memory.before.destroy = slow.wait;
  house.clock.advance(600);
  const pass = house.app.reaper.runOnce();
  await slow.arrived;
  const late = house.extend(token, id, HALF);
  slow.go();
  assert.equal((await late).body.error.code, 'resource_not_active');
  await pass;
  assert.deepEqual([(await house.status(token, id)).end_reason, house.memory.machines.size], ['lease_expired', 0]);
  const { used_usd: used, held_usd: held } = await house.budget(token);
  assert.deepEqual([used, held], ['0.06', '0.00']);
});

for (const [name, moved, readable, expected] of [
  ['had moved the deadline is paid, and the lease lives on', true, true, { status: 'running', used: '0.09' }],
  ['had not moved it is released, and the lease ends', false, true, { status: 'stopped', used: '0.06' }],
  ['cannot say what its deadline is ends the lease, and is released', true, false, { status: 'stopped', used: '0.06' }],
] as const)
  test(`an extension in doubt at the deadline: a backend that ${name}`, async (t) => {
    const house = await openMemoryHouse(t);
    const { token } = await house.openWallet(LONG);
    const { id } = (await house.rent(token)).body;
    house.memory[moved ? 'after' : 'before'].extend = () => {
      throw new Error('the line died');
    };
    assert.equal((await house.extend(token, id, HALF, 'a')).status, 503);
    house.memory.readable = readable;
    house.clock.advance(600);
    await house.app.reaper.runOnce();
    assert.equal((await house.status(token, id)).status, expected.status);
    const { used_usd: used, held_usd: held } = await house.budget(token);
    assert.deepEqual([used, held], [expected.used, '0.00']);
    assert.equal(house.memory.machines.size, expected.status === 'running' ? 1 : 0);
    assert.deepEqual(house.problems(), []);
  });

test('an extension whose deadline cannot be read stays in doubt until it can', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id, expires_at: end } = (await house.rent(token)).body;
  house.memory.after.extend = () => {
    throw new Error('the line died');
  };
  house.memory.readable = false;
  await house.extend(token, id, HALF, 'a');
  for (let i = 0; i < 3; i++) {
    house.clock.advance(60);
    await house.app.reaper.runOnce();
  }
  const [open] = (await house.budget(token)).holds;
  assert.deepEqual([open.kind, open.state, open.amount_usd], ['compute_extend', 'uncertain', '0.03']);
  house.memory.readable = true;
  house.clock.advance(60);
  await house.app.reaper.runOnce();
  assert.equal((await house.status(token, id)).expires_at, end + HALF);
  assert.deepEqual((await house.budget(token)).holds, []);
});

test('a deadline that has not moved says no only when what was sent can no longer arrive', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id, expires_at: end } = (await house.rent(token)).body;
  house.memory.before.extend = () => {
    throw new Error('the line died');
  };
  await house.extend(token, id, HALF, 'a');
  await house.app.reaper.runOnce();
  assert.equal((await house.budget(token)).holds[0].state, 'uncertain');
  house.clock.advance(house.backend.absence.apartSeconds);
  await house.app.reaper.runOnce();
  assert.deepEqual((await house.budget(token)).holds, []);
  delete house.memory.before.extend;
  assert.equal((await house.extend(token, id, HALF, 'a')).body.expires_at, end + HALF, 'its key is free');
});

test('close while an extension is under way: it is paid when the backend took it, and the lease ends', async (t) => {
  const house = await openMemoryHouse(t);
  const { id: walletId, token } = await house.openWallet(LONG);
  const { id } = (await house.rent(token)).body;
  const slow = hold();
  house.memory.after.extend = slow.wait;
  const extended = house.extend(token, id, HALF);
  await slow.arrived;
  const closing = house.closeWallet(walletId);
  await until('it is frozen', async () => (await house.budget(token)).status === 'closing');
  slow.go();
  assert.equal((await extended).status, 200);
  const closed = await closing;
  assert.deepEqual([closed.status, closed.body.used_usd, closed.body.returned_cents], [200, '0.09', 491]);
  assert.equal(house.memory.machines.size, 0);
  assert.deepEqual(house.problems(), []);
});

test('close and ten creates at once: what was held before is ended, what came later refused, and all is returned', async (t) => {
  const house = await openMemoryHouse(t);
  const { id: walletId, token } = await house.openWallet(LONG);
  await house.lease(token);
  const [closed, ...creates] = await Promise.all([
    house.closeWallet(walletId),
    ...Array.from({ length: 10 }, (_, i) => house.lease(token, `k${i}`)),
  ]);
  for (const it of creates)
    assert.ok(it.status === 200 || ['wallet_closed', 'provider_unavailable'].includes(it.body.error.code), it.text);
  const record = closed?.status === 200 ? closed : await house.closeWallet(walletId);
  assert.equal(record.status, 200, record.text);
  assert.equal(house.memory.machines.size, 0);
  assert.ok(Number(record.body.used_usd) >= Number(PRICE));
  assert.deepEqual(house.problems(), []);
});

test('stop, close and the reaper at once destroy a machine once, and end one row', async (t) => {
  const house = await openMemoryHouse(t);
  const { id: walletId, token } = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  house.clock.advance(600);
  const [stopped, closed] = await Promise.all([
    house.stop(token, id),
    house.closeWallet(walletId),
    house.app.reaper.runOnce(),
    house.run('resource.stop', { id }),
  ]);
  assert.deepEqual([stopped.status, closed.status], [200, 200]);
  assert.equal(house.memory.calls.filter((it) => it === 'destroy').length, 1);
  assert.deepEqual(house.problems(), []);
});
