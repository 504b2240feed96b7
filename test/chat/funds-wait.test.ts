import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { parse, stringify } from 'yaml';
import { createAudience } from '../../src/spend/audience.ts';
import { createFundsQueue } from '../../src/spend/funds-queue.ts';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { holdTimeouts } from '../helper/held-timeouts.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { type Answer, openTestServer, type TestServer } from '../helper/server.ts';
import { completionStream } from '../helper/sse.ts';
import { completion, failure, type Handler, reset } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';

// Requests that wait for money which only others in flight hold (docs/decisions/0077). The wait is over when the test says so.

const WAIT_SECONDS = 37;
/** A token costs a cent, so that a budget of ten dollars holds 1,000 tokens. */
const DEAR = { model: 'dear' };
/** As coding agents ask: 64,000 tokens at 15 dollars a million are 0.96 dollars. */
const LONG = {
  id: 'long',
  upstream: 'local',
  context_length: 200_000,
  max_output_tokens: 64_000,
  pricing: { prompt: '0.000003', completion: '0.000015' },
};

type Limits = Record<string, number>;

async function open(
  t: TestContext,
  {
    limits = {},
    upstream = {},
    wallet = {},
    writesHere = true,
  }: { limits?: Limits; upstream?: object; wallet?: Record<string, unknown>; writesHere?: boolean } = {},
) {
  const time = holdTimeouts(t, WAIT_SECONDS * 1000);
  const purser = await openTestServer(t, {
    writesHere,
    change: (all: any) => ({
      ...all,
      limits: { ...all.limits, funds_wait_seconds: WAIT_SECONDS, ...limits },
      router: {
        ...all.router,
        upstreams: all.router.upstreams.map((it: object) => ({ ...it, ...upstream })),
        models: [...all.router.models, LONG],
      },
    }),
  });
  const gateway = await openGateway(purser, { wallet });
  /** Answers of the model server that are held back, in the order of its calls. */
  const calls: { limit: unknown; answer: (handler?: Handler) => unknown }[] = [];
  purser.upstream.handle = (call, response) => {
    const whole = call.body.stream ? completionStream() : completion();
    calls.push({ limit: call.body.max_tokens, answer: (handler = whole) => handler(call, response) });
  };
  return { time, purser, gateway, calls };
}

const waiting = (purser: TestServer, count: number) =>
  until(
    () => `${count} wait; there are ${purser.app.fundsQueue.count()}`,
    () => purser.app.fundsQueue.count() === count,
  );

const ask = (gateway: Gateway, tokens: number, more: object = {}) =>
  gateway.chat({ ...DEAR, max_tokens: tokens, ...more });

/** Has a request in flight that holds so many tokens of the model `dear`, and others that wait, in this order. */
async function lineUp(
  { purser, gateway }: Pick<Awaited<ReturnType<typeof open>>, 'purser' | 'gateway'>,
  held: number,
  ...asked: number[]
): Promise<{ first: Promise<Answer>; others: Promise<Answer>[] }> {
  const before = purser.upstream.calls.length;
  const first = ask(gateway, held);
  await purser.upstream.arrived(before + 1);
  const others: Promise<Answer>[] = [];
  for (const tokens of asked) {
    others.push(ask(gateway, tokens, { seed: others.length }));
    await waiting(purser, others.length);
  }
  return { first, others };
}

const refusalOf = ({ status, body }: Answer) => [status, body.error.code];

test('four sub-agents on one dollar all get their whole answers, in the order in which they came', async (t) => {
  const { purser, gateway, calls } = await open(t, { wallet: { budget_cents: 100 } });
  const answers: Promise<Answer>[] = [];
  for (let i = 0; i < 4; i++) {
    answers.push(gateway.streamed({ model: 'long', max_tokens: 64_000, seed: i }));
    await (i ? waiting(purser, i) : purser.upstream.arrived(1));
  }
  for (let i = 0; i < 4; i++) {
    await purser.upstream.arrived(i + 1);
    assert.deepEqual([calls[i]?.limit, purser.upstream.calls[i]?.body.seed], [64_000, i]);
    calls[i]?.answer();
  }
  for (const answer of await Promise.all(answers)) {
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.headers['x-purser-max-tokens'], undefined);
  }
  await gateway.quiet();
  assert.equal(purser.app.fundsQueue.count(), 0);
  assert.deepEqual(purser.problems(), []);
});

test('small ones that come later do not go before a large one that waits; the strict endpoint does not wait', async (t) => {
  const { purser, gateway, calls } = await open(t);
  const { first, others } = await lineUp({ purser, gateway }, 600, 900, 100, 10);
  assert.equal(purser.upstream.calls.length, 1, 'there is money for the small ones, and they wait all the same');
  const strict = purser.chat(gateway.token, { ...DEAR, max_tokens: 300 });
  await purser.upstream.arrived(2);
  assert.deepEqual(refusalOf(await purser.chat(gateway.token, { ...DEAR, max_tokens: 900 })), [402, 'funds_held']);
  calls[1]?.answer();
  assert.equal((await strict).status, 200);
  calls[0]?.answer();
  for (let i = 2; i < 5; i++) {
    await purser.upstream.arrived(i + 1);
    calls[i]?.answer();
  }
  for (const answer of await Promise.all([first, ...others])) assert.equal(answer.status, 200, answer.text);
  assert.deepEqual(
    purser.upstream.calls.slice(2).map(({ body }) => body.max_tokens),
    [900, 100, 10],
  );
  assert.deepEqual(purser.problems(), []);
});

const later = (purser: TestServer, path: string, body: object) =>
  purser.ask('POST', path, { token: purser.accountKey, key: `k${Math.random()}`, body });

/** The events that leave money to a request for 900 tokens of 1,000, while another holds 600. */
const WAKES: Record<string, (it: Awaited<ReturnType<typeof open>>) => unknown> = {
  'an answer': ({ calls }) => calls[0]?.answer(),
  'a refusal of the model server': ({ calls }) => calls[0]?.answer(failure(400)),
  'a raise by the account': ({ purser, gateway }) =>
    later(purser, `/v1/wallets/${gateway.walletId}/budget`, { add_cents: 500 }),
  'a raise by the operator': ({ purser, gateway }) =>
    purser.run('wallet.budget', { id: gateway.walletId, key: 'k', add_cents: 500 } as never),
};

for (const [what, happens] of Object.entries(WAKES))
  test(`woken by ${what}`, async (t) => {
    // In this thread every commit counts as one that may have changed any wallet.
    const it = await open(t, { writesHere: !what.startsWith('an answer') });
    const { purser, calls } = it;
    const { others } = await lineUp(it, 600, 900);
    await happens(it);
    await purser.upstream.arrived(2);
    calls[1]?.answer();
    assert.equal((await (others[0] as Promise<Answer>)).status, 200);
    assert.equal(purser.app.fundsQueue.count(), 0);
    assert.deepEqual(purser.problems(), []);
  });

test('woken by the close of a child, and by a refill', async (t) => {
  const it = await open(t);
  const { purser, gateway, calls } = it;
  const body = { name: 'c', budget_usd: '5' };
  const child = (await purser.ask('POST', '/v1/run/wallets', { token: gateway.token, key: 'c', body })).body;
  const { others } = await lineUp(it, 300, 450);
  await purser.ask('POST', '/v1/run/close', { token: child.agent_token, body: {} });
  await purser.upstream.arrived(2);
  calls[1]?.answer();
  assert.equal((await (others[0] as Promise<Answer>)).status, 200);

  const refill = { cents: 1000, every: 'day', zone: 'UTC', carry: 'all' };
  await purser.run('wallet.refill', { id: gateway.walletId, refill } as never);
  const again = ask(gateway, 900);
  await waiting(purser, 1);
  await purser.run('wallet.extend', { id: gateway.walletId, key: 'e', seconds: 3 * 86_400 } as never);
  purser.clock.advance(86_400);
  await purser.app.reaper.runOnce();
  await purser.upstream.arrived(3);
  calls[2]?.answer();
  assert.equal((await again).status, 200);
  assert.deepEqual(purser.problems(), []);
});

/** The events that end the wait of all in a wallet, and how they are refused. */
const ENDS: Record<
  string,
  { happens: (purser: TestServer, id: string, key: string) => unknown; refused: [number, string] }
> = {
  'the revocation of the gateway key': {
    happens(purser, _, key) {
      const id = (purser.app.tokens.find(key) as { routerKeyId: string }).routerKeyId;
      return purser.run('key.revoke', { id } as never);
    },
    refused: [401, 'unauthenticated'],
  },
  'a freeze': {
    happens: (purser, id) => purser.run('wallet.freeze', { id }),
    refused: [403, 'wallet_frozen'],
  },
  'a freeze of everything': {
    happens: (purser) => purser.run('freeze', {} as never),
    refused: [503, 'read_only'],
  },
  'the suspension of the account': {
    happens: (purser) => purser.run('account.suspend', { id: purser.accountId }),
    refused: [403, 'account_suspended'],
  },
  'the expiry of the wallet': {
    async happens(purser) {
      purser.clock.advance(4000);
      await purser.app.reaper.runOnce();
    },
    refused: [409, 'wallet_expired'],
  },
  'the end of its time': { happens: () => {}, refused: [429, 'funds_held'] },
  'the stop of the server': {
    happens: (purser) => void purser.app[Symbol.asyncDispose](),
    refused: [503, 'read_only'],
  },
};

for (const [what, { happens, refused }] of Object.entries(ENDS))
  test(`ended by ${what}`, async (t) => {
    const it = await open(t);
    const { purser, gateway, time, calls } = it;
    const { first, others } = await lineUp(it, 600, 900, 100, 900);
    if (what === 'the end of its time') time.expire();
    else await happens(purser, gateway.walletId, gateway.key);
    for (const answer of await Promise.all(others)) assert.deepEqual(refusalOf(answer), refused, answer.text);
    assert.equal(purser.upstream.calls.length, 1);
    calls[0]?.answer();
    assert.equal((await first).status, 200);
  });

test('ended by the close of the wallet above', async (t) => {
  const it = await open(t);
  const { purser, gateway, calls } = it;
  const body = { name: 'c', budget_usd: '9' };
  const child = (await purser.ask('POST', '/v1/run/wallets', { token: gateway.token, key: 'c', body })).body;
  const { api_key: key } = (await purser.ask('POST', '/v1/router/key', { token: child.agent_token, body: {} })).body;
  const post = (tokens: number) =>
    purser.ask('POST', '/v1/router/chat/completions', {
      token: key,
      body: { ...DEAR, messages: [{ role: 'user', content: 'hi' }], max_tokens: tokens },
    });
  const first = post(600);
  await purser.upstream.arrived(1);
  const second = post(700);
  await waiting(purser, 1);
  const closing = purser.ask('POST', '/v1/run/close', { token: gateway.token, body: {} });
  assert.deepEqual(refusalOf(await second), [409, 'wallet_closed']);
  calls[0]?.answer();
  assert.equal((await first).status, 200);
  await closing;
});

for (const stream of [false, true])
  test(`a client that leaves is not waited for, ${stream ? 'streamed' : 'whole'}: the next is the first`, async (t) => {
    const it = await open(t);
    const { purser, gateway, calls } = it;
    const first = ask(gateway, 600);
    await purser.upstream.arrived(1);
    const gone = new AbortController();
    const left = fetch(`${purser.url}/v1/router/chat/completions`, {
      method: 'POST',
      signal: gone.signal,
      headers: { authorization: `Bearer ${gateway.key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ ...DEAR, messages: [{ role: 'user', content: 'hi' }], max_tokens: 900, stream }),
    }).catch(() => {});
    await waiting(purser, 1);
    const next = ask(gateway, 300);
    await waiting(purser, 2);
    gone.abort();
    await left;
    await purser.upstream.arrived(2);
    assert.equal(purser.app.fundsQueue.count(), 0);
    for (const { answer } of calls) answer();
    assert.deepEqual([(await first).status, (await next).status], [200, 200]);
    assert.deepEqual(
      purser.upstream.calls.map(({ body }) => body.max_tokens),
      [600, 300],
    );
    await gateway.quiet();
    assert.deepEqual([purser.app.retries.vacantCount(), purser.problems()], [0, []]);
  });

test('what no hold in flight could leave is refused at once', async (t) => {
  const { purser, gateway, calls } = await open(t);
  // Limits up to 256 tokens are not cut.
  const first = ask(gateway, 900);
  await purser.upstream.arrived(1);
  calls[0]?.answer(completion({ prompt_tokens: 1, completion_tokens: 900, total_tokens: 901 }));
  assert.equal((await first).status, 200);
  assert.deepEqual(refusalOf(await ask(gateway, 250)), [402, 'insufficient_funds']);
  const small = ask(gateway, 60);
  await purser.upstream.arrived(2);
  assert.deepEqual(
    refusalOf(await ask(gateway, 101)),
    [402, 'insufficient_funds'],
    'in flight are 60, of 100 that are left',
  );
  calls[1]?.answer(reset);
  assert.equal((await small).status, 503);
  const held = await ask(gateway, 100);
  assert.deepEqual(
    [...refusalOf(held), held.headers['retry-after']],
    [429, 'funds_held', '59'],
    'nobody knows when it ends',
  );
  assert.equal(purser.app.fundsQueue.count(), 0);
});

test('who waits for what becomes uncertain is told so at once', async (t) => {
  const it = await open(t);
  const { others } = await lineUp(it, 800, 250, 240, 200); // Too short to be cut.
  it.calls[0]?.answer(reset);
  for (const answer of await Promise.all(others.slice(0, 2)))
    assert.deepEqual([...refusalOf(answer), answer.headers['retry-after']], [429, 'funds_held', '59']);
  await it.purser.upstream.arrived(2);
  it.calls[1]?.answer();
  assert.equal((await (others[2] as Promise<Answer>)).status, 200);
});

test('a limit is not cut below 8,192 tokens while waiting helps, and is where it does not', async (t) => {
  const { purser, gateway, calls } = await open(t, { wallet: { budget_cents: 100 } });
  const long = (tokens: number, seed: number) => gateway.chat({ model: 'long', max_tokens: tokens, seed });
  const first = long(50_000, 0);
  await purser.upstream.arrived(1);
  const second = await Promise.race([long(64_000, 1), purser.upstream.arrived(2)]);
  assert.equal(second, undefined);
  assert.ok(
    (calls[1]?.limit as number) > 8192 && (calls[1]?.limit as number) < 64_000,
    'cut to what is enough, at once',
  );
  const third = long(64_000, 2);
  await waiting(purser, 1);
  const used = { prompt_tokens: 10, completion_tokens: 49_000, total_tokens: 49_010 };
  calls[0]?.answer(completion(used));
  assert.equal((await first).status, 200);
  await waiting(purser, 1); // What it left is enough for a thousand tokens.
  const rest = { prompt_tokens: 10, completion_tokens: 13_000, total_tokens: 13_010 };
  calls[1]?.answer(completion(rest));
  await purser.upstream.arrived(3);
  const limit = calls[2]?.limit as number;
  assert.ok(limit > 4000 && limit < 8192, `all that is left, as nothing is in flight any more: ${limit}`);
  calls[2]?.answer();
  assert.equal((await third).headers['x-purser-max-tokens'], String(limit));
  assert.deepEqual(purser.problems(), []);
});

test('funds_wait_seconds: 0 answers and cuts at once; a reload switches it on', async (t) => {
  const { purser, gateway, calls } = await open(t, { limits: { funds_wait_seconds: 0 } });
  const first = ask(gateway, 600);
  await purser.upstream.arrived(1);
  const cut = ask(gateway, 900);
  await purser.upstream.arrived(2);
  assert.equal(calls[1]?.limit, 400);
  assert.deepEqual(refusalOf(await ask(gateway, 900)), [429, 'funds_held']);
  calls[1]?.answer();
  await cut;
  const file = join(purser.directory, 'purser.yaml');
  const settings = parse(readFileSync(file, 'utf8'));
  writeFileSync(file, stringify({ ...settings, limits: { ...settings.limits, funds_wait_seconds: WAIT_SECONDS } }));
  await purser.run('reload', {} as never);
  const waits = ask(gateway, 900);
  await waiting(purser, 1);
  calls[0]?.answer();
  await purser.upstream.arrived(3);
  calls[2]?.answer();
  assert.deepEqual([(await first).status, (await waits).status], [200, 200]);
});

test('who waits has no place at the model server, counts once in the limits, and has its body in the quota', async (t) => {
  const it = await open(t, { upstream: { max_concurrent: 2 }, limits: { wallet_requests_per_minute: 4 } }); // One is for the gateway key.
  const { purser, gateway, calls } = it;
  const other = await openGateway(purser);
  const first = ask(gateway, 600);
  await purser.upstream.arrived(1);
  const text = 'x'.repeat(100_000);
  const second = ask(gateway, 900, { metadata: { text } });
  await waiting(purser, 1);
  const share = purser.app.memory.open(gateway.walletId);
  assert.equal(share.tryTake(64 * 1024 * 1024 - text.length), false);
  const third = ask(other, 10);
  await purser.upstream.arrived(2); // The second place.
  calls[1]?.answer();
  assert.equal((await third).status, 200);
  for (const cents of [1, 2, 3]) await later(purser, `/v1/wallets/${gateway.walletId}/budget`, { add_cents: cents });
  calls[0]?.answer();
  await purser.upstream.arrived(3);
  calls[2]?.answer();
  assert.deepEqual([(await first).status, (await second).status], [200, 200]);
  assert.equal(share.tryTake(64 * 1024 * 1024), true);
  share.close();
  const last = ask(gateway, 10);
  await purser.upstream.arrived(4);
  calls[3]?.answer();
  assert.equal((await last).status, 200);
  assert.deepEqual(refusalOf(await ask(gateway, 10)), [429, 'rate_limited']);
});

test('64 wait in a wallet, and one more is refused at once; status and metrics tell', async (t) => {
  const it = await open(t);
  const { purser, gateway, calls } = it;
  const first = ask(gateway, 600);
  await purser.upstream.arrived(1);
  const all = Array.from({ length: 64 }, (_, i) => ask(gateway, 700, { seed: i }));
  await waiting(purser, 64);
  assert.deepEqual(refusalOf(await ask(gateway, 700)), [429, 'funds_held']);
  const small = await ask(gateway, 10);
  assert.match(small.body.error.message, /came before this one/);
  assert.equal((await purser.run('status', {} as never)).holds.waiting, 64);
  assert.match(await purser.app.events.registry.metrics(), /^purser_requests_waiting 64$/m);
  it.time.expire();
  for (const answer of await Promise.all(all)) assert.deepEqual(refusalOf(answer), [429, 'funds_held']);
  assert.match(await purser.app.events.registry.metrics(), /^purser_funds_wait_seconds_count\{end="late"\} 64$/m);
  calls[0]?.answer();
  assert.equal((await first).status, 200);
});

test('256 wait in a tree of wallets and 1,024 in all, beyond which others still get an even share', () => {
  const queue = createFundsQueue(
    () => 60,
    (walletId) => ({ treeId: walletId.slice(0, 1), accountId: '' }),
    () => {},
  );
  const joined = (walletId: string, tries: number) =>
    Array.from({ length: tries }, () => queue.join(walletId)).filter((it) => it !== undefined).length;
  for (const tree of ['a', 'b', 'c', 'd'])
    assert.equal(
      Array.from({ length: 6 }, (_, i) => joined(`${tree}${i}`, 65)).reduce((a, b) => a + b),
      256,
    );
  assert.equal(queue.count(), 1024);
  assert.equal(joined('e', 65), 64);
  queue.stop();
  assert.throws(() => queue.join('f'), /stopping/);
});

test('a wake that comes while the first tries is not lost', async () => {
  const queue = createFundsQueue(
    () => 60,
    () => ({ treeId: 'a', accountId: '' }),
    () => {},
  );
  let isThere = true;
  const [audience, first] = [createAudience(), queue.join('w')];
  audience.admit(undefined);
  assert.equal(await first?.come(() => isThere, audience), 'first');
  queue.wake('w'); // While it tries.
  assert.equal(await first?.come(() => isThere, audience), 'first');
  isThere = false;
  const waits = first?.come(() => isThere, audience);
  const second = queue.join('w');
  const behind = second?.come(() => true, audience);
  first?.leave('late');
  assert.equal(await behind, 'first');
  queue.stop();
  await Promise.race([waits, Promise.resolve()]);
});

for (let walk = 0; walk < length(1, 20); walk++)
  test(`at random: no budget is exceeded, and every request ends (PURSER_TEST_SEED=${SEED + walk})`, async (t) => {
    const random = createRandom(SEED + walk);
    const it = await open(t, { wallet: { budget_cents: 2000, expires_in_seconds: 0 } });
    const { purser, gateway, calls, time } = it;
    const body = { name: 'c', budget_usd: '6' };
    const child = (await purser.ask('POST', '/v1/run/wallets', { token: gateway.token, key: 'c', body })).body;
    const key = (await purser.ask('POST', '/v1/router/key', { token: child.agent_token, body: {} })).body.api_key;
    const ids = [gateway.walletId, child.id as string];
    const ends: Promise<unknown>[] = [];
    const held: typeof calls = [];
    const check = () => {
      for (const id of ids) {
        const { budget, held: onHold, spent, delegated } = purser.wallet(id);
        assert.ok(
          onHold >= 0n && spent + onHold + delegated <= budget,
          `${id}: ${spent}, ${onHold}, ${delegated} of ${budget}`,
        );
      }
    };
    const send = (token: string, strict: boolean) => {
      const gone = new AbortController();
      const asked = { ...DEAR, messages: [{ role: 'user', content: 'hi' }], max_tokens: random.whole(1, 700) };
      const seed = ends.length; // None is the retry of another.
      const sent = fetch(`${purser.url}${strict ? '/v1/chat/completions' : '/v1/router/chat/completions'}`, {
        method: 'POST',
        signal: gone.signal,
        headers: {
          authorization: `Bearer ${token}`,
          'content-type': 'application/json',
          ...(strict ? { 'idempotency-key': `k${seed}` } : {}),
        },
        body: JSON.stringify({ ...asked, seed, ...(strict || random.whole(0, 1) ? {} : { stream: true }) }),
      })
        .then((response) => response.text())
        .catch(() => {});
      ends.push(sent);
      if (random.whole(0, 9) === 0) setTimeout(() => gone.abort(), random.whole(0, 20));
    };
    const answer = () => {
      while (calls.length) held.push(calls.shift() as (typeof calls)[number]);
      const [one] = held.splice(random.whole(0, Math.max(0, held.length - 1)), 1);
      const tokens = random.whole(0, 20);
      one?.answer(
        random.pick([
          undefined,
          undefined,
          undefined,
          completion({ prompt_tokens: 1, completion_tokens: tokens, total_tokens: 1 + tokens }),
          failure(400),
        ]),
      );
    };
    for (let step = 0; step < length(120, 400); step++) {
      const what = random.weighted({
        ask: 40,
        strict: 5,
        answer: 40,
        raise: 4,
        lower: 4,
        freeze: 2,
        expire: 1,
        turn: 10,
      });
      if (what === 'ask') send(random.pick([gateway.key, key]), false);
      else if (what === 'strict') send(random.pick([gateway.token, child.agent_token]), true);
      else if (what === 'answer') answer();
      else if (what === 'raise' || what === 'lower')
        await later(purser, `/v1/wallets/${random.pick(ids)}/budget`, {
          add_cents: random.whole(1, 200) * (what === 'raise' ? 1 : -1),
        });
      else if (what === 'freeze') {
        const id = random.pick(ids);
        await purser.run('wallet.freeze', { id });
        await purser.run('wallet.unfreeze', { id });
      } else if (what === 'expire') time.expire();
      else for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
      check();
    }
    let isOver = false;
    const over = Promise.all(ends).then(() => {
      isOver = true;
    });
    await until('every request has ended', () => {
      answer();
      check();
      return isOver;
    });
    await over;
    await until('nothing waits or runs', () => {
      answer();
      return purser.app.inFlight.count() === 0;
    });
    assert.equal(purser.app.fundsQueue.count(), 0);
    assert.deepEqual(purser.problems(), []);
  });
