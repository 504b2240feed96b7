import assert from 'node:assert/strict';
import test from 'node:test';
import { failure, gate, type Handler, reset } from '../helper/upstream.ts';
import { waitFor } from '../helper/waiting.ts';
import {
  assertPrints,
  type Block,
  KEYED,
  openGateway,
  PROGRAMS,
  requestCount,
  run,
  throwsNothing,
  together,
} from './clients-page-shared.ts';

test('a client that cannot pay is told once, and the model server hears nothing of it', async (t) => {
  const gateway = await openGateway(t);
  const empty = await gateway.openWallet();
  await gateway.drain(empty.token, 'flat');
  const full = await gateway.openWallet();
  for (const [blocks, token, options, words] of [
    [PROGRAMS, empty.token, {}, /the wallet has 0\.00005 USD available/],
    [KEYED, full.token, { max_price_usd: '0.0001' }, /this gateway key allows 0\.0001 USD/],
  ] as const)
    await together([...blocks], async (block, index) => {
      const line = `${Object.keys(options).length}-${index}`;
      const { code, stdout, stderr } = await run(t, block, await gateway.clientEnv(token, line, options));
      const said = `${block.code}\n${stderr}`;
      assert.deepEqual(gateway.statuses(line), [402], said);
      assert.match(stderr, /insufficient_funds/, said);
      assert.match(stderr, words, said);
      assert.equal(stdout, '', said);
      assert.equal(code !== 0, !throwsNothing(block), said);
    });
  assert.equal(gateway.upstream.calls.length, 1, 'the call that emptied the wallet');
});

/** What `Retry-After: 2` comes to, give or take what timers do. */
const RETRY_AFTER_MILLISECONDS = 1990;

test('money that is held by others is waited for by every client', async (t) => {
  const gateway = await openGateway(t);
  const gates = new Map<unknown, ReturnType<typeof gate>>();
  gateway.upstream.handle = (call, response) => {
    const [message] = (call.body.messages ?? []) as [{ content: unknown }?];
    return (gates.get(message?.content)?.handler ?? gateway.models.handle)(call, response);
  };
  await together(PROGRAMS, async (block, line) => {
    const { token } = await gateway.openWallet();
    const env = await gateway.clientEnv(token, line);
    const held = gate(gateway.models.handle);
    const content = `hold of ${line}`;
    gates.set(content, held);
    const filler = gateway.drain(token, 'filler', content);
    await untilHeld(gateway, token);
    const printed = run(t, block, env);
    await waitFor(() => `${block.code} asks`, gateway.wire.answered(line, 1));
    held.open();
    assert.equal((await filler).status, 200);
    assertPrints(block, await printed);
    const [refused, next] = gateway.wire.answers(line);
    assert(refused && next && refused.status === 429 && next.at - refused.at > RETRY_AFTER_MILLISECONDS, block.code);
    assert.equal(gateway.statuses(line).filter((it) => it === 200).length, requestCount(block), block.code);
  });
  await gateway.assertBooks();
});

/** Waits until the wallet holds money; each look is a request of its own. */
async function untilHeld({ serving }: Awaited<ReturnType<typeof openGateway>>, token: string): Promise<void> {
  for (;;) if ((await serving.ask('GET', '/v1/budget', { token })).body.holds.length) return;
}

test('a model server that is down and then busy is asked again by every client, and only its answer is paid', async (t) => {
  const gateway = await openGateway(t);
  const { token } = await gateway.openWallet();
  const attempts = new Map<string, number>();
  const answers: Handler[] = [failure(503), failure(429, undefined, { 'retry-after': '1' })];
  gateway.upstream.handle = (call, response) => {
    const asked = JSON.stringify(call.body.messages ?? call.body.input); // No two blocks of the page ask the same.
    const attempt = attempts.get(asked) ?? 0;
    attempts.set(asked, attempt + 1);
    return (answers[attempt] ?? gateway.models.handle)(call, response);
  };
  await together(PROGRAMS, async (block, line) => {
    assertPrints(block, await run(t, block, await gateway.clientEnv(token, line)));
    const each = Array.from({ length: requestCount(block) }, () => [503, 429, 200]);
    assert.deepEqual(gateway.statuses(line), each.flat(), block.code);
  });
  await gateway.assertBooks();
});

// docs/clients.md is what is tested here: its blocks are run as they are printed, with an environment and nothing else. What
// agents read is run by test/agents/agents.soak.test.ts.

test('a request with an Idempotency-Key is paid once, however often the program runs', async (t) => {
  const gateway = await openGateway(t);
  const { token } = await gateway.openWallet();
  const env = await gateway.clientEnv(token);
  await together(KEYED, async (block, index) => {
    for (let round = 0; round < 3; round++) assertPrints(block, await run(t, block, { ...env, STEP: `step ${index}` }));
  });
  assert.equal(gateway.upstream.calls.length, KEYED.length);
  await gateway.assertBooks();
});

test('what nobody knows is not asked twice when it had an Idempotency-Key, though LangChain repeats it', async (t) => {
  const gateway = await openGateway(t);
  gateway.upstream.handle = reset;
  const { token } = await gateway.openWallet();
  const block = KEYED.at(-1) as Block;
  assert.match(block.code, /langchain/);
  const enough = new AbortController();
  const running = run(t, block, await gateway.clientEnv(token, 'line'), enough.signal);
  await waitFor('LangChain repeats', gateway.wire.answered('line', 2));
  enough.abort();
  await running;
  assert.deepEqual(gateway.statuses('line').slice(0, 2), [503, 503]);
  assert.equal(gateway.upstream.calls.length, 1);
  const { body } = await gateway.serving.ask('GET', '/v1/budget', { token });
  assert.equal(body.holds.length, 1);
});
