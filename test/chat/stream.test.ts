import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completionStream, counted, DONE, event, FINISHED, forever, said, streaming } from '../helper/sse.ts';
import { completion, gate } from '../helper/upstream.ts';
import { pause, waitFor } from '../helper/waiting.ts';

const operations = async (purser: TestServer) => (await purser.run('operation.list', {})).operations;

test('a stream is passed on as it came, its usage chunk apart, and charged to the nano-dollar', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const chunks = [said('hel'), ': a comment\n\n', said('lo'), FINISHED];
  purser.upstream.handle = streaming(...chunks, counted({ prompt_tokens: 11, completion_tokens: 7 }), DONE);
  const answer = await gateway.streamed();
  assert.equal(answer.status, 200);
  assert.equal(answer.headers['content-type'], 'text/event-stream; charset=utf-8');
  assert.equal(answer.headers['cache-control'], 'no-store');
  assert.match(String(answer.headers['x-request-id']), /^req_/);
  assert.equal(answer.text, [...chunks, DONE].join(''));
  const budget = await purser.budget(gateway.token);
  assert.deepEqual([budget.used_usd, budget.held_usd], ['0.000125', '0.00']); // 11 × 0.000001 + 7 × 0.000002 + 0.0001
  assert.deepEqual(purser.problems(), []);
});

test('the upstream is always told to stream with its usage; whoever asked for the usage gets it, before the end', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completionStream();
  const asked = await gateway.streamed({ stream_options: { include_usage: true } });
  assert(asked.text.endsWith(`${FINISHED}${counted()}${DONE}`), asked.text);
  for (const options of [undefined, null, {}, { include_usage: false }, { include_usage: null }]) {
    const plain = await gateway.streamed(options === undefined ? {} : { stream_options: options });
    assert(plain.text.endsWith(`${FINISHED}${DONE}`), plain.text);
  }
  for (const { body, headers } of purser.upstream.calls) {
    assert.deepEqual([body.stream, body.stream_options], [true, { include_usage: true }]);
    assert.equal(headers.accept, 'text/event-stream');
  }
});

test('whether the model server pads its chunks is passed on as the caller says', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completionStream();
  for (const include_obfuscation of [true, false, null]) {
    const { text } = await gateway.streamed({ stream_options: { include_obfuscation } });
    assert(text.endsWith(`${FINISHED}${DONE}`), text);
  }
  assert.deepEqual(
    purser.upstream.calls.map(({ body }) => body.stream_options),
    [
      { include_usage: true, include_obfuscation: true },
      { include_usage: true, include_obfuscation: false },
      { include_usage: true },
    ],
  );
});

test('what is no stream option is refused, and without a stream there are none', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  for (const [body, code] of [
    [{ stream: true, stream_options: { include_usage: 'yes' } }, 'invalid_request'],
    [{ stream: true, stream_options: { include_obfuscation: 1 } }, 'invalid_request'],
    [{ stream: true, stream_options: { include_everything: true } }, 'invalid_request'],
    [{ stream: true, stream_options: true }, 'invalid_request'],
    [{ stream: 'true' }, 'invalid_request'],
    [{ stream_options: { include_usage: true } }, 'unsupported_parameter'],
    [{ stream: false, stream_options: {} }, 'unsupported_parameter'],
  ] as const) {
    const answer = await gateway.chat(body);
    assert.deepEqual([answer.status, answer.body.error.code], [400, code], JSON.stringify(body));
  }
  assert.deepEqual(purser.upstream.calls, []);
});

test('the hold stands before the upstream is asked, and no byte goes to the client before the first event', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const [silence, end] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  purser.upstream.handle = streaming(
    ': thinking\n\n',
    () => silence.promise,
    said('a'),
    () => end.promise,
    FINISHED,
    counted(),
    DONE,
  );
  let hasHead = false;
  const opening = gateway.stream().finally(() => {
    hasHead = true;
  });
  await purser.upstream.arrived(1);
  const { holds, held_usd: held } = await purser.budget(gateway.token);
  assert.deepEqual([holds.length, holds[0].state, holds[0].amount_usd], [1, 'reserved', held]);
  assert.notEqual(held, '0.00');
  assert.equal(hasHead, false);
  silence.resolve();
  const stream = await opening;
  assert.equal(`${await stream.next()}\n\n`, said('a'));
  assert.equal((await purser.budget(gateway.token)).held_usd, held, 'while it streams');
  end.resolve();
  await stream.rest();
  assert.equal((await purser.budget(gateway.token)).held_usd, '0.00');
});

test('the end is told when the charge is on disk, and not before', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('a'), () => end.promise, FINISHED, counted(), DONE);
  const stream = await gateway.stream({ stream_options: { include_usage: true } });
  await stream.next();
  // A commit takes as long as it takes.
  const write = purser.app.ledger.write;
  const [asked, commit] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  purser.app.ledger.write = async (it, data) => {
    asked.resolve();
    await commit.promise;
    return write(it, data);
  };
  end.resolve();
  await asked.promise;
  assert.equal(`${await stream.next()}\n\n`, FINISHED);
  const told: string[] = [];
  const reading = (async () => {
    for (let it = await stream.next(); it; it = await stream.next()) told.push(`${it}\n\n`);
  })();
  await pause(100);
  assert.deepEqual(told, [], 'neither the usage nor the end');
  assert.equal(purser.wallet(gateway.walletId).spent, 0n);
  commit.resolve();
  await reading;
  assert.deepEqual(told, [counted(), DONE]);
  assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
});

test('a stream that ends before it is stopped is read to its end though its client has gone, and charged once', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const gone = Promise.withResolvers<void>();
  let isRead = false;
  const more = Array.from({ length: 50 }, () => said('x'.repeat(50_000)));
  purser.upstream.handle = streaming(
    said('a'),
    () => gone.promise,
    ...more,
    FINISHED,
    counted(),
    DONE,
    () => {
      isRead = true;
    },
  );
  const stream = await gateway.stream({}, 'k');
  await stream.next();
  stream.leave();
  gone.resolve();
  await gateway.quiet();
  assert(isRead);
  assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
  const [operation, ...others] = await operations(purser);
  assert.deepEqual([operation?.state, operation?.outcome, others], ['settled', 'charged', []]);
  const replayed = await gateway.streamed({}, 'k');
  assert.equal(replayed.headers['idempotent-replayed'], 'true');
  assert.equal(replayed.text, [said('a'), ...more, FINISHED, DONE].join(''));
  assert.equal(purser.upstream.calls.length, 1);
  assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
});

test('a client that leaves before the first event is charged if it comes in time, and nothing breaks', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const held = gate(completionStream());
  purser.upstream.handle = held.handler;
  const controller = new AbortController();
  const gone = fetch(`${purser.url}/v1/router/chat/completions`, {
    method: 'POST',
    signal: controller.signal,
    headers: { authorization: `Bearer ${gateway.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'chat', messages: [{ role: 'user', content: 'hi' }], stream: true }),
  });
  await purser.upstream.arrived(1);
  controller.abort();
  await assert.rejects(gone);
  held.open();
  await gateway.quiet();
  assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
  assert.deepEqual(
    purser.log.filter((line) => JSON.parse(line).level >= 50),
    [],
  );
});

test('an upstream that answers a stream in one piece has its stream made here', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const calls = [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }];
  const message = { role: 'assistant', content: null, tool_calls: calls };
  const usage = { prompt_tokens: 10, completion_tokens: 5 };
  purser.upstream.handle = (_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(
      JSON.stringify({
        id: 'chatcmpl-1',
        object: 'chat.completion',
        created: 1,
        model: 'm',
        choices: [
          { index: 0, message, finish_reason: 'tool_calls' },
          { index: 1, message: { role: 'assistant', content: 'hello' }, finish_reason: 'length' },
        ],
        usage,
      }),
    );
  };
  const { text } = await gateway.streamed({ stream_options: { include_usage: true } });
  const data = text.split('\n\n').filter(Boolean);
  assert.equal(data.pop(), 'data: [DONE]');
  const chunks = data.map((it) => JSON.parse(it.slice('data: '.length)));
  assert(chunks.every((it) => it.object === 'chat.completion.chunk' && it.id === 'chatcmpl-1' && it.model === 'm'));
  assert.deepEqual(
    chunks.map((it) => it.choices),
    [
      [{ index: 0, delta: { ...message, tool_calls: [{ index: 0, ...calls[0] }] }, finish_reason: null }],
      [{ index: 0, delta: {}, finish_reason: 'tool_calls' }],
      [{ index: 1, delta: { role: 'assistant', content: 'hello' }, finish_reason: null }],
      [{ index: 1, delta: {}, finish_reason: 'length' }],
      [],
    ],
  );
  assert.deepEqual(chunks.at(-1).usage, usage);
  assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
});

test('a server that stops tells the streams that still run, and charges what they delivered', async (t) => {
  const purser = await openTestServer(t, { settings: { drain_seconds: 0 } });
  const gateway = await openGateway(purser);
  purser.upstream.handle = streaming(said('a'), forever);
  const [stream, keyless] = [await gateway.stream({}, 'k'), await gateway.stream()];
  for (const it of [stream, keyless]) await it.next();
  const [rest, restOfKeyless] = [stream.rest(), keyless.rest()];
  await purser.reopen();
  const { error } = JSON.parse((await rest).trim().slice('data: '.length));
  assert.equal(error.code, 'operation_uncertain');
  assert.match(await restOfKeyless, /What came of it is charged; asked again, it is a new request/);
  assert.deepEqual((await purser.budget(gateway.token)).holds, []);
  const [operation] = (await purser.run('operation.list', {})).operations;
  assert.deepEqual([operation?.outcome, operation?.usage?.completion_tokens], ['charged', 1]);
  assert.equal((await gateway.streamed({}, 'k')).body.error.code, 'answer_lost');
});

test('a server that stops does not wait for a client that has stopped reading', async (t) => {
  const purser = await openTestServer(t, { settings: { drain_seconds: 0 }, stallMilliseconds: 2 ** 31 - 1 });
  const gateway = await openGateway(purser);
  purser.upstream.handle = streaming(...Array.from({ length: 30 }, () => said('x'.repeat(1_000_000))), forever);
  const stream = await gateway.stream();
  await pause(200); // Until all is full on the way to it.
  await waitFor('the server stops: a client may stop reading for ever here', purser.reopen());
  assert.deepEqual((await purser.budget(gateway.token)).holds, []);
  stream.leave();
});

test('a server that stops before the first event has come answers with a refusal', async (t) => {
  const purser = await openTestServer(t, { settings: { drain_seconds: 0 } });
  const gateway = await openGateway(purser);
  purser.upstream.handle = streaming(': thinking\n\n', forever);
  const asked = gateway.streamed({}, 'k');
  await purser.upstream.arrived(1);
  await purser.reopen();
  const answer = await asked;
  assert.deepEqual([answer.status, answer.body.error.code], [503, 'operation_uncertain']);
  assert.equal(answer.headers['x-should-retry'], 'false');
});

test('a charge that cannot be written is no end; the stream is settled when there is space again', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const gateway = await openGateway(purser);
  const end = Promise.withResolvers<void>();
  // What cannot be packed is what fills a disk.
  const long = said(randomBytes(300_000).toString('base64'));
  purser.upstream.handle = streaming(said('a'), () => end.promise, long, FINISHED, counted(), DONE);
  const stream = await gateway.stream({}, 'k');
  await stream.next();
  const { client } = purser.app.ledger;
  client.pragma(`max_page_count = ${client.pragma('page_count', { simple: true })}`);
  end.resolve();
  const text = await stream.rest();
  assert.match(text, /"code":"operation_uncertain"/);
  assert(!text.includes('[DONE]'));
  assert.equal(purser.wallet(gateway.walletId).spent, 0n);
  client.pragma('max_page_count = 1073741823');
  await gateway.quiet();
  assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
  assert((await gateway.streamed({}, 'k')).text.endsWith(`${FINISHED}${DONE}`), 'and it can be replayed');
  assert.deepEqual(purser.problems(), []);
});

test('a wallet that expires while it streams pays for its stream, and is closed afterwards', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { wallet: { expires_in_seconds: 60 } });
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('a'), () => end.promise, FINISHED, counted(), DONE);
  const stream = await gateway.stream();
  purser.clock.advance(60);
  assert.equal((await gateway.chat()).body.error.code, 'wallet_expired');
  await purser.app.reaper.runOnce();
  assert.equal(purser.wallet(gateway.walletId).status, 'expired');
  end.resolve();
  assert((await stream.rest()).endsWith(DONE));
  await gateway.quiet();
  await purser.app.reaper.runOnce();
  const wallet = purser.wallet(gateway.walletId);
  assert.deepEqual([wallet.status, wallet.spent, wallet.held], ['closed', 120_000n, 0n]);
});

test('a plain request beside it is not stored as a stream, and a stream not as a plain answer', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = (call, response) =>
    call.body.stream ? completionStream()(call, response) : completion()(call, response);
  const plain = await gateway.chat({}, 'plain');
  assert.equal(plain.body.object, 'chat.completion');
  assert.equal((await gateway.chat({}, 'plain')).text, plain.text);
  assert.equal((await gateway.streamed({}, 'plain')).body.error.code, 'idempotency_conflict');
  const streamed = await gateway.streamed({}, 'streamed');
  assert.equal((await gateway.streamed({}, 'streamed')).text, streamed.text);
  assert.equal((await gateway.chat({}, 'streamed')).body.error.code, 'idempotency_conflict');
  // The strict endpoint has keys of its own, though the wallet is the same.
  assert.equal((await purser.chat(gateway.token, {}, 'plain')).headers['idempotent-replayed'], undefined);
});

test('events after the end are not passed on, and a stream that goes on after it is let go', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = streaming(said('a'), counted(), DONE, event({ late: true }), forever);
  const { text } = await gateway.streamed();
  assert.equal(text, said('a') + DONE);
  assert.equal(purser.wallet(gateway.walletId).held, 0n);
});

const CUTS: [how: string, cut: (bytes: Buffer) => Buffer[]][] = [
  ['in one piece', (bytes) => [bytes]],
  ['in pieces of one byte', (bytes) => Array.from(bytes, (it) => Buffer.of(it))],
  ['in pieces that end inside an event', (bytes) => [bytes.subarray(0, 400), bytes.subarray(400)]],
  [
    'with the usage beside the last word',
    (bytes) => [bytes.subarray(0, 100), bytes.subarray(100, -20), bytes.subarray(-20)],
  ],
];

test('however a stream is cut, with LF or CRLF, the client gets the same and pays the same', async (t) => {
  const purser = await openTestServer(t);
  for (const [how, cut] of CUTS)
    for (const lineEnd of ['\n', '\r\n']) {
      const write = (text: string) => text.replaceAll('\n', lineEnd);
      const said3 = [said('hel'), said('lo'), said(' höß 💶'), FINISHED].map(write);
      const gateway = await openGateway(purser);
      const pieces = cut(Buffer.from([...said3, write(counted()), write(DONE)].join('')));
      purser.upstream.handle = streaming(...pieces.flatMap((it) => [it, () => new Promise(setImmediate)]));
      const { text } = await gateway.streamed({ stream_options: { include_usage: true } });
      assert.equal(text, [...said3, write(counted()), DONE].join(''), `${how}, ${JSON.stringify(lineEnd)}`);
      assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
    }
});

test('an event of almost 8 MiB is passed on, between others, and the text in it is counted', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100_000 } });
  const large = said('x'.repeat(8 * 1024 * 1024 - 500));
  purser.upstream.handle = streaming(said('a'), large, said('b'), FINISHED, counted(), DONE);
  const { text } = await gateway.streamed();
  assert.equal(text, [said('a'), large, said('b'), FINISHED, DONE].join(''));
  assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
});
