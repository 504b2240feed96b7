import assert from 'node:assert/strict';
import test from 'node:test';
import { getHeapSpaceStatistics } from 'node:v8';
import { collectGarbage } from '../helper/garbage.ts';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { openTestServer } from '../helper/server.ts';
import { breakOff, completionStream, event, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, failure } from '../helper/upstream.ts';

/**
 * Bytes that are live: objects and what hangs on them outside, without the code, which V8 goes on compiling for long. The
 * least of a few looks: sockets that are about to go are none of it.
 */
async function live(): Promise<number> {
  const samples: number[] = [];
  while (samples.length < 4) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    collectGarbage();
    const spaces = getHeapSpaceStatistics().filter((it) => /^(new|old|(new_)?large_object)_space$/.test(it.space_name));
    samples.push(spaces.reduce((sum, it) => sum + it.space_used_size, process.memoryUsage().arrayBuffers));
  }
  return Math.min(...samples);
}

const BATCH_COUNT = 32;
const WARM_COUNT = 8;
const ROUND_COUNT = 16;
/** Of anything that were kept for each request there is more than this: a row of an operation, say. */
const REQUEST_BYTES_MAX = 1000;

/** Every kind of end, with a key and without. */
const HANDLERS = [
  completionStream(),
  streaming(said('x'.repeat(5000)), said('y'), FINISHED, breakOff),
  streaming(event({ error: { message: 'no' } })),
  completion(),
  failure(400),
  failure(502),
];

test('over a long run of streams, refusals, broken ones and clients that leave, memory stays where it is', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100_000 } });
  purser.upstream.handle = (call, response) => HANDLERS[Number(call.body.seed)]?.(call, response);
  let asked = 0;
  async function run(batches: number): Promise<number> {
    for (let i = 0; i < batches; i++) {
      await Promise.all(Array.from({ length: BATCH_COUNT }, () => ask(gateway, asked++)));
      await gateway.quiet();
      purser.upstream.calls.length = 0; // The test's own memory.
      purser.log.length = 0;
    }
    return live();
  }
  const before = await run(WARM_COUNT);
  const count = -asked;
  const after = await run(ROUND_COUNT);
  const each = (after - before) / (count + asked);
  t.diagnostic(
    `${asked} requests; ${Math.round(before / 1024)} KiB live, then ${Math.round(after / 1024)} (${Math.round(each)} bytes a request)`,
  );
  assert(each < REQUEST_BYTES_MAX, `${each} bytes a request`);
});

async function ask(gateway: Gateway, i: number): Promise<void> {
  const stream = await gateway.stream({ seed: i % HANDLERS.length }, i % 5 === 0 ? `key ${i}` : undefined);
  if (i % 4 === 0) stream.leave();
  else await stream.rest();
}
