import assert from 'node:assert/strict';
import test from 'node:test';
import { touchKeys } from '../../src/access/writes.ts';
import { freeze } from '../../src/ledger/installation.ts';
import { writeWith } from '../helper/closures.ts';
import { openReceiver, status } from '../helper/receiver.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completion, failure, reset } from '../helper/upstream.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';
import { SECRET, told, withEvents } from './types-shared.ts';

// What is told of what happens: each type once, by the real server, in the transaction that caused it.

const percents = async (purser: TestServer, wallet: string) =>
  (await told(purser, 'wallet.threshold', wallet)).map(({ percent }) => percent);

const spend = async (purser: TestServer, token: string, cents: number) => {
  const answers = await Promise.all(Array.from({ length: cents }, () => purser.chat(token, { model: 'flat' })));
  for (const answer of answers) assert.equal(answer.status, 200, answer.text);
};

test('each threshold of a budget is told once, however many requests spend it at the same time', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ name: 'agent 7', budget_cents: 100 });
  await spend(purser, token, 49);
  assert.deepEqual(await percents(purser, id), []);
  await spend(purser, token, 51);
  assert.deepEqual(await percents(purser, id), [50, 80, 95, 100]);
  const [first] = await told(purser, 'wallet.threshold', id);
  const { held_usd: held, available_usd: available, ...rest } = first ?? {};
  assert.deepEqual(rest, {
    wallet_id: id,
    wallet_name: 'agent 7',
    parent_id: null,
    account_id: purser.accountId,
    account_name: 'default',
    percent: 50,
    budget_usd: '1.00',
    spent_usd: '0.50',
  });
  assert.equal(Number(held) + Number(available), 0.5);
  assert.deepEqual(purser.problems(), []);
});

test('a charge that reaches several thresholds tells each', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 100 });
  purser.upstream.handle = completion({ prompt_tokens: 1, completion_tokens: 96, total_tokens: 97 });
  assert.equal((await purser.chat(token, { model: 'dear' })).status, 200);
  assert.deepEqual(await percents(purser, id), [50, 80, 95]);
});

test('a raise lets thresholds be reached again, a lower budget may reach them at once', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 100 });
  await spend(purser, token, 60);
  await purser.run('wallet.budget', { id, add_cents: 100 });
  await spend(purser, token, 39);
  assert.deepEqual(await percents(purser, id), [50]);
  await spend(purser, token, 1);
  assert.deepEqual(await percents(purser, id), [50, 50]);
  await purser.run('wallet.budget', { id, add_cents: -75 }); // 1.00 of 1.25
  assert.deepEqual(await percents(purser, id), [50, 50, 80]);
  await purser.run('wallet.budget', { id, add_cents: -1000 }); // 1.00 of 1.00
  assert.deepEqual(await percents(purser, id), [50, 50, 80, 95, 100]);
  await purser.run('wallet.budget', { id, add_cents: 5 }); // 1.00 of 1.05: only 100 % is not reached any more.
  await spend(purser, token, 5);
  assert.deepEqual(await percents(purser, id), [50, 50, 80, 95, 100, 100]);
});

test('a refill is told, and its budget has thresholds of its own', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 0 });
  await spend(purser, token, 90);
  await purser.run('wallet.refill', { id, refill: { cents: 20, every: 'day' } });
  purser.clock.advance(86_400);
  await purser.app.reaper.runOnce();
  const [refilled, ...others] = await told(purser, 'wallet.refilled', id);
  assert.deepEqual([refilled?.amount_usd, refilled?.available_usd, others], ['0.10', '0.20', []]);
  assert.match(refilled?.period, /^\d{4}-\d\d-\d\d$/);
  assert.deepEqual(await percents(purser, id), [50, 80]);
  await spend(purser, token, 10);
  assert.deepEqual(await percents(purser, id), [50, 80, 50]);
  const last = (await told(purser, 'wallet.threshold', id)).at(-1);
  assert.deepEqual([last?.budget_usd, last?.spent_usd], ['0.20', '0.10']);
});

test('what a child has spent counts for its parent when it closes', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 100 });
  const child = await purser.ask('POST', '/v1/run/wallets', {
    token,
    key: 'c',
    body: { name: 'helper', budget_usd: '0.60' },
  });
  assert.equal(child.status, 201, child.text);
  await spend(purser, child.body.agent_token, 60);
  assert.deepEqual(await percents(purser, child.body.id), [50, 80, 95, 100]);
  assert.deepEqual(await percents(purser, id), []);
  await purser.run('wallet.close', { id });
  assert.deepEqual(await percents(purser, id), [50]);
  const [closed] = await told(purser, 'wallet.closed', id);
  assert.deepEqual([closed?.reason, closed?.spent_usd, closed?.returned_usd], ['operator', '0.60', '0.40']);
  assert.equal((await told(purser, 'wallet.closed', child.body.id)).length, 1);
});

test('a child returns to its parent what is told, to the nano', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const asked = { token, key: 'c', body: { name: 'helper', budget_usd: '0.123456789' } };
  const { id } = (await purser.ask('POST', '/v1/run/wallets', asked)).body;
  await purser.run('wallet.close', { id });
  assert.equal((await told(purser, 'wallet.closed', id))[0]?.returned_usd, '0.123456789');
});

test('an account is low once, until it has credit again', async (t) => {
  const purser = await openTestServer(t, withEvents({ account_low_cents: 500 }, { creditCents: 2000 }));
  const low = () => told(purser, 'account.low');
  await purser.openWallet({ budget_cents: 1500 });
  assert.deepEqual(await low(), []);
  await purser.openWallet({ budget_cents: 100 });
  await purser.openWallet({ budget_cents: 100 });
  assert.deepEqual(await low(), [
    {
      account_id: purser.accountId,
      account_name: 'default',
      cause: 'credit',
      available_usd: '4.00',
      low_usd: '5.00',
    },
  ]);
  await purser.run('account.credit', { id: purser.accountId, cents: 1000 });
  await purser.run('account.debit', { id: purser.accountId, cents: 1000, reason: 'back' });
  assert.equal((await low()).length, 2);
});

test('a refill that its account cannot pay is told once in its period', async (t) => {
  const purser = await openTestServer(t, { creditCents: 1100 });
  const { id } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill: { cents: 5000, every: 'day' } });
  purser.clock.advance(86_400);
  for (let i = 0; i < 4; i++) {
    await purser.app.reaper.runOnce();
    purser.clock.advance(61);
  }
  const [low, ...others] = await told(purser, 'account.low');
  const { period, ...facts } = low ?? {};
  assert.match(period, /^\d{4}-\d\d-\d\d$/);
  assert.deepEqual(facts, {
    wallet_id: id,
    wallet_name: 'test',
    parent_id: null, // As every event about a wallet has it.
    account_id: purser.accountId,
    account_name: 'default',
    cause: 'refill',
  });
  assert.deepEqual(others, []);
  const other = await purser.openWallet({ budget_cents: 100 });
  assert.deepEqual(await told(purser, 'account.low', id), [low], 'it is about that wallet, too');
  assert.deepEqual(await told(purser, 'account.low', other.id), []);
  const { events, total } = await purser.run('events.list', { wallet: id });
  assert.deepEqual([events.map(({ type }) => type).at(0), events.length], ['account.low', total]);
  purser.clock.advance(86_400);
  await purser.app.reaper.runOnce();
  assert.equal((await told(purser, 'account.low')).length, 2);
});

test('a refill that its account could not pay is told before the one that it pays, whatever a receiver refuses', async (t) => {
  const receiver = await openReceiver(t);
  const receivers = [{ url: receiver.url, secret: SECRET, types: ['account.low', 'wallet.refilled'] }];
  const purser = await openTestServer(t, withEvents({ receivers }, { creditCents: 1000 }));
  const { id } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill: { cents: 5000, every: 'day' } });
  receiver.reply = (got, response) => status(got.text.includes('account.low') ? 400 : 204)(got, response);
  /** Lets time pass until a refill is due, and waits until its receiver has refused the event for the n-th time. */
  const refuse = async (seconds: number, times: number) => {
    purser.clock.advance(seconds);
    await purser.app.reaper.runOnce();
    purser.app.notifier.wake();
    const isOnRecord = async () => {
      const { events } = await purser.run('events.list', { type: 'account.low' });
      return events[0]?.deliveries[0]?.failed_attempts === times;
    };
    while (!(await isOnRecord())) await purser.app.ledger.write(touchKeys, { used: [] });
  };
  await refuse(86_400, 1);
  await purser.run('account.credit', { id: purser.accountId, cents: 5000 });
  await refuse(61, 2);
  receiver.reply = status(204);
  purser.clock.advance(61);
  purser.app.notifier.wake();
  await receiver.until(() => receiver.accepted().length === 2);
  assert.deepEqual(
    receiver.accepted().map(({ type }) => type),
    ['account.low', 'wallet.refilled'],
  );
});

test('a refill that its account cannot pay for a month of 31 days is told once in that time', async (t) => {
  const purser = await openTestServer(t, { creditCents: 1000 });
  const { id } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill: { cents: 5000, every: 'month' } });
  const now = () => purser.clock.wall() / 1000;
  const january = Date.UTC(new Date(purser.clock.wall()).getUTCFullYear() + 1, 0) / 1000;
  purser.clock.advance(january + 60 - now());
  const ids = new Set<string>();
  for (; now() < january + 31 * 86_400; purser.clock.advance(6 * 3600)) {
    await purser.app.reaper.runOnce();
    for (const event of (await purser.run('events.list', { type: 'account.low' })).events) ids.add(event.id);
  }
  assert.equal(ids.size, 1);
});

test('an operation whose outcome is not known is told', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  purser.upstream.handle = reset;
  assert.equal((await purser.chat(token, { model: 'flat' })).body.error.code, 'operation_uncertain');
  const [uncertain, ...others] = await told(purser, 'operation.uncertain', id);
  assert.deepEqual(
    [uncertain?.kind, uncertain?.subject, uncertain?.hold_usd, uncertain?.wallet_id, others],
    ['chat', 'flat', '0.01', id, []],
  );
  assert.match(uncertain?.operation_id, /^op_/);
});

test('a model server that is down is told once, and once when it is up again, over a restart', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const told = async () =>
    (await purser.run('events.list', {})).events.map(({ type, data }) => [type, data.reason]).reverse();
  const ask = async (handler: typeof purser.upstream.handle) => {
    purser.upstream.handle = handler;
    await purser.chat(token, { model: 'flat' });
    await purser.app.ledger.write(touchKeys, { used: [] }); // What it told is written.
  };
  await ask(completion());
  await ask(failure(429));
  await ask(failure(500)); // One request that it cannot serve is no outage.
  assert.deepEqual(await told(), []);
  await ask(failure(401));
  await ask(failure(401));
  const refused = [
    'upstream.down',
    'upstream local answered 401: its api_key is missing or wrong, or may not use the model',
  ];
  assert.deepEqual(await told(), [refused]);
  await purser.reopen();
  await ask(failure(401));
  assert.deepEqual(await told(), [refused]);
  await ask(completion());
  await ask(completion());
  assert.deepEqual(await told(), [refused, ['upstream.up', undefined]]);
  for (let i = 0; i < 4; i++) await ask(failure(500));
  assert.deepEqual((await told()).slice(2), [['upstream.down', 'The model server answered 500. Nothing was charged.']]);
  await ask(completion());
  const back = await purser.upstream.leave();
  await ask(completion());
  await back();
  const [type, reason] = (await told()).at(-1) ?? [];
  assert.equal(type, 'upstream.down');
  assert.match(String(reason), /cannot be reached/);
});

test('the end of a lease is told, and trouble once until a step succeeds', async (t) => {
  const purser = await openMemoryServer(t);
  const { id, token } = await purser.openWallet(LONG);
  const { body: lease } = await purser.lease(token, 'k');
  assert.equal(lease.status, 'running');
  const fail = () => {
    throw new Error('the engine is not there');
  };
  const steps = async (count: number) => {
    for (let i = 0; i < count; i++) {
      purser.clock.advance(61);
      await purser.app.reaper.runOnce();
    }
  };
  purser.memory.before.inspect = fail;
  await steps(2);
  assert.deepEqual(await told(purser, 'lease.trouble', id), []);
  await steps(5);
  const [trouble, ...others] = await told(purser, 'lease.trouble', id);
  const { resource_id, slot, backend, wallet_id, status, failed_attempts } = trouble ?? {};
  assert.deepEqual(
    [resource_id, slot, backend, wallet_id, status, failed_attempts, others],
    [lease.id, 'provider_one', 'container', id, 'running', 3, []],
  );
  delete purser.memory.before.inspect;
  assert.equal((await purser.stop(token, lease.id)).status, 200);
  const [ended, ...more] = await told(purser, 'lease.ended', id);
  assert.deepEqual([ended?.resource_id, ended?.reason, ended?.abandoned, more], [lease.id, 'requested', false, []]);
  assert.equal(ended?.charged_usd, lease.charged_usd);
});

test('a step that fails now and then is no trouble: only failures in a row are counted', async (t) => {
  const purser = await openMemoryServer(t);
  const { id, token } = await purser.openWallet(LONG);
  const { body: lease } = await purser.lease(token, 'k');
  const machine = [...purser.memory.machines.values()][0] ?? assert.fail();
  let asked = 0;
  purser.memory.before.destroy = () => {
    if (asked++ % 2 === 0) throw new Error('the engine is busy');
  };
  purser.memory.after.destroy = () => void purser.memory.machines.set(machine.ref, machine); // It is not gone yet.
  assert.equal((await purser.stop(token, lease.id)).body.status, 'stopping');
  for (let i = 0; i < 8; i++) {
    purser.clock.advance(61);
    await purser.app.reaper.runOnce();
  }
  assert.ok(asked >= 8, `asked ${asked} times`);
  assert.deepEqual(await told(purser, 'lease.trouble', id), []);
});

test('what is frozen is told: a wallet, an account, the installation', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ name: 'agent 7' });
  await purser.run('wallet.freeze', { id, reason: 'looks odd' });
  await purser.run('wallet.unfreeze', { id });
  await purser.run('account.suspend', { id: purser.accountId });
  await purser.run('freeze', { reason: 'an audit' });
  await purser.run('freeze', {});
  assert.deepEqual(
    (await told(purser, 'frozen')).map((it) => [it.scope, it.wallet_id ?? it.account_id ?? 'all', it.reason]),
    [
      ['wallet', id, 'looks odd'],
      ['account', purser.accountId, 'suspended'],
      ['installation', 'all', 'an audit'],
    ],
  );
});

test('what is rolled back is not told', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openTestServer(t, withEvents({ receivers: [{ url: receiver.url, secret: SECRET }] }));
  const { ledger } = purser.app;
  await assert.rejects(
    writeWith(ledger, (tx) => {
      freeze.run(tx, { at: 1, reason: 'a test' });
      throw new Error('undone');
    }),
    /undone/,
  );
  const { id } = await purser.openWallet();
  await purser.run('wallet.close', { id });
  await receiver.until(() => receiver.accepted().length === 1);
  assert.deepEqual(
    (await purser.run('events.list', {})).events.map(({ type }) => type),
    ['wallet.closed'],
  );
});
