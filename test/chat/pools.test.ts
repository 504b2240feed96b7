import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { parse, stringify } from 'yaml';
import { readConfig } from '../../src/config/config.ts';
import { conversationOf } from '../../src/http/conversation.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { uncertainPolicyOf } from '../../src/router/uncertain.ts';
import { openGateway } from '../helper/gateway.ts';
import { handClock } from '../helper/server.ts';
import { completion, type FakeUpstream, failure, gate, type Handler, reset } from '../helper/upstream.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { askedSince, countsOf, LIMITS, MANY, openPool, PRICE, total, turnsOf } from './pools-shared.ts';

test('a conversation stays with one server, by each of the ways to name it', async (t) => {
  const pool = await openPool(t);
  const { chat, ask } = await openGateway(pool.purser);
  const body = { model: 'pool', max_tokens: 10 };
  const ways: [what: string, send: (name: string, turn: number) => Promise<{ status: number }>][] = [
    ['its beginning', (name, turn) => chat({ ...body, messages: turnsOf(name, turn) })],
    ['prompt_cache_key', (name, turn) => chat({ ...body, prompt_cache_key: name, messages: turnsOf(`${turn}`, 1) })],
    ...['x-session-id', 'session-id', 'session_id', 'x-claude-code-session-id'].map(
      (header): [string, (name: string, turn: number) => Promise<{ status: number }>] => [
        header,
        (name, turn) =>
          ask('POST', '/chat/completions', {
            headers: { [header]: name },
            body: { ...body, messages: turnsOf(`${turn}`, 1) },
          }),
      ],
    ),
    [
      'a response that continues',
      (name, turn) => ask('POST', '/responses', { body: { model: 'pool', input: turnsOf(name, turn), store: false } }),
    ],
    [
      'a message',
      (name, turn) =>
        ask('POST', '/messages', {
          body: { ...body, system: name, messages: turnsOf(name, turn).slice(1) },
        }),
    ],
  ];
  for (const [what, send] of ways) {
    const homes: number[] = [];
    for (const name of MANY.slice(0, 16).map((it) => `${what} ${it}`)) {
      const before = countsOf(pool);
      for (let turn = 1; turn <= 3; turn++) assert.equal((await send(name, turn)).status, 200, what);
      const asked = askedSince(pool, before);
      assert.equal(asked.length, 1, `${what}: ${name} was at the servers ${asked}`);
      homes.push(asked[0] as number);
    }
    assert.ok(new Set(homes).size > 1, `${what}: all at one server`);
  }
  assert.deepEqual(pool.purser.problems(), []);
});

test('the same name in two wallets is two conversations, and a different first message another one', async (t) => {
  const pool = await openPool(t);
  const [one, two] = [await openGateway(pool.purser), await openGateway(pool.purser)];
  const homeOf = async (gateway: typeof one, name: string) => {
    const before = countsOf(pool);
    await gateway.ask('POST', '/chat/completions', {
      headers: { 'x-session-id': name },
      body: { model: 'pool', messages: turnsOf(name, 1), max_tokens: 10 },
    });
    return askedSince(pool, before).join();
  };
  const homes = async (gateway: typeof one) => {
    const list = [];
    for (let i = 0; i < 12; i++) list.push(await homeOf(gateway, `s${i}`));
    return list.join(' ');
  };
  assert.notEqual(await homes(one), await homes(two));
});

test('a new conversation goes to the server with the fewest calls, and a full one spills over', async (t) => {
  const pool = await openPool(t, {}, { max_concurrent: 1 });
  const { chat } = await openGateway(pool.purser);
  const send = (name: string) => chat({ model: 'pool', max_tokens: 10, messages: turnsOf(name, 1) });
  const gates = [pool.a, pool.b, pool.c].map((server) => {
    const it = gate();
    server.handle = it.handler;
    return it;
  });
  const waiting = ['1', '2', '3'].map(send);
  await Promise.all([pool.a, pool.b, pool.c].map((it) => it.arrived(1)));
  const refused = await send('4');
  assert.deepEqual([refused.status, refused.body.error.code], [429, 'rate_limited'], 'all are full');
  for (const it of gates) it.open();
  for (const it of waiting) assert.equal((await it).status, 200);
  for (const server of [pool.a, pool.b, pool.c]) server.handle = completion();

  await send('sticky');
  const home = [pool.a, pool.b, pool.c].find(({ calls }) => calls.at(-1)?.text.includes('You are sticky.'));
  const held = gate();
  (home as FakeUpstream).handle = held.handler;
  const first = send('sticky');
  await (home as FakeUpstream).arrived((home as FakeUpstream).calls.length + 1);
  const before = countsOf(pool);
  assert.equal((await send('sticky')).status, 200, 'its own server is full: another one answers');
  held.open();
  assert.equal((await first).status, 200);
  const between = countsOf(pool);
  assert.notDeepEqual(between, before);
  assert.equal((await send('sticky')).status, 200);
  assert.deepEqual(askedSince(pool, between), [[pool.a, pool.b, pool.c].indexOf(home as FakeUpstream)], 'it is back');
  assert.deepEqual(pool.purser.problems(), []);
});

test('a server that is down is left out, tried now and then, and used again when it is back', async (t) => {
  const time = handClock();
  const pool = await openPool(t, { upstreams: ['a', 'b'] }, {}, { time });
  const { chat } = await openGateway(pool.purser);
  const send = (name: string) => chat({ model: 'pool', max_tokens: 10, messages: turnsOf(name, 1) });
  const names = MANY.slice(0, 24);
  for (const name of names) await send(name);
  const listenAgain = await pool.a.leave();
  const passed = () => pool.purser.log.filter((line) => line.includes('upstream.passed_over')).length;
  for (const name of names) assert.equal((await send(name)).status, 200);
  assert.ok(passed() <= 2, `asked ${passed()} times while it was known to be down`);
  time.leap(16);
  for (const name of names) assert.equal((await send(name)).status, 200);
  assert.ok(passed() <= 4);
  await listenAgain();
  time.leap(16);
  const before = countsOf(pool);
  for (const name of [...names, ...MANY.map((it) => `new ${it}`)]) assert.equal((await send(name)).status, 200);
  assert.ok(askedSince(pool, before).includes(0), 'it is asked again');
  assert.deepEqual(pool.purser.problems(), []);
});

test('the hold is at the dearest server, the charge at the one that answered, after a refusal too', async (t) => {
  const dear = { upstream: 'b', upstream_model: 'big', pricing: { prompt: '0.00001', completion: '0.00002' } };
  const pool = await openPool(t, { upstreams: ['a', dear], pricing: PRICE });
  const { chat, walletId } = await openGateway(pool.purser);
  const charges = new Map<string, string>();
  for (let i = 0; i < 24; i++) {
    const before = countsOf(pool);
    assert.equal((await chat({ model: 'pool', max_tokens: 100, messages: turnsOf(`m${i}`, 1) })).status, 200);
    const [operation] = (await pool.purser.run('operation.list', { wallet: walletId, limit: 1 })).operations;
    const server = askedSince(pool, before).join();
    charges.set(server, `${operation?.charge_usd}`);
    assert.ok(Number(operation?.hold_usd) >= 100 * 0.00002, 'held at the dearest');
  }
  assert.deepEqual(Object.fromEntries(charges), { 0: '0.00002', 1: '0.0002' });
  const { data } = (await pool.purser.ask('GET', '/v1/models', { token: (await pool.purser.openWallet()).token })).body;
  assert.deepEqual([data[0].pricing.prompt, data[0].pricing.completion], ['0.00001', '0.00002'], 'told at the dearest');
  assert.equal(pool.b.calls[0]?.body.model, 'big');
  assert.equal(pool.a.calls[0]?.body.model, 'pool');
  pool.a.handle = failure(503);
  for (let i = 0; i < 24; i++) await chat({ model: 'pool', max_tokens: 100, messages: turnsOf(`m${i}`, 1) });
  const { operations } = await pool.purser.run('operation.list', { wallet: walletId, limit: 24 });
  assert.deepEqual([...new Set(operations.map((it) => it.charge_usd))], ['0.0002']);
  assert.deepEqual(pool.purser.problems(), []);
});

test('after an unknown outcome no other server is asked, and a replay by key asks none', async (t) => {
  const pool = await openPool(t);
  const { chat } = await openGateway(pool.purser);
  const send = (key: string) => chat({ model: 'pool', max_tokens: 10, messages: turnsOf(key, 1) }, key);
  const answered = await send('kept');
  const before = total(pool);
  const again = await send('kept');
  assert.deepEqual([again.text, total(pool)], [answered.text, before]);
  for (const server of [pool.a, pool.b, pool.c]) server.handle = reset;
  assert.equal((await send('lost')).status, 503);
  assert.equal(total(pool), before + 1, 'one server, once');
  assert.equal((await send('lost')).status, 503);
  assert.equal(total(pool), before + 1);
});

test('a prompt longer than the context of one server goes to another', async (t) => {
  const pool = await openPool(t, { upstreams: ['a', { upstream: 'b', context_length: 600 }], ...LIMITS });
  const { chat } = await openGateway(pool.purser);
  for (let i = 0; i < 8; i++)
    assert.equal(
      (
        await chat({
          model: 'pool',
          max_tokens: 10,
          messages: [{ role: 'user', content: `${i} ${'word '.repeat(800)}` }],
        })
      ).status,
      200,
    );
  assert.deepEqual(countsOf(pool), [8, 0, 0]);
});

test('a prompt whose answer does not fit beside it at one server goes to another', async (t) => {
  const pool = await openPool(t, { upstreams: ['a', { upstream: 'b', context_length: 600 }], ...LIMITS });
  const { chat } = await openGateway(pool.purser);
  const send = (i: number, tokens: number) =>
    chat({ model: 'pool', max_tokens: tokens, messages: [{ role: 'user', content: `${i} ${'word '.repeat(200)}` }] });
  for (let i = 0; i < 8; i++) assert.equal((await send(i, 500)).status, 200);
  assert.deepEqual(countsOf(pool), [8, 0, 0]);
  for (let i = 8; i < 24; i++) assert.equal((await send(i, 10)).status, 200);
  assert.ok((countsOf(pool)[1] as number) > 0, 'a short answer fits at both');
});

test('inputs to embed are no conversation', () => {
  for (const input of ['text', ['one', 'two'], [101, 7, 102], [[101, 7], [101]], []])
    assert.equal(conversationOf({ model: 'pool', input }), undefined, JSON.stringify(input));
  assert.ok(conversationOf({ model: 'pool', input: [{ role: 'user', content: 'x' }] }));
});

test('an outcome whose server is not known falls under the policy of the first of the pool', () => {
  const own = { after_seconds: 5, policy: 'release' } as const;
  const router = {
    upstreams: [{ name: 'a', uncertain: own }, { name: 'b' }],
    models: [{ id: 'pool', upstreams: [{ upstream: 'a' }, 'b'], fallbacks: [] }],
    uncertain: { after_seconds: 900, policy: 'charge' },
  } as never;
  assert.deepEqual(uncertainPolicyOf(router, { subject: 'pool', usage: null }), own);
  const policyAt = (upstream: string) =>
    uncertainPolicyOf(router, { subject: 'pool', usage: JSON.stringify({ upstream }) }).policy;
  assert.deepEqual([policyAt('a'), policyAt('b')], ['release', 'charge']);
});

test('a pool with a price for each server is offered only if its fallbacks have one, too', () => {
  const pricing = { prompt: 1n, completion: 1n, tiers: [] };
  const listed = (fallback: object) => {
    const upstreams = [
      { upstream: 'a', pricing },
      { upstream: 'b', pricing },
    ];
    const model = { id: 'pool', kind: 'chat', upstreams, fallbacks: [{ upstream: 'c', ...fallback }], ...LIMITS };
    return createCatalogue({ router: { upstreams: [], models: [model] } } as never).list.length;
  };
  assert.deepEqual([listed({ pricing }), listed({})], [1, 0]);
});

test('a reload takes servers out of a pool while they answer, and the conversations move', async (t) => {
  const pool = await openPool(t);
  const { chat } = await openGateway(pool.purser);
  const send = (name: string) => chat({ model: 'pool', max_tokens: 10, messages: turnsOf(name, 1) });
  const names = MANY;
  const held = gate();
  for (const server of [pool.a, pool.b, pool.c]) server.handle = held.handler;
  const answers = names.map(send);
  await Promise.all([pool.a, pool.b, pool.c].map((it) => it.arrived(2)));
  const file = join(pool.purser.directory, 'purser.yaml');
  const settings = parse(readFileSync(file, 'utf8'));
  settings.router.models[0].upstreams = ['b', { upstream: 'c', upstream_model: 'other', pricing: PRICE }];
  writeFileSync(file, stringify(settings));
  assert.deepEqual((await pool.purser.run('reload', {})).models, { added: [], removed: [], changed: ['pool'] });
  held.open();
  for (const it of answers) assert.equal((await it).status, 200);
  const before = countsOf(pool);
  for (const name of names) assert.equal((await send(`${name} again`)).status, 200);
  assert.deepEqual([...new Set([0, ...askedSince(pool, before)])], [0, 1, 2]);
  assert.equal(pool.a.calls.length, before[0]);
  assert.equal(pool.c.calls.at(-1)?.body.model, 'other');
  assert.deepEqual(pool.purser.problems(), []);
});

/** Answers with the part of the prompt that this server has seen before, as a server that caches prefixes does. */
function caching(sums: { prompt: number; cached: number }): Handler {
  const seen = new Set<string>();
  return (call, response) => {
    const { messages } = call.body as { messages: object[] };
    const tokensOf = (count: number) => Math.ceil(JSON.stringify(messages.slice(0, count)).length / 4);
    let known = messages.length;
    while (known && !seen.has(JSON.stringify(messages.slice(0, known)))) known--;
    for (let i = 1; i <= messages.length; i++) seen.add(JSON.stringify(messages.slice(0, i)));
    const [prompt, cached] = [tokensOf(messages.length), known ? tokensOf(known) : 0];
    sums.prompt += prompt;
    sums.cached += cached;
    const usage = { prompt_tokens: prompt, completion_tokens: 5, prompt_tokens_details: { cached_tokens: cached } };
    return completion(usage)(call, response);
  };
}

/** Runs 21 conversations of ten turns, three at a time. Returns the share of prompt tokens that came from a cache. */
async function cachedShare(t: TestContext, balance: 'sticky' | 'least_busy'): Promise<number> {
  const pool = await openPool(t, { upstreams: ['a', 'b'], balance });
  const sums = { prompt: 0, cached: 0 };
  for (const server of [pool.a, pool.b]) server.handle = caching(sums);
  const { chat } = await openGateway(pool.purser);
  for (let turn = 1; turn <= 10; turn++)
    for (let first = 0; first < 21; first += 3)
      await Promise.all(
        Array.from({ length: 3 }, (_, i) =>
          chat({ model: 'pool', max_tokens: 10, messages: turnsOf(`c${first + i}`, turn) }),
        ),
      );
  return sums.cached / sums.prompt;
}

test('two servers that cache prefixes find more of a sticky conversation there than of one that moves', async (t) => {
  const [sticky, moving] = [await cachedShare(t, 'sticky'), await cachedShare(t, 'least_busy')];
  t.diagnostic(`cached share: sticky ${sticky.toFixed(3)}, least_busy ${moving.toFixed(3)}`);
  assert.ok(sticky > 0.8 && sticky > moving + 0.05, `${sticky} and ${moving}`);
});

/** Reads settings whose only model is a pool with this change. */
function settingsWith(t: TestContext, change: object) {
  const directory = temporaryDirectory(t);
  const upstreams = ['a', 'b'].map((name) => ({ name, base_url: 'http://127.0.0.1:1' }));
  const models = [{ id: 'pool', ...LIMITS, upstreams: ['a', 'b'], pricing: PRICE, ...change }];
  writeFileSync(join(directory, 'purser.yaml'), stringify({ router: { upstreams, models } }));
  return readConfig({ data: directory }, {});
}

test('what makes no pool is refused with the setting that is wrong', (t) => {
  settingsWith(t, {});
  for (const [change, said] of [
    [{ upstreams: ['a', 'a'] }, /models\.0\.upstreams: names the same model of one upstream twice/],
    [{ upstreams: ['a', { upstream: 'a', upstream_model: 'pool' }] }, /models\.0\.upstreams: names the same model/],
    [{ upstreams: [] }, /upstreams: names no upstream/],
    [{ upstreams: ['nobody'] }, /upstreams: no upstream is named "nobody"/],
    [{ upstreams: [{ upstream: 'a', weight: 2 }] }, /upstreams\.0\.weight: unknown setting/],
    [{ upstreams: [{}] }, /upstreams\.0\.upstream/],
    [{ upstream: 'a', upstreams: ['b'] }, /upstreams: give upstream or upstreams, not both/],
    [{ upstreams: undefined }, /upstream: is required, or upstreams/],
    [{ upstreams: undefined, upstream: 'a', balance: 'sticky' }, /balance: is for a pool: give upstreams/],
    [{ balance: 'random' }, /balance/],
    [{ fallbacks: [{ upstream: 'b' }] }, /models\.0\.fallbacks: names a server that is in the pool already/],
    [{ fallbacks: [{ upstream: 'a', upstream_model: 'pool' }] }, /models\.0\.fallbacks: names a server/],
  ] as const)
    assert.throws(() => settingsWith(t, change), said, JSON.stringify(change));
});
