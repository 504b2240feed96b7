import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import fc from '../helper/property.ts';
import { length, SEED } from '../helper/random.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { breakOff, DONE, event, FINISHED, resetIt, type Step, said, streaming } from '../helper/sse.ts';
import type { FakeUpstream } from '../helper/upstream.ts';

const RUN_COUNT = length(40, 150);

const count = fc.oneof(
  fc.nat(200),
  fc.constantFrom(-1, 1.5, 1e300, 2 ** 53, 2 ** 40, '10', '', null, true, [], {}, Number.MAX_SAFE_INTEGER),
);
const details = fc.oneof(
  fc.constantFrom(null, 0, 'x', []),
  fc.record({ cached_tokens: count, cache_write_tokens: count, reasoning_tokens: count }, { requiredKeys: [] }),
);
const usage = fc.oneof(
  fc.record({ prompt_tokens: fc.nat(60), completion_tokens: fc.nat(100) }),
  fc.record(
    {
      prompt_tokens: count,
      completion_tokens: count,
      total_tokens: count,
      prompt_tokens_details: details,
      completion_tokens_details: details,
      prompt_cache_hit_tokens: count,
      cost: count,
    },
    { requiredKeys: [] },
  ),
  fc.jsonValue({ maxDepth: 2 }),
);
const choices = fc.oneof(
  fc.constantFrom<unknown>([], [null], [1], {}, null, 'x'),
  fc.constant([{ index: 0, delta: { content: 'a' }, finish_reason: null }]),
  fc.constant([
    { index: 0, message: { role: 'assistant', content: 'a', tool_calls: [null, 1] }, finish_reason: 'stop' },
  ]),
);
const answer = fc.oneof(
  fc.record(
    { id: fc.constant('x'), choices, usage, error: fc.constantFrom<unknown>(undefined, null, {}) },
    { requiredKeys: [] },
  ),
  fc.jsonValue({ maxDepth: 3 }),
);

/** What an upstream may write into a stream: chunks, counts, comments, ends, errors, and any bytes at all. */
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom(said('a'), FINISHED, DONE, ': comment\n\n', '\n\n', '\r\n\r\n', '\ufeff') },
  { weight: 4, arbitrary: usage.map((it) => event({ choices: [], usage: it })) },
  { weight: 2, arbitrary: answer.map((it) => event(it ?? null)) },
  { weight: 1, arbitrary: fc.jsonValue({ maxDepth: 1 }).map((error) => event({ error })) },
  { weight: 2, arbitrary: fc.uint8Array({ maxLength: 30 }).map((it) => Buffer.from(it)) },
  {
    weight: 2,
    arbitrary: fc.constantFrom(
      'data: {"choices":[],"usage":{"prompt_tokens":1',
      'data',
      'data:',
      'data: {"usage"\n\n',
      'event: error\ndata: no\n\n',
      'id: 1\n\n',
      'data: [DONE]',
      'data: "error"\n\n',
      'data: {"error":\n\n',
    ),
  },
);
const stream = fc
  .record({
    steps: fc.array(step, { maxLength: 8 }),
    end: fc.constantFrom<Step[]>([], [], [DONE], [breakOff], [resetIt]),
  })
  .map(({ steps, end }) => ({ what: 'stream', steps: [...steps, ...end] }));
const piece = fc
  .record({
    status: fc.constantFrom(200, 200, 200, 200, 201, 204, 301, 400, 404, 429, 500, 502, 503, 599),
    type: fc.constantFrom('application/json', 'text/html', 'text/event-stream', 'TEXT/EVENT-STREAM; charset=x', ''),
    body: fc.oneof(
      answer.map((it) => JSON.stringify(it) ?? ''),
      answer.map((it) => (JSON.stringify(it) ?? '').slice(0, -1)),
      fc.uint8Array({ maxLength: 40 }).map((it) => Buffer.from(it)),
      fc.constantFrom('', 'null', '[]', '"x"', '{', DONE, said('a')),
    ),
    retryAfter: fc.constantFrom(undefined, '', '3', '-1', '1e9', 'Wed, 21 Oct 2015 07:28:00 GMT', 'NaN'),
  })
  .map((it) => ({ what: 'piece', ...it }));
const streamed = fc.oneof({ weight: 3, arbitrary: stream }, { weight: 1, arbitrary: piece });
const plain = fc.oneof({ weight: 1, arbitrary: stream }, { weight: 9, arbitrary: piece });

function handlerOf(it: any): FakeUpstream['handle'] {
  if (it.what === 'stream') return streaming(...it.steps);
  return (_, response) => {
    response.writeHead(it.status, {
      'content-type': it.type,
      ...(it.retryAfter === undefined ? {} : { 'retry-after': it.retryAfter }),
    });
    response.end(it.status === 204 ? undefined : it.body);
  };
}

/** The law of the server, whatever an upstream writes. */
async function assertLawful(purser: TestServer, walletId: string, answer: { status: number; text: string }) {
  assert([200, 400, 404, 413, 429, 503].includes(answer.status), `${answer.status} ${answer.text.slice(0, 300)}`);
  const { operations } = await purser.run('operation.list', {});
  const operation = operations[0];
  assert(operation);
  const row = purser.app.ledger.client
    .prepare('select state, hold_nanos as hold, charge_nanos as charge from operation where id = ?')
    .get(operation.id) as { state: string; hold: bigint; charge: bigint | null };
  const { held, spent, budget } = purser.wallet(walletId);
  assert(held + spent <= budget);
  if (row.state === 'uncertain') return assert.equal(held, row.hold);
  assert.equal(row.state, 'settled');
  assert(row.charge !== null && row.charge >= 0n && row.charge <= row.hold);
  assert.deepEqual([held, spent], [0n, row.charge]);
  assert.equal(operation.outcome, answer.status === 200 ? 'charged' : 'released', answer.text.slice(-300));
}

async function fuzz(t: TestContext, isStream: boolean) {
  t.diagnostic(`seed ${SEED}, ${RUN_COUNT} runs`);
  const purser = await openTestServer(t, { creditCents: 100_000_000, unknownCountMax: Infinity });
  await purser.app.reaper.stop();
  const seen = new Map<string, number>();
  await fc.assert(
    fc.asyncProperty(isStream ? streamed : plain, async (it) => {
      const gateway = await openGateway(purser);
      purser.upstream.handle = handlerOf(it);
      const answer = await gateway.chat({ stream: isStream }, 'k');
      await gateway.quiet();
      await assertLawful(purser, gateway.walletId, answer);
      const kind = answer.status === 200 && isStream && !answer.text.endsWith(DONE) ? 'broken' : String(answer.status);
      seen.set(kind, (seen.get(kind) ?? 0) + 1);
      // A second time: the same answer, or the same doubt; never another call unless the first was released.
      const calls = purser.upstream.calls.length;
      const again = await gateway.chat({ stream: isStream }, 'k');
      if (kind === '200') assert.equal(again.text, answer.text);
      if (kind === 'broken') assert.equal(again.body.error.code, 'answer_lost');
      if (answer.status === 200 || answer.text.includes('operation_uncertain'))
        assert.equal(purser.upstream.calls.length, calls);
      await gateway.quiet();
    }),
    { numRuns: RUN_COUNT },
  );
  t.diagnostic([...seen].map(([kind, times]) => `${kind}: ${times}`).join(', '));
  const faults = purser.log.map((line) => JSON.parse(line)).filter((it) => it.level >= 50);
  assert.deepEqual(
    faults.filter((it) => !['operation.bound_exceeded', 'bound.learned', 'upstream.misconfigured'].includes(it.event)),
    [],
    'nothing of ours broke',
  );
  assert.deepEqual(purser.problems(), []);
  purser.clock.advance(901);
  await purser.app.reaper.runOnce();
  const { held } = purser.app.ledger.client.prepare('select sum(held_nanos) as held from balance').get() as {
    held: bigint;
  };
  assert.equal(held, 0n, 'in the end nothing is held');
  assert.deepEqual(purser.problems(), []);
}

for (const isStream of [true, false])
  test(`whatever an upstream writes, a ${isStream ? 'stream' : 'plain answer'} is charged from nothing to its hold, or in doubt (seed ${SEED})`, (t) =>
    fuzz(t, isStream));
