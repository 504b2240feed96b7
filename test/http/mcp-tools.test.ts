import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import test from 'node:test';
import type { Backend } from '../../src/compute/backend.ts';
import { connectMcp } from '../helper/mcp.ts';
import { openTestServer } from '../helper/server.ts';
import { completion } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { openMemoryServer, SPEC } from '../lease/leases.ts';
import { openPaused } from '../lease/pause-shared.ts';
import { openLeased } from '../lease/snapshot-shared.ts';
import { openLocalLease } from './trees-shared.ts';

// What tools say of themselves, and those that are more than an endpoint. The client checks each result against the tool's schema.

type Schema = { properties: Record<string, { description?: string }>; required?: string[] };

test('every tool has a title, a schema of its result, and a description of each argument', async (t) => {
  const purser = await openTestServer(t);
  const client = await connectMcp(t, purser.url, (await purser.openWallet()).token);
  const { tools } = await client.listTools();
  assert.equal(new Set(tools.map(({ title }) => title)).size, tools.length);
  for (const { name, title, inputSchema, outputSchema } of tools) {
    assert(title, name);
    for (const [argument, { description }] of Object.entries((inputSchema as Schema).properties))
      assert((description ?? '').length > 4, `${name} says what ${argument} is`);
    assert.equal(outputSchema?.type, 'object', name);
    assert(Object.keys((outputSchema as Schema).properties).length > 0, `${name} says what it returns`);
    assert(!JSON.stringify([inputSchema, outputSchema]).includes('$ref'), `${name} needs no other document`);
  }
});

test('a snapshot is taken, listed and deleted, and a machine is made from it, once over MCP and HTTP', async (t) => {
  const { purser, token, id } = await openLeased(t);
  const client = await connectMcp(t, purser.url, token);
  await client.listTools();
  const call = async (name: string, args: object) => (await client.tool(name, { ...args })).structuredContent;
  const taken = await call('compute_snapshot', { id, idempotency_key: 'kept' });
  assert.deepEqual(taken, (await purser.snapshot(token, id, 'kept')).body, 'HTTP repeats it');
  const { snapshot_id } = taken;
  assert.deepEqual((await call('compute_snapshots', {})).snapshots, await purser.snapshots(token));
  assert.deepEqual((await call('compute_snapshots', { before: snapshot_id })).snapshots, []);

  const order = { provider: 'provider_one', spec: SPEC, snapshot: snapshot_id, idempotency_key: 'from' };
  const made = await call('compute_create', order);
  assert.deepEqual([made.status, made.snapshot_id], ['running', snapshot_id]);
  assert.equal((await purser.leaseFrom(token, snapshot_id, 'from')).body.id, made.id, 'HTTP repeats it');
  const { snapshot: _, ...without } = order;
  assert.equal((await call('compute_create', without)).error.code, 'idempotency_conflict');
  for (const [i, snapshot] of [5, null, '', {}, 'snap_none'].entries())
    assert.match(
      (await call('compute_create', { ...order, snapshot, idempotency_key: String(i) })).error.code,
      /^(invalid_request|not_found)$/,
    );

  assert.equal((await call('compute_snapshot_delete', { snapshot_id })).status, 'deleting');
  await call('compute_stop', { id: made.id });
  purser.clock.advance(61);
  await purser.app.reaper.runOnce();
  assert.equal((await call('compute_snapshots', {})).snapshots[0].status, 'deleted');
});

test('text goes up and comes back as text, and other bytes as base64', async (t) => {
  const { purser, token, id, sh } = await openLocalLease(t);
  const client = await connectMcp(t, purser.url, token);
  await client.listTools(); // From here on the client checks results.
  const call = async (name: string, args: object) => {
    const { isError, structuredContent } = await client.tool(name, { id, ...args });
    return { isError, ...structuredContent };
  };
  const text = 'def f():\n\treturn "ü 模型 \u{1f600}"\n';
  const sha256 = createHash('sha256').update(text).digest('hex');
  const written = await call('compute_upload', { path: 'a.py', text });
  assert.deepEqual([written.bytes, written.sha256], [Buffer.byteLength(text), sha256]);
  assert.equal(await sh('cat a.py'), text);
  const read = await call('compute_download', { path: 'a.py' });
  assert.deepEqual([read.text, read.content_base64, read.sha256], [text, undefined, sha256]);
  assert.equal((await call('compute_upload', { path: 'empty', text: '' })).bytes, 0);
  assert.equal((await call('compute_download', { path: 'empty' })).text, '');

  // In parts that cut characters: each is text, and the next begins where it ended.
  let [parts, offset] = ['', 0];
  while (offset < read.size) {
    const part = await call('compute_download', { path: 'a.py', offset, length: 5 });
    assert.equal(part.content_base64, undefined);
    assert.equal(part.bytes, Buffer.byteLength(part.text));
    assert.equal(part.sha256, createHash('sha256').update(part.text).digest('hex'));
    parts += part.text;
    offset += part.bytes;
  }
  assert.equal(parts, text);

  for (const bytes of [Buffer.from([0xff, 0xfe, 0x00]), Buffer.from('a\0b'), Buffer.from([0x61, 0xc3])]) {
    const content_base64 = bytes.toString('base64');
    await call('compute_upload', { path: 'b', content_base64 });
    const { text: none, content_base64: back } = await call('compute_download', { path: 'b' });
    assert.deepEqual([none, back], [undefined, content_base64]);
  }
  for (const wrong of [{}, { text: 'a', content_base64: 'YQ==' }, { text: 7 }, { text: null }, { text: '\ud800' }]) {
    const { isError, error } = await call('compute_upload', { path: 'c', ...wrong });
    assert.deepEqual([isError, error.code], [true, 'invalid_request'], JSON.stringify(wrong));
    assert.match(error.message, /^text: /);
  }
  const large = await call('compute_upload', { path: 'c', text: 'x'.repeat(8 * 1024 * 1024 + 1) });
  assert.equal(large.error.code, 'payload_too_large');
  assert.equal(await sh('ls'), 'a.py\nb\nempty\ntmp\n');
});

test('a command in the background is waited for, and a port of the machine is opened', async (t) => {
  const { purser, token, id, sh } = await openLocalLease(t);
  const client = await connectMcp(t, purser.url, token);
  await client.listTools();
  const tool = async (name: string, args: object) => (await client.tool(name, { id, ...args })).structuredContent;
  const { process_id } = await tool('compute_process_start', {
    command: 'until [ -e go ]; do sleep 0.1; done; exit 3',
  });
  const early = await tool('compute_wait', { process_id, seconds: 1 });
  assert.deepEqual([early.done, early.process.status, early.resource], [false, 'running', undefined]);
  const waiting = tool('compute_wait', { process_id });
  await sh('touch go');
  const { done, process } = await waiting;
  assert.deepEqual([done, process.process_id, process.status, process.exit_code], [true, process_id, 'ended', 3]);
  assert.equal((await tool('compute_wait', { process_id: 'proc_none' })).error.code, 'not_found');
  assert.equal((await tool('compute_wait', { seconds: 51 })).error.code, 'invalid_request');
  const log = await client.tool('compute_process_log', { id, process_id, timeout: 5 });
  assert.match(log.structuredContent.error.message, /^timeout: unknown property/);

  assert.equal((await tool('compute_process_list', {})).processes[0].exit_code, 3);
  assert(!(await client.tool('compute_process_log', { id, process_id })).isError);
  assert((await tool('compute_files', {})).entries.some((it: { name: string }) => it.name === 'go'));

  const { url } = await tool('compute_port', { port: 8888 });
  const { body: link } = await purser.ask('POST', '/v1/compute/port', { token, body: { id, port: 8888 } });
  assert.equal(url.split('code=')[0], link.url.split('code=')[0]);

  await client.tool('compute_stop', { id });
  const stopped = await tool('compute_wait', {});
  assert.deepEqual([stopped.done, stopped.resource.status], [true, 'stopped']);
});

test('a machine that is not ready is waited for until it runs', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet();
  const client = await connectMcp(t, purser.url, token);
  await client.listTools();
  purser.memory.ready = false;
  purser.app.answerSeconds = 0.05;
  const { body } = await purser.lease(token);
  const wait = async (seconds: number) =>
    (await client.tool('compute_wait', { id: body.id, seconds })).structuredContent;
  const early = await wait(1);
  assert.deepEqual([body.status, early.done, early.resource.status], ['provisioning', false, 'provisioning']);
  const calls = purser.memory.calls.length;
  const waiting = wait(50);
  for (const it of purser.memory.machines.values()) it.state = 'running';
  purser.clock.advance(30);
  await purser.app.reaper.runOnce();
  const { done, resource } = await waiting;
  assert.deepEqual([done, resource.status, resource.id], [true, 'running', body.id]);
  assert(purser.memory.calls.length - calls <= 3, 'the provider is asked by the reaper alone');
  const other = await purser.openWallet();
  const stranger = await connectMcp(t, purser.url, other.token);
  assert.equal((await stranger.tool('compute_wait', { id: body.id })).structuredContent.error.code, 'not_found');
});

test('a paused machine is not waited for, as nobody may resume it, and one that is being resumed is', async (t) => {
  const { purser, token, id } = await openPaused(t);
  const client = await connectMcp(t, purser.url, token);
  await client.listTools();
  const wait = async (seconds: number) => {
    const { done, resource } = (await client.tool('compute_wait', { id, seconds })).structuredContent;
    return [done, resource.status];
  };
  assert.deepEqual(await wait(50), [true, 'paused']);
  purser.memory.before['pause.end'] = () => {
    throw new Error('the connection was reset');
  };
  assert.equal((await purser.resume(token, id)).body.error.code, 'operation_uncertain');
  assert.deepEqual(await wait(1), [false, 'paused']);
  purser.memory.before = {};
  const waiting = wait(50);
  purser.clock.advance(12);
  await purser.app.reaper.runOnce();
  assert.deepEqual(await waiting, [true, 'running']);
});

test('a server that stops does not wait for a machine or a command, and says that neither is done', async (t) => {
  const { purser, token, id } = await openLocalLease(t);
  const client = await connectMcp(t, purser.url, token);
  const start = { id, command: 'sleep 600' };
  const { process_id } = (await client.tool('compute_process_start', start)).structuredContent;
  const waiting = client.tool('compute_wait', { id, process_id, seconds: 50 });
  await until('it waits', () => purser.app.activity.open(id) > 0);
  const [{ backend }] = purser.app.slots.list as unknown as [{ backend: Backend }];
  const kills = t.mock.method(backend.guest, 'exec'); // The end of its time would need none.
  purser.app.health.stopping = true;
  const { done, process } = (await waiting).structuredContent;
  purser.app.health.stopping = false;
  assert.deepEqual([done, process.status, kills.mock.callCount()], [false, 'running', 1]);
  await client.tool('compute_process_kill', { id, process_id });
});

test('children are listed, with what they have left and without a token', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ budget_cents: 500 });
  const client = await connectMcp(t, purser.url, token);
  await client.listTools();
  const list = async (args = {}) => (await client.tool('wallet_children', args)).structuredContent;
  assert.deepEqual(await list(), { wallets: [] });
  const fund = async (name: string) =>
    (await client.tool('wallet_delegate', { name, budget_usd: '1.00', idempotency_key: name })).structuredContent;
  const [first, second] = [await fund('a'), await fund('b')];
  const { wallets } = await list();
  assert.deepEqual(
    wallets.map((it: any) => [it.id, it.name, it.status, it.available_usd]),
    [
      [second.id, 'b', 'active', '1.00'],
      [first.id, 'a', 'active', '1.00'],
    ],
  );
  assert(!JSON.stringify(wallets).includes('svc_agent_'));
  assert.deepEqual(
    (await list({ before: second.id })).wallets.map((it: any) => it.id),
    [first.id],
  );
  await client.tool('wallet_close', { id: first.id });
  assert.deepEqual(
    (await list({ status: 'closed' })).wallets.map((it: any) => it.id),
    [first.id],
  );
  assert.equal((await list({ status: 'open' })).error.code, 'invalid_request');
  assert.equal((await list({ before: { a: 1 } })).error.code, 'invalid_request');
  assert.equal((await list({ limit: 1 })).error.code, 'invalid_request');
});

test('a model is found, and paid for with a key of the wallet', async (t) => {
  const purser = await openTestServer(t);
  purser.upstream.handle = completion({ prompt_tokens: 12, completion_tokens: 34, total_tokens: 46 });
  const { token } = await purser.openWallet();
  const client = await connectMcp(t, purser.url, token);
  await client.listTools();
  const { data } = (await client.tool('model_list')).structuredContent;
  assert(data.some(({ id }: { id: string }) => id === 'chat'));
  const key = async (args = {}) => (await client.tool('model_key', args)).structuredContent;
  const { api_key: token2, base_url: url } = await key({ models: ['chat'], max_price_usd: '0.50' });
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }] };
  const answer = await purser.ask('POST', `${new URL(url).pathname}/chat/completions`, { token: token2, body });
  assert.equal(answer.status, 200, answer.text);
  assert.notEqual((await purser.budget(token)).used_usd, '0.00');
  const other = await purser.ask('POST', `${new URL(url).pathname}/chat/completions`, {
    token: token2,
    body: { ...body, model: 'dear' },
  });
  assert.equal(other.status, 404);
  assert.equal((await key({ models: ['none'] })).error.code, 'model_not_found');
  assert.equal((await key({ max_price_usd: 1 })).error.code, 'invalid_request');
  assert.equal(
    (await key({ model: 'chat' })).error.code,
    'invalid_request',
    'a misspelt limit does not make a key without one',
  );
  assert(!purser.log.some((it) => it.includes(token2)));
});
