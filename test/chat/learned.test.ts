import assert from 'node:assert/strict';
import test from 'node:test';
import { readLearned } from '../../src/doctor/learned.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { describeLearned } from '../../src/router/check.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion } from '../helper/upstream.ts';

async function boundOf(house: TestServer): Promise<number> {
  const [latest] = (await house.run('operation.list', {})).operations;
  return (latest as unknown as { price: { bound_prompt_tokens: number } }).price.bound_prompt_tokens;
}
const factorOf = async (house: TestServer): Promise<number> =>
  (await house.run('models.list', {})).data.find(({ id }) => id === 'chat')?.routes[0]?.bound_factor as number;
const alarms = (house: TestServer) =>
  house.log.filter((line) => line.includes('"bound.learned"')).map((it) => JSON.parse(it));

for (const stream of [false, true])
  test(`a count above its bound raises the bound of its route from then on, and over a restart (stream: ${stream})`, async (t) => {
    const house = await openTestServer(t);
    const gateway = await openGateway(house);
    const ask = () => gateway.chat({ stream });
    const counts = (prompt: number) => {
      const usage = { prompt_tokens: prompt, completion_tokens: 1, total_tokens: prompt + 1 };
      house.upstream.handle = stream ? streaming(said('a'), FINISHED, counted(usage), DONE) : completion(usage);
    };
    counts(10);
    await ask();
    const before = await boundOf(house);
    assert.equal(await factorOf(house), 1);

    counts(before);
    await ask();
    assert.equal(await factorOf(house), 1, 'a count at its bound is within it');
    assert.deepEqual(alarms(house), []);

    counts(3 * before);
    await ask();
    assert.equal(await factorOf(house), 3);
    const [alarm, ...others] = alarms(house);
    assert.deepEqual(others, []);
    assert.equal(alarm.level, 50, 'an error');
    assert.deepEqual([alarm.counted_tokens, alarm.bound_tokens, alarm.bound_factor], [3 * before, before, 3]);

    await ask();
    assert.equal(await boundOf(house), 3 * before);
    assert.equal(alarms(house).length, 1, 'what is within the raised bound teaches nothing');

    await house.reopen();
    assert.equal(await factorOf(house), 3);
    await ask();
    assert.equal(await boundOf(house), 3 * before);
    assert.deepEqual(house.problems(), []);

    const catalogue = createCatalogue(house.app.config);
    readLearned(house.directory, catalogue);
    assert.match(describeLearned(catalogue.find('chat').routes[0]) ?? '', /above the bound.*by the factor 3\. Set/);
  });

test('a prompt above the context length teaches the context length; other routes learn nothing', async (t) => {
  const house = await openTestServer(t);
  const gateway = await openGateway(house);
  const messages = [{ role: 'user', content: 'x'.repeat(100_000) }];
  house.upstream.handle = completion({ prompt_tokens: 90_000, completion_tokens: 1 });
  await gateway.chat({ messages });
  assert.equal(await boundOf(house), 32_768, 'by the settings');
  await gateway.chat({ messages });
  assert.equal(await boundOf(house), 90_000, 'as long as one that was counted');
  const { data } = await house.run('models.list', {});
  assert.deepEqual(
    data.map(({ id, routes }) => [id, routes[0]?.context_length, routes[0]?.bound_factor]),
    [
      ['chat', 90_000, 1],
      ['flat', 32_768, 1],
      ['free', 32_768, 1],
      ['dear', 32_768, 1],
    ],
  );
  assert.deepEqual(house.problems(), []);
});

test('what was learned is under the seal, and starts anew when the settings are changed', async (t) => {
  const house = await openTestServer(t);
  const gateway = await openGateway(house);
  house.upstream.handle = completion({ prompt_tokens: 1000, completion_tokens: 1 });
  await gateway.chat();
  assert((await factorOf(house)) > 5);
  const catalogue = createCatalogue({
    router: {
      ...house.app.config.router,
      models: house.app.config.router.models.map((it) => ({ ...it, prompt_overhead_tokens: 900 })),
    },
  });
  readLearned(house.directory, catalogue);
  assert.equal(describeLearned(catalogue.find('chat').routes[0]), undefined);
  house.app.ledger.client.exec('update learned_bound set permille = 1000');
  assert.match(house.problems().join(), /learned_bound house was changed: its checksum does not match/);
});

test('a server that counts nonsense does not make its model unusable for ever', async (t) => {
  const house = await openTestServer(t);
  const gateway = await openGateway(house);
  house.upstream.handle = completion({ prompt_tokens: Number.MAX_SAFE_INTEGER - 10, completion_tokens: 1 });
  assert.equal((await gateway.chat()).status, 200);
  assert.equal(await factorOf(house), 64);
});
