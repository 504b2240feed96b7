import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { createRandom, length, SEED } from '../helper/random.ts';
import type { TestServerOptions } from '../helper/server.ts';
import { hold, LONG, openMemoryServer } from './leases.ts';

/** Leases that are extended while they are busy: provider_three, 600 s for 0.06 USD, so that 60 s cost 0.006 USD. */

/** When a step of 60 s is decided by, before the end of the paid time, and when the reading for it begins. */
const LEAD = 60;
const WINDOW = 60;
const STEP = 60;
const WALKS = length(2, 5);
const WALK_LENGTH = 150;

/** A server with one lease, whose machine says what it uses of a processor. */
async function openKept(t: TestContext, budget: Record<string, unknown> = LONG, options: TestServerOptions = {}) {
  const purser = await openMemoryServer(t, options);
  purser.memory.cpuSeconds = 0;
  const wallet = await purser.openWallet(budget);
  const { token } = wallet;
  const { id, expires_at: end } = (await purser.rent(token)).body;
  const keep = (body: Record<string, unknown> = {}, key: string = randomUUID()) =>
    purser.ask('POST', '/v1/compute/keep', {
      token,
      key,
      body: { id, extend_seconds: STEP, max_seconds: 3600, ...body },
    });
  const calls = (name: string) => purser.memory.calls.filter((it) => it === name).length;
  return Object.assign(purser, {
    walletId: wallet.id,
    token,
    id,
    end: end as number,
    keep,
    calls,
    /** Lets time pass in which the machine uses `share` of a processor, then runs a pass. */
    async pass(seconds: number, share = 0) {
      purser.clock.advance(seconds);
      if (purser.memory.cpuSeconds !== undefined) purser.memory.cpuSeconds += seconds * share;
      await purser.app.reaper.runOnce();
    },
    async passes(count: number, seconds: number, share = 0) {
      for (let i = 0; i < count; i++) await this.pass(seconds, share);
    },
    now: () => purser.status(token, id),
    async paid() {
      const { used_usd: used, held_usd: held } = await purser.budget(token);
      return [used, held];
    },
  });
}
type Kept = Awaited<ReturnType<typeof openKept>>;

/** Lets the lease run to the reading before its first step. */
const toReading = (purser: Kept) => purser.pass(600 - LEAD - WINDOW);
const deadlineOf = (purser: Kept) => [...purser.memory.machines.values()][0]?.deadline;

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

for (const [name, when, expected] of [
  ['was bought is paid, and the next ones follow', 'after', { bought: 2 * STEP, state: 'active', used: '0.072' }],
  ['was not bought costs nothing and ends the keep', 'before', { bought: 0, state: 'ended', used: '0.06' }],
] as const)
  test(`a step of unknown outcome stops the others until it is decided: one that ${name}`, async (t) => {
    const purser = await openKept(t);
    await purser.keep();
    await toReading(purser);
    purser.memory[when].extend = () => {
      throw new Error('the line died');
    };
    purser.memory.before.inspect = () => {
      throw new Error('the line is dead');
    };
    await purser.pass(WINDOW, 1);
    const doubt = (await purser.now()).keep;
    assert.deepEqual([doubt.state, doubt.bought_seconds], ['uncertain', 0]);
    assert.deepEqual(await purser.paid(), ['0.06', '0.006']);
    const extended = purser.calls('extend');
    await purser.passes(3, 10, 1);
    assert.equal(purser.calls('extend'), extended, 'nothing else is tried');
    delete purser.memory[when].extend;
    delete purser.memory.before.inspect;
    const { apartSeconds } = purser.backend.absence;
    await purser.pass(apartSeconds, 1);
    await purser.passes(4, 10, 1);
    await purser.passes(3, 10, 1);
    const { keep } = await purser.now();
    assert.deepEqual([keep.bought_seconds, keep.state], [expected.bought, expected.state]);
    assert.deepEqual(await purser.paid(), [expected.used, '0.00']);
    if (expected.state === 'ended') assert.equal(keep.reason, 'resource_not_active');
    assert.deepEqual(purser.problems(), []);
  });

test('a provider that refuses a step ends the keep, and nothing is charged', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  const { backend } = purser.app.slots.list[1] as { backend: { extend: unknown } };
  backend.extend = async () => ({ kind: 'refused', reason: 'no more' });
  await purser.pass(WINDOW, 1);
  const { keep, status } = await purser.now();
  assert.deepEqual([status, keep.state, keep.reason], ['running', 'ended', 'resource_not_active']);
  assert.deepEqual(await purser.paid(), ['0.06', '0.00']);
});

/** Every await of a step at which the process may die. The wrapped call never returns. */
for (const [when, call] of [
  ['before', 'exec'],
  ['after', 'exec'],
  ['before', 'extend'],
  ['after', 'extend'],
] as const)
  test(`dying ${when} ${call} of a step pays it once at most, and buys none that no row knows`, async (t) => {
    const purser = await openKept(t);
    await purser.keep({ max_seconds: 2 * STEP }, 'k');
    await toReading(purser);
    const dead = hold();
    const never = Promise.withResolvers<never>();
    purser.memory[when][call] = () => {
      void dead.wait();
      return never.promise;
    };
    purser.clock.advance(WINDOW);
    purser.memory.cpuSeconds = WINDOW;
    void purser.app.reaper.runOnce().catch(() => {});
    await dead.arrived;
    delete purser.memory[when][call];
    await purser.crash(() => never.reject(new Error('it is dead')));
    const again = await purser.keep({ max_seconds: 2 * STEP }, 'k');
    assert.deepEqual([again.status, again.headers['idempotent-replayed']], [200, 'true']);
    for (let i = 0; i < 12; i++) {
      await purser.pass(5, 1);
      const now = await purser.now();
      const [used, held] = await purser.paid();
      const paid = Number(used) + Number(held);
      assert.ok(
        (deadlineOf(purser) ?? purser.end) - purser.end <= Math.round((paid - 0.06) * 10_000),
        'paid or held first',
      );
      assert.equal(now.expires_at - purser.end, now.keep.bought_seconds);
    }
    await purser.passes(20, 10, 1);
    const { keep, purchased_seconds: purchased, end_reason: reason } = await purser.now();
    const released = when === 'before' && call === 'extend';
    assert.deepEqual(
      [keep.bought_seconds, keep.reason, purchased, reason],
      released
        ? [0, 'resource_not_active', 600, 'lease_expired']
        : [2 * STEP, 'max_seconds', 600 + 2 * STEP, 'lease_expired'],
    );
    assert.deepEqual(await purser.paid(), [released ? '0.06' : '0.072', '0.00']);
    assert.equal(purser.memory.machines.size, 0);
    assert.deepEqual(purser.problems(), []);
  });

test('a keep survives a restart, and measures anew', async (t) => {
  const purser = await openKept(t);
  await purser.keep({}, 'k');
  await toReading(purser);
  await purser.pass(WINDOW, 1);
  await purser.reopen();
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
  await purser.pass(STEP, 1); // A first reading again: nothing to compare with.
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
  await purser.pass(10, 1);
  assert.equal((await purser.now()).keep.bought_seconds, 2 * STEP);
});

test('an outcome of the operator is the outcome of the step', async (t) => {
  for (const decision of ['charge', 'release'] as const) {
    const purser = await openKept(t);
    await purser.keep();
    await toReading(purser);
    purser.memory[decision === 'charge' ? 'after' : 'before'].extend = () => {
      throw new Error('the line died');
    };
    purser.memory.readable = false;
    await purser.pass(WINDOW, 1);
    const { operations } = await purser.run('operation.list', { uncertain: true });
    const id = operations[0]?.id as string;
    await purser.run('operation.resolve', { id, decision, reason: 'the console says so' });
    purser.memory.after = {};
    purser.memory.before = {};
    await purser.pass(1, 1);
    const { keep } = await purser.now();
    assert.deepEqual(
      [keep.state, keep.bought_seconds],
      decision === 'charge' ? ['active', STEP] : ['ended', 0],
      decision,
    );
    assert.deepEqual(purser.problems(), []);
  }
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

test(`in a random walk every second of every step is paid once, and none is given that is not paid or held (seed ${SEED})`, async (t) => {
  for (let walk = 0; walk < WALKS; walk++) {
    const random = createRandom(SEED + walk);
    const purser = await openKept(t, {
      budget_cents: random.pick([110, 500]),
      expires_in_seconds: random.pick([3000, 90_000]),
    });
    const done: string[] = [];
    let byHand = 0;
    const steps: Record<string, [weight: number, run: () => Promise<unknown>]> = {
      time: [40, () => purser.pass(random.pick([1, 10, 30, 60, 300]), random.pick([0, 0.03, 0.5]))],
      reap: [10, () => purser.app.reaper.runOnce()],
      keep: [
        10,
        () => purser.keep({ extend_seconds: random.pick([60, 90, 300]), max_seconds: random.pick([300, 900, 3600]) }),
      ],
      end: [1, () => purser.keep({ extend_seconds: 0 })],
      extend: [
        2,
        async () => {
          const before = (await purser.now()).purchased_seconds;
          const { status } = await purser.extend(purser.token, purser.id, 60);
          if (status === 200) byHand += 60;
          assert.ok(status !== 200 || (await purser.now()).purchased_seconds === before + 60);
        },
      ],
      exec: [
        5,
        () => purser.ask('POST', '/v1/compute/exec', { token: purser.token, body: { id: purser.id, command: 'true' } }),
      ],
      freeze: [1, () => purser.run('wallet.freeze', { id: purser.walletId }).catch(() => {})],
      unfreeze: [4, () => purser.run('wallet.unfreeze', { id: purser.walletId }).catch(() => {})],
      break: [
        3,
        async () => {
          purser.memory[random.pick(['before', 'after'] as const)].extend = () => {
            throw new Error('the line died');
          };
        },
      ],
      mend: [
        8,
        async () => {
          delete purser.memory.before.extend;
          delete purser.memory.after.extend;
        },
      ],
      restart: [2, () => purser.reopen()],
      stop: [0.2, () => purser.stop(purser.token, purser.id)],
    };
    const weights = Object.fromEntries(Object.entries(steps).map(([name, [weight]]) => [name, weight]));
    for (let i = 0; i < WALK_LENGTH; i++) {
      const name = random.weighted(weights);
      done.push(name);
      await (steps[name] as [number, () => Promise<unknown>])[1]();
      const now = await purser.now();
      const [used, held] = await purser.paid();
      const why = `walk ${walk}: ${done.join(' ')}: ${JSON.stringify(now)}`;
      const seconds = (usd: string) => Math.round(Number(usd) * 10_000); // A second costs 0.0001 USD.
      assert.equal(seconds(used as string), now.purchased_seconds, why);
      assert.equal(now.charged_usd, used, why);
      const given = deadlineOf(purser);
      if (given !== undefined)
        assert.ok(given - purser.end <= now.purchased_seconds - 600 + seconds(held as string), why);
      const rows = purser.app.ledger.client.prepare('select bought_seconds, max_seconds from keep').raw().all() as [
        bigint,
        bigint,
      ][];
      const bought = rows.reduce((sum, [it]) => sum + Number(it), 0);
      // An extension by hand whose outcome was unknown may turn out to be charged later.
      assert.ok(bought + byHand <= now.purchased_seconds - 600, why);
      assert.ok(
        rows.every(([it, max]) => it <= max),
        why,
      );
      if (now.ended_at !== null) break;
    }
    assert.deepEqual(purser.problems(), []);
    await purser.close();
  }
});
