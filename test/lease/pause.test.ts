import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { changeResource, findResource, type Resource } from '../../src/ledger/resource.ts';
import { waitFor } from '../helper/waiting.ts';
import { AHEAD, inWrongFuture } from '../helper/wrong-future.ts';
import { LONG, openMemoryServer, PRICE } from './leases.ts';
import { openPaused, type PauseServer, pauses, prolong } from './pause-shared.ts';

const LATER = 3000;

test('a paused lease keeps its paid time, and its machine the deadline of the wallet', async (t) => {
  const { purser, token, id, wallet } = await openPaused(t, { after: 100 });
  const { memory, clock } = purser;
  const [machine] = memory.machines.values();
  const paused = await purser.status(token, id);
  assert.deepEqual([paused.status, paused.seconds_left, paused.expires_at], ['paused', 500, wallet.expires_at]);
  assert.deepEqual([machine?.paused, machine?.deadline], [true, wallet.expires_at]);

  clock.advance(LATER);
  await purser.app.reaper.runOnce();
  const { status, body } = await purser.resume(token, id);
  assert.deepEqual([status, body.status, body.seconds_left], [200, 'running', undefined]);
  assert.equal(body.expires_at, Math.floor(clock.wall() / 1000) + 500);
  assert.deepEqual([machine?.paused, machine?.deadline], [false, body.expires_at]);
  assert.deepEqual([body.charged_usd, body.purchased_seconds], [PRICE, 600]);
  assert.equal((await purser.exec(token, id)).status, 200, 'at once');
  clock.advance(501);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).end_reason, 'lease_expired');
  assert.deepEqual(purser.problems(), []);
});

test('nobody enters a paused lease, and each call says how to resume it', async (t) => {
  const { purser, token, id } = await openPaused(t);
  const body = { id };
  const calls: [string, object][] = [
    ['exec', { ...body, command: 'true', timeout: 5 }],
    ['upload', { ...body, path: 'x', content_base64: '' }],
    ['download', { ...body, path: 'x' }],
    ['files', { ...body, path: 'x' }],
    ['ssh', body],
    ['egress', { ...body, allow: [] }],
    ['port', { ...body, port: 80 }],
    ['process/start', { ...body, command: 'true' }],
    ['process/list', body],
  ];
  for (const [name, of] of calls) {
    const answer = await purser.ask('POST', `/v1/compute/${name}`, { token, body: of });
    assert.deepEqual([answer.status, answer.body.error.code], [409, 'resource_not_active'], name);
    assert.match(answer.body.error.message, /paused\. Resume it first: POST \/v1\/compute\/resume/, name);
  }
  assert.deepEqual(
    purser.memory.calls.filter((it) => it === 'exec' || it === 'upload'),
    [],
  );
});

test('pausing a paused lease and resuming a running one change nothing', async (t) => {
  const { purser, token, id } = await openPaused(t, { after: 100 });
  purser.clock.advance(50);
  const calls = purser.memory.calls.length;
  assert.equal((await purser.pause(token, id)).body.seconds_left, 500);
  assert.equal(purser.memory.calls.length, calls);
  const { expires_at: end } = (await purser.resume(token, id)).body;
  purser.clock.advance(50);
  assert.deepEqual((await purser.resume(token, id)).body.expires_at, end);
});

test('a lease that cannot be paused says why and runs on', async (t) => {
  const purser = pauses(await openMemoryServer(t));
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.lease(token)).body;
  const refused = async (code: string, words: RegExp) => {
    const { body } = await purser.pause(token, id);
    assert.equal(body.error?.code, code, JSON.stringify(body));
    assert.match(body.error.message, words);
    const { status, expires_at } = await purser.status(token, id);
    assert.deepEqual([status, expires_at], ['running', end]);
    const [machine] = purser.memory.machines.values();
    assert.deepEqual([machine?.paused ?? false, machine?.deadline], [false, end]);
  };
  purser.memory.pauseRefused = 'not all of its processes stop';
  await refused('provider_unavailable', /runs on: not all of its processes stop/);
  const { guest } = purser.backend;
  const { pause } = guest;
  guest.pause = 'a host cannot take its processors away';
  await refused('invalid_request', /a host cannot take its processors away/);
  guest.pause = pause as NonNullable<typeof pause>;
  await purser.stop(token, id);
  assert.equal((await purser.pause(token, id)).body.error.code, 'resource_not_active');
  assert.equal((await purser.resume(token, id)).body.error.code, 'resource_not_active');
});

test('a lease with a GPU, and one that lasts as long as its wallet, are not paused', async (t) => {
  const provider_one = {
    ...{ backend: 'container', socket: 'unix:///nowhere/docker.sock', image: 'nowhere:1' },
    prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005', gpu_hourly_usd: { h100: '0.1' } },
    limits: { cpus: 2, memory_gib: 1, disk_gb: 1, gpus: 1, max_seconds: 3600 },
    gpu_devices: { h100: ['0'] },
  };
  const purser = pauses(await openMemoryServer(t, { settings: { compute: { provider_one } } }));
  const refused = async (token: string, spec: object, code: string, words: RegExp) => {
    const made = await purser.lease(token, undefined, spec as Record<string, unknown>);
    assert.equal(made.status, 200, made.text);
    const { body } = await purser.pause(token, made.body.id);
    assert.equal(body.error.code, code);
    assert.match(body.error.message, words);
    assert.equal((await purser.status(token, made.body.id)).status, 'running');
  };
  const { token } = await purser.openWallet(LONG);
  await refused(token, { gpu: 'h100', gpus: 1 }, 'invalid_request', /would keep its GPUs/);
  const short = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 3600 });
  const lasting = (await purser.rent(short.token)).body;
  const wanted = 3600 - 600;
  assert.equal((await purser.extend(short.token, lasting.id, wanted)).status, 200);
  const { body } = await purser.pause(short.token, lasting.id);
  assert.equal(body.error.code, 'lease_limit_exceeded');
});

test('without room a lease stays paused', async (t) => {
  const { purser, token, id } = await openPaused(t, { after: 100 });
  purser.memory.lacking = '2 of 2 cpus are leased';
  const { status, body } = await purser.resume(token, id);
  assert.deepEqual([status, body.error.code], [503, 'capacity_unavailable']);
  assert.match(body.error.message, /2 of 2 cpus are leased.*stays paused/);
  assert.deepEqual((await purser.status(token, id)).seconds_left, 500);
  purser.memory.lacking = undefined;
  assert.equal((await purser.resume(token, id)).body.status, 'running');
});

test('a paused lease is not extended', async (t) => {
  const purser = pauses(await openMemoryServer(t));
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.rent(token)).body;
  const keep = { id, extend_seconds: 60, max_seconds: 600 };
  await purser.ask('POST', '/v1/compute/keep', { token, key: 'k', body: keep });
  await purser.pause(token, id);
  const { body } = await purser.extend(token, id, 60);
  assert.deepEqual([body.error.code, /paused/.test(body.error.message)], ['resource_not_active', true]);
  purser.memory.cpuSeconds = 1e6;
  for (let i = 0; i < 20; i++) {
    purser.clock.advance(60);
    await purser.app.reaper.runOnce();
  }
  assert.equal((await purser.status(token, id)).purchased_seconds, 600, 'nor by its keep');
  const resumed = (await purser.resume(token, id)).body;
  assert.equal((await purser.extend(token, id, 60)).body.expires_at, resumed.expires_at + 60);
});

/** What ends a paused lease, and the reason that it then has. */
const ENDS: Record<
  string,
  [(purser: PauseServer, token: string, id: string, wallet: string) => Promise<unknown>, string]
> = {
  'it is stopped': [(purser, token, id) => purser.stop(token, id), 'requested'],
  'its wallet is closed': [(purser, _, __, wallet) => purser.closeWallet(wallet), 'wallet_closed'],
  'its wallet expires': [
    async (purser) => {
      purser.clock.advance(7200);
      await purser.app.reaper.runOnce();
      await purser.app.reaper.runOnce();
    },
    'wallet_closed',
  ],
};
for (const [name, [end, reason]] of Object.entries(ENDS))
  test(`a paused lease ends when ${name}, and costs what it cost`, async (t) => {
    const { purser, token, id, wallet } = await openPaused(t, { after: 100 });
    await end(purser, token, id, wallet.wallet_id);
    const row = purser.app.ledger.client
      .prepare('select end_reason, charged_nanos as charged from resource where id = ?')
      .get(id) as { end_reason: string; charged: bigint };
    assert.deepEqual([row.end_reason, Number(row.charged)], [reason, 3_541_667]);
    assert.equal(purser.memory.machines.size, 0);
    assert.deepEqual(purser.problems(), []);
  });

test('a lease of a frozen wallet stays paused', async (t) => {
  const { purser, id, token, wallet } = await openPaused(t, { after: 100 });
  await purser.ask('POST', `/v1/wallets/${wallet.wallet_id}/freeze`, { token: purser.accountKey, body: {} });
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'paused');
});

type Moment = 'before' | 'after';
/** What a call that is lost, or a process that dies there, leaves: the status, and the paid seconds, 10 s or so later. */
const LEFT: Record<'pause' | 'resume', Record<Moment, [status: string, isKept: boolean]>> = {
  pause: { before: ['running', false], after: ['paused', true] },
  resume: { before: ['running', true], after: ['running', true] },
};

/** Pauses or resumes a lease of 600 s of which 100 s have passed, with `fault` in the engine's call. Returns what becomes of it. */
async function withFault(
  t: TestContext,
  call: 'pause' | 'resume',
  when: Moment,
  fault: (purser: PauseServer, act: () => Promise<unknown>, asked: 'pause.begin' | 'pause.end') => Promise<void>,
) {
  const purser = pauses(await openMemoryServer(t));
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  purser.clock.advance(100);
  if (call === 'resume') {
    await purser.pause(token, id);
    purser.clock.advance(LATER);
  }
  const begunAt = Math.floor(purser.clock.wall() / 1000);
  const asked = call === 'pause' ? 'pause.begin' : 'pause.end';
  await fault(purser, () => purser[call](token, id), asked);
  purser.memory[when] = {};
  purser.clock.advance(12);
  await purser.app.reaper.runOnce();
  const now = Math.floor(purser.clock.wall() / 1000);
  const after = await purser.status(token, id);
  const [machine] = purser.memory.machines.values();
  const [status, isKept] = LEFT[call][when];
  assert.equal(after.status, status);
  assert.deepEqual(
    [machine?.deadline, machine?.paused],
    [after.expires_at, status === 'paused'],
    'no more life than its row',
  );
  const left = after.seconds_left ?? after.expires_at - now;
  // What ran again when the answer was lost, ran: its time passed.
  const passed = call === 'resume' && when === 'after' ? now - begunAt : isKept ? 0 : now - begunAt;
  assert.equal(left, 500 - passed);
  assert.equal(after.charged_usd, PRICE);
  assert.deepEqual(purser.problems(), []);
  const other = status === 'paused' ? await purser.resume(token, id) : await purser.pause(token, id);
  assert.equal(other.status, 200, 'it can be paused and resumed again');
}

for (const call of ['pause', 'resume'] as const)
  for (const when of ['before', 'after'] as const) {
    test(`the answer of a ${call} is lost ${when} the engine has acted`, (t) =>
      withFault(t, call, when, async (purser, act, asked) => {
        purser.memory[when][asked] = () => {
          throw new Error('the connection was reset');
        };
        const answer = (await act()) as { status: number; body: { error: { code: string } } };
        assert.deepEqual([answer.status, answer.body.error.code], [503, 'operation_uncertain']);
      }));

    test(`the process dies ${when} the engine has acted on a ${call}`, (t) =>
      withFault(t, call, when, async (purser, act, asked) => {
        const died = Promise.withResolvers<void>();
        const never = Promise.withResolvers<never>();
        purser.memory[when][asked] = () => {
          died.resolve();
          return never.promise;
        };
        void act().catch(() => {}); // Nobody hears what the dead process still says.
        await waitFor(`it dies ${when} ${asked}`, died.promise);
        await purser.crash(() => never.reject(new Error('it is dead')));
      }));
  }

test('a resumption that was left open waits for the right time: a wrong one would end its machine, or give it more', async (t) => {
  const { purser, token, id } = await openPaused(t, { after: 100 });
  const { memory, clock } = purser;
  memory.before['pause.end'] = () => {
    throw new Error('the connection was reset');
  };
  assert.equal((await purser.resume(token, id)).body.error.code, 'operation_uncertain');
  memory.before = {};
  const leap = 1800;
  await purser.reopen(() => clock.leap(leap));
  assert.ok(purser.app.clock.doubt());
  const asked = () => memory.calls.filter((it) => it === 'pause.end').length;
  const before = asked();
  clock.advance(20);
  await purser.app.reaper.runOnce();
  assert.deepEqual([(await purser.status(token, id)).status, asked()], ['paused', before]);
  clock.leap(-leap);
  clock.advance(20);
  await purser.app.reaper.runOnce();
  const { status, expires_at: end } = await purser.status(token, id);
  assert.deepEqual([status, end], ['running', Math.floor(clock.wall() / 1000) + 500]);
  assert.equal([...memory.machines.values()][0]?.deadline, end);
  assert.deepEqual(purser.problems(), []);
});

test('a lease whose machine ended while it was being paused was not paused', async (t) => {
  const purser = pauses(await openMemoryServer(t));
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  purser.memory.before['pause.begin'] = () => {
    throw new Error('the connection was reset');
  };
  await purser.pause(token, id);
  purser.clock.advance(601);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).end_reason, 'lease_expired');
  assert.equal(purser.memory.machines.size, 0);
});

/** A lease of 600 s that is paused, and whose processes stop only after `seconds`, however that comes. */
async function pausedSlowly(t: TestContext, seconds: number) {
  const purser = pauses(await openMemoryServer(t));
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.lease(token)).body;
  purser.memory.before['pause.begin'] = () => purser.clock.advance(seconds);
  return { purser, token, id, end, answer: await purser.pause(token, id) };
}

test('a tenant whose processes stop late pays for the time until then', async (t) => {
  const { purser, token, id, end, answer } = await pausedSlowly(t, 40);
  assert.deepEqual([answer.status, answer.body.seconds_left], [200, 560]);
  purser.clock.advance(LATER);
  const resumed = (await purser.resume(token, id)).body;
  assert.equal(resumed.expires_at, Math.floor(purser.clock.wall() / 1000) + 560);
  assert.ok(resumed.expires_at > end);
});

test('a lease whose paid time is over before all has stopped is not paused', async (t) => {
  const { purser, token, id, answer } = await pausedSlowly(t, 600);
  assert.equal(answer.body.error.code, 'operation_uncertain');
  purser.clock.advance(12);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).end_reason, 'lease_expired');
});

test('a call that arrives late is awaited before a pause is taken for undone, also by who asks again', async (t) => {
  const purser = pauses(await openMemoryServer(t));
  const { memory, clock } = purser;
  const { token, id: wallet } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  let arrive = () => {};
  memory.before['pause.begin'] = (ref: string, deadline: number, stopped: () => Promise<unknown>) => {
    arrive = () => Object.assign(memory.machines.get(ref) ?? {}, { paused: true, deadline });
    return stopped().then(() => {
      throw new Error('the connection was reset');
    });
  };
  for (const ask of ['pause', 'pause', 'resume'] as const) {
    const { status, body } = await purser[ask](token, id);
    assert.deepEqual([status, body.error.code], [503, 'operation_uncertain'], ask);
  }
  clock.advance(5);
  await purser.app.reaper.runOnce();
  arrive();
  memory.before = {};
  clock.advance(6);
  await purser.app.reaper.runOnce();
  const { status, seconds_left, expires_at } = await purser.status(token, id);
  assert.deepEqual([status, seconds_left], ['paused', 600]);
  assert.equal(memory.machines.get('m1')?.deadline, expires_at);
  await purser.closeWallet(wallet);
  assert.deepEqual(purser.problems(), []);
});

test('a lease whose last second passes while it is resumed has expired', async (t) => {
  const { purser, token, id } = await openPaused(t, { after: 599 });
  purser.clock.advance(LATER);
  purser.memory.after['pause.end'] = () => {
    purser.clock.advance(2);
    throw new Error('the container does not run');
  };
  assert.equal((await purser.resume(token, id)).body.error.code, 'operation_uncertain');
  purser.clock.advance(12);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).end_reason, 'lease_expired');
});

for (const step of ['paused', 'pausing'] as const)
  test(`a lease that is ${step} when the clock is set back, and that is accepted, keeps its paid time, and ends with its wallet`, async (t) => {
    const DAY = 86_400;
    const purser = pauses(await openMemoryServer(t));
    const { id: wallet, token } = await purser.openWallet({ ...LONG, expires_in_seconds: 3 * DAY });
    const { id } = (await purser.lease(token)).body;
    purser.clock.advance(100);
    if (step === 'pausing')
      purser.memory.before['pause.begin'] = () => {
        throw new Error('the connection was reset');
      };
    await purser.pause(token, id);
    purser.memory.before = {};
    const { expires_at: end } = await purser.status(token, id);
    purser.clock.leap(-DAY);
    await purser.reopen();
    await purser.reopen(() => {}, { acceptClock: true });
    purser.clock.advance(12);
    await purser.app.reaper.runOnce();
    const it = await purser.status(token, id);
    assert.equal(purser.memory.machines.get('m1')?.deadline, it.expires_at, 'no more life than its row');
    const now = Math.floor(purser.clock.wall() / 1000);
    if (step === 'paused') {
      assert.deepEqual([it.status, it.seconds_left, it.expires_at], ['paused', 500, purser.wallet(wallet).expiresAt]);
      assert.ok(
        it.expires_at <= end - DAY + 101,
        'which was brought back by the day, less what no entry of the journal saw',
      );
      assert.equal((await purser.resume(token, id)).body.expires_at, now + 500);
    } else {
      assert.equal(it.status, 'running');
      assert.ok(Math.abs(it.expires_at - (now + 500 - 12)) <= 1, `${it.expires_at - now} s are left`);
    }
    assert.deepEqual(purser.problems(), []);
  });

const WEEKS = { budget_cents: 500, expires_in_seconds: 3 * AHEAD };

test('a lease that is resumed in a wrong future has no more left afterwards than it bought', async (t) => {
  const purser = pauses(await openMemoryServer(t));
  const { token } = await purser.openWallet(WEEKS);
  const { id } = (await purser.lease(token)).body;
  purser.clock.advance(100);
  await purser.pause(token, id);
  const resumed = await inWrongFuture(purser, () => purser.resume(token, id));
  assert.equal(resumed.body.status, 'running');
  const now = () => purser.app.clock.now();
  assert.equal((await purser.status(token, id)).expires_at - now(), 600);
  assert.equal((await purser.pause(token, id)).body.seconds_left, 600);
  assert.equal((await purser.resume(token, id)).body.expires_at - now(), 600);
  purser.clock.advance(600);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).end_reason, 'lease_expired');
  assert.deepEqual([await purser.machines(), purser.problems()], [[], []]);
});

for (const call of ['pause', 'resume'] as const)
  test(`a ${call} that was left open in a wrong future gives no more than was left`, async (t) => {
    const purser = pauses(await openMemoryServer(t));
    const { memory, clock } = purser;
    const { token } = await purser.openWallet(WEEKS);
    const { id } = (await purser.rent(token)).body;
    await purser.extend(token, id, 1200);
    clock.advance(100);
    if (call === 'resume') await purser.pause(token, id);
    await inWrongFuture(
      purser,
      async () => {
        const lost = () => {
          throw new Error('the connection was reset');
        };
        if (call === 'pause') memory.before['pause.begin'] = lost;
        else memory.after['pause.end'] = lost;
        assert.equal((await purser[call](token, id)).body.error.code, 'operation_uncertain');
      },
      900,
    );
    memory.before = {};
    memory.after = {};
    clock.advance(12);
    await purser.app.reaper.runOnce();
    const it = await purser.status(token, id);
    const most = { pause: 1700 - 900, resume: 1700 }[call];
    assert.equal(it.status, 'running');
    assert.ok(it.expires_at - purser.app.clock.now() <= most, `${it.expires_at - purser.app.clock.now()} s are left`);
    assert.equal(memory.machines.get('m1')?.deadline, it.expires_at);
    assert.deepEqual(purser.problems(), []);
  });

for (const seconds of [20 * 86_400, 0])
  test(`a pause ends with a wallet of a wrong future as that is brought back (${seconds} s)`, async (t) => {
    const purser = pauses(await openMemoryServer(t));
    const { token, id } = await inWrongFuture(purser, async () => {
      const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: seconds });
      const { id } = (await purser.lease(token)).body;
      await purser.pause(token, id);
      return { token, id };
    });
    await purser.app.reaper.runOnce();
    const { status, seconds_left, expires_at } = await purser.status(token, id);
    assert.deepEqual([status, seconds_left], ['paused', 600]);
    assert.ok(expires_at - purser.app.clock.now() <= (seconds || 30 * 86_400));
    assert.equal(purser.memory.machines.get('m1')?.deadline, expires_at);
    assert.deepEqual(purser.problems(), []);
  });

for (const way of ['by itself', 'where it is paused again', 'where it is resumed at once'] as const)
  test(`a paused lease follows its wallet that is prolonged, ${way}`, async (t) => {
    const { purser, token, id, wallet } = await openPaused(t, { after: 100 });
    purser.clock.advance(7000);
    await purser.app.reaper.runOnce();
    const end = await prolong(purser, wallet);
    if (way === 'where it is resumed at once') {
      const { body } = await purser.resume(token, id);
      assert.deepEqual([body.status, body.expires_at], ['running', purser.app.clock.now() + 500]);
      return;
    }
    if (way === 'by itself') await purser.app.reaper.runOnce();
    else assert.equal((await purser.pause(token, id)).body.expires_at, end);
    const [machine] = purser.memory.machines.values();
    assert.deepEqual([machine?.deadline, machine?.paused], [end, true]);
    purser.clock.advance(7200);
    await purser.app.reaper.runOnce();
    const it = await purser.status(token, id);
    assert.deepEqual([it.status, it.seconds_left, it.expires_at], ['paused', 500, end]);
    assert.equal((await purser.resume(token, id)).body.expires_at, purser.app.clock.now() + 500);
    assert.deepEqual(purser.problems(), []);
  });

test('a paused lease in quarantine does not follow its wallet: nothing is asked of its engine', async (t) => {
  const { purser, token, id, wallet } = await openPaused(t);
  await purser.app.ledger.write(changeResource, { id, values: { quarantinedAt: purser.app.clock.now() } });
  await prolong(purser, wallet);
  const machine = () => purser.memory.machines.get('m1');
  assert.equal((await purser.pause(token, id)).body.expires_at, wallet.expires_at);
  await purser.app.reaper.runOnce();
  assert.equal(machine()?.deadline, wallet.expires_at);
  await purser.app.ledger.write(changeResource, { id, values: { quarantinedAt: null } });
  assert.equal((await purser.pause(token, id)).body.expires_at, wallet.expires_at + 86_400);
  assert.equal(machine()?.deadline, wallet.expires_at + 86_400);
});

test('a lease whose pause was prolonged by a call of unknown outcome has what was left, also where its resumption breaks off', async (t) => {
  const { purser, token, id, wallet } = await openPaused(t, { after: 100 });
  const { memory, clock } = purser;
  const machine = () => memory.machines.get('m1');
  const end = await prolong(purser, wallet);
  const lost = () => {
    throw new Error('the connection was reset');
  };
  memory.after.extend = lost;
  await purser.app.reaper.runOnce();
  assert.equal(machine()?.deadline, end, 'the machine has it, and the row has not');
  assert.equal((await purser.resume(token, id)).body.error.code, 'provider_unavailable');
  assert.equal((await purser.status(token, id)).status, 'paused');
  memory.after = {};
  memory.before['pause.end'] = lost;
  assert.equal((await purser.resume(token, id)).body.error.code, 'operation_uncertain');
  memory.before = {};
  clock.advance(12);
  await purser.app.reaper.runOnce();
  const it = await purser.status(token, id);
  assert.deepEqual([it.status, it.expires_at], ['running', purser.app.clock.now() + 500]);
  assert.equal(machine()?.deadline, it.expires_at);
  assert.deepEqual(purser.problems(), []);
});

test('a machine whose pause broke off before its processors were taken away loses them before it counts as paused', async (t) => {
  const purser = pauses(await openMemoryServer(t));
  const { memory, clock } = purser;
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const machine = () => memory.machines.get('m1');
  memory.before['pause.begin'] = async (_: string, deadline: number, stopped: () => Promise<unknown>) => {
    await stopped();
    Object.assign(machine() ?? {}, { paused: true, deadline });
    throw new Error('the connection was reset');
  };
  memory.before['pause.complete'] = () => {
    throw new Error('the engine is busy');
  };
  assert.equal((await purser.pause(token, id)).body.error.code, 'operation_uncertain');
  const row = () => findResource(purser.app.ledger.read, id) as Resource;
  clock.advance(12);
  await purser.app.reaper.runOnce();
  assert.deepEqual([row().status, row().lastError, machine()?.limited], ['pausing', 'the engine is busy', undefined]);
  memory.before = {};
  clock.advance(12);
  await purser.app.reaper.runOnce();
  assert.deepEqual([row().status, row().secondsLeft, machine()?.limited], ['paused', 600, true]);
  assert.equal((await purser.resume(token, id)).body.expires_at, purser.app.clock.now() + 600);
  assert.equal(machine()?.limited, false);
  assert.deepEqual(purser.problems(), []);
});

test('a lease that is resumed with little time left ends when that is over', async (t) => {
  const { purser, token, id } = await openPaused(t, { after: 598 });
  const { clock } = purser;
  clock.advance(LATER);
  assert.equal((await purser.resume(token, id)).body.expires_at, Math.floor(clock.wall() / 1000) + 2);
  clock.advance(2);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).end_reason, 'lease_expired');
});

test('what a lease runs between a resumption and a pause is paid for, also where both are within a second', async (t) => {
  const { purser, token, id } = await openPaused(t);
  const { clock } = purser;
  clock.advance(1 - (clock.wall() % 1000) / 1000); // To the beginning of a second.
  const left = async () => (await purser.status(token, id)).seconds_left as number;
  const before = await left();
  let ran = 0;
  const run = async (seconds: number) => {
    assert.equal((await purser.resume(token, id)).status, 200);
    clock.advance(seconds);
    ran += seconds;
    assert.equal((await purser.pause(token, id)).status, 200);
  };
  for (let round = 0; round < 10; round++) {
    await run(0.9);
    clock.advance(0.1);
  }
  assert.ok(
    before - (await left()) >= Math.floor(ran),
    `it ran for ${ran} s, and ${before - (await left())} s were counted`,
  );
  const whole = await left();
  clock.advance(0.5);
  await run(7);
  assert.equal(await left(), whole - 7, 'whole seconds count as such, wherever they begin');
  assert.deepEqual(purser.problems(), []);
});
