import assert from 'node:assert/strict';
import type http from 'node:http';
import test, { type TestContext } from 'node:test';
import { createPermits, type Permits } from '../../src/router/permits.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { openTestServer } from '../helper/server.ts';
import { addTenant, childOf, walletOf } from '../helper/tenants.ts';
import { completion, openUpstream, type UpstreamCall } from '../helper/upstream.ts';

/** A model server that may have four calls at a time; `endCall` answers the call that came as number so and so. */
async function openFour(t: TestContext) {
  const second = await openUpstream(t);
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      limits: { ...all.limits, released_per_minute: 2 },
      router: {
        upstreams: [
          { ...all.router.upstreams[0], max_concurrent: 4 },
          { name: 'second', base_url: second.url },
        ],
        models: [all.router.models[0], { ...all.router.models[0], id: 'either', fallbacks: [{ upstream: 'second' }] }],
      },
    }),
  });
  const answer = completion();
  const running: [UpstreamCall, http.ServerResponse][] = [];
  purser.upstream.handle = (...it) => running.push(it);
  const mine = { accountId: purser.accountId, accountKey: purser.accountKey };
  const attacker = await walletOf(purser, mine);
  const child = await childOf(purser, attacker.token);
  let count = 0;
  const ask = (token: string, body: object = {}) => purser.chat(token, { user: `request ${count++}`, ...body });
  /** The attacker and its child take all permits. */
  async function fill() {
    const answers = [];
    for (const { token } of [attacker, child, attacker, child]) {
      answers.push(ask(token));
      await purser.upstream.arrived(answers.length);
    }
    return answers;
  }
  const endCall = async (i: number) => {
    const it = running[i];
    assert(it);
    await answer(...it);
  };
  const rowsOf = async (wallet: string) => (await purser.run('operation.list', { wallet })).operations.length;
  return { purser, second, mine, attacker, child, ask, fill, endCall, rowsOf };
}

test('a permit that a tree of wallets had gives way to others who were refused, before anything is held', async (t) => {
  const { purser, mine, attacker, child, ask, fill, endCall, rowsOf } = await openFour(t);
  const neighbour = await walletOf(purser, mine);
  const stranger = await walletOf(purser, await addTenant(purser, 'other'));
  const four = await fill();
  for (const { id, token } of [neighbour, stranger]) {
    for (let i = 0; i < 5; i++) {
      const { status, body, headers } = await ask(token);
      assert.deepEqual([status, body.error.code, headers['retry-after']], [429, 'rate_limited', '1']);
      assert.match(body.error.message, /Retry in 1 s/, 'not that too many of its requests were refused');
    }
    assert.equal(await rowsOf(id), 0);
    assert.equal(purser.wallet(id).held, 0n);
  }
  await endCall(0);
  assert.equal((await four[0])?.status, 200);
  for (const { token } of [attacker, child]) assert.equal((await ask(token)).status, 429);
  assert.equal((await ask(neighbour.token)).status, 429, 'an account that has permits waits for one that has none');
  const first = ask(stranger.token);
  await purser.upstream.arrived(5);
  await endCall(1);
  assert.equal((await four[1])?.status, 200);
  assert.equal((await ask(child.token)).status, 429);
  // The account has two permits and the other one, so the next is the stranger's; who does not come leaves it after a moment.
  assert.equal((await ask(neighbour.token)).status, 429);
  purser.clock.advance(3);
  const next = ask(neighbour.token);
  await purser.upstream.arrived(6);
  for (const i of [2, 3, 4, 5]) await endCall(i);
  for (const it of await Promise.all([...four, first, next])) assert.equal(it.status, 200);
  assert.deepEqual(purser.problems(), []);
});

test('a request that cannot be paid gives its permit back, and alone a wallet has them all', async (t) => {
  const { purser, mine, ask, fill, endCall } = await openFour(t);
  const poor = await walletOf(purser, mine, { budget_cents: 100 });
  await childOf(purser, poor.token, '1.00'); // All that it has.
  for (let i = 0; i < 6; i++) assert.equal((await ask(poor.token)).status, 402);
  const four = await fill();
  for (const i of [0, 1, 2, 3]) await endCall(i);
  for (const it of await Promise.all(four)) assert.equal(it.status, 200);
});

test('who finds no permit at the first upstream of a model is served by the next, and has the first again in turn', async (t) => {
  const { purser, second, mine, attacker, ask, fill, endCall } = await openFour(t);
  const other = await walletOf(purser, mine);
  const four = await fill();
  assert.equal((await ask(other.token, { model: 'either' })).status, 200);
  assert.equal(second.calls.length, 1);
  await endCall(0);
  assert.equal((await four[0])?.status, 200);
  assert.equal((await ask(attacker.token, { model: 'either' })).status, 200);
  assert.equal(second.calls.length, 2, 'the free permit is kept');
  const again = ask(other.token, { model: 'either' });
  await purser.upstream.arrived(5);
  await endCall(1);
  assert.equal((await four[1])?.status, 200);
  const last = ask(attacker.token, { model: 'either' });
  await Promise.race([purser.upstream.arrived(6), last]);
  assert.equal(second.calls.length, 2, 'nobody waits: what was refused before the hold is not asked for once more');
  for (const i of [2, 3, 4, 5]) await endCall(i);
  for (const it of await Promise.all([...four, again, last])) assert.equal(it.status, 200);
});

/** Takes and gives back permits for trees, written `account/tree`. */
function takers(permits: Permits, countMax: number) {
  const all: { name: string; give: () => void }[] = [];
  return {
    all,
    take(name: string, now = 0): boolean {
      const [accountId = '', treeId = ''] = name.split('/');
      const give = permits.take({ accountId, treeId }, now, countMax);
      if (give) all.push({ name, give });
      return give !== undefined;
    },
    give(name: string): void {
      const at = all.findIndex((it) => it.name === name);
      const [it] = all.splice(at, 1);
      assert(at >= 0 && it, `${name} has a permit`);
      it.give();
      it.give(); // Counts once.
    },
    countOf: (name: string) => all.filter((it) => it.name.startsWith(name)).length,
  };
}

test('those who always want more have even shares: each account, and in it each tree', () => {
  const { all, take, give, countOf } = takers(createPermits(), 12);
  const random = createRandom(SEED);
  for (let i = 0; i < 12; i++) assert(take('one/greedy'), 'alone it may have all');
  const names = ['one/greedy', 'one/greedy', 'one/greedy', 'one/modest', 'two/a', 'three/b'];
  for (let round = 0; round < 200; round++) {
    give(random.pick(all).name);
    for (let i = 0; i < 20; i++) take(random.pick(names));
  }
  assert.deepEqual(
    ['one/', 'one/greedy', 'one/modest', 'two/', 'three/'].map((name) => [name, countOf(name)]),
    [
      ['one/', 4],
      ['one/greedy', 2],
      ['one/modest', 2],
      ['two/', 4],
      ['three/', 4],
    ],
  );
});

test('one permit goes from each to the next who waits', () => {
  const { take, give } = takers(createPermits(), 1);
  const names = ['one/a', 'two/b', 'three/c'];
  assert(take('one/a'));
  assert(!take('two/b') && !take('three/c'));
  for (let i = 0; i < 9; i++) {
    const [last, next] = [names[i % 3] as string, names[(i + 1) % 3] as string];
    give(last);
    for (const name of names) if (name !== next) assert(!take(name), `${name} waits for ${next}`);
    assert(take(next));
  }
});

test('trees that are refused and never come keep a permit for a moment only, however many they are', () => {
  const { take, give } = takers(createPermits(), 1);
  assert(take('one/a'));
  let tree = 0;
  for (let now = 0; now < 60; now += 20) {
    for (let i = 0; i < 5; i++) assert(!take(`one/${tree++}`, now));
    assert(!take('two/b', now));
    give(now ? 'two/b' : 'one/a');
    let waited = 0;
    while (waited < 10 && !take('two/b', now + waited)) {
      take(`one/${tree++}`, now + waited); // Makes the account ask all the time, and the tree in front never.
      waited++;
    }
    assert(waited <= 3, `${waited} s`);
  }
});

test(`whatever is asked for, a permit is refused only where none is free or others asked a moment ago (seed ${SEED})`, () => {
  const random = createRandom(SEED);
  for (let round = 0; round < length(500, 20_000); round++) {
    const countMax = random.whole(1, 5);
    const permits = createPermits();
    const { all, take, give } = takers(permits, countMax);
    const names = Array.from({ length: random.whole(1, 6) }, () => `${random.whole(1, 3)}/${random.whole(1, 3)}`);
    const asked = new Map<string, number>();
    let now = 0;
    for (let step = 0; step < 100; step++) {
      now += random.whole(0, 9) ? 0 : 1;
      if (all.length && random.whole(0, 1)) give(random.pick(all).name);
      const name = random.pick(names);
      const isFull = all.length === countMax;
      const othersAsk = [...asked].some(([other, at]) => other !== name && now - at < 3);
      const isTaken = take(name, now);
      assert(all.length <= countMax);
      if (!isFull && !othersAsk) assert(isTaken, `${name} at ${now}`);
      if (isFull) assert(!isTaken);
      asked.set(name, now);
    }
    now += 3;
    while (all.length) give((all[0] as { name: string }).name);
    for (let i = 0; i < countMax; i++) assert(take('alone/a', now));
  }
});
