import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test from 'node:test';
import { createTranscript, readTranscript } from '../../src/router/transcript.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completionStream, counted, DONE, FINISHED, forever, said, streaming } from '../helper/sse.ts';
import { completion, gate } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';

const KIBIBYTE = 1024;
/** Text that cannot be packed to less than three quarters of it. */
const noise = (bytes: number) => randomBytes(Math.ceil((bytes * 3) / 4)).toString('base64');
const stored = (purser: TestServer) =>
  purser.app.ledger.client.prepare('select count(*) as count, sum(length(body)) as bytes from answer').get() as {
    count: bigint;
    bytes: bigint | null;
  };

test('a stream of several segments is replayed byte for byte, marked, and without another call', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const pieces = [
    ...Array.from({ length: 40 }, () => said(noise(20 * KIBIBYTE))), // Twelve segments of 64 KiB and a half.
    ': a comment\n\n',
    ...Array.from({ length: 2000 }, () => said('again and again ')),
    said('ümläut 漢字 🎈'),
    FINISHED,
  ];
  purser.upstream.handle = streaming(...pieces, counted(), DONE);
  const first = await gateway.streamed({}, 'k');
  assert.equal(first.text, [...pieces, DONE].join(''));
  const again = await gateway.streamed({}, 'k');
  assert.equal(again.text, first.text);
  assert.equal(again.headers['content-type'], first.headers['content-type']);
  assert.deepEqual([first.headers['idempotent-replayed'], again.headers['idempotent-replayed']], [undefined, 'true']);
  await purser.reopen();
  assert.equal((await gateway.streamed({}, 'k')).text, first.text, 'after a restart too');
  assert.equal(purser.upstream.calls.length, 1);
  assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
  assert(Number(stored(purser).bytes) < first.text.length, 'and it is packed');
});

test('with the usage asked for it is in the replay, and other options are another body', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completionStream();
  const body = { stream_options: { include_usage: true } };
  const first = await gateway.streamed(body, 'k');
  assert(first.text.endsWith(counted() + DONE));
  assert.equal((await gateway.streamed(body, 'k')).text, first.text);
  assert.equal((await gateway.streamed({}, 'k')).body.error.code, 'idempotency_conflict');
});

test('only what can be asked for again is kept: a stream and an answer without a key are not', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completionStream();
  await gateway.streamed();
  assert.equal(stored(purser).count, 0n);
  await gateway.streamed({}, 'k');
  assert.equal(stored(purser).count, 1n);
  purser.upstream.handle = (_, response) => response.end(JSON.stringify({ choices: [{}], usage: {} }));
  await gateway.chat();
  assert.equal(stored(purser).count, 1n);
  await gateway.chat({}, 'plain');
  assert.equal(stored(purser).count, 2n);
  purser.clock.advance(72 * 3600);
  await purser.app.reaper.runOnce();
  assert.equal(stored(purser).count, 0n, 'and after 72 hours nothing is left');
  const late = await gateway.streamed({}, 'k');
  assert.deepEqual([late.status, late.body.error.code], [409, 'idempotency_key_expired']);
});

test('the key that is made up for a request answers nobody else who sends it, while it runs and afterwards', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const madeUp = () =>
    purser.app.ledger.client
      .prepare('select idempotency_key from operation order by id desc limit 1')
      .pluck()
      .get() as string;
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('a'), () => end.promise, FINISHED, counted(), DONE);
  const first = await gateway.stream();
  await first.next();
  assert.equal((await gateway.streamed({}, madeUp())).body.error.code, 'idempotency_conflict');
  end.resolve();
  await first.rest();
  purser.upstream.handle = completionStream();
  const { headers } = await gateway.streamed();
  assert.equal(headers['x-request-id'], madeUp());
  assert.equal((await gateway.streamed({}, madeUp())).body.error.code, 'idempotency_conflict');
  purser.upstream.handle = completion({ prompt_tokens: 1, completion_tokens: 1 });
  await gateway.chat();
  assert.equal((await gateway.chat({}, madeUp())).body.error.code, 'idempotency_conflict');
  assert.equal(purser.upstream.calls.length, 3);
});

test('while it streams, the same key waits and gets the whole of it; another body does not', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('a'), () => end.promise, said('b'), FINISHED, counted(), DONE);
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
  assert.equal(purser.upstream.calls.length, 1);
});

test('who joins a stream that breaks is told the same, as an ordinary refusal', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(
    said('a'),
    () => end.promise,
    (response) => response.socket?.destroy(),
  );
  const first = await gateway.stream({}, 'k');
  await first.next();
  const joined = gateway.streamed({}, 'k');
  await purser.budget(gateway.token); // By now it has joined, or asks of what is known.
  end.resolve();
  const answer = await joined;
  assert.deepEqual([answer.status, answer.body.error.code], [409, 'answer_lost']);
  assert.match(await first.rest(), /answer_lost/);
});

test('a replay to a client that leaves, or does not read, harms nobody', async (t) => {
  const stallMilliseconds = 2000;
  const purser = await openTestServer(t, { stallMilliseconds });
  const gateway = await openGateway(purser);
  const pieces = Array.from({ length: 100 }, () => said('x'.repeat(200_000)));
  purser.upstream.handle = streaming(...pieces, counted(), DONE);
  const whole = await gateway.streamed({}, 'k');
  const left = await gateway.stream({}, 'k');
  await left.next();
  left.leave();
  const idle = await gateway.stream({}, 'k');
  assert.equal((await gateway.streamed({}, 'k')).text, whole.text);
  await assert.rejects(
    (async () => {
      await new Promise((resolve) => setTimeout(resolve, 2 * stallMilliseconds)); // Longer than a client may take nothing.
      await idle.rest();
    })(),
  );
  assert.deepEqual(
    purser.log.filter((line) => JSON.parse(line).level >= 50),
    [],
  );
});

test('a stream that is too long to be kept is streamed and charged, and says so when it is asked for again', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const pieces = Array.from({ length: 12 }, () => said(noise(1024 * KIBIBYTE)));
  purser.upstream.handle = streaming(...pieces, counted(), DONE);
  const first = await gateway.streamed({}, 'k');
  assert(first.text.endsWith(DONE) && first.text.length > 12e6);
  assert.equal(stored(purser).count, 0n);
  const again = await gateway.streamed({}, 'k');
  assert.deepEqual([again.status, again.body.error.code], [409, 'idempotency_key_expired']);
  assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
});

test('long transcripts of a tree of wallets are kept as long as it has memory for them, and give it back', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const { open } = purser.app.memory;
  const mostBytes = 1024 * KIBIBYTE;
  let used = 0;
  purser.app.memory.open = (owner) => {
    const allowance = open(owner);
    if (owner !== gateway.walletId) return allowance;
    let own = 0;
    const release = (bytes: number) => {
      used -= bytes;
      own -= bytes;
    };
    return {
      ...allowance,
      tryTake(bytes) {
        if (used + bytes > mostBytes) return false;
        used += bytes;
        own += bytes;
        return true;
      },
      release,
      close() {
        release(own);
        allowance.close();
      },
    };
  };
  const pieces = Array.from({ length: 6 }, () => said(noise(100 * KIBIBYTE)));
  const count = 6;
  const { handler, open: go } = gate(streaming(...pieces, FINISHED, counted(), DONE));
  purser.upstream.handle = handler;
  const streams = Array.from({ length: count }, (_, i) => gateway.streamed({}, `${i}`));
  await purser.upstream.arrived(count);
  go();
  for (const { status, text } of await Promise.all(streams))
    assert.deepEqual([status, text.endsWith(DONE)], [200, true]);
  await gateway.quiet();
  let keptCount = 0;
  for (let i = 0; i < count; i++) if ((await gateway.streamed({}, `${i}`)).status === 200) keptCount++;
  assert(keptCount > 0 && keptCount < count, `${keptCount} were kept`);
  await until(
    () => `${used} bytes are used`,
    () => used === 0,
  );
  // A short one is kept, whatever is used.
  used = mostBytes;
  purser.upstream.handle = streaming(said('a'), counted(), DONE);
  await gateway.streamed({}, 'short');
  assert.equal((await gateway.streamed({}, 'short')).status, 200);
  assert.deepEqual(purser.problems(), []);
});

test('a stream that is joined when the server stops is answered to both', async (t) => {
  const purser = await openTestServer(t, { settings: { drain_seconds: 0 } });
  const gateway = await openGateway(purser);
  purser.upstream.handle = streaming(said('a'), forever);
  const first = await gateway.stream({}, 'k');
  await first.next();
  const joined = gateway.streamed({}, 'k');
  await purser.budget(gateway.token);
  const rest = first.rest();
  await purser.reopen();
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

test('an event that ends like the end marker is none: the cost is told once, before the end, in the replay as well', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  for (const [key, like] of Object.entries({ nul: `\0${DONE}`, lines: `data: x\n${DONE}` })) {
    purser.upstream.handle = streaming(said('a'), like, FINISHED, counted(), DONE);
    const live = await gateway.chat({ stream: true }, key);
    const replayed = await gateway.chat({ stream: true }, key);
    assert.equal(live.text.split(': x-purser-cost-usd=').length, 2, live.text);
    assert.equal(replayed.text, live.text);
  }
  purser.upstream.handle = streaming(counted(), `\0${DONE}`, DONE);
  const live = await gateway.chat({ stream: true }, 'last');
  assert.equal((await gateway.chat({ stream: true }, 'last')).text, live.text);
  assert.equal(live.text.split(': x-purser-cost-usd=').length, 2, live.text);
});
