import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { readLearned } from '../../src/doctor/learned.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { describeLearned } from '../../src/router/check.ts';
import { openGateway } from '../helper/gateway.ts';
import { MODELS, openTestServer, type TestServer } from '../helper/server.ts';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, failure, gate } from '../helper/upstream.ts';

async function boundOf(purser: TestServer): Promise<number> {
  const [latest] = (await purser.run('operation.list', {})).operations;
  return (latest as unknown as { price: { bound_prompt_tokens: number } }).price.bound_prompt_tokens;
}
const factorOf = async (purser: TestServer): Promise<number> =>
  (await purser.run('models.list', {})).data.find(({ id }) => id === 'chat')?.routes[0]?.bound_factor as number;
const alarms = (purser: TestServer) =>
  purser.log.filter((line) => line.includes('"bound.learned"')).map((it) => JSON.parse(it));

for (const stream of [false, true])
  test(`a count above its bound raises the bound of its route from then on, and over a restart (stream: ${stream})`, async (t) => {
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser);
    const ask = () => gateway.chat({ stream });
    const counts = (prompt: number) => {
      const usage = { prompt_tokens: prompt, completion_tokens: 1, total_tokens: prompt + 1 };
      purser.upstream.handle = stream ? streaming(said('a'), FINISHED, counted(usage), DONE) : completion(usage);
    };
    counts(10);
    await ask();
    const before = await boundOf(purser);
    assert.equal(await factorOf(purser), 1);

    counts(before);
    await ask();
    assert.equal(await factorOf(purser), 1, 'a count at its bound is within it');
    assert.deepEqual(alarms(purser), []);

    counts(3 * before);
    await ask();
    assert.equal(await factorOf(purser), 3);
    const [alarm, ...others] = alarms(purser);
    assert.deepEqual(others, []);
    assert.equal(alarm.level, 50, 'an error');
    assert.deepEqual([alarm.counted_tokens, alarm.bound_tokens, alarm.bound_factor], [3 * before, before, 3]);

    await ask();
    assert.equal(await boundOf(purser), 3 * before);
    assert.equal(alarms(purser).length, 1, 'what is within the raised bound teaches nothing');

    await purser.reopen();
    assert.equal(await factorOf(purser), 3);
    await ask();
    assert.equal(await boundOf(purser), 3 * before);
    assert.deepEqual(purser.problems(), []);

    const catalogue = createCatalogue(purser.app.config);
    readLearned(purser.directory, catalogue);
    assert.match(describeLearned(catalogue.find('chat').routes[0]) ?? '', /above the bound.*by the factor 3\. Set/);
  });

test('a prompt above the context length teaches the context length; other routes learn nothing', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const messages = [{ role: 'user', content: 'x'.repeat(100_000) }];
  purser.upstream.handle = completion({ prompt_tokens: 90_000, completion_tokens: 1 });
  await gateway.chat({ messages });
  assert.equal(await boundOf(purser), 32_768, 'by the settings');
  await gateway.chat({ messages });
  assert.equal(await boundOf(purser), 90_000, 'as long as one that was counted');
  const { data } = await purser.run('models.list', {});
  assert.deepEqual(
    data.map(({ id, routes }) => [id, routes[0]?.context_length, routes[0]?.bound_factor]),
    [
      ['chat', 90_000, 1],
      ['flat', 32_768, 1],
      ['free', 32_768, 1],
      ['dear', 32_768, 1],
    ],
  );
  assert.deepEqual(purser.problems(), []);
});

test('what was learned has a checksum, and starts anew when the settings are changed', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completion({ prompt_tokens: 1000, completion_tokens: 1 });
  await gateway.chat();
  assert((await factorOf(purser)) > 5);
  const catalogue = createCatalogue({
    router: {
      ...purser.app.config.router,
      models: purser.app.config.router.models.map((it) => ({ ...it, prompt_overhead_tokens: 900 })),
    },
  });
  readLearned(purser.directory, catalogue);
  assert.equal(describeLearned(catalogue.find('chat').routes[0]), undefined);
  purser.tamper('update learned_bound set permille = 1000');
  assert.match(purser.problems().join(), /learned_bound local was changed: its checksum does not match/);
});

test('a server that counts nonsense does not make its model unusable for ever', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completion({ prompt_tokens: Number.MAX_SAFE_INTEGER - 10, completion_tokens: 1 });
  assert.equal((await gateway.chat()).status, 200);
  assert.equal(await factorOf(purser), 64);
});

/** A purser whose model `chat` has these settings, and a model `embed` beside it. */
const serverWith = (t: TestContext, more: object) =>
  openTestServer(t, {
    change: (settings) => ({
      ...settings,
      router: {
        ...settings.router,
        models: [
          { ...MODELS[0], ...more },
          { id: 'embed', kind: 'embeddings', upstream: 'local', context_length: 100, pricing: { prompt: '0.000001' } },
        ],
      },
    }),
  });

test('an image above image_tokens does not raise the bound of everybody’s text', async (t) => {
  const purser = await serverWith(t, {
    image_tokens: 500,
    pricing: { prompt: '0.000001', completion: '0.000002', image: '0' },
  });
  const gateway = await openGateway(purser);
  const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } };
  purser.upstream.handle = completion({ prompt_tokens: 5000, completion_tokens: 1 });
  for (let i = 0; i < 3; i++) await gateway.chat({ messages: [{ role: 'user', content: [image] }] });
  assert.equal(await factorOf(purser), 1);
  const exceeded = purser.log.filter((line) => line.includes('operation.bound_exceeded'));
  assert.equal(exceeded.length, 3, 'the operator hears of each');
});

test('a switch for which the template writes text does not raise the bound of everybody’s text', async (t) => {
  const purser = await serverWith(t, {});
  const gateway = await openGateway(purser);
  purser.upstream.handle = completion({ prompt_tokens: 1000, completion_tokens: 1 });
  await gateway.chat({ chat_template_kwargs: { builtin_tools: ['browser'] } });
  assert.equal(await factorOf(purser), 1);
  assert.equal(purser.log.filter((line) => line.includes('operation.bound_exceeded')).length, 1);
  await gateway.chat();
  assert((await factorOf(purser)) > 1, 'the same count without one teaches');
});

test('a count above the overhead of the settings is within the bound from then on', async (t) => {
  const purser = await serverWith(t, { prompt_overhead_tokens: 1000 });
  const gateway = await openGateway(purser);
  purser.upstream.handle = completion({ prompt_tokens: 1700, completion_tokens: 1 });
  for (let i = 0; i < 3; i++) await gateway.chat();
  assert((await boundOf(purser)) >= 1700);
  assert.equal(alarms(purser).length, 1);
});

test('a count of several embeddings teaches a factor, and nothing of the longest', async (t) => {
  const purser = await serverWith(t, {});
  const gateway = await openGateway(purser);
  const learned = async () => {
    const { data } = await purser.run('models.list', {});
    const [route] = data.find(({ id }) => id === 'embed')?.routes ?? [];
    return [route?.context_length, route?.bound_factor];
  };
  const counted = (prompt_tokens: number) => {
    purser.upstream.handle = failure(200, { data: [{ embedding: [0] }], usage: { prompt_tokens } });
  };
  counted(400); // Three of them of 58 by the settings.
  const ask = (length: number) =>
    gateway.ask('POST', '/embeddings', { body: { model: 'embed', input: Array(3).fill('x'.repeat(length)) } });
  assert.equal((await ask(200)).status, 200);
  assert.deepEqual(await learned(), [100, 1], 'where the context length cut them off, nothing is known');
  counted(261);
  assert.equal((await ask(50)).status, 200);
  assert.deepEqual(await learned(), [100, 1.5]);
});

test('what is learned meanwhile changes nothing in what a request teaches', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const slow = gate(completion({ prompt_tokens: 60_000, completion_tokens: 1 }));
  purser.upstream.handle = slow.handler;
  // Read no further than the context length: how long it really is nobody knows.
  const messages = Array.from({ length: 1000 }, () => ({ role: 'user', content: 'x'.repeat(100) }));
  const first = gateway.chat({ messages });
  await purser.upstream.arrived(1);
  purser.upstream.handle = completion({ prompt_tokens: 90_000, completion_tokens: 1 });
  await gateway.chat({ messages });
  slow.open();
  await first;
  assert.equal(await factorOf(purser), 1);
});
