import assert from 'node:assert/strict';
import test from 'node:test';
import {
  assertPrints,
  openGateway,
  PROGRAMS,
  requestCount,
  run,
  throwsNothing,
  together,
} from './clients-page-shared.ts';

// docs/clients.md is what is tested here: its blocks are run as they are printed, with an environment and nothing else. What
// agents read is run by test/agents/agents.soak.test.ts.

test('every program of the page runs as it is printed, and the budget agrees with the model server’s own count', async (t) => {
  const gateway = await openGateway(t);
  const { token } = await gateway.openWallet();
  const env = await gateway.clientEnv(token);
  await together(PROGRAMS, async (block) => assertPrints(block, await run(t, block, env)));
  assert.equal(
    gateway.models.counted.length,
    PROGRAMS.reduce((sum, block) => sum + requestCount(block), 0),
  );
  await gateway.assertBooks();
});

test('a stream that breaks is an error to every client, and is not asked again', async (t) => {
  const gateway = await openGateway(t);
  const { token } = await gateway.openWallet();
  gateway.upstream.handle = ({ body }, response) => {
    const choices = [{ index: 0, delta: { role: 'assistant', content: 'half an ' }, finish_reason: null }];
    const chunk = { id: 'c', object: 'chat.completion.chunk', created: 1, model: body.model, choices };
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(`data: ${JSON.stringify(chunk)}\n\n`, () => response.destroy());
  };
  const streams = PROGRAMS.filter(({ prints }) => String(prints).includes('Count to'));
  assert.equal(streams.length, 3);
  await together(streams, async (block, line) => {
    const { code, stdout, stderr } = await run(t, block, await gateway.clientEnv(token, line));
    const said = `${block.code}\n${stderr}`;
    assert.equal(stdout, 'half an ', said);
    assert.match(stderr, /The answer to this request was lost and 0\.\d+ USD were charged/, said);
    assert.equal(code !== 0, !throwsNothing(block), said);
    assert.deepEqual(gateway.statuses(line), [200], said);
  });
  assert.equal(gateway.upstream.calls.length, streams.length);
});
