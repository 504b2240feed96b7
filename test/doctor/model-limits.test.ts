import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import * as v from 'valibot';
import { readConfig } from '../../src/config/config.ts';
import { Router } from '../../src/config/router.ts';
import { contextFault } from '../../src/doctor/models.ts';
import { examineSettings } from '../../src/doctor/settings.ts';
import { readStatedModels } from '../../src/router/stated-models.ts';
import { temporaryDirectory } from '../ledger/books.ts';

const PRICE = { prompt: '1', completion: '1' };
const parse = (model: object) =>
  v.safeParse(Router, {
    upstreams: [{ name: 'local', base_url: 'http://127.0.0.1:1/v1' }],
    models: [
      {
        id: 'm',
        upstream: 'local',
        context_length: 8000,
        max_output_tokens: 1000,
        pricing_per_million: PRICE,
        ...model,
      },
    ],
  });
const notesOn = async (t: TestContext, model: object): Promise<string> => {
  const { output, issues } = parse(model);
  assert.deepEqual(issues, undefined);
  const config = readConfig({ data: temporaryDirectory(t) }, {});
  const findings = await examineSettings({ ...config, router: output as v.InferOutput<typeof Router> });
  return findings
    .slice(1)
    .map(({ name, detail }) => `${name}: ${detail}`)
    .join('\n');
};

test('limits that cannot be are said, and do not keep the server from starting', async (t) => {
  assert.equal(await notesOn(t, {}), '');
  assert.match(
    await notesOn(t, { max_output_tokens: 8000 }),
    /max_output_tokens 8000 leaves no room.* context_length of 8000/,
  );
  assert.match(
    await notesOn(t, { fallbacks: [{ upstream: 'local', context_length: 900 }] }),
    /max_output_tokens 1000 leaves no room.* context_length of 900/,
  );
  assert.match(await notesOn(t, { prompt_overhead_tokens: 8000 }), /prompt_overhead_tokens is not below/);
  assert.match(await notesOn(t, { image_urls: true }), /image_urls lets agents.*inside your network/);
});

test('a default above the most is a fault', () => {
  const [issue] = parse({ default_output_tokens: 1001 }).issues ?? [];
  assert.equal(issue?.message, 'is above max_output_tokens');
  assert.equal(v.getDotPath(issue as v.BaseIssue<unknown>), 'models.0.default_output_tokens');
});

test('the context length is read as each server states it', () => {
  const models = readStatedModels({
    data: [
      { id: 'vllm', max_model_len: 1 },
      { id: 'openrouter', context_length: 2, pricing: {} },
      { id: 'groq', context_window: 3 },
      { id: 'llama.cpp', meta: { n_ctx: 4, n_ctx_train: 5 } },
      { id: 'openai' },
      { id: 'nonsense', context_length: '6' },
      null,
      { object: 'model' },
    ],
  });
  assert.deepEqual(
    [...models].map(([id, it]) => [id, it.contextLength]),
    [
      ['vllm', 1],
      ['openrouter', 2],
      ['groq', 3],
      ['llama.cpp', 4],
      ['openai', undefined],
      ['nonsense', undefined],
    ],
  );
  assert.equal(contextFault(2, models.get('openrouter')), undefined);
  assert.equal(contextFault(2, models.get('openai')), undefined);
  assert.match(contextFault(1, models.get('openrouter')) ?? '', /given away/);
  assert.match(contextFault(3, models.get('openrouter')) ?? '', /refused there/);
  assert.equal(readStatedModels('no list').size, 0);
});
