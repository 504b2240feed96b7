import assert from 'node:assert/strict';
import test from 'node:test';
import { openStream, said, streaming } from '../helper/sse.ts';
import { arrived, assertCancelled, cutOff, latest, leaveAfter, leaver, open } from './cancel-shared.ts';

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
