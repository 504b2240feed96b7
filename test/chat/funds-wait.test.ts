import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { parse, stringify } from 'yaml';
import { openGateway } from '../helper/gateway.ts';
import type { Answer } from '../helper/server.ts';
import { completion, reset } from '../helper/upstream.ts';
import { ask, DEAR, later, lineUp, open, refusalOf, WAIT_SECONDS, waiting } from './funds-wait-shared.ts';

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
    assert.deepEqual([purser.app.retries.abandonedCount(), purser.problems()], [0, []]);
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
