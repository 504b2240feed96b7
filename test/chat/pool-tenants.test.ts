import assert from 'node:assert/strict';
import { Hash } from 'node:crypto';
import test from 'node:test';
import { parseText } from '../../src/base/json-text.ts';
import { LongText } from '../../src/base/long-text.ts';
import { conversationIn, conversationOf } from '../../src/http/conversation.ts';
import { createBalancer } from '../../src/router/balancer.ts';
import { openGateway } from '../helper/gateway.ts';
import { addTenant, walletOf } from '../helper/tenants.ts';
import { completion, failure, gate, reset } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { countsOf, LIMITS, MANY, openPool, total, turnsOf } from './pools-shared.ts';

// Pools of many tenants: none moves another's conversations, fills the memory of all, or takes a server from others.

const body = { model: 'pool', max_tokens: 10 };

/** A balancer of two servers. Returns a function that returns the first server that a conversation of a tree would ask. */
function openBalancer(now = () => 0, isDown = (_upstream: string) => false) {
  const balancer = createBalancer(now, isDown);
  const route = (upstream: string) => ({ upstream, upstreamModel: 'm', contextLength: 1000, promptOverheadTokens: 0 });
  const maxUsage = () => ({ completionTokens: 1 });
  const routes = [route('a'), route('b')];
  const model = { id: 'm', routes, poolSize: 2, balance: 'sticky' };
  return (treeId: string, conversation: string, calls: Record<string, number> = {}, accountId = 'acct') => {
    const upstreams = new Map(Object.entries(calls).map(([name, count]) => [name, { callCount: () => count }]));
    const bounded = { routes, estimate: 1, choices: 1, maxUsage };
    const tenant = { treeId, accountId };
    return balancer.order(model as never, bounded as never, upstreams as never, conversation, tenant)[0]?.upstream;
  };
}

test('a conversation is remembered until its tree has continued 1,024 others, or all trees 16,384', () => {
  const homeOf = openBalancer();
  assert.equal(homeOf('t', 'x', { b: 1 }), 'a', 'the one with fewer calls');
  const isHome = () => homeOf('t', 'x', { a: 4 }) === 'a';
  assert.ok(isHome(), 'it stays there');
  for (let i = 0; i < 1023; i++) homeOf('t', `other ${i}`);
  assert.ok(isHome());
  for (let i = 0; i < 100_000; i++) homeOf('flood', `other ${i}`);
  assert.ok(isHome(), 'another tree, however many it has, makes it forget nothing');
  for (let i = 0; i < 1024; i++) homeOf('t', `more ${i}`);
  assert.ok(!isHome(), 'its own tree had too many');

  homeOf('u', 'x', { b: 1 });
  for (let i = 0; i < 16_384; i++) homeOf(`tree ${i}`, 'x');
  assert.equal(homeOf('u', 'x', { a: 4 }), 'b', 'the tree that had not asked for longest');
});

test('an account with many wallets makes another account forget nothing', () => {
  const homeOf = openBalancer();
  homeOf('t', 'x', { b: 1 });
  for (let i = 0; i < 40_000; i++) homeOf(`tree ${i % 40}`, `other ${i}`, {}, 'flood');
  assert.equal(homeOf('t', 'x', { a: 4 }), 'a');
});

test('a server that is down is tried every 15 seconds by one account, and by another after 10', () => {
  let now = 1000;
  const homeOf = openBalancer(
    () => now,
    (upstream) => upstream === 'a',
  );
  // A new conversation goes to the server without calls, unless that is avoided.
  let count = 0;
  const isTried = (accountId: string) => homeOf('t', `${count++}`, { b: 1 }, accountId) === 'a';
  assert.deepEqual([isTried('one'), isTried('one'), isTried('other')], [true, false, false]);
  now += 9;
  assert.deepEqual([isTried('one'), isTried('other')], [false, false]);
  now += 1;
  assert.deepEqual([isTried('one'), isTried('other'), isTried('one')], [false, true, false], 'others first');
  now += 14;
  assert.deepEqual([isTried('other'), isTried('one'), isTried('other')], [false, true, false]);
});

test('a conversation leaves its server only while that is much busier than another, and comes back', () => {
  const homeOf = openBalancer();
  assert.equal(homeOf('t', 'x', { b: 1 }), 'a');
  assert.equal(homeOf('t', 'x', { a: 4 }), 'a');
  assert.equal(homeOf('t', 'x', { a: 5 }), 'b');
  assert.equal(homeOf('t', 'x', { a: 9, b: 5 }), 'a');
  assert.equal(homeOf('t', 'x', { a: 4 }), 'a', 'it is still at home there');
});

test('many requests at once with one name or one beginning are spread over the servers', async (t) => {
  for (const headers of [{}, { 'x-session-id': 'one' }]) {
    const pool = await openPool(t);
    const gateway = await openGateway(pool.purser);
    const gates = [pool.a, pool.b, pool.c].map((server) => {
      const it = gate();
      server.handle = it.handler;
      return it;
    });
    const answers = Array.from({ length: 24 }, (_, i) =>
      gateway.ask('POST', '/chat/completions', { headers, body: { ...body, seed: i, messages: turnsOf('same', 1) } }),
    );
    await until('all have arrived', () => total(pool) === answers.length);
    for (const it of gates) it.open();
    for (const it of answers) assert.equal((await it).status, 200);
    assert.ok(Math.max(...countsOf(pool)) <= 12, `${countsOf(pool)}`);
  }
});

test('the same beginning in two wallets is two conversations', () => {
  const ofBody = conversationOf({ messages: turnsOf('x', 1) });
  const inWallet = (walletId: string) => conversationIn({}, walletId, ofBody);
  assert.equal(inWallet('one'), inWallet('one'));
  assert.notEqual(inWallet('one'), inWallet('two'));
});

test('a long text counts by its ends, and is never made a string', (t) => {
  const read = (middle: string, end: string) => {
    const content = `${'a'.repeat(100_000)}${middle}${'b'.repeat(100_000)}${end}`;
    const bytes = Buffer.from(JSON.stringify({ messages: [{ role: 'user', content }] }));
    return parseText(bytes, 0, () => {}, undefined, 'messages').value as Record<string, unknown>;
  };
  const [one, other] = [read('1', ''), read('22', '')];
  const text = (one.messages as { content: unknown }[])[0]?.content;
  assert.ok(text instanceof LongText);
  const made = t.mock.method(LongText.prototype, 'pieces');
  assert.equal(conversationOf(one), conversationOf(read('1', '')));
  assert.notEqual(conversationOf(one), conversationOf(other), 'another length');
  assert.notEqual(conversationOf(one), conversationOf(read('', 'c')), 'another end');
  assert.equal(made.mock.callCount(), 0);
  const texts = ['ab', 'c'];
  assert.notEqual(
    conversationOf({ system: texts, messages: turnsOf('x', 1) }),
    conversationOf({ system: ['a', 'bc'], messages: turnsOf('x', 1) }),
    'texts do not run together',
  );
});

test('of very many values the first count, so that no sender decides how long a hash takes', (t) => {
  const contentOf = (count: number, text: string, last: string) =>
    conversationOf({
      messages: [{ role: 'user', content: Array.from({ length: count }, (_, i) => (i < count - 1 ? text : last)) }],
    });
  const updates = t.mock.method(Hash.prototype, 'update');
  for (const [count, text] of [
    [8000, 'a'],
    [200, 'a'.repeat(10_000)],
  ] as const) {
    updates.mock.resetCalls();
    const one = contentOf(count, text, 'x');
    const lengths = updates.mock.calls.map((it) => String(it.arguments[0]).length);
    assert.ok(lengths.reduce((sum, it) => sum + it, 0) < 300_000 && lengths.length < 8192, `${lengths.length}`);
    assert.equal(one, contentOf(count, text, 'y'), 'beyond the first');
    assert.notEqual(one, contentOf(count + 1, text, 'x'), 'their number counts');
  }
  assert.notEqual(contentOf(10, 'a'.repeat(10_000), 'x'), contentOf(10, 'a'.repeat(10_000), 'y'));
});

test('a tenant whose requests fail takes no server from other accounts', async (t) => {
  const pool = await openPool(t, { upstreams: ['a', 'b'] });
  const { purser } = pool;
  const victim = await openGateway(purser);
  const send = (name: string) => victim.chat({ ...body, messages: turnsOf(name, 1) });
  for (const name of MANY) assert.equal((await send(name)).status, 200);
  const homes = countsOf(pool).slice(0, 2);
  assert.ok(homes.every((it) => it > 0));

  const attacker = await walletOf(purser, await addTenant(purser, 'other'));
  // A 403 may be what a provider says of a prompt.
  for (const poisoned of [failure(500), failure(403)]) {
    for (const server of [pool.a, pool.b]) {
      const well = completion();
      server.handle = (call, response) => (call.text.includes('poison') ? poisoned : well)(call, response);
    }
    for (let i = 0; i < 6; i++)
      await purser.chat(attacker.token, { ...body, messages: [{ role: 'user', content: `poison ${i}` }] });
    const before = countsOf(pool);
    for (const name of MANY) assert.equal((await send(name)).status, 200);
    const after = countsOf(pool).map((count, i) => count - (before[i] as number));
    assert.deepEqual(after.slice(0, 2), homes, 'each conversation is where it was');
  }
  assert.deepEqual(purser.problems(), []);
});

test('two models of one server are told apart in usage and price, answered or not', async (t) => {
  const pool = await openPool(t, { upstreams: ['a', { upstream: 'a', upstream_model: 'other' }, 'b'] });
  const gateway = await openGateway(pool.purser);
  const rows = () =>
    pool.purser.app.ledger.client.prepare('select usage, price from operation order by id').all() as Record<
      string,
      string
    >[];
  for (const name of MANY) await gateway.chat({ ...body, messages: turnsOf(name, 1) });
  for (const server of [pool.a, pool.b]) server.handle = reset;
  await gateway.chat({ ...body, messages: turnsOf('lost', 1) });
  const routes = rows().map(({ usage }) => {
    const { upstream, upstream_model: model } = JSON.parse(usage as string);
    return [upstream, model].filter(Boolean).join(' ');
  });
  assert.equal(routes.length, MANY.length + 1);
  assert.match(routes.at(-1) as string, /^(a pool|a other|b)$/, 'also where nobody knows');
  assert.deepEqual([...new Set(routes.slice(0, -1))].sort(), ['a other', 'a pool', 'b']);
  const { routes: prices } = JSON.parse(rows()[0]?.price as string);
  assert.deepEqual(
    prices.map((it: Record<string, string>) => [it.upstream, it.upstream_model]),
    [
      ['a', 'pool'],
      ['a', 'other'],
      ['b', undefined],
    ],
  );
});

test('the price of a pool that is shown is the highest of each kind', async (t) => {
  const pricing = (over: object) => ({ prompt: '0.000001', completion: '0.000002', ...over });
  const pool = await openPool(t, {
    ...LIMITS,
    upstreams: [
      { upstream: 'a', pricing: pricing({ request: '0.01', input_cache_read: '0.0000001' }) },
      { upstream: 'b', pricing: pricing({ completion: '0.000003', input_cache_read: '0.0000005' }) },
    ],
    pricing: undefined,
  });
  const { data } = (await pool.purser.ask('GET', '/v1/models', { token: (await pool.purser.openWallet()).token })).body;
  assert.deepEqual(data[0].pricing, {
    prompt: '0.000001',
    completion: '0.000003',
    request: '0.01',
    input_cache_read: '0.0000005',
  });
});
