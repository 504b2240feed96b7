import assert from 'node:assert/strict';
import { once } from 'node:events';
import net from 'node:net';
import test from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { HI, ASKED as MESSAGE, open } from './dialects-shared.ts';

// The gateway at its base URL, and again below it at /v1, which some clients append to each base URL.

const MODELS = ['chat', 'flat', 'free', 'dear'];
const CHAT = { model: 'chat', messages: HI, max_tokens: 100 };

test('OpenAI’s client works at both base URLs', async (t) => {
  const { purser, gateway } = await open(t);
  for (const path of ['/v1/router', '/v1/router/v1']) {
    const openai = new OpenAI({ baseURL: `${purser.url}${path}`, apiKey: gateway.key, maxRetries: 0 });
    const { choices } = await openai.chat.completions.create(CHAT);
    assert.equal(choices[0]?.message.content, 'hello', path);
    assert.equal((await openai.responses.create({ model: 'chat', input: 'hi' })).output_text, 'hello');
    const listed: string[] = [];
    for await (const { id } of openai.models.list()) listed.push(id);
    assert.deepEqual(listed, MODELS);
    assert.equal((await openai.models.retrieve('flat')).id, 'flat');
    const embedded = await openai.embeddings.create({ model: 'chat', input: 'hi' }).catch((error: unknown) => error);
    assert(embedded instanceof OpenAI.NotFoundError);
    assert.equal(embedded.code, 'model_not_found', 'the path is served; the model is another');
    assert.equal((await purser.ask('GET', `${path}/key`, { token: gateway.key })).status, 200);
    assert.equal((await purser.ask('HEAD', path)).status, 200);
  }
});

test('Anthropic’s client lists the models with the lengths of their contexts, and gets errors in its shape', async (t) => {
  const { anthropic, purser, gateway } = await open(t);
  const listed: unknown[] = [];
  for await (const it of anthropic.models.list({ limit: 2 })) listed.push([it.id, it.max_input_tokens, it.max_tokens]);
  assert.deepEqual(
    listed,
    MODELS.map((id) => [id, 32_768, 1000]),
  );
  const one = await anthropic.models.retrieve('flat');
  assert.deepEqual([one.type, one.id, one.display_name, one.max_input_tokens], ['model', 'flat', 'flat', 32_768]);
  assert(!Number.isNaN(Date.parse(one.created_at)));
  const refused = await anthropic.models.retrieve('none').catch((error: unknown) => error);
  assert(refused instanceof Anthropic.NotFoundError);
  assert.equal(refused.type, 'not_found_error');
  assert.match(String(refused.requestID), /^req_/);
  const unread = await purser.ask('GET', '/v1/router/v1/models', {
    token: 'svc_router_x',
    headers: { 'anthropic-version': '2023-06-01' },
  });
  assert.deepEqual([unread.status, unread.body.type], [401, 'error']);
  const plain = await gateway.ask('GET', '/v1/models');
  assert.equal(plain.body.object, 'list', 'without its header the list has OpenAI’s shape');
});

test('one key under both paths is one purchase', async (t) => {
  const { purser, gateway } = await open(t);
  const bodies: [string, object][] = [
    ['/chat/completions', CHAT],
    ['/chat/completions', { ...CHAT, stream: true }],
    ['/responses', { model: 'chat', input: 'hi' }],
    ['/messages', MESSAGE],
  ];
  for (const [i, [path, body]] of bodies.entries()) {
    const first = await gateway.ask('POST', `/v1${path}`, { body, key: `key-${i}` });
    assert.equal(first.status, 200, first.text);
    const again = await gateway.ask('POST', path, { body, key: `key-${i}` });
    assert.deepEqual([again.headers['idempotent-replayed'], again.text], ['true', first.text]);
  }
  assert.equal(purser.upstream.calls.length, bodies.length);
  const other = await gateway.ask('POST', '/v1/chat/completions', { body: { ...CHAT, seed: 1 }, key: 'key-0' });
  assert.deepEqual([other.status, other.body.error.code], [409, 'idempotency_conflict']);
});

test('a request for a WebSocket is told at both paths that there is none', async (t) => {
  const { purser } = await open(t);
  const { hostname, port } = new URL(purser.url);
  for (const path of ['/v1/router/responses', '/v1/router/v1/responses']) {
    const socket = net.connect(Number(port), hostname);
    t.after(() => socket.destroy());
    socket.write(`GET ${path} HTTP/1.1\r\nHost: ${hostname}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`);
    const [answer] = await once(socket, 'data');
    assert.match(String(answer), /^HTTP\/1\.1 426 [\s\S]*\nupgrade: HTTP\/1\.1\r\n[\s\S]*does not speak WebSocket/i);
  }
});

test('a frozen wallet is a 402 in each API of the gateway, and a 403 elsewhere', async (t) => {
  const { purser, gateway, anthropic, openai } = await open(t);
  await purser.run('wallet.freeze', { id: gateway.walletId, reason: 'it loops' });
  const failed = (asked: Promise<unknown>) => asked.catch((error: unknown) => error);
  for (const asked of [openai.chat.completions.create(CHAT), openai.responses.create({ model: 'chat', input: 'hi' })]) {
    const refused = await failed(asked);
    assert(refused instanceof OpenAI.APIError);
    assert.deepEqual([refused.status, refused.code, refused.type], [402, 'wallet_frozen', 'billing_error']);
    assert.match(refused.message, /frozen: it loops/);
    assert.equal(refused.headers?.get('x-should-retry'), 'false');
  }
  const refused = await failed(anthropic.messages.create(MESSAGE));
  assert(refused instanceof Anthropic.APIError);
  assert.deepEqual([refused.status, refused.type], [402, 'billing_error']);
  assert.match(refused.message, /frozen: it loops/);
  const strict = await purser.chat(gateway.token);
  assert.deepEqual([strict.status, strict.body.error.code], [403, 'wallet_frozen']);
  assert.equal((await purser.ask('POST', '/v1/router/key', { token: gateway.token, body: {} })).status, 200);
  assert.deepEqual(purser.upstream.calls, []);
});
