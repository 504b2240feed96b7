import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { describeLearned, readLearned } from '../../src/doctor/models.ts';
import { keepLearnedBound, type LearnedBound, listLearnedBounds } from '../../src/ledger/learned-bound.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { openGateway } from '../helper/gateway.ts';
import { MODELS, openTestServer, type TestServer } from '../helper/server.ts';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, failure, gate } from '../helper/upstream.ts';
import { asOperator } from '../ui/sample.ts';

const DAY = 86_400;

async function boundOf(purser: TestServer): Promise<number> {
  const [latest] = (await purser.run('operation.list', {})).operations;
  return (latest as unknown as { price: { bound_prompt_tokens: number } }).price.bound_prompt_tokens;
}
const learnedOf = async (purser: TestServer, model = 'chat') => {
  const { data } = await purser.run('models.list', {});
  const [route] = data.find(({ id }) => id === model)?.routes ?? [];
  return { overhead: route?.bound_overhead_tokens, factor: route?.bound_factor };
};
const NOTHING = { overhead: 0, factor: 1 };
const alarms = (purser: TestServer) =>
  purser.log.filter((line) => line.includes('"bound.learned"')).map((it) => JSON.parse(it));
const long = (bytes: number) => ({ messages: [{ role: 'user', content: 'x'.repeat(bytes) }] });

for (const stream of [false, true])
  test(`a count above its bound raises the bound of its route from then on, and over a restart (stream: ${stream})`, async (t) => {
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser);
    const ask = (body = {}) => gateway.chat({ stream, ...body });
    const counts = (prompt: number) => {
      const usage = { prompt_tokens: prompt, completion_tokens: 1, total_tokens: prompt + 1 };
      purser.upstream.handle = stream ? streaming(said('a'), FINISHED, counted(usage), DONE) : completion(usage);
    };
    counts(10);
    await ask();
    const before = await boundOf(purser);
    assert.deepEqual(await learnedOf(purser), NOTHING);

    counts(before);
    await ask();
    assert.deepEqual(await learnedOf(purser), NOTHING, 'a count at its bound is within it');
    assert.deepEqual(alarms(purser), []);

    counts(before + 500);
    await ask();
    assert.deepEqual(await learnedOf(purser), { overhead: 500, factor: 1 });
    const [alarm, ...others] = alarms(purser);
    assert.deepEqual(others, []);
    assert.equal(alarm.level, 50, 'an error');
    assert.deepEqual(
      [alarm.counted_tokens, alarm.bound_tokens, alarm.bound_overhead_tokens],
      [before + 500, before, 500],
    );

    await ask();
    assert.equal(await boundOf(purser), before + 500);
    counts(10);
    await ask(long(10_000));
    assert((await boundOf(purser)) < 10_000 + before + 500, 'a long prompt has as many tokens more, and no more');
    assert.equal(alarms(purser).length, 1, 'what is within the raised bound teaches nothing');

    await purser.reopen();
    assert.deepEqual(await learnedOf(purser), { overhead: 500, factor: 1 });
    await ask();
    assert.equal(await boundOf(purser), before + 500);
    assert.deepEqual(purser.problems(), []);

    const catalogue = createCatalogue(purser.app.config);
    readLearned(purser.directory, catalogue);
    const said_ = describeLearned(catalogue.find('chat').routes[0]) ?? '';
    assert.match(said_, /short prompts, so 500 tokens are added.* Set .* `purser models forget ID` forgets it/);
  });

test('a factor is learned from a long prompt alone, beside what is added to each', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const count = async (prompt_tokens: number, body = {}) => {
    purser.upstream.handle = completion({ prompt_tokens, completion_tokens: 1 });
    assert.equal((await gateway.chat(body)).status, 200);
    return boundOf(purser);
  };
  const short = await count(10);
  const tall = await count(10, long(10_000));
  await count(short + 300);
  assert.equal(await count(2 * tall + 300, long(10_000)), tall + 300);
  assert.deepEqual(await learnedOf(purser), { overhead: 300, factor: 2 });
  assert.equal(await count(10, long(10_000)), 2 * tall + 300);
  const catalogue = createCatalogue(purser.app.config);
  readLearned(purser.directory, catalogue);
  assert.match(describeLearned(catalogue.find('chat').routes[0]) ?? '', /300 tokens are added.* by the factor 2\. Set/);
});

test('what a server adds to a greeting does not raise the holds of others by a factor', async (t) => {
  const purser = await openTestServer(t);
  const tenant = await openGateway(purser);
  const other = await openGateway(purser);
  const added = (tokens: number) =>
    (purser.upstream.handle = completion({ prompt_tokens: tokens, completion_tokens: 1 }));
  added(10);
  await other.chat(long(10_000));
  const before = await boundOf(purser);
  added(2008);
  await tenant.chat();
  await other.chat(long(10_000));
  const after = await boundOf(purser);
  assert(after - before < 2008 && after < 1.2 * before, `${before} became ${after}`);
});

test('what was learned fades by half in seven days in which it is not seen', async (t) => {
  const purser = await openTestServer(t);
  const count = async (prompt_tokens: number, body = {}) => {
    purser.upstream.handle = completion({ prompt_tokens, completion_tokens: 1 });
    const gateway = await openGateway(purser); // A wallet of its own: time goes by.
    assert.equal((await gateway.chat(body)).status, 200);
    return boundOf(purser);
  };
  const short = await count(10);
  const tall = await count(10, long(10_000));
  await count(short + 1000);
  await count(3 * tall + 1000, long(10_000));
  assert.deepEqual(await learnedOf(purser), { overhead: 1000, factor: 3 });

  // Seen each day, it stays, also over a restart; and is no news.
  for (let day = 0; day < 9; day++) {
    purser.clock.advance(DAY - 1);
    assert.equal(await count(short + 1000), Math.ceil(short * Number((await learnedOf(purser)).factor)) + 1000);
  }
  assert.equal((await learnedOf(purser)).overhead, 1000);
  assert.equal(alarms(purser).length, 2);
  await purser.reopen();
  assert.equal((await learnedOf(purser)).overhead, 1000);
  const factor = (await learnedOf(purser)).factor as number;
  assert(factor > 1.8 && factor < 2, `not seen for nine days: ${factor}`);

  purser.clock.advance(7 * DAY);
  assert.equal((await learnedOf(purser)).overhead, 500);
  const before = alarms(purser).length;
  const bound = await count(short + 800);
  assert(bound > short + 500 && bound < short + 800);
  assert.equal((await learnedOf(purser)).overhead, 800, 'it is as much as was seen last');
  assert.equal(alarms(purser).length, before + 1);
  purser.clock.advance(200 * DAY);
  assert.deepEqual(await learnedOf(purser), NOTHING);
  assert.equal(await count(10), short);
  const catalogue = createCatalogue(purser.app.config);
  const now = Math.floor(purser.clock.wall() / 1000);
  readLearned(purser.directory, catalogue, now);
  assert.equal(describeLearned(catalogue.find('chat').routes[0], now), undefined);
  assert.deepEqual(purser.problems(), []);
});

test('the operator forgets what was learned of a model, for good', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completion({ prompt_tokens: 900, completion_tokens: 1 });
  await gateway.chat();
  const { overhead } = await learnedOf(purser);
  assert(overhead);
  const page = async () => (await (await asOperator(purser)).get('/models')).html;
  assert.match(await page(), new RegExp(`local: ${overhead} tokens added, × 1 .*purser models forget chat`));
  const { forgotten } = await purser.run('models.forget', { id: 'chat' });
  assert.doesNotMatch(await page(), /tokens added/);
  assert.deepEqual(
    forgotten.map((it) => [it.upstream, it.bound_overhead_tokens, it.bound_factor]),
    [['local', overhead, 1]],
  );
  assert.deepEqual(await learnedOf(purser), NOTHING);
  assert.equal(purser.log.filter((line) => line.includes('"bound.forgotten"')).length, 1);
  await purser.reopen();
  assert.deepEqual(await learnedOf(purser), NOTHING);
  assert.deepEqual((await purser.run('models.forget', { id: 'chat' })).forgotten, []);
  await assert.rejects(async () => purser.run('models.forget', { id: 'none' }), /model/i);
  await gateway.chat();
  assert.equal((await learnedOf(purser)).overhead, overhead, 'it is learned again');
  assert.deepEqual(purser.problems(), []);
});

test('a factor of an earlier version stays one if a long prompt taught it, else it is what is added to each', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const told = async (prompt_tokens: number, body = {}) => {
    purser.upstream.handle = completion({ prompt_tokens, completion_tokens: 1 });
    await gateway.chat(body);
    const [latest] = (await purser.run('operation.list', {})).operations;
    const [row] = listLearnedBounds(purser.app.ledger.read);
    const bound = await boundOf(purser);
    await purser.run('models.forget', { id: 'chat' });
    const earlier = { factorAt: null, overheadTokens: null, overheadAt: null, operationId: String(latest?.id) };
    const permille = Math.ceil((1000 * prompt_tokens) / bound);
    await purser.app.ledger.write(keepLearnedBound, { ...(row as LearnedBound), ...earlier, permille });
    await purser.reopen();
    return { ...(await learnedOf(purser)), bound };
  };
  const short = await told(2008);
  assert(Math.abs((short.overhead as number) - (2008 - short.bound)) <= 1, JSON.stringify(short));
  assert.equal(short.factor, 1);
  await purser.run('models.forget', { id: 'chat' });
  const tall = await told(20_500, long(10_000));
  assert.equal(tall.overhead, 0);
  assert.equal(tall.factor, Math.ceil((1000 * 20_500) / tall.bound) / 1000);
  assert.deepEqual(purser.problems(), []);
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

test('what is learned of an upstream model is that of all models that have it, over a reload and a restart as well', async (t) => {
  const [chat] = MODELS;
  const own = { id: 'short', context_length: 1000, max_output_tokens: 500 };
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: { ...all.router, models: [chat, { ...chat, ...own }, { ...chat, id: 'other', upstream_model: 'other' }] },
    }),
  });
  const gateway = await openGateway(purser);
  const contextOf = (model: string) => purser.app.catalogue.find(model).routes[0].learned.contextTokens;
  const learned = async () => [await learnedOf(purser), await learnedOf(purser, 'short'), contextOf('short')];
  const count = (tokens: number) => {
    purser.upstream.handle = completion({ prompt_tokens: tokens, completion_tokens: 1 });
  };
  count(900);
  await gateway.chat();
  const { overhead } = await learnedOf(purser);
  assert((overhead as number) > 500);
  assert.deepEqual(await learned(), [{ overhead, factor: 1 }, { overhead, factor: 1 }, 0]);
  count(1500); // Above the context length of one of them.
  await gateway.chat({ model: 'short' });
  const all = await learned();
  assert.deepEqual(all, [all[0], all[0], 1500]);
  assert.equal(contextOf('chat'), 0);
  count(((all[0] as { overhead: number }).overhead ?? 0) + 1000);
  await gateway.chat();
  const most = await learned();
  assert.deepEqual(most, [most[0], most[0], 1500], 'what another one taught of its context stays');
  await purser.run('reload', {});
  assert.deepEqual(await learned(), most);
  await purser.reopen();
  assert.deepEqual(await learned(), most);
  assert.deepEqual(await learnedOf(purser, 'other'), NOTHING);
  await purser.run('models.forget', { id: 'short' });
  assert.deepEqual(await learned(), [NOTHING, NOTHING, 0]);
  assert.deepEqual(purser.problems(), []);
});

test('what was learned has a checksum, and starts anew when the settings are changed', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completion({ prompt_tokens: 1000, completion_tokens: 1 });
  await gateway.chat();
  assert(((await learnedOf(purser)).overhead as number) > 500);
  const catalogue = createCatalogue({
    router: {
      ...purser.app.config.router,
      models: purser.app.config.router.models.map((it) => ({ ...it, prompt_overhead_tokens: 900 })),
    },
  });
  readLearned(purser.directory, catalogue);
  assert.equal(describeLearned(catalogue.find('chat').routes[0]), undefined);
  purser.tamper('update learned_bound set overhead_tokens = 0');
  assert.match(purser.problems().join(), /learned_bound local was changed: its checksum does not match/);
});

test('a server that counts nonsense does not make its model unusable for ever', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completion({ prompt_tokens: Number.MAX_SAFE_INTEGER - 10, completion_tokens: 1 });
  assert.equal((await gateway.chat()).status, 200);
  assert.deepEqual(await learnedOf(purser), { overhead: 64_000, factor: 1 });
  assert.equal((await gateway.chat(long(3000))).status, 200);
  assert.deepEqual(await learnedOf(purser), { overhead: 64_000, factor: 64 });
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
  assert.deepEqual(await learnedOf(purser), NOTHING);
  const exceeded = purser.log.filter((line) => line.includes('operation.bound_exceeded'));
  assert.equal(exceeded.length, 3, 'the operator hears of each');
});

test('a switch for which the template writes text does not raise the bound of everybody’s text', async (t) => {
  const purser = await serverWith(t, {});
  const gateway = await openGateway(purser);
  purser.upstream.handle = completion({ prompt_tokens: 1000, completion_tokens: 1 });
  await gateway.chat({ chat_template_kwargs: { builtin_tools: ['browser'] } });
  assert.deepEqual(await learnedOf(purser), NOTHING);
  assert.equal(purser.log.filter((line) => line.includes('operation.bound_exceeded')).length, 1);
  await gateway.chat();
  assert(((await learnedOf(purser)).overhead as number) > 1, 'the same count without one teaches');
});

test('a count above the overhead of the settings is within the bound from then on', async (t) => {
  const purser = await serverWith(t, { prompt_overhead_tokens: 1000 });
  const gateway = await openGateway(purser);
  purser.upstream.handle = completion({ prompt_tokens: 1700, completion_tokens: 1 });
  for (let i = 0; i < 3; i++) await gateway.chat();
  assert((await boundOf(purser)) >= 1700);
  assert.equal(alarms(purser).length, 1);
});

test('a count of several embeddings teaches what is added to each, and nothing of the longest', async (t) => {
  const purser = await serverWith(t, {});
  const gateway = await openGateway(purser);
  const learned = async () => {
    const { data } = await purser.run('models.list', {});
    const [route] = data.find(({ id }) => id === 'embed')?.routes ?? [];
    return [route?.context_length, route?.bound_overhead_tokens, route?.bound_factor];
  };
  const counted = (prompt_tokens: number) => {
    purser.upstream.handle = failure(200, { data: [{ embedding: [0] }], usage: { prompt_tokens } });
  };
  counted(400); // Three of them of 58 by the settings.
  const ask = (length: number) =>
    gateway.ask('POST', '/embeddings', { body: { model: 'embed', input: Array(3).fill('x'.repeat(length)) } });
  assert.equal((await ask(200)).status, 200);
  assert.deepEqual(await learned(), [100, 0, 1], 'where the context length cut them off, nothing is known');
  counted(261);
  assert.equal((await ask(50)).status, 200);
  assert.deepEqual(await learned(), [100, 29, 1]);
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
  assert.deepEqual(await learnedOf(purser), NOTHING);
});
