import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test from 'node:test';
import { createTranscript, readTranscript } from '../../src/router/transcript.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completionStream, counted, DONE, FINISHED, forever, said, streaming } from '../helper/sse.ts';

const KIBIBYTE = 1024;
/** Text that cannot be packed to less than three quarters of it. */
const noise = (bytes: number) => randomBytes(Math.ceil((bytes * 3) / 4)).toString('base64');
const stored = (house: TestServer) =>
  house.app.ledger.client.prepare('select count(*) as count, sum(length(body)) as bytes from answer').get() as {
    count: bigint;
    bytes: bigint | null;
  };

test('a stream of several segments is replayed byte for byte, marked, and without another call', async (t) => {
  const house = await openTestServer(t);
  const gateway = await openGateway(house);
  const pieces = [
    ...Array.from({ length: 40 }, () => said(noise(20 * KIBIBYTE))), // Twelve segments of 64 KiB and a half.
    ': a comment\n\n',
    ...Array.from({ length: 2000 }, () => said('again and again ')),
    said('ümläut 漢字 🎈'),
    FINISHED,
  ];
  house.upstream.handle = streaming(...pieces, counted(), DONE);
  const first = await gateway.streamed({}, 'k');
  assert.equal(first.text, [...pieces, DONE].join(''));
  const again = await gateway.streamed({}, 'k');
  assert.equal(again.text, first.text);
  assert.equal(again.headers['content-type'], first.headers['content-type']);
  assert.deepEqual([first.headers['idempotent-replayed'], again.headers['idempotent-replayed']], [undefined, 'true']);
  await house.reopen();
  assert.equal((await gateway.streamed({}, 'k')).text, first.text, 'after a restart too');
  assert.equal(house.upstream.calls.length, 1);
  assert.equal(house.wallet(gateway.walletId).spent, 120_000n);
  assert(Number(stored(house).bytes) < first.text.length, 'and it is packed');
});

test('with the usage asked for it is in the replay, and other options are another body', async (t) => {
  const house = await openTestServer(t);
  const gateway = await openGateway(house);
  house.upstream.handle = completionStream();
  const body = { stream_options: { include_usage: true } };
  const first = await gateway.streamed(body, 'k');
  assert(first.text.endsWith(counted() + DONE));
  assert.equal((await gateway.streamed(body, 'k')).text, first.text);
  assert.equal((await gateway.streamed({}, 'k')).body.error.code, 'idempotency_conflict');
});

test('only what can be asked for again is kept: a stream and an answer without a key are not', async (t) => {
  const house = await openTestServer(t);
  const gateway = await openGateway(house);
  house.upstream.handle = completionStream();
  await gateway.streamed();
  assert.equal(stored(house).count, 0n);
  await gateway.streamed({}, 'k');
  assert.equal(stored(house).count, 1n);
  house.upstream.handle = (_, response) => response.end(JSON.stringify({ choices: [], usage: {} }));
  await gateway.chat();
  assert.equal(stored(house).count, 1n);
  await gateway.chat({}, 'plain');
  assert.equal(stored(house).count, 2n);
  house.clock.advance(72 * 3600);
  await house.app.reaper.runOnce();
  assert.equal(stored(house).count, 0n, 'and after 72 hours nothing is left');
  const late = await gateway.streamed({}, 'k');
  assert.deepEqual([late.status, late.body.error.code], [409, 'idempotency_key_expired']);
});

test('the key that is made up for a request answers nobody else who sends it', async (t) => {
  const house = await openTestServer(t);
  const gateway = await openGateway(house);
  house.upstream.handle = completionStream();
  const { headers } = await gateway.streamed();
  const asked = await gateway.streamed({}, String(headers['x-request-id']));
  assert.equal(asked.body.error.code, 'idempotency_key_expired');
  assert.equal(house.upstream.calls.length, 1);
});

test('while it streams, the same key waits and gets the whole of it; another body does not', async (t) => {
  const house = await openTestServer(t);
  const gateway = await openGateway(house);
  const end = Promise.withResolvers<void>();
  house.upstream.handle = streaming(said('a'), () => end.promise, said('b'), FINISHED, counted(), DONE);
  const first = await gateway.stream({}, 'k');
  await first.next();
  const joined = Array.from({ length: 5 }, () => gateway.streamed({}, 'k'));
  assert.equal((await gateway.streamed({ max_tokens: 1 }, 'k')).body.error.code, 'idempotency_conflict');
  first.leave(); // The first one's going away is nothing to those who have joined.
  end.resolve();
  for (const answer of await Promise.all(joined)) {
    assert.equal(answer.text, [said('a'), said('b'), FINISHED, DONE].join(''));
    assert.equal(answer.headers['idempotent-replayed'], 'true');
  }
  assert.equal(house.upstream.calls.length, 1);
});

test('who joins a stream that breaks is told the same, as an ordinary refusal', async (t) => {
  const house = await openTestServer(t);
  const gateway = await openGateway(house);
  const end = Promise.withResolvers<void>();
  house.upstream.handle = streaming(
    said('a'),
    () => end.promise,
    (response) => response.socket?.destroy(),
  );
  const first = await gateway.stream({}, 'k');
  await first.next();
  const joined = gateway.streamed({}, 'k');
  await house.budget(gateway.token); // By now it has joined, or asks of what is known.
  end.resolve();
  const answer = await joined;
  assert.deepEqual([answer.status, answer.body.error.code], [409, 'answer_lost']);
  assert.match(await first.rest(), /answer_lost/);
});

test('a replay to a client that leaves, or does not read, harms nobody', async (t) => {
  const house = await openTestServer(t, { stallMilliseconds: 300 });
  const gateway = await openGateway(house);
  const pieces = Array.from({ length: 100 }, () => said('x'.repeat(200_000)));
  house.upstream.handle = streaming(...pieces, counted(), DONE);
  const whole = await gateway.streamed({}, 'k');
  const left = await gateway.stream({}, 'k');
  await left.next();
  left.leave();
  const idle = await gateway.stream({}, 'k');
  assert.equal((await gateway.streamed({}, 'k')).text, whole.text);
  await assert.rejects(
    (async () => {
      await new Promise((resolve) => setTimeout(resolve, 1000)); // Longer than a client may take nothing.
      await idle.rest();
    })(),
  );
  assert.deepEqual(
    house.log.filter((line) => JSON.parse(line).level >= 50),
    [],
  );
});

test('a stream that is too long to be kept is streamed and charged, and says so when it is asked for again', async (t) => {
  const house = await openTestServer(t);
  const gateway = await openGateway(house);
  const pieces = Array.from({ length: 12 }, () => said(noise(1024 * KIBIBYTE)));
  house.upstream.handle = streaming(...pieces, counted(), DONE);
  const first = await gateway.streamed({}, 'k');
  assert(first.text.endsWith(DONE) && first.text.length > 12e6);
  assert.equal(stored(house).count, 0n);
  const again = await gateway.streamed({}, 'k');
  assert.deepEqual([again.status, again.body.error.code], [409, 'idempotency_key_expired']);
  assert.equal(house.wallet(gateway.walletId).spent, 120_000n);
});

test('a stream that is joined when the server stops is answered to both', async (t) => {
  const house = await openTestServer(t, { settings: { drain_seconds: 0 } });
  const gateway = await openGateway(house);
  house.upstream.handle = streaming(said('a'), forever);
  const first = await gateway.stream({}, 'k');
  await first.next();
  const joined = gateway.streamed({}, 'k');
  await house.budget(gateway.token);
  const rest = first.rest();
  await house.reopen();
  assert.equal((await joined).body.error.code, 'operation_uncertain');
  assert.match(await rest, /operation_uncertain/);
});

test('a transcript comes out as it went in, whatever its pieces, and holds little of it meanwhile', async () => {
  for (const pieces of [
    [],
    [''],
    ['a'],
    Array.from({ length: 5000 }, (_, i) => `data: ${i}\n\n`),
    Array.from({ length: 20 }, () => noise(100 * KIBIBYTE)),
    ['x'.repeat(64 * KIBIBYTE), 'y'.repeat(64 * KIBIBYTE - 1), 'z'],
  ]) {
    const transcript = createTranscript();
    for (const it of pieces) transcript.push(Buffer.from(it));
    const packed = transcript.finish() as Buffer;
    let text = '';
    if (packed.length) for await (const it of readTranscript(packed)) text += it.toString('latin1');
    assert.equal(text, pieces.join(''));
  }
});
