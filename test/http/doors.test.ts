import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import test, { type TestContext } from 'node:test';
import { createShares } from '../../src/base/shares.ts';
import { createRetries } from '../../src/chat/retry.ts';
import type { Attempt } from '../../src/spend/in-flight.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { addTenant, childOf, walletOf } from '../helper/tenants.ts';

/** Begins a request whose body does not end. `answered` resolves with the status, if there is one. */
function beginBody(t: TestContext, purser: TestServer, token: string) {
  const answered = Promise.withResolvers<number | undefined>();
  const request = http.request(`${purser.url}/v1/chat/completions`, {
    method: 'POST',
    agent: false,
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', 'idempotency-key': randomUUID() },
  });
  request.on('response', (response) => answered.resolve(response.resume().statusCode));
  request.on('error', () => answered.resolve(undefined));
  request.write('{');
  t.after(() => request.destroy());
  return { request, answered: answered.promise };
}

test('requests that do not end fill the share of their tree of wallets only', async (t) => {
  const purser = await openTestServer(t);
  const mine = { accountId: purser.accountId, accountKey: purser.accountKey };
  const attacker = await walletOf(purser, mine);
  const child = await childOf(purser, attacker.token);
  const neighbour = await walletOf(purser, mine);
  const stranger = await walletOf(purser, await addTenant(purser, 'other'));
  Object.assign(purser.app, { atOnce: createShares({ each: 4, all: 6 }) });
  const begun = Array.from({ length: 8 }, (_, i) => beginBody(t, purser, (i % 2 ? child : attacker).token));
  let refusedCount = 0;
  await new Promise<void>((resolve) => {
    for (const { answered } of begun)
      void answered.then((status) => {
        if (status === 429 && ++refusedCount === 4) resolve();
      });
  });
  assert.equal((await purser.chat(child.token)).status, 429);
  for (const { token } of [neighbour, stranger]) assert.equal((await purser.chat(token)).status, 200);
  const [first] = begun;
  const answers = begun.map((it) => it.answered);
  for (const { request } of begun) request.destroy();
  await Promise.all(answers);
  assert(first);
  for (let status = 429; status !== 200; ) status = (await purser.chat(attacker.token)).status;
});

test('one tree of wallets pushes none of the others’ undelivered answers out', async (t) => {
  const purser = await openTestServer(t);
  const mine = { accountId: purser.accountId, accountKey: purser.accountKey };
  const attacker = await walletOf(purser, mine);
  const child = await childOf(purser, attacker.token);
  const victim = await walletOf(purser, mine);
  const running = { audience: { isGivenUp: () => false } } as Attempt;
  const retries = createRetries({ ...purser.app, inFlight: { find: () => running } }, { each: 50, all: 60 });
  const ask = async (walletId: string, name: string, isDelivered: boolean) => {
    const asking = { walletId, route: '/', fingerprint: Buffer.from(name), requestId: name };
    let over: (isDelivered: boolean) => void = () => {};
    const { takesOver } = await retries.claim(asking, (listener) => {
      over = listener;
    });
    over(isDelivered);
    return takesOver;
  };
  for (let i = 0; i < 20; i++) await ask(victim.id, `victim ${i}`, false);
  for (let i = 0; i < 500; i++) await ask(i % 2 ? child.id : attacker.id, `attacker ${i}`, false);
  assert.equal(retries.abandonedCount(), 60);
  for (let i = 0; i < 20; i++) assert(await ask(victim.id, `victim ${i}`, true), `place ${i} is kept`);
  assert(!(await ask(attacker.id, 'attacker 0', true)), 'the attacker’s oldest are new requests');
  assert(await ask(child.id, 'attacker 499', true));
});

test('children share the memory of the wallet above them', async (t) => {
  const purser = await openTestServer(t);
  const mine = { accountId: purser.accountId, accountKey: purser.accountKey };
  const attacker = await walletOf(purser, mine);
  const child = await childOf(purser, attacker.token);
  const other = await walletOf(purser, mine);
  purser.app.memory.open(attacker.id).add(64 * 1024 * 1024);
  for (const { token } of [attacker, child]) assert.equal((await purser.chat(token)).status, 429);
  assert.equal((await purser.chat(other.token)).status, 200);
});

test('sums that are running are a few of each tree of wallets and of each account', async (t) => {
  const purser = await openTestServer(t);
  const mine = { accountId: purser.accountId, accountKey: purser.accountKey };
  const attacker = await walletOf(purser, mine);
  const child = await childOf(purser, attacker.token);
  const other = await walletOf(purser, mine);
  const sum = async (token: string) => (await purser.ask('GET', '/v1/run/spend?by=tag', { token })).status;
  for (let i = 0; i < 4; i++) assert(purser.app.sums.tryTake(attacker.id, 1)); // Four that are not done.
  for (const { token } of [attacker, child]) assert.equal(await sum(token), 429);
  assert.equal(await sum(other.token), 200);
  assert.equal((await purser.ask('GET', '/v1/spend?by=tag', { token: purser.accountKey })).status, 200);
  purser.app.sums.release(attacker.id, 1);
  for (let i = 0; i < 10; i++) assert.equal(await sum(child.token), 200, 'one that is done leaves its room');
});
