import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { addTenant, walletOf } from '../helper/tenants.ts';
import { completion, gate } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { ask, DEAR, later, open, refusalOf, waiting } from './funds-wait-shared.ts';
import { askedSince, countsOf, openPool } from './pools-shared.ts';

// A request is cut to the money of its wallet where that lacked some: before its hold is written if it lacked some last time, and else
// when the write has refused it. Here the money changes between the two.

type Opened = Awaited<ReturnType<typeof open>>;
const AT_ONCE = { limits: { funds_wait_seconds: 0 } };

/**
 * Runs `between` before each write of a hold, with its number: the request has been cut for the second by then, and for the first
 * where its wallet was short last time. Returns the function that counts the writes of holds.
 */
function before({ purser }: Pick<Opened, 'purser'>, between: (count: number) => Promise<unknown>): () => number {
  const { ledger } = purser.app;
  const { write } = ledger;
  let count = 0;
  let isBetween = false;
  ledger.write = async (it, data) => {
    if (it.name === 'chat.hold' && !isBetween) {
      isBetween = true;
      await between(++count);
      isBetween = false;
    }
    return write(it, data);
  };
  return () => count;
}

/** Has a request in flight that holds so many of the 1,000 tokens that the wallet pays for. */
async function take({ purser, gateway }: Opened, tokens: number) {
  const count = purser.upstream.calls.length;
  const answer = purser.chat(gateway.token, { ...DEAR, max_tokens: tokens });
  await purser.upstream.arrived(count + 1);
  return answer.then.bind(answer);
}

const calls = ({ purser }: Opened) => purser.upstream.calls.map(({ body }) => body.max_tokens);
const used = (tokens: number) => completion({ prompt_tokens: 1, completion_tokens: tokens, total_tokens: 1 + tokens });

for (const isShort of [false, true])
  test(`a request that loses money to another one ${isShort ? 'after it was cut is cut again' : 'is cut'}, and holds what is left to the token`, async (t) => {
    const it = await open(t, AT_ONCE);
    it.purser.app.fundsQueue.setShort(it.gateway.walletId, isShort);
    const holds = before(it, async (count) => count === 1 && (await take(it, 600)));
    const cut = ask(it.gateway, 900);
    await it.purser.upstream.arrived(2);
    assert.deepEqual([calls(it), holds()], [[600, 400], 2]);
    assert.equal(it.purser.wallet(it.gateway.walletId).held, 10_000_000_000n);
    for (const { answer } of it.calls) answer();
    assert.equal((await cut).headers['x-purser-max-tokens'], '400');
    assert.deepEqual(it.purser.problems(), []);
  });

test('the strict endpoint, too, where no limit is named', async (t) => {
  const it = await open(t, AT_ONCE);
  before(it, async (count) => count === 1 && (await take(it, 700)));
  const cut = it.purser.chat(it.gateway.token, { ...DEAR, max_tokens: undefined });
  await it.purser.upstream.arrived(2);
  assert.deepEqual(calls(it), [700, 300]);
  for (const { answer } of it.calls) answer();
  assert.equal((await cut).status, 200);
});

test('a cut that has become too short is refused by what the wallet has then, and says what would fit', async (t) => {
  const it = await open(t, AT_ONCE);
  const holds = before(it, async (count) => count === 1 && (await take(it, 900)));
  const refused = await ask(it.gateway, 950);
  assert.deepEqual([...refusalOf(refused), refused.headers['retry-after']], [429, 'funds_held', '2']);
  assert.match(
    refused.body.error.message,
    /needs 9\.50 USD at most; the wallet has 1\.00 USD available and 9\.00 USD held.* up to 950 output tokens; with max_tokens 100 it would fit/,
  );
  assert.deepEqual([calls(it), holds()], [[900], 1], 'nothing is tried that cannot fit');
  it.calls[0]?.answer();
});

test('money that was charged meanwhile is not waited for', async (t) => {
  const it = await open(t, AT_ONCE);
  before(it, async (count) => {
    if (count > 1) return;
    const settled = await take(it, 900);
    it.calls[0]?.answer(used(900));
    await settled((answer) => assert.equal(answer.status, 200));
  });
  const refused = await ask(it.gateway, 950);
  assert.deepEqual(refusalOf(refused), [402, 'insufficient_funds'], refused.text);
  assert.match(refused.body.error.message, /the wallet has 1\.00 USD available and 0\.00 USD held/);
});

test('one that loses the money each time gives up, with a refusal that passes', async (t) => {
  const it = await open(t, AT_ONCE);
  const lower = () => later(it.purser, `/v1/wallets/${it.gateway.walletId}/budget`, { add_cents: -1 });
  const holds = before(it, lower);
  const refused = await ask(it.gateway, 1000);
  assert.deepEqual([...refusalOf(refused), refused.headers['retry-after']], [429, 'funds_held', '2']);
  assert.deepEqual([holds(), it.purser.upstream.calls.length], [8, 0]);
  assert.equal(it.purser.wallet(it.gateway.walletId).held, 0n);
  assert.deepEqual(it.purser.problems(), []);
});

test('money that comes after the cut: the answer is as long as it was cut to, and the next one has all of it', async (t) => {
  const it = await open(t, { ...AT_ONCE, wallet: { budget_cents: 400 } });
  const earlier = ask(it.gateway, 900, { seed: 0 });
  await it.purser.upstream.arrived(1);
  it.calls[0]?.answer(used(0));
  await earlier;
  before(it, (count) =>
    count === 1 ? later(it.purser, `/v1/wallets/${it.gateway.walletId}/budget`, { add_cents: 600 }) : Promise.resolve(),
  );
  const cut = ask(it.gateway, 900);
  await it.purser.upstream.arrived(2);
  it.calls[1]?.answer();
  await cut;
  const whole = ask(it.gateway, 900, { seed: 1 });
  await it.purser.upstream.arrived(3);
  it.calls[2]?.answer();
  await whole;
  assert.deepEqual(calls(it), [400, 400, 900]);
});

test('what is in force at the hold decides: a freeze between the two is the refusal', async (t) => {
  const it = await open(t, AT_ONCE);
  before(it, () => it.purser.run('wallet.freeze', { id: it.gateway.walletId }));
  assert.deepEqual(refusalOf(await ask(it.gateway, 900)), [402, 'wallet_frozen']);
});

test('one that may wait and loses its money waits, and is cut to what it gets then', async (t) => {
  const it = await open(t);
  const { purser, gateway } = it;
  before(it, async (count) => count === 1 && (await take(it, 600)));
  const answer = ask(gateway, 900);
  await waiting(purser, 1);
  it.calls[0]?.answer(used(500));
  await purser.upstream.arrived(2);
  assert.deepEqual(calls(it), [600, 500]);
  it.calls[1]?.answer();
  assert.equal((await answer).headers['x-purser-max-tokens'], '500');
  assert.deepEqual([purser.app.fundsQueue.count(), purser.problems()], [0, []]);
});

test('the first of a line that loses its money to the strict endpoint stays the first', async (t) => {
  const it = await open(t);
  const { purser, gateway } = it;
  const first = await take(it, 600);
  const waits = ask(gateway, 900);
  await waiting(purser, 1);
  const behind = ask(gateway, 10, { seed: 1 });
  await waiting(purser, 2);
  let isTaken = false;
  before(it, async () => {
    if (isTaken) return;
    isTaken = true;
    await take(it, 300);
  });
  it.calls[0]?.answer();
  await first((answer) => assert.equal(answer.status, 200));
  await purser.upstream.arrived(2);
  await until('both wait again', () => purser.app.fundsQueue.count() === 2);
  it.calls[1]?.answer();
  await purser.upstream.arrived(3);
  it.calls[2]?.answer();
  await waits;
  await purser.upstream.arrived(4);
  it.calls[3]?.answer();
  await behind;
  assert.deepEqual(calls(it), [600, 300, 900, 10]);
});

const DAY = 86_400;
for (const [what, options] of [
  ['a request that is cut at once', AT_ONCE],
  ['a request that may wait', {}],
] as const)
  test(`${what} brings the refill that its wallet is owed, and is cut to what it has then`, async (t) => {
    const it = await open(t, { ...options, wallet: { budget_cents: 400, expires_in_seconds: 0 } });
    const { purser, gateway } = it;
    const { walletId: id } = gateway;
    await purser.run('wallet.refill', { id, refill: { cents: 800, every: 'day' } } as never);
    purser.clock.advance(DAY); // And no pass of the reaper.
    const cut = ask(gateway, 900);
    await purser.upstream.arrived(1);
    assert.deepEqual(calls(it), [800]);
    it.calls[0]?.answer(used(800));
    assert.equal((await cut).headers['x-purser-max-tokens'], '800');
    purser.clock.advance(DAY);
    const whole = ask(gateway, 800, { seed: 1 });
    await purser.upstream.arrived(2);
    it.calls[1]?.answer();
    await whole;
    assert.deepEqual(calls(it), [800, 800]);
    assert.deepEqual(purser.problems(), []);
  });

test('where the account cannot pay the refill, the answer is cut to what the wallet has', async (t) => {
  const it = await open(t, { ...AT_ONCE, wallet: { budget_cents: 400, expires_in_seconds: 0 } });
  const { purser, gateway } = it;
  const { walletId: id } = gateway;
  await purser.run('wallet.refill', { id, refill: { cents: 1_000_000, every: 'day' } } as never);
  purser.clock.advance(DAY);
  for (const [seed, expected] of [400, 400, 400].entries()) {
    const cut = ask(gateway, 900, { seed });
    await purser.upstream.arrived(seed + 1);
    assert.equal(calls(it).at(-1), expected);
    it.calls[seed]?.answer(used(0));
    assert.equal((await cut).status, 200);
  }
  assert.deepEqual(purser.problems(), []);
});

test('a named limit above the price limit of its key is refused, though the money of the wallet would cut it below', async (t) => {
  const it = await open(t, { ...AT_ONCE, wallet: { budget_cents: 400 } });
  const { purser, gateway } = it;
  const options = { max_price_usd: '5' };
  const { api_key: token } = (await purser.ask('POST', '/v1/router/key', { token: gateway.token, body: options })).body;
  const body = { ...DEAR, messages: [{ role: 'user', content: 'hi' }], max_tokens: 600 };
  const refused = await purser.ask('POST', '/v1/router/chat/completions', { token, body });
  assert.deepEqual(refusalOf(refused), [402, 'insufficient_funds']);
  assert.match(
    refused.body.error.message,
    /^This request needs 6\.00 USD at most, and this gateway key allows 5\.00 USD for one request\. It asked for up to 600 output tokens; with max_tokens 400 it would fit\.$/,
  );
  assert.equal(purser.upstream.calls.length, 0);
});

test('one that is cut keeps the place at the model server that it had', async (t) => {
  const purser = await openTestServer(t, {
    change: (all: any) => ({
      ...all,
      router: { ...all.router, upstreams: all.router.upstreams.map((it: object) => ({ ...it, max_concurrent: 2 })) },
    }),
  });
  const other = await walletOf(purser, await addTenant(purser, 'other'));
  const [running, short] = [await purser.openWallet(), await purser.openWallet({ budget_cents: 400 })];
  const held = gate();
  purser.upstream.handle = held.handler;
  const first = purser.chat(running.token);
  await purser.upstream.arrived(1);
  before({ purser }, async (count) => {
    if (count === 1) assert.equal((await purser.chat(other.token)).body.error.code, 'rate_limited');
  });
  const cut = purser.chat(short.token, { ...DEAR, max_tokens: undefined });
  await purser.upstream.arrived(2);
  held.open();
  assert.deepEqual([(await cut).status, (await first).status], [200, 200]);
});

test('one that is cut tries the server that was down, and its turn is not lost', async (t) => {
  const priced = { balance: 'least_busy', max_output_tokens: 1000, pricing: { prompt: '0', completion: '0.01' } };
  const pool = await openPool(t, priced, {}, { unknownCountMax: 1000 });
  const { purser, a } = pool;
  const [rich, short] = [
    await purser.openWallet({ budget_cents: 90_000 }),
    await purser.openWallet({ budget_cents: 400 }),
  ];
  const askPool = (token: string, body: object = {}) => purser.chat(token, { model: 'pool', ...body });
  assert.equal((await askPool(rich.token)).status, 200);
  const back = await a.leave();
  for (let i = 0; i < 12; i++) await askPool(rich.token);
  await back();
  purser.clock.advance(16);
  const earlier = countsOf(pool);
  const cut = await askPool(short.token, { max_tokens: undefined });
  assert.deepEqual([cut.status, cut.headers['x-purser-max-tokens']], [200, '400'], cut.text);
  for (let i = 0; i < 5; i++) assert.equal((await askPool(rich.token)).status, 200);
  assert(askedSince(pool, earlier).includes(0), 'the server that is up again is tried');
});
