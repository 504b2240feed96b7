import assert from 'node:assert/strict';
import net, { type AddressInfo } from 'node:net';
import test from 'node:test';
import { completionStream, counted, DONE, FINISHED, type Step, said, streaming } from '../helper/sse.ts';
import { completion, gate, type Handler } from '../helper/upstream.ts';
import { until, waitFor } from '../helper/waiting.ts';
import { arrived, assertCancelled, cutOff, latest, leaveAfter, leaver, nextOver, open } from './cancel-shared.ts';

test('a stream whose client has gone is stopped after the grace, and costs what came of it; its key is told so', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const [more, sent, cut] = [Promise.withResolvers<void>(), Promise.withResolvers<void>(), cutOff()];
  const ports: (number | undefined)[] = [];
  const steps: Step[] = [
    (response) => void ports.push(response.socket?.remotePort),
    said('ab'),
    () => more.promise,
    said('cd'),
    arrived,
    () => sent.resolve(),
    cut.step,
  ];
  purser.upstream.handle = streaming(...steps);
  await leaveAfter(1, { gateway, grace }, 'k');
  more.resolve();
  await sent.promise;
  assert.notEqual((await purser.budget(gateway.token)).held_usd, '0.00', 'for the grace it goes on');
  grace.expire();
  await cut.closed;
  await assertCancelled(purser, gateway, 4); // What came while nobody was there was made all the same.

  const charged = (await latest(purser))?.charge_usd as string;
  const again = await gateway.streamed({}, 'k');
  assert.deepEqual([again.status, again.body.error.code], [409, 'answer_lost']);
  assert.match(again.text, /was cancelled when its client went away/);
  assert(again.text.includes(`${charged} USD were charged`), again.text);
  const { steps: movements } = await purser.run('wallet.timeline', { id: gateway.walletId });
  assert.deepEqual(
    movements.map((it) => [it.what, it.settled_by]),
    [
      ['opened', null],
      ['held', null],
      ['charged', 'cancelled'],
      ['released', 'cancelled'],
    ],
  );
  const own = await purser.ask('GET', '/v1/run/operations', { token: gateway.token });
  assert.equal(own.body.operations[0].settled_by, 'cancelled');
  const lines = purser.log.map((line) => JSON.parse(line)).filter((it) => it.event === 'operation.cancelled');
  assert.deepEqual(
    lines.map((it) => it.charge_usd),
    [charged],
  );
  const metrics = await purser.app.events.registry.metrics();
  assert.match(metrics, /purser_operations_total\{kind="chat",outcome="cancelled"\} 1/);
  assert.doesNotMatch(metrics, /purser_operations_total\{kind="chat",outcome="charged"\}/);

  purser.upstream.handle = streaming(
    (it) => void ports.push(it.socket?.remotePort),
    said('a'),
    FINISHED,
    counted(),
    DONE,
  );
  assert.equal((await gateway.streamed()).status, 200);
  assert.equal(new Set(ports).size, 2, 'the connection was closed, and is not used again');
  assert.equal(purser.upstream.calls.length, 2);
});

test('a client that leaves before anything came pays the prompt, which was worked on; the circuit stays closed', async (t) => {
  const { purser, grace, gateway } = await open(t);
  for (let i = 0; i < 4; i++) {
    const closed = Promise.withResolvers<unknown>();
    purser.upstream.handle = (_, response) => void response.once('close', closed.resolve);
    const client = leaver(gateway, `k${i}`);
    await purser.upstream.arrived(i + 1);
    await client.leave();
    await grace.set(i + 1);
    grace.expire();
    await waitFor('the connection is closed', closed.promise);
    await assertCancelled(purser, gateway, 0);
    assert.equal((await gateway.streamed({}, `k${i}`)).body.error.code, 'answer_lost');
  }
  const metrics = await purser.app.events.registry.metrics();
  assert.match(metrics, /purser_upstream_calls_total\{model="chat",upstream="local",code="cancelled"\} 4/);
  assert.doesNotMatch(metrics, /purser_upstream_up\{upstream="local"\} 0/);
  purser.upstream.handle = completionStream();
  assert.equal((await gateway.streamed()).status, 200);
});

test('what was never sent costs nothing, and asks no other server', async (t) => {
  // It takes connections and says nothing, so that no TLS comes to be.
  const sockets: net.Socket[] = [];
  const silent = net.createServer((socket) => sockets.push(socket.on('error', () => {})));
  await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    for (const it of sockets) it.destroy();
    silent.close();
  });
  const base_url = `https://127.0.0.1:${(silent.address() as AddressInfo).port}/v1`;
  const { purser, grace, gateway } = await open(t, (router) => ({
    ...router,
    upstreams: [...router.upstreams, { name: 'silent', base_url, connect_timeout_seconds: 600, timeout_seconds: 600 }],
    models: [{ ...router.models[0], upstream: 'silent', fallbacks: [{ upstream: 'local' }] }],
  }));
  const client = leaver(gateway, 'k');
  await until('it connects', () => sockets.length > 0);
  await client.leave();
  await grace.set(1);
  grace.expire();
  await gateway.quiet();
  const operation = await latest(purser);
  assert.deepEqual(
    [operation?.outcome, operation?.settled_by, operation?.charge_usd],
    ['released', 'cancelled', '0.00'],
  );
  assert.equal(purser.upstream.calls.length, 0);
  assert.doesNotMatch(await purser.app.events.registry.metrics(), /purser_upstream_up\{upstream="silent"\}/);
  assert.deepEqual(purser.problems(), []);
});

for (const [what, router, finishes] of [
  ['router.on_cancel: finish', { on_cancel: 'finish' }, true],
  ['on_cancel: finish of its upstream', { own: 'finish' }, true],
  ['on_cancel: stop of its upstream, finish of all', { on_cancel: 'finish', own: 'stop' }, false],
] as const)
  test(`with ${what} a stream that nobody reads is ${finishes ? 'finished, and kept for its key' : 'stopped'}`, async (t) => {
    const { purser, grace, gateway } = await open(t, (all) => {
      const { own, ...rest } = { own: undefined, ...router };
      return { ...all, ...rest, upstreams: [{ ...all.upstreams[0], ...(own && { on_cancel: own }) }] };
    });
    const [end, cut] = [Promise.withResolvers<void>(), cutOff()];
    purser.upstream.handle = finishes
      ? streaming(said('ab'), () => end.promise, FINISHED, counted(), DONE)
      : streaming(said('ab'), cut.step);
    const stream = await gateway.stream({}, 'k');
    await stream.next();
    const isOver = nextOver(t, purser);
    stream.leave();
    if (!finishes) {
      await grace.set(1);
      grace.expire();
      await cut.closed;
      return assertCancelled(purser, gateway, 2);
    }
    await isOver();
    end.resolve();
    await gateway.quiet();
    assert.equal(grace.count(), 0);
    assert.equal((await latest(purser))?.settled_by, 'answer');
    assert.equal((await gateway.streamed({}, 'k')).text, said('ab') + FINISHED + DONE);
  });

test('an answer in one piece is finished for nobody, and kept', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const slow = gate(completion());
  purser.upstream.handle = slow.handler;
  const client = leaver(gateway, undefined, { stream: undefined });
  await purser.upstream.arrived(1);
  await client.leave();
  await until('its place is vacant', () => purser.app.retries.abandonedCount() === 1);
  slow.open();
  await gateway.quiet();
  assert.equal(grace.count(), 0);
  assert.equal((await gateway.chat()).headers['idempotent-replayed'], 'true');
  assert.equal(purser.upstream.calls.length, 1);
});

test('a server with one place has it for the next one, when it and Purser see that nobody waits', async (t) => {
  const { purser, grace, gateway } = await open(t, (router) => ({
    ...router,
    upstreams: [{ ...router.upstreams[0], max_concurrent: 1 }],
  }));
  const cut = cutOff();
  let slot = Promise.resolve<unknown>(undefined);
  const oneAtATime =
    (handler: Handler): Handler =>
    async (call, response) => {
      const before = slot;
      slot = new Promise((resolve) => response.once('close', resolve));
      await before;
      await handler(call, response);
    };
  purser.upstream.handle = oneAtATime(streaming(said('ab'), cut.step));
  await leaveAfter(1, { gateway, grace });
  purser.upstream.handle = oneAtATime(completionStream());
  assert.equal((await gateway.streamed({ temperature: 0 })).status, 429, 'for the grace the place is taken');
  grace.expire();
  await assertCancelled(purser, gateway, 2);
  assert.equal((await gateway.streamed({ temperature: 0 })).status, 200);
});

test('a server that goes on after its connection was closed is left to itself', async (t) => {
  const { purser, grace, gateway } = await open(t);
  let attempts = 0;
  purser.upstream.handle = streaming(said('ab'), async (response) => {
    await new Promise((resolve) => response.once('close', resolve));
    for (; attempts < 100; attempts++) response.write(said('x'.repeat(1000)));
  });
  await leaveAfter(1, { gateway, grace }, 'k');
  grace.expire();
  await assertCancelled(purser, gateway, 2);
  await until('it has written all', () => attempts === 100);
  purser.upstream.handle = completionStream();
  assert.equal((await gateway.streamed()).status, 200);
});
