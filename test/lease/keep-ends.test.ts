import assert from 'node:assert/strict';
import test from 'node:test';
import { openKept, STEP, toReading, WINDOW } from './keep-shared.ts';
import { hold } from './leases.ts';

test('a budget that ends in the middle ends the keep, and not one nano more is spent', async (t) => {
  const purser = await openKept(t, { budget_cents: 100, expires_in_seconds: 7200 });
  const { token } = purser;
  await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body: { name: 'child', budget_usd: '0.93' } });
  await purser.keep(); // 1.00 USD, less 0.06 for the lease and 0.93 for a child: 0.01 is left, and a step costs 0.006.
  await toReading(purser);
  await purser.pass(WINDOW, 1);
  await purser.pass(STEP, 1);
  const { keep, status } = await purser.now();
  assert.deepEqual(
    [status, keep.state, keep.bought_seconds, keep.reason],
    ['running', 'ended', STEP, 'insufficient_funds'],
  );
  assert.match(keep.message, /0\.004/);
  await purser.pass(60, 1);
  await purser.pass(1);
  assert.equal((await purser.now()).end_reason, 'lease_expired');
  const { used_usd: used, delegated_usd: delegated } = await purser.budget(token);
  assert.deepEqual([used, delegated], ['0.066', '0.93']);
  assert.deepEqual(purser.problems(), []);
});

test('a frozen wallet ends the keep; the lease runs on to its deadline', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  await purser.run('wallet.freeze', { id: purser.walletId, reason: 'it loops' });
  await purser.pass(WINDOW, 1);
  const { keep, status } = await purser.now();
  assert.deepEqual([status, keep.state, keep.reason], ['running', 'ended', 'wallet_frozen']);
  assert.match(keep.message, /it loops/);
  assert.deepEqual(await purser.paid(), ['0.06', '0.00']);
});

test('a frozen installation ends the keep as well', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  await purser.run('freeze', {});
  await purser.pass(WINDOW, 1);
  assert.deepEqual([(await purser.now()).keep.state, (await purser.now()).keep.reason], ['ended', 'read_only']);
});

test('the expiry of the wallet bounds the last step', async (t) => {
  const purser = await openKept(t, { budget_cents: 500, expires_in_seconds: 685 });
  await purser.keep();
  await toReading(purser);
  await purser.pass(WINDOW, 1);
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
  await purser.pass(STEP, 1);
  assert.equal((await purser.now()).keep.bought_seconds, 85, 'as much as the wallet lives');
  await purser.pass(25, 1);
  const { keep } = await purser.now();
  assert.deepEqual([keep.state, keep.reason, keep.bought_seconds], ['ended', 'lease_limit_exceeded', 85]);
});

test('nothing is bought after a stop or a close', async (t) => {
  for (const end of ['stop', 'close'] as const) {
    const purser = await openKept(t);
    await purser.keep();
    await toReading(purser);
    if (end === 'stop') await purser.stop(purser.token, purser.id);
    else await purser.closeWallet(purser.walletId);
    const extended = purser.calls('extend');
    await purser.passes(4, 60, 1);
    const { keep } = await purser.now();
    assert.deepEqual([keep.state, keep.reason, keep.bought_seconds], ['ended', 'lease_ended', 0]);
    assert.equal(purser.calls('extend'), extended);
    assert.deepEqual(purser.problems(), []);
  }
});

test('a stop that comes while the machine is measured buys nothing', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  const slow = hold();
  purser.memory.after.exec = slow.wait;
  const pass = purser.pass(WINDOW, 1);
  await slow.arrived;
  await purser.stop(purser.token, purser.id);
  slow.go();
  await pass;
  await purser.pass(0);
  assert.equal((await purser.now()).keep.reason, 'lease_ended');
  assert.deepEqual(await purser.paid(), ['0.06', '0.00']);
});

test('an end of the keep that comes while the machine is measured buys nothing', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  const slow = hold();
  purser.memory.after.exec = slow.wait;
  const pass = purser.pass(WINDOW, 1);
  await slow.arrived;
  const ended = await purser.keep({ extend_seconds: 0, max_seconds: undefined });
  assert.deepEqual([ended.status, ended.body.keep.state, ended.body.keep.reason], [200, 'ended', 'requested']);
  slow.go();
  await pass;
  assert.deepEqual(await purser.paid(), ['0.06', '0.00']);
  assert.equal((await purser.now()).keep.reason, 'requested');
});

test('an extension by hand while the machine is measured makes the step needless', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  const slow = hold();
  purser.memory.after.exec = slow.wait;
  const pass = purser.pass(WINDOW, 1);
  await slow.arrived;
  assert.equal((await purser.extend(purser.token, purser.id, 300)).status, 200);
  slow.go();
  await pass;
  const { keep, purchased_seconds: purchased } = await purser.now();
  assert.deepEqual([keep.state, keep.bought_seconds, purchased], ['active', 0, 900]);
  await purser.pass(240, 1);
  await purser.pass(60, 1);
  assert.equal((await purser.now()).keep.bought_seconds, STEP, 'it goes on at the new end');
});

test('an order to end a keep has one effect: its repetition ends no keep that began after it', async (t) => {
  const purser = await openKept(t);
  const end = (body = {}) => purser.keep({ extend_seconds: 0, max_seconds: undefined, ...body }, 'end');
  const before = await end();
  assert.deepEqual([before.status, before.body.keep], [200, undefined], 'there is none yet');
  for (const key of ['first', 'second']) {
    await purser.keep({}, key);
    const again = await end();
    assert.deepEqual([again.status, again.body.keep.state], [200, 'active'], again.text);
    assert.equal(again.headers['idempotent-replayed'], 'true');
    const ended = await purser.keep({ extend_seconds: 0, max_seconds: undefined }, `end of ${key}`);
    assert.deepEqual([ended.body.keep.state, ended.body.keep.extend_seconds], ['ended', STEP], 'as it was');
  }
  const other = await end({ max_seconds: 60 });
  assert.deepEqual([other.status, other.body.error.code], [409, 'idempotency_conflict']);
  assert.deepEqual(purser.problems(), []);
});
