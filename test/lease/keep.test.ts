import assert from 'node:assert/strict';
import test from 'node:test';
import { deadlineOf, LEAD, openKept, STEP, toReading, WINDOW } from './keep-shared.ts';
import { hold, LONG } from './leases.ts';

test('a busy machine is extended step by step, each paid exactly, up to the maximum', async (t) => {
  const purser = await openKept(t);
  const asked = await purser.keep({ max_seconds: 150 });
  assert.deepEqual(
    [asked.status, asked.body.keep],
    [
      200,
      {
        state: 'active',
        extend_seconds: 60,
        max_seconds: 150,
        bought_seconds: 0,
        watches: null,
        reason: null,
        message: null,
      },
    ],
  );
  await purser.pass(600 - LEAD - WINDOW - 1, 1);
  assert.equal(purser.calls('exec'), 0, 'nothing is measured before its time');
  await purser.pass(1, 1);
  assert.equal(purser.calls('exec'), 1);
  await purser.pass(WINDOW - 1, 0.05);
  assert.equal(purser.calls('extend'), 1, 'only the tightening at the beginning');
  await purser.pass(1, 0.05);
  const bought = await purser.now();
  assert.deepEqual(
    [bought.expires_at - purser.end, bought.purchased_seconds, bought.charged_usd, bought.keep.bought_seconds],
    [STEP, 660, '0.066', STEP],
  );
  assert.deepEqual(bought.keep.watches, ['cpu', 'connections']);
  assert.equal(deadlineOf(purser), purser.end + STEP);
  assert.deepEqual(await purser.paid(), ['0.066', '0.00']);
  await purser.pass(STEP - 1, 1);
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
  await purser.pass(1, 1);
  assert.equal((await purser.now()).keep.bought_seconds, 2 * STEP);
  await purser.pass(STEP, 1); // The last step is what is left.
  await purser.pass(1);
  const { keep, expires_at: last } = await purser.now();
  assert.deepEqual(
    [keep.state, keep.bought_seconds, keep.reason, keep.message, last - purser.end],
    ['ended', 150, 'max_seconds', 'All of 150 s are bought.', 150],
  );
  assert.deepEqual(await purser.paid(), ['0.075', '0.00']);
  const steps = await purser.run('operation.list', { wallet: purser.walletId });
  assert.deepEqual(
    steps.operations.filter((it) => it.kind === 'compute_extend').map((it) => [it.charge_usd, it.state]),
    [
      ['0.003', 'settled'],
      ['0.006', 'settled'],
      ['0.006', 'settled'],
    ],
  );
  await purser.pass(last - purser.end, 1);
  assert.deepEqual([(await purser.now()).end_reason, purser.memory.machines.size], ['lease_expired', 0]);
  assert.deepEqual(purser.problems(), []);
  assert.ok(purser.log.some((it) => it.includes('"lease.keep_ended"') && it.includes('"max_seconds"')));
});

test('an idle machine is measured until its end, buys nothing, and runs out', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  await purser.pass(WINDOW, 0.049);
  assert.deepEqual([(await purser.now()).keep.state, (await purser.now()).keep.reason], ['active', 'idle']);
  const readings = purser.calls('exec');
  await purser.passes(LEAD - 1, 1);
  assert.equal(purser.calls('exec') - readings, 5, 'every 10 s');
  await purser.pass(1);
  await purser.pass(0);
  const { end_reason: reason, keep } = await purser.now();
  assert.deepEqual([reason, keep.state, keep.bought_seconds, keep.reason], ['lease_expired', 'ended', 0, 'idle']);
  assert.deepEqual(await purser.paid(), ['0.06', '0.00']);
});

test('a machine that gets busy in the last minute is kept, and one that no longer is buys no more', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  await purser.pass(WINDOW);
  await purser.pass(10);
  assert.equal((await purser.now()).keep.reason, 'idle');
  await purser.pass(10, 1);
  const kept = await purser.now();
  assert.deepEqual([kept.keep.bought_seconds, kept.keep.reason], [STEP, null]);
  await purser.passes(4, 10, 1);
  assert.equal((await purser.now()).keep.bought_seconds, 2 * STEP, 'at its time: 60 s before the end');
  await purser.passes(20, 10);
  const { end_reason: reason, keep, purchased_seconds: purchased } = await purser.now();
  assert.deepEqual([reason, keep.reason, purchased], ['lease_expired', 'idle', 600 + 2 * STEP]);
  assert.deepEqual(await purser.paid(), ['0.072', '0.00']);
});

test('work of long ago keeps no machine: the window of a long step is its last five minutes', async (t) => {
  const purser = await openKept(t, { budget_cents: 500, expires_in_seconds: 90_000 });
  await purser.extend(purser.token, purser.id, 7200);
  await purser.keep({ extend_seconds: 3600, max_seconds: 3600 });
  await purser.pass(7800 - LEAD - 300 - 1, 1);
  assert.equal(purser.calls('exec'), 0);
  await purser.pass(1, 1);
  assert.equal(purser.calls('exec'), 1);
  await purser.pass(300, 0.01);
  assert.equal((await purser.now()).keep.reason, 'idle');
});

test('an open command keeps an idle machine, and so does one that has just ended', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  const slow = hold();
  purser.memory.before.exec = (async (_ref: string, { command }: { command: string }) => {
    if (command === 'sleep 1000') await slow.wait();
  }) as never;
  const { token, id } = purser;
  const running = purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'sleep 1000' } });
  await slow.arrived;
  assert.equal(purser.app.activity.open(id), 1);
  await purser.pass(WINDOW);
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
  await purser.pass(STEP);
  assert.equal((await purser.now()).keep.bought_seconds, 2 * STEP);
  await purser.pass(1); // The next reading, while it is open.
  slow.go();
  assert.equal((await running).status, 200);
  assert.equal(purser.app.activity.open(id), 0);
  await purser.pass(STEP - 1);
  assert.equal((await purser.now()).keep.reason, 'idle', 'it was over before the last check');
  const upload = { id, path: 'a', content_base64: 'YQ==' };
  assert.equal((await purser.ask('POST', '/v1/compute/upload', { token, body: upload })).status, 200);
  await purser.pass(10);
  assert.equal((await purser.now()).keep.bought_seconds, 3 * STEP, 'an upload since the last check');
  assert.deepEqual(await purser.paid(), ['0.078', '0.00']);
});

test('of a machine that cannot say what it uses only connections count, and the status says so', async (t) => {
  const purser = await openKept(t);
  delete purser.memory.cpuSeconds;
  await purser.keep();
  await toReading(purser);
  await purser.pass(WINDOW);
  const idle = (await purser.now()).keep;
  assert.deepEqual([idle.watches, idle.reason], [['connections'], 'idle']);
  const { token, id } = purser;
  await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'true' } });
  await purser.pass(10);
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
});

test('a machine that cannot be asked buys nothing by itself, and ends no keep', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  purser.memory.before.exec = () => {
    throw new Error('the line died');
  };
  await toReading(purser);
  await purser.pass(WINDOW, 1);
  await purser.pass(10, 1);
  assert.deepEqual([(await purser.now()).keep.state, (await purser.now()).keep.bought_seconds], ['active', 0]);
  delete purser.memory.before.exec;
  await purser.pass(10, 1);
  await purser.pass(10, 1);
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
});

test('the floor is a setting', async (t) => {
  const purser = await openKept(t, LONG, { settings: { keep: { cpu_percent: 60 } } });
  await purser.keep();
  await toReading(purser);
  await purser.pass(WINDOW, 0.59);
  assert.equal((await purser.now()).keep.reason, 'idle');
  await purser.pass(10, 0.6);
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
});

test('two requests at once leave one keep, and the same key is one request', async (t) => {
  const purser = await openKept(t);
  const same = await Promise.all([purser.keep({}, 'a'), purser.keep({}, 'a')]);
  assert.deepEqual(
    same.map((it) => it.status),
    [200, 200],
  );
  const other = await purser.keep({ extend_seconds: 120 }, 'a');
  assert.deepEqual([other.status, other.body.error.code], [409, 'idempotency_conflict']);
  const both = await Promise.all([purser.keep({ max_seconds: 60 }, 'b'), purser.keep({ max_seconds: 120 }, 'c')]);
  assert.deepEqual(
    both.map((it) => it.status),
    [200, 200],
  );
  assert.equal((await purser.now()).keep.max_seconds, 120);
  const active = purser.app.ledger.client.prepare('select count(*) from keep where ended_at is null').pluck().get();
  assert.equal(Number(active), 1);
  await toReading(purser);
  await Promise.all([purser.pass(WINDOW, 1), purser.app.reaper.runOnce()]);
  assert.deepEqual(await purser.paid(), ['0.066', '0.00']);
  const replaced = await purser.keep({ max_seconds: 600 });
  assert.deepEqual([replaced.body.keep.bought_seconds, replaced.body.keep.max_seconds], [0, 600], 'counted anew');
});

test('of many requests in one millisecond the last to begin is the keep, and an end ends it', async (t) => {
  const purser = await openKept(t);
  for (let round = 0; round < 5; round++) {
    const answers = await Promise.all([0, 1, 2, 3].map((i) => purser.keep({ max_seconds: 3600 + i })));
    for (const { status, text } of answers) assert.equal(status, 200, text);
    assert.deepEqual([(await purser.now()).keep.state, (await purser.now()).keep.max_seconds], ['active', 3603]);
    const ended = await purser.keep({ extend_seconds: 0, max_seconds: undefined });
    assert.deepEqual([ended.status, ended.body.keep.state, ended.body.keep.reason], [200, 'ended', 'requested']);
    assert.equal((await purser.now()).keep.state, 'ended');
  }
  const active = purser.app.ledger.client.prepare('select count(*) from keep where ended_at is null').pluck().get();
  assert.equal(Number(active), 0);
});

test('a clock in doubt or a restored copy buys nothing', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  purser.clock.leap(-3600); // Behind: no holds, and nothing is measured.
  await purser.pass(WINDOW, 1);
  assert.deepEqual([(await purser.now()).keep.bought_seconds, purser.calls('exec')], [0, 1]);
  purser.clock.leap(3600);
  await purser.pass(1, 1);
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
  purser.clock.leap(3600); // Ahead: no holds and no expiry for five minutes.
  await purser.pass(STEP, 1);
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
});

test('a lease that is only reported on buys nothing', async (t) => {
  const machine = { id: 'aaaa' };
  const purser = await openKept(t, LONG, { machine });
  await purser.keep();
  await toReading(purser);
  machine.id = 'bbbb';
  await purser.reopen();
  await purser.pass(WINDOW, 1);
  await purser.pass(10, 1);
  assert.deepEqual([(await purser.now()).keep.state, (await purser.now()).keep.bought_seconds], ['active', 0]);
  await purser.run('resource.reconcile', { apply: true });
  await purser.pass(10, 1);
  await purser.pass(10, 1);
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
});

test('what cannot be kept is refused, and says why', async (t) => {
  const purser = await openKept(t);
  const { token } = purser;
  const one = await purser.lease(token);
  const fixed = await purser.keep({ id: one.body.id });
  assert.deepEqual([fixed.status, fixed.body.error.code], [409, 'extension_not_supported']);
  const unknown = await purser.keep({ id: 'res_01k9v3c2mq8r5t7w1x4z6b0d2f' });
  assert.equal(unknown.body.error.code, 'not_found');
  for (const [body, message] of [
    [{ extend_seconds: 59 }, 'extend_seconds: must be 0, or a whole number from 60 to 3600'],
    [{ max_seconds: 30 }, 'max_seconds: must be a whole number from 60 to 2592000'],
    [{ extend_seconds: 120, max_seconds: 60 }, 'max_seconds: must be given, and be at least extend_seconds'],
    [{ max_seconds: undefined }, 'max_seconds: must be given'],
  ] as const) {
    const refused = await purser.keep(body);
    assert.equal(refused.body.error.code, 'invalid_request');
    assert.ok(refused.body.error.message.includes(message), refused.body.error.message);
  }
  const keyless = { token, body: { id: purser.id, extend_seconds: 60, max_seconds: 60 } };
  const noKey = await purser.ask('POST', '/v1/compute/keep', keyless);
  assert.equal(noKey.body.error.code, 'idempotency_key_required');
  assert.equal((await purser.now()).keep, undefined, 'a lease that was never kept has no such member');
  await purser.stop(token, purser.id);
  assert.equal((await purser.keep()).body.error.code, 'resource_not_active');
});
