import assert from 'node:assert/strict';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import test, { type TestContext } from 'node:test';
import { parse } from 'yaml';
import { checkSettings } from '../../src/config/config.ts';
import { settingsText } from '../../src/config/template.ts';
import { discoverServers, USUAL_SERVERS } from '../../src/router/discover.ts';
import { whenRead } from '../helper/listener.ts';

/** A server that answers these paths with JSON, or a status, or text that is none. */
async function serverOf(t: TestContext, answers: Record<string, unknown>): Promise<number> {
  const server = http.createServer(
    whenRead((request, response, body) => {
      const key = body.length ? `${request.url} ${JSON.parse(body.toString()).model}` : (request.url as string);
      const answer = answers[key];
      if (typeof answer === 'number' || answer === undefined)
        return response.writeHead((answer as number) ?? 404).end();
      return response.end(typeof answer === 'string' ? answer : JSON.stringify(answer));
    }),
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}
const listed = (owned_by: string, ...models: object[]) => ({
  object: 'list',
  data: models.map((it) => ({ object: 'model', owned_by, ...it })),
});

test('the usual ports are those of the servers’ own documentation', () => {
  assert.deepEqual(
    USUAL_SERVERS.map(({ software, port }) => `${software} ${port}`),
    ['Ollama 11434', 'vLLM 8000', 'llama.cpp 8080', 'LM Studio 1234', 'SGLang 30000'],
  );
});

test('each kind of server is recognised, wherever it listens, with the context length that a request may have', async (t) => {
  const ollama = await serverOf(t, {
    '/v1/models': listed(
      'library',
      { id: 'qwen3:8b' },
      { id: 'llama3.2:3b' },
      { id: 'gemma3' },
      { id: 'embeddinggemma' },
    ),
    '/api/ps': { models: [{ name: 'qwen3:8b', context_length: 16_384 }] },
    '/api/show qwen3:8b': { parameters: 'num_ctx 8192', model_info: { 'qwen3.context_length': 40_960 } },
    '/api/show llama3.2:3b': { parameters: 'stop "x"\nnum_ctx                        8192' },
    '/api/show gemma3': { model_info: { 'gemma3.context_length': 131_072 }, capabilities: ['completion'] },
    '/api/show embeddinggemma': { parameters: 'num_ctx 2048', capabilities: ['embedding'] },
  });
  const vllm = await serverOf(t, { '/v1/models': listed('vllm', { id: 'Qwen/Qwen3-8B', max_model_len: 32_768 }) });
  const llama = await serverOf(t, {
    '/v1/models': listed('llamacpp', { id: 'gpt-oss.gguf', meta: { n_ctx_train: 131_072 } }),
    '/props': { default_generation_settings: { n_ctx: 65_536 } },
  });
  const studio = await serverOf(t, {
    '/v1/models': listed('organization_owner', { id: 'phi-4' }, { id: 'nomic' }),
    '/api/v0/models': {
      data: [
        { id: 'phi-4', type: 'llm', max_context_length: 16_384, loaded_context_length: 4096 },
        { id: 'nomic', type: 'embeddings', max_context_length: 2048 },
      ],
    },
  });
  const sglang = await serverOf(t, { '/v1/models': listed('sglang', { id: 'Qwen/Qwen3-8B', max_model_len: 40_960 }) });
  const locked = await serverOf(t, { '/v1/models': 401 });
  const empty = await serverOf(t, { '/v1/models': { object: 'list', data: null } });
  const others = [
    await serverOf(t, { '/v1/models': '<html>' }),
    await serverOf(t, { '/v1/models': { models: [] } }),
    await serverOf(t, { '/v1/models': 500 }),
    1, // Nothing listens there.
  ];
  const ports = [ollama, vllm, llama, studio, sglang, locked, empty, ...others];
  const usual = ports.map((port) => ({ software: 'Ollama', port }));
  const found = await discoverServers([`http://127.0.0.1:${vllm}/v1/`], usual);
  const base = (port: number) => `http://127.0.0.1:${port}/v1`;
  const chat = (id: string, contextLength?: number) => ({ id, kind: 'chat', contextLength });
  assert.deepEqual(found, [
    {
      software: 'Ollama',
      baseUrl: base(ollama),
      isLocked: false,
      models: [
        chat('qwen3:8b', 16_384),
        chat('llama3.2:3b', 8192),
        chat('gemma3'),
        { id: 'embeddinggemma', kind: 'embeddings', contextLength: 2048 },
      ],
    },
    { software: 'vLLM', baseUrl: base(vllm), isLocked: false, models: [chat('Qwen/Qwen3-8B', 32_768)] },
    { software: 'llama.cpp', baseUrl: base(llama), isLocked: false, models: [chat('gpt-oss.gguf', 65_536)] },
    {
      software: 'LM Studio',
      baseUrl: base(studio),
      isLocked: false,
      models: [chat('phi-4', 4096), { id: 'nomic', kind: 'embeddings', contextLength: 2048 }],
    },
    { software: 'SGLang', baseUrl: base(sglang), isLocked: false, models: [chat('Qwen/Qwen3-8B', 40_960)] },
    { software: 'Ollama', baseUrl: base(locked), isLocked: true, models: [] },
    { software: 'Ollama', baseUrl: base(empty), isLocked: false, models: [] },
    { software: 'vLLM', baseUrl: base(vllm), isLocked: false, models: [chat('Qwen/Qwen3-8B', 32_768)] },
  ]);

  const { text, upstreams, models } = settingsText(found.filter((it) => it.models.length));
  checkSettings('purser.yaml', text, {});
  assert.deepEqual(upstreams, ['ollama', 'vllm', 'llama-cpp', 'lm-studio', 'sglang', 'vllm-2']);
  const { router } = parse(text);
  assert.deepEqual(router.models[0], {
    id: 'qwen3:8b',
    upstream: 'ollama',
    context_length: 16_384,
    max_output_tokens: 8192,
    pricing_per_million: { prompt: 0.1, completion: 0.4 },
  });
  assert.match(text, /id: "gemma3"\n {6}upstream: ollama\n {6}context_length: 4096 {3}# a guess/);
  assert.deepEqual(
    models.filter((it) => it.upstream_model).map((it) => it.id),
    ['Qwen/Qwen3-8B@sglang', 'Qwen/Qwen3-8B@vllm-2'],
  );
  assert.deepEqual(router.models.at(-1).upstream_model, 'Qwen/Qwen3-8B');
});

test('a file without a model server is all comments and defaults; a strange name stays a name', () => {
  checkSettings('purser.yaml', settingsText([]).text, {});
  assert.deepEqual(parse(settingsText([]).text), { listen: '127.0.0.1:7420' });
  const strange = ['yes', '1e3', 'a: b # c', '"', "'", 'ü\u0007', '- x', '{a}'];
  const { text } = settingsText([
    {
      software: 'a Server!',
      baseUrl: 'http://[::1]:1/v1',
      models: [...strange, `\${HOME}`].map((id) => ({ id, kind: 'chat', contextLength: 1 })),
    },
  ]);
  checkSettings('purser.yaml', text, {});
  const { router } = parse(text);
  assert.deepEqual(
    router.models.map((it: { id: string }) => it.id),
    strange,
  );
  assert.equal(router.upstreams[0].name, 'a-server');
});

test('whatever servers say of their models, the file is one that Purser takes', () => {
  const said: [id: string, contextLength: number | undefined, taken?: number][] = [
    ['', 4096],
    ['x'.repeat(201), 4096],
    ['x'.repeat(200), 4096, 4096],
    [`\${NAME:-x}`, 4096],
    ['\ue000NAME\ue001', 4096],
    ['two\nlines', 1, 1],
    ['no limit', Number.MAX_SAFE_INTEGER, 4096],
    ['unknown', undefined, 4096],
    ['unknown@vllm-2', 8192, 8192],
  ];
  const server = {
    software: 'vLLM',
    baseUrl: 'http://127.0.0.1:1/v1',
    models: said.map(([id, contextLength]) => ({ id, kind: 'chat' as const, contextLength })),
  };
  const { text, models } = settingsText([server, server]);
  checkSettings('purser.yaml', text, {});
  const taken = said.flatMap(([id, , length]) => (length === undefined ? [] : [[id, length]]));
  const others = taken.filter(([id]) => id !== 'x'.repeat(200) && id !== 'unknown');
  assert.deepEqual(
    models.map((it) => [it.id, it.context_length]),
    [...taken, ...others.map(([id, length]) => [`${id}@vllm-2`, length])],
  );
  assert.equal(text.match(/# a guess/g)?.length, 3);
});
