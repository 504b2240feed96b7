import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { holdTimeouts } from '../helper/held-timeouts.ts';
import { openTestServer } from '../helper/server.ts';
import { completion, failure, gate, hang, openUpstream, reset } from '../helper/upstream.ts';

/** That of every test server. */
const GRACE_SECONDS = 600;

async function open(t: TestContext) {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { wallet: { expires_in_seconds: 0 } });
  let count = 0;
  /** Each request is another one, so that none takes over the hold of another. */
  const ask = (body = {}) => gateway.chat({ seed: count++, ...body });
  const fail = async (times: number) => {
    purser.upstream.handle = reset;
    for (let i = 0; i < times; i++) {
      const answer = await ask();
      assert.equal(answer.body.error.code, 'operation_uncertain', answer.text);
    }
  };
  const assertOpen = async (seconds: number) => {
    const { held } = purser.wallet(gateway.walletId);
    const calls = purser.upstream.calls.length;
    const answer = await ask();
    assert.deepEqual([answer.status, answer.body.error.code], [503, 'gateway_unavailable'], answer.text);
    assert.match(answer.body.error.message, /circuit_open/);
    assert.deepEqual([answer.headers['retry-after'], answer.headers['x-should-retry']], [String(seconds), 'true']);
    assert.equal(purser.upstream.calls.length, calls, 'the model server is not asked');
    assert.equal(purser.wallet(gateway.walletId).held, held, 'nothing is held');
  };
  return { purser, gateway, ask, fail, assertOpen };
}

test('three unknown outcomes within a minute open the circuit; an answer closes it', async (t) => {
  const { purser, gateway, ask, fail, assertOpen } = await open(t);
  await fail(3);
  await assertOpen(5);
  purser.clock.advance(4);
  await assertOpen(1);
  purser.clock.advance(1);
  purser.upstream.handle = completion();
  assert.equal((await ask()).status, 200);
  assert.equal((await ask()).status, 200);
  await fail(2);
  assert.equal((await gateway.streamed({ model: 'flat' })).status, 503, 'the circuit of another model is its own');
  await fail(1);
  assert.equal((await gateway.streamed()).status, 503);
  const events = purser.log.filter((line) => /circuit_(open|closed)/.test(line) && line.includes('"event"'));
  assert.deepEqual(events.map((line) => /upstream\.circuit_\w+/.exec(line)?.[0]).filter(Boolean), [
    'upstream.circuit_open',
    'upstream.circuit_closed',
    'upstream.circuit_open',
  ]);
  assert.deepEqual(purser.problems(), []);
});

test('an answer that is longer than is read is of unknown outcome, and its server is there all the same', async (t) => {
  const { purser, ask } = await open(t);
  const piece = Buffer.alloc(1024 * 1024, ' ');
  purser.upstream.handle = (_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    for (let count = 0; count < 33; count++) response.write(piece);
    response.end('{}');
  };
  for (let count = 0; count < 4; count++) assert.equal((await ask()).body.error.code, 'operation_uncertain');
  assert(!purser.log.some((line) => /"event":"upstream\.(circuit_open|down)"/.test(line)));
});

test('unknown outcomes further apart, or with an answer between them, open nothing', async (t) => {
  const { purser, ask, fail } = await open(t);
  await fail(2);
  purser.clock.advance(60);
  await fail(2);
  purser.upstream.handle = completion();
  assert.equal((await ask()).status, 200);
  await fail(2);
  purser.upstream.handle = failure(400);
  assert.equal((await ask()).status, 400);
});

test('one request at a time tries, after 5, 10, 20, 40 and 60 seconds, and 60 again', async (t) => {
  const { purser, ask, fail, assertOpen } = await open(t);
  await fail(3);
  for (const seconds of [5, 10, 20, 40, 60, 60]) {
    await assertOpen(Math.min(seconds, 59));
    purser.clock.advance(seconds - 1);
    await assertOpen(1);
    purser.clock.advance(1);
    const slow = gate(reset);
    purser.upstream.handle = slow.handler;
    const count = purser.upstream.calls.length;
    const trial = ask();
    await purser.upstream.arrived(count + 1);
    await assertOpen(1);
    slow.open();
    assert.equal((await trial).body.error.code, 'operation_uncertain');
  }
});

test('a trial that is refused leaves the circuit open, and the next request tries', async (t) => {
  const { purser, ask, fail } = await open(t);
  await fail(3);
  purser.clock.advance(5);
  purser.upstream.handle = failure(503);
  for (let i = 0; i < 2; i++) assert.doesNotMatch((await ask()).text, /circuit_open/);
  purser.upstream.handle = completion();
  assert.equal((await ask()).status, 200);
});

test('a trial whose client leaves says nothing: the circuit stays open, and the next request tries', async (t) => {
  const grace = holdTimeouts(t, GRACE_SECONDS * 1000);
  const { purser, gateway, ask, fail, assertOpen } = await open(t);
  await fail(3);
  purser.clock.advance(5);
  purser.upstream.handle = hang;
  const controller = new AbortController();
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 9, stream: true };
  const gone = gateway.ask('POST', '/chat/completions', { body, signal: controller.signal });
  await purser.upstream.arrived(4);
  controller.abort();
  await assert.rejects(gone);
  await grace.set(1);
  grace.expire();
  await gateway.quiet();
  await fail(1);
  await assertOpen(10);
  purser.clock.advance(10);
  purser.upstream.handle = completion();
  assert.equal((await ask()).status, 200);
});

test('the next upstream is asked while the circuit of the first is open', async (t) => {
  const other = await openUpstream(t);
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: {
        upstreams: [...all.router.upstreams, { name: 'other', base_url: other.url }],
        models: [{ ...all.router.models[0], fallbacks: [{ upstream: 'other' }] }],
      },
    }),
  });
  const gateway = await openGateway(purser);
  purser.upstream.handle = reset;
  for (let i = 0; i < 3; i++) assert.equal((await gateway.chat({ seed: i })).status, 503);
  assert.equal(other.calls.length, 0, 'an unknown outcome is never asked for elsewhere');
  assert.equal((await gateway.chat({ user: 'next' })).status, 200);
  assert.deepEqual([purser.upstream.calls.length, other.calls.length], [3, 1]);
});

test('a route that is not asked says nothing of its upstream, which answers for other models, and counts as no call', async (t) => {
  const other = await openUpstream(t);
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: {
        upstreams: [
          { ...all.router.upstreams[0], max_concurrent: 1 },
          { name: 'other', base_url: other.url },
        ],
        models: [{ ...all.router.models[0], fallbacks: [{ upstream: 'other' }] }, ...all.router.models.slice(1)],
      },
    }),
  });
  const { upstream } = purser;
  const gateway = await openGateway(purser);
  let count = 0;
  const ask = async (model: string) => (await gateway.chat({ model, seed: count++ })).status;
  upstream.handle = (call, response) => (call.body.model === 'flat' ? completion() : reset)(call, response);
  for (let i = 0; i < 3; i++) assert.deepEqual([await ask('chat'), await ask('flat')], [503, 200]);
  for (let i = 0; i < 4; i++) assert.equal(await ask('chat'), 200);
  assert.deepEqual([upstream.calls.length, other.calls.length], [6, 4]);

  purser.clock.advance(5);
  const slow = gate(completion());
  upstream.handle = slow.handler;
  const busy = ask('flat');
  await upstream.arrived(7);
  for (let i = 0; i < 4; i++) assert.equal(await ask('chat'), 200);
  slow.open();
  assert.equal(await busy, 200);

  const metrics = await purser.app.events.registry.metrics();
  const counts = [...metrics.matchAll(/upstream_calls_total\{model="(\w+)",upstream="(\w+)",code="(\w+)"\} (\d+)/g)];
  assert.deepEqual(counts.map(([, ...it]) => it.join(' ')).sort(), [
    'chat local unknown 3',
    'chat other answered 8',
    'flat local answered 4',
  ]);
  assert(!purser.log.some((line) => /"event":"upstream\.(down|back)"/.test(line)));
  assert.deepEqual(purser.problems(), []);
});
