import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { hold, LONG, openMemoryServer, PRICE } from './leases.ts';

const HALF = 300; // seconds, at 0.36 USD an hour: 0.03 USD

test('ten creates with one key make one machine; of ten keys for the last place one gets it', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const same = await Promise.all(Array.from({ length: 10 }, () => purser.lease(token, 'k')));
  assert.deepEqual([...new Set(same.map((it) => `${it.status} ${it.body.id}`))], [`200 ${same[0]?.body.id}`]);
  assert.equal(purser.memory.machines.size, 1);

  purser.memory.room = 2;
  const race = await Promise.all(Array.from({ length: 10 }, (_, i) => purser.lease(token, `r${i}`)));
  assert.deepEqual(race.map((it) => it.body.error?.code ?? it.body.status).sort(), [
    ...Array.from({ length: 9 }, () => 'capacity_unavailable'),
    'running',
  ]);
  const { used_usd: used, held_usd: held } = await purser.budget(token);
  assert.deepEqual([used, held], ['0.007083334', '0.00']);
  assert.deepEqual(purser.problems(), []);
});

test('of extensions that come at once each adds its own seconds, and is paid for them', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.rent(token)).body;
  const extended = await Promise.all(['a', 'b', 'c'].map((key) => purser.extend(token, id, HALF, key)));
  assert.deepEqual(
    extended.map((it) => it.status),
    [200, 200, 200],
  );
  const now = await purser.status(token, id);
  assert.deepEqual([now.expires_at - end, now.purchased_seconds, now.charged_usd], [3 * HALF, 600 + 3 * HALF, '0.15']);
  assert.equal([...purser.memory.machines.values()][0]?.deadline, end + 3 * HALF);
  assert.equal((await purser.budget(token)).used_usd, '0.15');
  assert.deepEqual(purser.problems(), []);
});

test('while an extension is in doubt there is no other: it is told to come again, and nothing is held for it', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.rent(token)).body;
  purser.memory.after.extend = () => {
    throw new Error('the line died');
  };
  const lost = await purser.extend(token, id, HALF, 'a');
  assert.deepEqual([lost.status, lost.body.error.code], [503, 'operation_uncertain']);
  const other = await purser.extend(token, id, HALF, 'b');
  assert.deepEqual([other.status, other.body.error.code], [503, 'operation_uncertain']);
  assert.match(other.body.error.message, /earlier extension/);
  assert.equal((await purser.budget(token)).held_usd, '0.03');
  delete purser.memory.after.extend;
  assert.equal((await purser.extend(token, id, HALF, 'a')).body.expires_at, end + HALF, 'the backend did move it');
  assert.equal((await purser.extend(token, id, HALF, 'b')).body.expires_at, end + 2 * HALF);
  assert.equal((await purser.budget(token)).used_usd, '0.12');
  assert.deepEqual(purser.problems(), []);
});

test('an extension that is under way when the deadline comes moves it, and the lease goes on', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.rent(token)).body;
  purser.clock.advance(599);
  const slow = hold();
  purser.memory.after.extend = slow.wait;
  const extended = purser.extend(token, id, HALF);
  await slow.arrived;
  purser.clock.advance(2);
  const pass = purser.app.reaper.runOnce();
  slow.go();
  assert.equal((await extended).status, 200);
  await pass;
  assert.equal((await purser.status(token, id)).status, 'running');
  assert.equal(purser.memory.machines.size, 1);
  assert.equal((await purser.budget(token)).used_usd, '0.09');
});

for (const [name, writesHere] of [
  ['in the thread that writes', false],
  ['here', true],
] as const)
  test(`an extension whose answer is lost as the deadline comes: paid, and the lease goes on (written ${name})`, async (t) => {
    const purser = await openMemoryServer(t, { writesHere });
    const { token } = await purser.openWallet(LONG);
    const { id } = (await purser.rent(token)).body;
    purser.clock.advance(599);
    const slow = hold();
    purser.memory.after.extend = async () => {
      await slow.wait();
      throw new Error('the line died');
    };
    const extended = purser.extend(token, id, HALF);
    await slow.arrived;
    purser.clock.advance(2);
    const pass = purser.app.reaper.runOnce(); // Its step waits for the extension.
    slow.go();
    assert.equal((await extended).body.error.code, 'operation_uncertain');
    await pass;
    await purser.app.reaper.runOnce();
    assert.equal((await purser.status(token, id)).status, 'running');
    assert.equal(purser.memory.machines.size, 1);
    assert.equal((await purser.budget(token)).used_usd, '0.09');
    assert.deepEqual(purser.problems(), []);
  });

test('an extension that the operator charges while its lease is being ended is in what the lease was charged', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.rent(token)).body;
  purser.memory.before.extend = () => {
    throw new Error('the line died');
  };
  assert.equal((await purser.extend(token, id, HALF)).status, 503);
  const slow = hold();
  purser.memory.before.destroy = slow.wait;
  const stopping = purser.stop(token, id);
  await slow.arrived;
  const [{ id: operation }] = (await purser.budget(token)).holds;
  await purser.run('operation.resolve', { id: operation, decision: 'charge', reason: 'asked' });
  slow.go();
  await stopping;
  await purser.app.reaper.runOnce();
  const { status, charged_usd: charged } = await purser.status(token, id);
  assert.deepEqual([status, charged], ['stopped', '0.09']);
  assert.deepEqual(purser.problems(), []);
});

test('an extension that the operator charges while its backend is asked at the deadline is lived to its end', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.rent(token)).body;
  purser.memory.after.extend = () => {
    throw new Error('the line died');
  };
  purser.memory.readable = false;
  assert.equal((await purser.extend(token, id, HALF)).status, 503);
  const [{ id: operation }] = (await purser.budget(token)).holds;
  const slow = hold();
  purser.memory.before.inspect = slow.wait;
  purser.clock.advance(600);
  const pass = purser.app.reaper.runOnce();
  await slow.arrived;
  await purser.run('operation.resolve', { id: operation, decision: 'charge', reason: 'it was done' });
  delete purser.memory.before.inspect;
  slow.go();
  await pass;
  assert.deepEqual([(await purser.status(token, id)).status, purser.memory.machines.size], ['running', 1]);
  purser.clock.advance(HALF);
  await purser.app.reaper.runOnce();
  const { end_reason: reason, charged_usd: charged } = await purser.status(token, id);
  assert.deepEqual([reason, charged, purser.memory.machines.size], ['lease_expired', '0.09', 0]);
  assert.deepEqual(purser.problems(), []);
});

test('an extension that comes while the lease is being ended is refused, and costs nothing', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.rent(token)).body;
  const slow = hold();
  purser.memory.before.destroy = slow.wait;
  purser.clock.advance(600);
  const pass = purser.app.reaper.runOnce();
  await slow.arrived;
  const late = purser.extend(token, id, HALF);
  slow.go();
  assert.equal((await late).body.error.code, 'resource_not_active');
  await pass;
  assert.deepEqual([(await purser.status(token, id)).end_reason, purser.memory.machines.size], ['lease_expired', 0]);
  const { used_usd: used, held_usd: held } = await purser.budget(token);
  assert.deepEqual([used, held], ['0.06', '0.00']);
});

for (const [name, moved, readable, expected] of [
  ['had moved the deadline is paid, and the lease lives on', true, true, { status: 'running', used: '0.09' }],
  ['had not moved it is released, and the lease ends', false, true, { status: 'stopped', used: '0.06' }],
  ['cannot say what its deadline is ends the lease, and is released', true, false, { status: 'stopped', used: '0.06' }],
] as const)
  test(`an extension in doubt at the deadline: a backend that ${name}`, async (t) => {
    const purser = await openMemoryServer(t);
    const { token } = await purser.openWallet(LONG);
    const { id } = (await purser.rent(token)).body;
    purser.memory[moved ? 'after' : 'before'].extend = () => {
      throw new Error('the line died');
    };
    assert.equal((await purser.extend(token, id, HALF, 'a')).status, 503);
    purser.memory.readable = readable;
    purser.clock.advance(600);
    await purser.app.reaper.runOnce();
    assert.equal((await purser.status(token, id)).status, expected.status);
    const { used_usd: used, held_usd: held } = await purser.budget(token);
    assert.deepEqual([used, held], [expected.used, '0.00']);
    const [extension] = (await purser.run('operation.list', {})).operations;
    if (!readable) assert.equal(extension?.reason, 'the lease has ended (lease_expired)');
    assert.equal(purser.memory.machines.size, expected.status === 'running' ? 1 : 0);
    assert.deepEqual(purser.problems(), []);
  });

test('an extension whose deadline cannot be read stays in doubt until it can', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.rent(token)).body;
  purser.memory.after.extend = () => {
    throw new Error('the line died');
  };
  purser.memory.readable = false;
  await purser.extend(token, id, HALF, 'a');
  for (let i = 0; i < 3; i++) {
    purser.clock.advance(60);
    await purser.app.reaper.runOnce();
  }
  const [open] = (await purser.budget(token)).holds;
  assert.deepEqual([open.kind, open.state, open.amount_usd], ['compute_extend', 'uncertain', '0.03']);
  purser.memory.readable = true;
  purser.clock.advance(60);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).expires_at, end + HALF);
  assert.deepEqual((await purser.budget(token)).holds, []);
});

test('a deadline that has not moved says no only when what was sent can no longer arrive', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.rent(token)).body;
  purser.memory.before.extend = () => {
    throw new Error('the line died');
  };
  await purser.extend(token, id, HALF, 'a');
  await purser.app.reaper.runOnce();
  assert.equal((await purser.budget(token)).holds[0].state, 'uncertain');
  purser.clock.advance(purser.backend.absence.apartSeconds);
  await purser.app.reaper.runOnce();
  assert.deepEqual((await purser.budget(token)).holds, []);
  delete purser.memory.before.extend;
  assert.equal((await purser.extend(token, id, HALF, 'a')).body.expires_at, end + HALF, 'its key is free');
});

test('close while an extension is under way: it is paid when the backend took it, and the lease ends', async (t) => {
  const purser = await openMemoryServer(t);
  const { id: walletId, token } = await purser.openWallet(LONG);
  const { id } = (await purser.rent(token)).body;
  const slow = hold();
  purser.memory.after.extend = slow.wait;
  const extended = purser.extend(token, id, HALF);
  await slow.arrived;
  const closing = purser.closeWallet(walletId);
  await until('it is closing', async () => (await purser.budget(token)).status === 'closing');
  slow.go();
  assert.equal((await extended).status, 200);
  const closed = await closing;
  assert.deepEqual([closed.status, closed.body.used_usd, closed.body.returned_cents], [200, '0.09', 491]);
  assert.equal(purser.memory.machines.size, 0);
  assert.deepEqual(purser.problems(), []);
});

test('close and ten creates at once: what was held before is ended, what came later refused, and all is returned', async (t) => {
  const purser = await openMemoryServer(t);
  const { id: walletId, token } = await purser.openWallet(LONG);
  await purser.lease(token);
  const [closed, ...creates] = await Promise.all([
    purser.closeWallet(walletId),
    ...Array.from({ length: 10 }, (_, i) => purser.lease(token, `k${i}`)),
  ]);
  for (const it of creates)
    assert.ok(it.status === 200 || ['wallet_closed', 'provider_unavailable'].includes(it.body.error.code), it.text);
  const record = closed?.status === 200 ? closed : await purser.closeWallet(walletId);
  assert.equal(record.status, 200, record.text);
  assert.equal(purser.memory.machines.size, 0);
  assert.ok(Number(record.body.used_usd) >= Number(PRICE));
  assert.deepEqual(purser.problems(), []);
});

test('stop, close and the reaper at once destroy a machine once, and end one row', async (t) => {
  const purser = await openMemoryServer(t);
  const { id: walletId, token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  purser.clock.advance(600);
  const [stopped, closed] = await Promise.all([
    purser.stop(token, id),
    purser.closeWallet(walletId),
    purser.app.reaper.runOnce(),
    purser.run('resource.stop', { id }),
  ]);
  assert.deepEqual([stopped.status, closed.status], [200, 200]);
  assert.equal(purser.memory.calls.filter((it) => it === 'destroy').length, 1);
  assert.deepEqual(purser.problems(), []);
});
