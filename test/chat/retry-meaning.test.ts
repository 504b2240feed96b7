import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import test from 'node:test';
import { BESIDE_THE_QUESTION } from '../../src/http/model-request.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completionStream } from '../helper/sse.ts';
import { completion, gate, reset } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';

// A retry without a key is recognised by what it asks (docs/decisions/0039).

type Body = Record<string, any>;
/** A body, and how it is written. */
type Form = (body: Body) => Body | string;
type Wire = { path: string; body: Body; others: Record<string, (body: Body) => Body> };

/** Reverses the order of the members of all objects. */
function reversed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(reversed);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .reverse()
      .map(([name, it]) => [name, reversed(it)]),
  );
}

const tagged = { turn: '1', session: 'a', window: '0' };
const retagged = { window: '1', session: 'a', turn: '2' };

/** The same question, asked again. */
const FORMS: Record<string, Form> = {
  'the same bytes': (body) => body,
  'members in another order': (body) => Object.fromEntries(Object.entries(body).reverse()),
  'members in another order at every level': (body) => reversed(body) as Body,
  indented: (body) => JSON.stringify(body, null, 2),
  'with white space around it': (body) => `\n ${JSON.stringify(body)}\r\n\t`,
  'indented with tabs, in another order': (body) => JSON.stringify(reversed(body), null, '\t'),
  'with escapes for letters': (body) => JSON.stringify(body).replaceAll('hi', '\\u0068\\u0069'),
  'with a name in escapes': (body) => JSON.stringify(body).replace('"model"', '"\\u006dodel"'),
  'with a duplicate before the member that counts': (body) => `{"model":"other",${JSON.stringify(body).slice(1)}`,
  'with a number in another form': (body) => JSON.stringify(body).replace('"seed":7', '"seed":7.0'),
};
/** The same with other tags, in an API that takes them. */
const TAGS: Record<string, Form> = {
  'metadata in another order': (body) => ({ ...body, metadata: reversed(tagged) }),
  'other metadata': (body) => ({ ...body, metadata: retagged }),
  'no metadata': ({ metadata: _, ...body }) => body,
  'other client_metadata': (body) => ({ ...body, client_metadata: retagged }),
  'another prompt_cache_key': (body) => ({ ...body, prompt_cache_key: 'b' }),
  'another prompt_cache_retention': (body) => ({ ...body, prompt_cache_retention: '24h' }),
  'another user': (body) => ({ ...body, user: 'b' }),
  'another safety_identifier': (body) => ({ ...body, safety_identifier: 'b' }),
  'store: false': (body) => ({ ...body, store: false }),
};
/** Which of these an API accepts. */
const takes: Record<string, readonly string[]> = {
  chat: [
    'metadata in another order',
    'other metadata',
    'no metadata',
    'another user',
    'another safety_identifier',
    'store: false',
  ],
  messages: ['metadata in another order', 'other metadata', 'no metadata'],
  responses: Object.keys(TAGS),
  embeddings: ['another user'],
};

const more = (text: string) => (body: Body) => JSON.parse(JSON.stringify(body).replaceAll('hi', text)) as Body;
const tool = { type: 'function', name: 'look', parameters: { type: 'object', properties: { hi: { type: 'string' } } } };
const WIRES: Record<string, Wire> = {
  chat: {
    path: '/chat/completions',
    body: {
      model: 'chat',
      messages: [{ role: 'user', content: 'hi' }],
      tools: [{ type: 'function', function: { name: tool.name, parameters: tool.parameters } }],
      max_tokens: 300,
      seed: 7,
      metadata: tagged,
      user: 'a',
      safety_identifier: 'a',
    },
    others: {
      message: more('ho'),
      tool: (body) => ({ ...body, tools: [] }),
      model: (body) => ({ ...body, model: 'flat' }),
      limit: (body) => ({ ...body, max_tokens: 299 }),
      sampler: (body) => ({ ...body, temperature: 0.5 }),
      seed: (body) => ({ ...body, seed: 8 }),
      'order of a list': (body) => ({ ...body, messages: [{ role: 'system', content: 'b' }, ...body.messages] }),
    },
  },
  messages: {
    path: '/messages',
    body: { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 300, metadata: tagged },
    others: {
      message: more('ho'),
      model: (body) => ({ ...body, model: 'flat' }),
      limit: (body) => ({ ...body, max_tokens: 299 }),
      sampler: (body) => ({ ...body, temperature: 0.5 }),
    },
  },
  responses: {
    path: '/responses',
    body: {
      model: 'chat',
      input: 'hi',
      tools: [tool],
      max_output_tokens: 300,
      metadata: tagged,
      client_metadata: tagged,
      user: 'a',
      safety_identifier: 'a',
    },
    others: {
      message: more('ho'),
      tool: (body) => ({ ...body, tools: [] }),
      model: (body) => ({ ...body, model: 'flat' }),
      limit: (body) => ({ ...body, max_output_tokens: 299 }),
      sampler: (body) => ({ ...body, top_p: 0.5 }),
    },
  },
  embeddings: {
    path: '/embeddings',
    body: { model: 'vectors', input: ['hi', 'hu'], user: 'a' },
    others: {
      message: more('ho'),
      model: (body) => ({ ...body, model: 'vectors2' }),
      order: (body) => ({ ...body, input: ['hu', 'hi'] }),
    },
  },
};
const VECTORS = ['vectors', 'vectors2'].map((id) => ({
  id,
  upstream: 'local',
  kind: 'embeddings',
  context_length: 8192,
  pricing: { prompt: '0.000001' },
}));

const open = (t: Parameters<typeof openTestServer>[0]) =>
  openTestServer(t, {
    settings: { limits: { released_per_minute: 0 } },
    change: ({ router, ...rest }) => ({ ...rest, router: { ...router, models: [...router.models, ...VECTORS] } }),
  });

const written = (it: Body | string) => (typeof it === 'string' ? it : JSON.stringify(it));
const embedded = (model: unknown) => ({
  object: 'list',
  data: [{ object: 'embedding', index: 0, embedding: [0.5] }],
  model,
  usage: { prompt_tokens: 1, total_tokens: 1 },
});
const answering: Parameters<typeof gate>[0] = (call, response) => {
  if (!call.path.endsWith('/embeddings')) return completion()(call, response);
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(JSON.stringify(embedded(call.body.model)));
};

const operationCount = (purser: TestServer) =>
  Number(purser.app.ledger.client.prepare('select count(*) from operation').pluck().get());

/** Sends a body without a key and leaves once the model server has it. */
async function askAndLeave(purser: TestServer, key: string, path: string, body: string): Promise<void> {
  const before = purser.upstream.calls.length;
  const request = http.request(`${purser.url}/v1/router${path}`, {
    method: 'POST',
    agent: false,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
  });
  request.on('error', () => {});
  request.end(body);
  await purser.upstream.arrived(before + 1);
  request.destroy();
  await until('its place is vacant', () => purser.app.retries.abandonedCount() > 0);
}

for (const [name, { path, body, others }] of Object.entries(WIRES)) {
  const forms = { ...FORMS, ...Object.fromEntries((takes[name] as string[]).map((it) => [it, TAGS[it] as Form])) };

  for (const length of [0, 200_000])
    test(`${name}: the same question in another form joins the first, which still runs${length ? ', read in the thread' : ''}`, async (t) => {
      const purser = await open(t);
      const gateway = await openGateway(purser);
      let round = 0;
      for (const [form, write] of Object.entries(forms).slice(length ? -3 : 0)) {
        // Long ones by white space: what is long and asked takes no longer to compare.
        const asked = more(`hi${round++}`)(body);
        const padded = (text: string) => text + ' '.repeat(length);
        const slow = gate(answering);
        purser.upstream.handle = slow.handler;
        const before = [purser.upstream.calls.length, operationCount(purser)] as const;
        await askAndLeave(purser, gateway.key, path, padded(written(asked)));
        const second = gateway.ask('POST', path, { body: padded(written(write(asked))) });
        await until(`joined by ${form}`, () => purser.app.retries.abandonedCount() === 0);
        slow.open();
        const answer = await second;
        assert.equal(answer.status, 200, `${form}: ${answer.text}`);
        assert.equal(answer.headers['idempotent-replayed'], 'true', form);
        assert.equal(purser.upstream.calls.length, before[0] + 1, form);
        assert.equal(operationCount(purser), before[1] + 1, form);
      }
      assert.deepEqual(purser.problems(), []);
    });

  test(`${name}: after a crash the same question in another form is asked again on the hold of the first`, async (t) => {
    const purser = await open(t);
    const gateway = await openGateway(purser);
    purser.upstream.handle = () => {};
    const questions = Object.entries(forms).map(([form, write], round) => ({
      form,
      write,
      asked: more(`hi${round}`)(body),
    }));
    for (const { asked } of questions) {
      const before = purser.upstream.calls.length;
      void gateway.ask('POST', path, { body: written(asked) }).catch(() => {});
      await purser.upstream.arrived(before + 1);
    }
    const count = operationCount(purser);
    await purser.crash(() => {});
    purser.upstream.handle = answering;
    for (const { form, write, asked } of questions) {
      const answer = await gateway.ask('POST', path, { body: written(write(asked)) });
      assert.equal(answer.status, 200, `${form}: ${answer.text}`);
      assert.equal(operationCount(purser), count, form);
    }
    assert.equal(purser.wallet(gateway.walletId).held, 0n);
    assert.deepEqual(purser.problems(), []);
  });

  test(`${name}: another question is another request`, async (t) => {
    const purser = await open(t);
    const gateway = await openGateway(purser);
    for (const [what, change] of Object.entries(others)) {
      purser.upstream.handle = reset;
      const first = await gateway.ask('POST', path, { body });
      assert.equal(
        first.body.error.code ?? first.body.error.type,
        name === 'messages' ? 'api_error' : 'operation_uncertain',
      );
      purser.upstream.handle = answering;
      const before = operationCount(purser);
      const answer = await gateway.ask('POST', path, { body: change(body) });
      assert.equal(answer.status, 200, `${what}: ${answer.text}`);
      assert.equal(operationCount(purser), before + 1, what);
      assert.equal((await gateway.ask('POST', path, { body })).status, 200); // Takes the place that is left.
      assert.equal(operationCount(purser), before + 1, what);
    }
  });
}

test('a retry that asks for the usage of a stream as well joins the first', async (t) => {
  const purser = await open(t);
  const gateway = await openGateway(purser);
  const { path, body } = WIRES.chat as Wire;
  const slow = gate(completionStream());
  purser.upstream.handle = slow.handler;
  await askAndLeave(purser, gateway.key, path, written({ ...body, stream: true }));
  const second = gateway.chat({ ...body, stream: true, stream_options: { include_usage: true } });
  await until('it has joined', () => purser.app.retries.abandonedCount() === 0);
  slow.open();
  assert.match((await second).text, /hel[\s\S]*lo[\s\S]*\[DONE\]/);
  assert.equal(operationCount(purser), 1);
});

test('with a key every member counts, and their order does not', async (t) => {
  const purser = await open(t);
  const gateway = await openGateway(purser);
  const { body } = WIRES.chat as Wire;
  const post = (it: Body | string) => gateway.ask('POST', '/chat/completions', { key: 'k', body: written(it) });
  assert.equal((await post(body)).status, 200);
  assert.equal((await post(JSON.stringify(reversed(body), null, 2))).headers['idempotent-replayed'], 'true');
  for (const change of [{ metadata: retagged }, { user: 'b' }, { store: false }]) {
    const answer = await post({ ...body, ...change });
    assert.deepEqual([answer.status, answer.body.error.code], [409, 'idempotency_conflict']);
  }
  assert.equal(purser.upstream.calls.length, 1);
});

test('docs/clients.md lists the members that ask nothing', () => {
  const page = readFileSync(new URL('../../docs/clients.md', import.meta.url), 'utf8');
  const sentence = /These members ask nothing[^:]*: (.*?)\.\n/s.exec(page)?.[1] as string;
  const listed = [...sentence.matchAll(/`([^`]+)`/g)].map(([, it]) => it);
  const known = [...BESIDE_THE_QUESTION].map(([name, value]) => (value === null ? name : `${name}: ${value}`));
  assert.deepEqual(listed, known.sort());
});
