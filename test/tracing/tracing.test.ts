import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { VERSION } from '../../src/files/version.ts';
import { WAITING_COUNT_MAX } from '../../src/telemetry/spans/exporter.ts';
import { openGateway } from '../helper/gateway.ts';
import { openReceiver, status } from '../helper/receiver.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { failure, reset } from '../helper/upstream.ts';
import { LONG, openMemoryServer, PRICE } from '../lease/leases.ts';
import { snapshotting } from '../lease/snapshot-shared.ts';
import { decode, spansOf, spansUntil } from './otlp.ts';

// Spans of operations and leases, as a collector gets them (docs/decisions/0050).

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const PARENT = 'b7ad6b7169203331';
const PROMPT = 'the-prompt-canary';
const ANSWER = 'the-answer-canary';
const HEADER = 'collector-header-canary-0123456789';

async function openTraced(t: Parameters<typeof openTestServer>[0], more: Record<string, unknown> = {}) {
  const collector = await openReceiver(t);
  const purser = await openTestServer(t, {
    settings: { opentelemetry: { endpoint: `${collector.url}/otlp/`, ...more } },
  });
  const { id, token } = await purser.openWallet();
  return { collector, purser, walletId: id, token };
}

const metric = async (purser: TestServer, line: string) => {
  const text = await purser.app.events.registry.getSingleMetricAsString(`purser_${line.split('{')[0]}`);
  return Number(
    text
      .split('\n')
      .find((it) => it.startsWith(`purser_${line} `))
      ?.split(' ')
      .at(-1) ?? Number.NaN,
  );
};
const logged = (purser: TestServer, event: string) =>
  purser.log.filter((line) => line.includes(`"event":"${event}"`)).length;

/** Between two looks at something that is waited for. */
const pause = () => new Promise((resolve) => setTimeout(resolve, 10));

test('a chat is one span: the conventions’ attributes, its cost, and the place in its caller’s trace', async (t) => {
  const headers = { authorization: `Bearer ${HEADER}` };
  const { collector, purser, walletId, token } = await openTraced(t, { headers, service_name: 'house' });
  const answer = await purser.ask('POST', '/v1/chat/completions', {
    token,
    key: 'k',
    headers: { traceparent: `00-${TRACE}-${PARENT}-00`, 'x-purser-tag-session': 'session-1' },
    body: { model: 'chat', messages: [{ role: 'user', content: PROMPT }], max_tokens: 100 },
  });
  assert.equal(answer.status, 200);
  const [span] = await spansUntil(collector, 1);
  assert(span);
  const [got] = collector.got;
  assert(got);
  assert.deepEqual(
    [got.path, got.headers['content-type'], got.headers.authorization],
    ['/otlp/v1/traces', 'application/json', `Bearer ${HEADER}`],
  );
  assert.deepEqual(decode(got.text).resource, {
    'service.name': 'house',
    'service.version': VERSION,
    'service.instance.id': purser.app.installationId,
  });
  const { operations } = await purser.run('operation.list', {});
  const { attributes, startTimeUnixNano: start, endTimeUnixNano: end, spanId, ...rest } = span;
  assert.match(spanId, /^[0-9a-f]{16}$/);
  assert(BigInt(start) <= BigInt(end) && BigInt(start) / 1_000_000n === BigInt(Math.floor(purser.clock.wall())));
  assert.deepEqual(rest, { traceId: TRACE, parentSpanId: PARENT, name: 'chat chat', kind: 3 });
  assert.deepEqual(attributes, {
    'gen_ai.operation.name': 'chat',
    'gen_ai.provider.name': 'local',
    'gen_ai.request.model': 'chat',
    'gen_ai.response.model': 'real/chat',
    'gen_ai.request.stream': false,
    'gen_ai.conversation.id': 'session-1',
    'gen_ai.usage.input_tokens': 10,
    'gen_ai.usage.output_tokens': 5,
    'gen_ai.usage.cost': 0.00012,
    'purser.operation.id': operations[0]?.id,
    'purser.operation.kind': 'chat',
    'purser.request.id': answer.headers['x-request-id'],
    'purser.wallet.id': walletId,
    'purser.account.id': purser.accountId,
    'purser.outcome': 'charged',
    'purser.settled_by': 'answer',
    'purser.cost_usd': 0.00012,
    'purser.hold_usd': Number(operations[0]?.hold_usd),
  });
  await purser.close();
  assert.equal(spansOf(collector).length, 1);
  assert(!purser.log.join('\n').includes(HEADER));
});

test('streams, refusals and replays: each operation is one span, and nothing of a prompt or an answer is in any', async (t) => {
  const { collector, purser } = await openTraced(t);
  const gateway = await openGateway(purser);
  const messages = [{ role: 'user', content: PROMPT }];
  const metadata = { note: `${PROMPT} in a tag` };
  purser.upstream.handle = streaming(said(ANSWER), FINISHED, counted(), DONE);
  await gateway.streamed({ messages, metadata }, 'streamed');
  await gateway.streamed({ messages, metadata }, 'streamed'); // A replay is no operation.
  purser.upstream.handle = streaming(said(ANSWER));
  await gateway.streamed({ messages }).catch(() => {});
  await gateway.quiet();
  purser.upstream.handle = failure(400, { error: { message: `bad ${PROMPT}` } });
  assert.equal((await gateway.chat({ messages })).status, 400);
  assert.equal((await gateway.chat({ messages, model: 'nobody' })).status, 404); // Nothing was held.

  const spans = await spansUntil(collector, 3);
  await purser.close();
  assert.equal(spansOf(collector).length, 3);
  assert.deepEqual(
    spans.map(({ name, status: ended, attributes: it }) => [
      name,
      it['purser.outcome'],
      it['error.type'],
      ended,
      it['gen_ai.request.stream'],
    ]),
    [
      ['chat chat', 'charged', undefined, undefined, true],
      ['chat chat', 'charged', 'answer_lost', { code: 2, message: 'answer_lost' }, true],
      ['chat chat', 'released', 'invalid_request', { code: 2, message: 'invalid_request' }, false],
    ],
  );
  assert.equal(typeof spans[0]?.attributes['gen_ai.response.time_to_first_chunk'], 'number');
  assert.equal(spans[1]?.attributes['purser.usage.estimated'], true);
  assert.equal(new Set(spans.map(({ traceId }) => traceId)).size, 3);
  const all = collector.got.map(({ text }) => text).join('\n');
  for (const secret of [PROMPT, ANSWER, gateway.token, gateway.key]) assert(!all.includes(secret), secret);
});

test('an uncertain operation is one span, once its outcome is decided, over a restart too', async (t) => {
  const { collector, purser, token } = await openTraced(t);
  purser.upstream.handle = reset;
  await purser.chat(token, { model: 'flat' });
  await purser.chat(token, { model: 'flat' });
  const { operations } = await purser.run('operation.list', {});
  const [second, first] = operations.map(({ id }) => id) as [string, string];
  purser.clock.advance(60);
  await purser.run('operation.resolve', { id: first, decision: 'charge', reason: 'it was done' });
  const [one] = await spansUntil(collector, 1);
  assert.deepEqual(
    ['purser.operation.id', 'purser.outcome', 'purser.settled_by', 'purser.cost_usd', 'error.type'].map(
      (name) => one?.attributes[name],
    ),
    [first, 'charged', 'operator', 0.01, 'operation_uncertain'],
  );
  assert.equal(one?.startTimeUnixNano, one?.endTimeUnixNano); // The call has ended when it had, not when it was decided.

  await purser.reopen();
  purser.clock.advance(900);
  await purser.app.reaper.runOnce();
  const [, two] = await spansUntil(collector, 2);
  assert.deepEqual(
    ['purser.operation.id', 'purser.outcome', 'purser.settled_by'].map((name) => two?.attributes[name]),
    [second, 'charged', 'policy'],
  );
});

test('a lease is a span below that of its operation', async (t) => {
  const collector = await openReceiver(t);
  const purser = await openMemoryServer(t, { settings: { opentelemetry: { endpoint: collector.url } } });
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  purser.clock.advance(90);
  await purser.stop(token, id);
  const [create, lease] = await spansUntil(collector, 2);
  assert(create && lease);
  assert.deepEqual([create.name, create.attributes['purser.cost_usd']], ['compute_create provider_one', Number(PRICE)]);
  assert.deepEqual(
    [lease.name, lease.kind, lease.traceId, lease.parentSpanId],
    ['lease provider_one', 1, create.traceId, create.spanId],
  );
  assert.deepEqual(
    ['purser.resource.id', 'purser.backend', 'purser.lease.end_reason', 'purser.lease.charged_usd'].map(
      (name) => lease.attributes[name],
    ),
    [id, 'container', 'requested', Number(PRICE)],
  );
  const seconds = (BigInt(lease.endTimeUnixNano) - BigInt(lease.startTimeUnixNano)) / 1_000_000_000n;
  assert(seconds === 90n || seconds === 91n, String(seconds));
  assert.equal(lease.attributes['purser.cost_usd'], undefined, 'the sum of all costs is what was charged');
});

test('what a lease or a snapshot held that the operator gives up ends as any operation does: by him', async (t) => {
  const collector = await openReceiver(t);
  const purser = snapshotting(
    await openMemoryServer(t, { settings: { opentelemetry: { endpoint: collector.url }, close_wait_seconds: 1 } }),
  );
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const cut = () => {
    throw new Error('the connection was reset');
  };
  purser.memory.after['snapshots.take'] = cut;
  purser.memory.after.create = cut;
  await purser.snapshot(token, id);
  await purser.lease(token);
  const uncertain = (await purser.run('operation.list', { uncertain: true })).operations;
  assert.deepEqual(uncertain.map(({ kind }) => kind).sort(), ['compute_create', 'snapshot']);
  const [{ snapshot_id: snapshot }] = await purser.snapshots(token);
  const [newest] = (await purser.run('resource.list', {})).resources;
  for (const given of [snapshot, newest?.id as string])
    await purser.run('resource.abandon', { id: given, reason: 'that box burned down' });
  for (const it of uncertain) {
    assert.equal(await metric(purser, `operations_total{kind="${it.kind}",outcome="released"}`), 1);
    const lines = purser.log.filter((line) => line.includes('"event":"operation.released"') && line.includes(it.id));
    assert.equal(lines.length, 1);
  }
  const isOf = (it: { id: string }, { name, attributes }: ReturnType<typeof spansOf>[0]) =>
    !name.startsWith('lease') && attributes['purser.operation.id'] === it.id;
  await collector.until(() => uncertain.every((it) => spansOf(collector).some((span) => isOf(it, span))));
  for (const it of uncertain) {
    const { attributes = {} } = spansOf(collector).find((span) => isOf(it, span)) ?? {};
    assert.deepEqual([attributes['purser.outcome'], attributes['purser.settled_by']], ['released', 'operator']);
  }
});

test('an invalid traceparent is ignored, and the operation is in a trace of its own', async (t) => {
  const { collector, purser, token } = await openTraced(t);
  const bad = ['x', `00-${'0'.repeat(32)}-${PARENT}-01`, `00-${TRACE}-${PARENT}-01-more`, `ff-${TRACE}-${PARENT}-01`];
  for (const traceparent of bad)
    await purser.ask('POST', '/v1/chat/completions', {
      token,
      key: randomUUID(),
      headers: { traceparent },
      body: { model: 'chat', messages: [{ role: 'user', content: 'hi' }] },
    });
  for (const span of await spansUntil(collector, bad.length)) {
    assert.notEqual(span.traceId, TRACE);
    assert.equal(span.parentSpanId, undefined);
  }
});

test('a collector that is down or hangs delays nothing; what is too much is dropped and counted', async (t) => {
  const { collector, purser, token } = await openTraced(t, { timeout_seconds: 5 });
  const back = await collector.leave();
  assert.equal((await purser.chat(token)).status, 200);
  while (logged(purser, 'collector.failing') < 1) await pause();
  const { settled } = purser.app.events;
  const outcome = { kind: 'done', charge: 0n, usage: null, answer: null } as const;
  const row = purser.app.ledger.client.prepare('select id, wallet_id, request_id from operation').get() as any;
  const operation = { id: row.id, walletId: row.wallet_id, requestId: row.request_id, kind: 'chat', hold: 0n } as never;
  const of = {
    ...(operation as object),
    route: 'chat/completions',
    subject: 'chat',
    tags: null,
    createdAt: 1,
    uncertainAt: null,
  };
  for (let i = 0; i < WAITING_COUNT_MAX + 9; i++) settled(of as never, outcome as never, true);
  assert.equal(await metric(purser, 'spans_waiting'), WAITING_COUNT_MAX);
  assert.equal(await metric(purser, 'spans_dropped_total{reason="full"}'), 10);
  assert.equal((await purser.chat(token)).status, 200);

  collector.reply = () => {}; // It hangs.
  await back();
  assert.equal((await purser.chat(token)).status, 200);
  assert.equal(logged(purser, 'collector.failing'), 1, 'told once');
  collector.reply = status(200);
  await spansUntil(collector, WAITING_COUNT_MAX);
  while (logged(purser, 'collector.back') < 1) await pause();
  while ((await metric(purser, 'spans_sent_total')) < WAITING_COUNT_MAX) await pause();
  assert.equal(await metric(purser, 'spans_waiting'), 0);
  assert.deepEqual(purser.problems(), []);
});

test('a stop sends what waits, and does not wait for a collector that hangs', async (t) => {
  const { collector, purser, token } = await openTraced(t, { timeout_seconds: 60 });
  await purser.chat(token);
  await purser.close();
  assert.equal(spansOf(collector).length, 1);

  const slow = await openTraced(t, { timeout_seconds: 60 });
  slow.collector.reply = () => {};
  await slow.purser.chat(slow.token);
  await slow.purser.close();
  assert.equal(await metric(slow.purser, 'spans_dropped_total{reason="stopped"}'), 1);
});

test('a request that the collector refuses is not sent again; one that it may take later is', async (t) => {
  const { collector, purser, token } = await openTraced(t);
  collector.reply = status(400);
  await purser.chat(token);
  while ((await metric(purser, 'spans_dropped_total{reason="refused"}')) !== 1) await pause();
  assert.equal(collector.got.length, 1);
  collector.reply = status(503, { 'retry-after': '1' });
  await purser.chat(token);
  await collector.until(() => collector.got.length === 2 && collector.got[1]?.status === 503);
  collector.reply = (_, response) =>
    response.writeHead(200).end(JSON.stringify({ partialSuccess: { rejectedSpans: '1', errorMessage: 'no' } }));
  await collector.until(() => collector.got.length === 3 && collector.got[2]?.status === 200);
  while ((await metric(purser, 'spans_dropped_total{reason="refused"}')) !== 2) await pause();
  assert.equal(collector.got[1]?.text, collector.got[2]?.text);
  assert.deepEqual([logged(purser, 'collector.failing'), logged(purser, 'collector.back')], [1, 1]);
});

test('without the setting there are no spans', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  await purser.chat(token);
  const text = await purser.app.events.registry.metrics();
  assert.match(text, /^purser_spans_sent_total 0$/m);
  assert(!text.includes('purser_spans_waiting'));
});
