import assert from 'node:assert/strict';
import test from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { ALL, assertPrints, type Block, openGateway, run } from './clients-page-shared.ts';

test('the key and the first call of the page, with curl', async (t) => {
  if (!hasComponent(t, 'curl')) return;
  const gateway = await openGateway(t);
  const [getKey, call] = ALL as [Block, Block];
  const { env } = await gateway.openWallet();
  const key = await run(t, getKey, env);
  assertPrints(getKey, key);
  const { api_key, base_url } = JSON.parse(key.stdout);
  assertPrints(call, await run(t, call, { OPENAI_API_KEY: api_key, OPENAI_BASE_URL: base_url }));
  await gateway.assertBooks();

  const poor = await gateway.openWallet();
  await gateway.drain(poor.token, 'flat');
  const refused = await run(t, call, await gateway.clientEnv(poor.token));
  assert.equal(JSON.parse(refused.stdout).error.code, 'insufficient_funds');
});

test('each program in Python of the page, where its package is installed', async (t) => {
  if (!hasComponent(t, 'python3')) return;
  const gateway = await openGateway(t);
  const { token } = await gateway.openWallet();
  const programs = ALL.filter(({ language }) => language === 'python');
  assert.equal(programs.length, 3);
  for (const block of programs) {
    const [, name] = /^from (\w+) import/m.exec(block.code) as unknown as [string, string];
    const has = await run(t, { ...block, code: `import ${name}` }, {});
    if (has.code !== 0) t.diagnostic(`${name} is not installed`);
    else assertPrints(block, await run(t, block, await gateway.clientEnv(token)));
  }
});
