import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import test, { type TestContext } from 'node:test';
import * as v from 'valibot';
import { readConfig } from '../../src/config/config.ts';
import { Router } from '../../src/config/router.ts';
import { contextFault } from '../../src/doctor/models.ts';
import { examineSettings } from '../../src/doctor/settings.ts';
import { readStatedModels, statedModels } from '../../src/router/stated-models.ts';
import { tryTransfer } from '../../src/transfer/check.ts';
import { whenRead } from '../helper/listener.ts';
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
  assert.match(
    contextFault(1, models.get('openrouter')) ?? '',
    /given away\. Set context_length to 2, or limit prompts there\.$/,
  );
  assert.match(contextFault(3, models.get('openrouter')) ?? '', /refused there\. Set context_length to 2\.$/);
  assert.equal(readStatedModels('no list').size, 0);
});

const MIB = 1024 * 1024;
const SENT_BYTES_MAX = 64 * MIB;

test('an answer without an end is not read for as long as it comes: a model list, and an object store', async (t) => {
  const { promise: left, resolve: leave } = Promise.withResolvers<void>();
  t.after(() => leave());
  let sent = 0;
  const server = http.createServer(
    whenRead(async (_, response) => {
      response.on('error', () => {}).writeHead(200);
      const closed = Promise.race([once(response, 'close'), left]);
      let isClosed = false;
      void closed.then(() => {
        isClosed = true;
      });
      for (; !isClosed && sent < SENT_BYTES_MAX; sent += MIB)
        if (!response.write(Buffer.alloc(MIB, ' '))) await Promise.race([once(response, 'drain'), closed]);
      response.destroy();
    }),
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  assert.equal((await statedModels({ base_url: url } as never)).size, 0);
  assert(sent < SENT_BYTES_MAX, `${sent} bytes of a model list were read`);
  sent = 0;
  const signer = { sign: async () => url };
  await assert.rejects(tryTransfer({ endpoint: url } as never, signer as never, 0), /longer than/);
  assert(sent < SENT_BYTES_MAX, `${sent} bytes of an object were read`);
});
