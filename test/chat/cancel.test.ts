import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import type http from 'node:http';
import net, { type AddressInfo } from 'node:net';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { parse, stringify } from 'yaml';
import { formatUsd, Nanos } from '../../src/money.ts';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { type HeldTimeouts, holdTimeouts } from '../helper/held-timeouts.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completionStream, counted, DONE, FINISHED, openStream, type Step, said, streaming } from '../helper/sse.ts';
import { completion, gate, type Handler, hang } from '../helper/upstream.ts';
import { until, waitFor } from '../helper/waiting.ts';

// Streams whose clients go away (docs/decisions/0075). The grace is over when the test says so.

const GRACE_SECONDS = 7;
type Router = Record<string, any>;

async function open(
  t: TestContext,
  router: Router | ((router: Router) => Router) = {},
  settings: Record<string, unknown> = {},
) {
  const grace = holdTimeouts(t, GRACE_SECONDS * 1000);
  const purser = await openTestServer(t, {
    settings,
    change(all) {
      const own = { ...all.router, cancel_grace_seconds: GRACE_SECONDS };
      return { ...all, router: typeof router === 'function' ? router(own) : { ...own, ...router } };
    },
  });
  return { purser, grace, gateway: await openGateway(purser) };
}

/** A step that lasts until the connection is closed from Purser's side; `closed` resolves then. */
function cutOff(): { step: (response: http.ServerResponse) => Promise<unknown>; closed: Promise<unknown> } {
  const { promise, resolve } = Promise.withResolvers<unknown>();
  return {
    step(response) {
      response.once('close', resolve);
      return promise;
    },
    closed: waitFor('the connection to the model server is closed', promise),
  };
}

/** Resolves when all that was written has been sent, and a server in this thread has had its turns to read it. */
async function arrived(response: http.ServerResponse): Promise<void> {
  await new Promise((resolve) => response.write(':\n\n', resolve));
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
}

const latest = async (purser: TestServer) => (await purser.run('operation.list', {})).operations[0];

/** Returns the estimated price of the default chat: the bound of its prompt, and so many tokens delivered. */
async function estimateOf(purser: TestServer, tokens: number): Promise<string> {
  const bound = Number((await latest(purser))?.price.bound_prompt_tokens);
  return formatUsd(Nanos(BigInt(100_000 + bound * 1000 + tokens * 2000)));
}

/** Asserts that the latest operation was cancelled, and cost the prompt and so many tokens. */
async function assertCancelled(purser: TestServer, gateway: Gateway, tokens: number): Promise<void> {
  await gateway.quiet();
  const operation = await latest(purser);
  assert.deepEqual([operation?.state, operation?.outcome, operation?.settled_by], ['settled', 'charged', 'cancelled']);
  assert.equal(operation?.charge_usd, await estimateOf(purser, tokens));
  const { holds, held_usd: held } = await purser.budget(gateway.token);
  assert.deepEqual([holds, held], [[], '0.00']);
  assert.deepEqual(purser.problems(), []);
}

/** A client reads so many events of a stream and leaves; the grace begins. */
async function leaveAfter(
  count: number,
  { gateway, grace }: { gateway: Gateway; grace: HeldTimeouts },
  key?: string,
  body: object = {},
): Promise<void> {
  const before = grace.count();
  const stream = await gateway.stream(body, key);
  for (let i = 0; i < count; i++) await stream.next();
  stream.leave();
  await grace.set(before + 1);
}

/** A client that may leave before its headers. */
function leaver(gateway: Gateway, key?: string, body: object = {}, path = '/chat/completions') {
  const controller = new AbortController();
  const asked = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100, stream: true, ...body };
  const answer = gateway.ask('POST', path, { key, body: asked, signal: controller.signal });
  answer.catch(() => {});
  return {
    async leave() {
      controller.abort();
      await assert.rejects(answer);
    },
  };
}

/** Returns what resolves when the next response is over: the server has seen that its client has gone. */
function nextOver(t: TestContext, { app }: TestServer): () => Promise<boolean> {
  const release = t.mock.method(app.atOnce, 'release');
  const before = release.mock.callCount();
  return () => until('the client has gone', () => release.mock.callCount() > before);
}

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

test('the same request within the grace joins, and a stop comes only when it leaves as well', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const [end, cut] = [Promise.withResolvers<void>(), cutOff()];
  purser.upstream.handle = streaming(said('ab'), () => end.promise, FINISHED, counted(), DONE);
  await leaveAfter(1, { gateway, grace });
  const retry = gateway.streamed();
  await until('the retry has the place', () => purser.app.retries.vacantCount() === 0);
  grace.expire();
  end.resolve();
  const { status, text, headers } = await retry;
  assert.deepEqual([status, headers['idempotent-replayed']], [200, 'true'], text);
  assert.equal(text, said('ab') + FINISHED + DONE);
  assert.equal((await latest(purser))?.settled_by, 'answer');

  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace });
  const second = leaver(gateway);
  await until('the retry has the place', () => purser.app.retries.vacantCount() === 0);
  const before = grace.count();
  grace.expire();
  assert.notEqual((await purser.budget(gateway.token)).held_usd, '0.00', 'somebody waits');
  await second.leave();
  await grace.set(before + 1);
  grace.expire();
  await cut.closed;
  await assertCancelled(purser, gateway, 2);
  assert.equal(purser.upstream.calls.length, 2);
  assert.equal(purser.app.retries.vacantCount(), 0);
});

test('of several clients on one key only the last to leave ends the stream', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  const first = await gateway.stream({}, 'k');
  await first.next();
  const find = t.mock.method(purser.app.inFlight, 'find');
  const [second, third] = [leaver(gateway, 'k'), leaver(gateway, 'k')];
  await until('the others have joined', () => find.mock.calls.filter(({ result }) => result).length === 2);
  first.leave();
  await second.leave();
  for (let i = 0; i < 3; i++) await purser.budget(gateway.token);
  assert.equal(grace.count(), 0, 'one is there');
  await third.leave();
  await grace.set(1);
  grace.expire();
  await cut.closed;
  await assertCancelled(purser, gateway, 2);
  assert.equal(purser.upstream.calls.length, 1);
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

const named = (data: { type: string }) => `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`;
const MESSAGE_EVENTS = [
  named({
    type: 'message_start',
    message: {
      id: 'msg_1',
      type: 'message',
      role: 'assistant',
      model: 'm',
      content: [],
      usage: { input_tokens: 10, output_tokens: 1 },
    },
  } as never),
  named({ type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } } as never),
  named({ type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'hello' } } as never),
];
const RESPONSE = { id: 'resp_1', object: 'response', status: 'in_progress', model: 'm', output: [], usage: null };
const RESPONSE_EVENTS = [
  named({ type: 'response.created', response: RESPONSE } as never),
  named({
    type: 'response.output_text.delta',
    item_id: 'i',
    output_index: 0,
    content_index: 0,
    delta: 'hello',
  } as never),
];
const WIRES: [what: string, path: string, body: object, isNative: boolean, events: string[]][] = [
  ['messages, translated', '/messages', {}, false, [said('hello')]],
  ['messages, as they came', '/v1/messages', {}, true, MESSAGE_EVENTS],
  ['responses, translated', '/responses', { input: 'hi' }, false, [said('hello')]],
  ['responses, as they came', '/responses', { input: 'hi' }, true, RESPONSE_EVENTS],
];
for (const [what, path, body, isNative, events] of WIRES)
  test(`a client of ${what} that goes stops its stream`, async (t) => {
    const { purser, grace, gateway } = await open(t, (router) => {
      const [local] = router.upstreams;
      return { ...router, upstreams: [isNative ? { ...local, wires: ['messages', 'responses'] } : local] };
    });
    const cut = cutOff();
    purser.upstream.handle = streaming(...events, cut.step);
    const own = 'input' in body ? { ...body, messages: undefined, max_tokens: undefined } : body;
    const stream = await openStream(purser.url, gateway.key, own, { path: `/v1/router${path}`, key: 'k' });
    assert.equal(stream.status, 200);
    for (let it = await stream.next(); !it?.includes('hello'); it = await stream.next()) assert(it !== undefined);
    stream.leave();
    await grace.set(1);
    grace.expire();
    await cut.closed;
    await gateway.quiet();
    const operation = await latest(purser);
    assert.deepEqual([operation?.outcome, operation?.settled_by], ['charged', 'cancelled']);
    assert.equal(operation?.usage?.completion_tokens, 5);
    assert.equal((await purser.budget(gateway.token)).held_usd, '0.00');
    const again = await openStream(purser.url, gateway.key, own, { path: `/v1/router${path}`, key: 'k' });
    assert.equal(again.status, 409);
    again.leave();
    assert.deepEqual(purser.problems(), []);
  });

test('what tells of a message before its text is read, though its client has gone by then', async (t) => {
  const { purser, grace, gateway } = await open(t, (router) => ({
    ...router,
    upstreams: [{ ...router.upstreams[0], wires: ['messages'] }],
  }));
  const [cut, sent] = [cutOff(), Promise.withResolvers<void>()];
  const [start = ''] = MESSAGE_EVENTS;
  purser.upstream.handle = streaming(start, arrived, () => sent.resolve(), cut.step);
  const client = leaver(gateway, undefined, {}, '/messages');
  await sent.promise;
  await client.leave();
  await grace.set(1);
  grace.expire();
  await cut.closed;
  await gateway.quiet();
  const operation = await latest(purser);
  assert.equal(operation?.settled_by, 'cancelled');
  assert.equal(operation?.usage?.prompt_tokens, 10, 'as it was told');
  const metrics = await purser.app.events.registry.metrics();
  assert.match(metrics, /purser_upstream_calls_total\{model="chat",upstream="local",code="streaming"\} 1/);
  assert.deepEqual(purser.problems(), []);
});

test('events that are read in the other thread are delivered, also while the stream is stopped', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const [more, cut] = [Promise.withResolvers<void>(), cutOff()];
  const large = said('x'.repeat(300_000));
  purser.upstream.handle = streaming(
    large,
    () => more.promise,
    large,
    () => grace.expire(),
    cut.step,
  );
  await leaveAfter(1, { gateway, grace }, 'k', { max_tokens: 1000 });
  more.resolve();
  await cut.closed;
  await assertCancelled(purser, gateway, 1000); // As many as the hold was for.
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
  await until('its place is vacant', () => purser.app.retries.vacantCount() === 1);
  slow.open();
  await gateway.quiet();
  assert.equal(grace.count(), 0);
  assert.equal((await gateway.chat()).headers['idempotent-replayed'], 'true');
  assert.equal(purser.upstream.calls.length, 1);
});

test('a stream that ends within the grace is an answer: charged as one, and kept', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('ab'), () => end.promise, FINISHED, counted(), DONE);
  await leaveAfter(1, { gateway, grace }, 'k');
  end.resolve();
  await gateway.quiet();
  grace.expire();
  const operation = await latest(purser);
  assert.deepEqual([operation?.settled_by, operation?.charge_usd], ['answer', '0.00012']);
  assert.equal((await gateway.streamed({}, 'k')).text, said('ab') + FINISHED + DONE);
});

test('a grace that ends while the charge is being written changes nothing', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('ab'), () => end.promise, FINISHED, counted(), DONE);
  await leaveAfter(1, { gateway, grace });
  const write = purser.app.ledger.write;
  const [asked, commit] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  purser.app.ledger.write = async (it, data) => {
    asked.resolve();
    await commit.promise;
    return write(it, data);
  };
  end.resolve();
  await asked.promise;
  grace.expire();
  const retry = gateway.streamed();
  await until('the retry has the place', () => purser.app.retries.vacantCount() === 0);
  commit.resolve();
  assert.equal((await retry).text, said('ab') + FINISHED + DONE);
  purser.app.ledger.write = write;
  assert.equal(purser.upstream.calls.length, 1);
  assert.deepEqual([(await latest(purser))?.settled_by, purser.wallet(gateway.walletId).spent], ['answer', 120_000n]);
  assert.deepEqual(purser.problems(), []);
});

test('a crash within the grace leaves the hold, as any crash does: a retry asks again on it', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace });
  await purser.crash(() => {});
  assert.equal((await latest(purser))?.state, 'uncertain');
  purser.upstream.handle = completionStream();
  assert.equal((await gateway.streamed()).status, 200);
  assert.deepEqual([purser.wallet(gateway.walletId).spent, purser.wallet(gateway.walletId).held], [120_000n, 0n]);
  assert.deepEqual(purser.problems(), []);
});

test('a server that stops waits for no more than the grace of a stream without clients', async (t) => {
  const { purser, grace, gateway } = await open(t, {}, { drain_seconds: 600 });
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace }, 'k');
  const stopping = purser.reopen();
  grace.expire();
  await waitFor('the server stops', stopping);
  await assertCancelled(purser, gateway, 2);
  assert.equal((await gateway.streamed({}, 'k')).body.error.code, 'answer_lost');
});

test('a stop that cuts off the grace charges what came', async (t) => {
  const { purser, grace, gateway } = await open(t, {}, { drain_seconds: 0 });
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace }, 'k');
  await waitFor('the server stops', purser.reopen());
  grace.expire();
  const operation = await latest(purser);
  assert.deepEqual([operation?.outcome, operation?.charge_usd], ['charged', await estimateOf(purser, 2)]);
  assert.deepEqual((await purser.budget(gateway.token)).holds, []);
  assert.deepEqual(purser.problems(), []);
});

test('a wallet that is frozen and closed within the grace pays what came, and gets back the rest', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace });
  await purser.run('wallet.freeze', { id: gateway.walletId, reason: 'test' });
  const closing = purser.ask('POST', `/v1/wallets/${gateway.walletId}/close`, { token: purser.accountKey });
  await until('it closes', () => purser.wallet(gateway.walletId).status === 'closing');
  grace.expire();
  await cut.closed;
  const closed = await closing;
  assert.deepEqual([closed.status, closed.body.status], [200, 'closed'], closed.text);
  assert.equal((await latest(purser))?.settled_by, 'cancelled');
  assert.equal(closed.body.used_usd, await estimateOf(purser, 2));
  assert.deepEqual(purser.problems(), []);
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

test('a reload decides for clients that leave after it, whoever opened the stream', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const rewrite = async (change: object) => {
    const file = join(purser.directory, 'purser.yaml');
    const settings = parse(readFileSync(file, 'utf8'));
    writeFileSync(file, stringify({ ...settings, router: { ...settings.router, ...change } }));
    return (await purser.run('reload', {})).settings;
  };
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('ab'), () => end.promise, FINISHED, counted(), DONE);
  const stream = await gateway.stream({}, 'k');
  await stream.next();
  assert.deepEqual(await rewrite({ on_cancel: 'finish' }), ['router.on_cancel']);
  const isOver = nextOver(t, purser);
  stream.leave();
  await isOver();
  assert.equal(grace.count(), 0);
  end.resolve();
  await gateway.quiet();
  assert.equal((await latest(purser))?.settled_by, 'answer');

  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  const other = await gateway.stream({}, 'k2');
  await other.next();
  assert.deepEqual(await rewrite({ on_cancel: 'stop' }), ['router.on_cancel']);
  other.leave();
  await grace.set(1);
  grace.expire();
  await cut.closed;
  await assertCancelled(purser, gateway, 2);
});

test('a retry on the hold of an unknown outcome that leaves before its answer leaves the hold; after that it pays what came', async (t) => {
  const { purser, grace, gateway } = await open(t);
  purser.upstream.handle = (_, response) => response.socket?.resetAndDestroy();
  assert.equal((await gateway.streamed()).body.error.code, 'operation_uncertain');
  const { held } = purser.wallet(gateway.walletId);
  purser.upstream.handle = hang;
  const client = leaver(gateway);
  await purser.upstream.arrived(2);
  await client.leave();
  await grace.set(1);
  grace.expire();
  await gateway.quiet();
  assert.equal((await latest(purser))?.state, 'uncertain');
  assert.equal(purser.wallet(gateway.walletId).held, held);
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace });
  grace.expire();
  await cut.closed;
  await assertCancelled(purser, gateway, 2);
  assert.equal((await purser.run('operation.list', {})).operations.length, 1);
});

test('a retry that comes when its stream has been given up is a new request', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace });
  const write = purser.app.ledger.write;
  const [asked, commit] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  purser.app.ledger.write = async (it, data) => {
    if (it.name !== 'chat.settle') return write(it, data);
    asked.resolve();
    await commit.promise;
    return write(it, data);
  };
  grace.expire();
  await asked.promise;
  purser.upstream.handle = completionStream();
  const retry = gateway.streamed();
  await purser.upstream.arrived(2);
  commit.resolve();
  assert.equal((await retry).status, 200);
  purser.app.ledger.write = write;
  await gateway.quiet();
  const all = (await purser.run('operation.list', {})).operations;
  assert.deepEqual(
    all.map((it) => it.settled_by),
    ['answer', 'cancelled'],
  );
  assert.deepEqual(purser.problems(), []);
});
