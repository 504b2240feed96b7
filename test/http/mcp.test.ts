import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import type { Guest } from '../../src/compute/backend.ts';
import { connectMcp, REVISIONS } from '../helper/mcp.ts';
import { openTestServer } from '../helper/server.ts';
import { LONG, openMemoryServer, PRICE, SPEC } from '../lease/leases.ts';
import { assertNothingMoves } from './refused.ts';

/** The tools of the design, section 14, and the arguments that each demands. Copied by hand. */
const TOOLS: Record<string, string[]> = {
  wallet_budget: [],
  compute_offers: [],
  compute_create: ['provider', 'spec', 'idempotency_key'],
  compute_extend: ['id', 'additional_seconds', 'idempotency_key'],
  compute_keep: ['id', 'extend_seconds', 'idempotency_key'],
  compute_exec: ['id', 'command'],
  compute_upload: ['id', 'path'],
  compute_download: ['id', 'path'],
  compute_files: ['id'],
  compute_process_start: ['id', 'command'],
  compute_process_list: ['id'],
  compute_process_log: ['id', 'process_id'],
  compute_process_kill: ['id', 'process_id'],
  compute_status: [],
  compute_wait: ['id'],
  compute_port: ['id', 'port'],
  compute_pause: ['id'],
  compute_resume: ['id'],
  compute_snapshot: ['id', 'idempotency_key'],
  compute_snapshots: [],
  compute_snapshot_delete: ['snapshot_id'],
  compute_stop: ['id'],
  wallet_delegate: ['name', 'budget_usd', 'idempotency_key'],
  wallet_children: [],
  model_list: [],
  model_key: [],
  wallet_close: [],
};
const CREATE = { provider: 'provider_one', spec: SPEC };
const RENT = { provider: 'provider_three', spec: { offer_id: 'small', disk_gb: 5, max_seconds: 600 } };
const ping = { jsonrpc: '2.0', id: 1, method: 'ping' };

for (const revision of Object.keys(REVISIONS) as (keyof typeof REVISIONS)[])
  test(`a client of revision ${revision} lists the tools and calls every one`, async (t) => {
    const purser = await openMemoryServer(t);
    const wallet = await purser.openWallet(LONG);
    const client = await connectMcp(t, purser.url, wallet.token, revision);
    assert.equal(client.getServerVersion()?.name, 'purser');
    assert.match(client.getInstructions() as string, /idempotency_key/);

    const { tools } = await client.listTools();
    assert.deepEqual(Object.fromEntries(tools.map((it) => [it.name, it.inputSchema.required])), TOOLS);
    for (const { name, description, inputSchema } of tools) {
      assert((description as string).length > 100, `${name} says what it does`);
      for (const word of ['anyOf', 'oneOf', 'allOf', '$ref'])
        assert(!(word in inputSchema), `${name}: ${word} at the top`);
    }

    const budget = await client.tool('wallet_budget');
    assert.deepEqual(budget.structuredContent, await purser.budget(wallet.token));
    assert.deepEqual(JSON.parse((budget.content[0] as { text: string }).text), budget.structuredContent);
    const { offers } = (await client.tool('compute_offers')).structuredContent;
    assert.deepEqual(
      offers.map((it: { provider: string }) => it.provider),
      ['provider_one', 'provider_three'],
    );

    const created = (await client.tool('compute_create', { ...CREATE, idempotency_key: 'one' })).structuredContent;
    assert.deepEqual([created.status, created.charged_usd], ['running', PRICE]);
    const { id } = created;
    assert.deepEqual(
      (await client.tool('compute_status', { id })).structuredContent,
      await purser.status(wallet.token, id),
    );
    assert.equal(
      (await client.tool('compute_exec', { id, command: 'echo hello' })).structuredContent.stdout,
      'hello\n',
    );
    const uploaded = await client.tool('compute_upload', { id, path: 'a', content_base64: 'aGVsbG8K' });
    assert.equal(uploaded.structuredContent.bytes, 6);

    const rented = (await client.tool('compute_create', { ...RENT, idempotency_key: 'two' })).structuredContent;
    const more = { id: rented.id, additional_seconds: 60, idempotency_key: 'three' };
    assert.equal((await client.tool('compute_extend', more)).structuredContent.purchased_seconds, 660);
    const again = await client.tool('compute_extend', more);
    assert.equal(again.structuredContent.purchased_seconds, 660, 'a repeated extension is paid once');
    assert.equal(again._meta?.['idempotent-replayed'], true);
    const keep = { id: rented.id, extend_seconds: 60, max_seconds: 600, idempotency_key: 'kept' };
    assert.equal((await client.tool('compute_keep', keep)).structuredContent.keep.state, 'active');
    assert.equal((await client.tool('compute_status')).structuredContent.resources.length, 2, 'all without an id');
    const paused = (await client.tool('compute_pause', { id })).structuredContent;
    assert.deepEqual([paused.status, typeof paused.seconds_left], ['paused', 'number']);
    assert.equal((await client.tool('compute_resume', { id })).structuredContent.status, 'running');
    assert.equal((await client.tool('compute_stop', { id })).structuredContent.end_reason, 'requested');

    const child = await client.tool('wallet_delegate', { name: 'a', budget_usd: '1.00', idempotency_key: 'four' });
    assert.match(child.structuredContent.agent_token, /^svc_agent_/);
    assert.equal((await purser.budget(wallet.token)).delegated_usd, '1.00');
    const childClosed = await client.tool('wallet_close', { id: child.structuredContent.id });
    assert.deepEqual(
      [childClosed.structuredContent.id, childClosed.structuredContent.status],
      [child.structuredContent.id, 'closed'],
    );
    assert.equal((await purser.budget(wallet.token)).delegated_usd, '0.00');
    assert.equal((await client.tool('wallet_close')).structuredContent.status, 'closed');
    assert.deepEqual(await purser.machines(), []);
    assert.deepEqual(purser.problems(), []);
  });

test('a purchase that is repeated by its key is made once, also when it is repeated over HTTP', async (t) => {
  const purser = await openMemoryServer(t);
  const wallet = await purser.openWallet(LONG);
  const client = await connectMcp(t, purser.url, wallet.token);
  const call = { ...CREATE, idempotency_key: 'once' };
  const [first, second] = await Promise.all([client.tool('compute_create', call), client.tool('compute_create', call)]);
  const answered = [first, second].filter((it) => !it.isError);
  assert(answered.length >= 1);
  const { id } = answered[0]?.structuredContent ?? {};
  for (const it of [first, second].filter((it) => it.isError))
    assert.equal(it.structuredContent.error.code, 'idempotency_in_progress');

  const replay = await client.tool('compute_create', call);
  assert.deepEqual([replay.structuredContent.id, replay._meta?.['idempotent-replayed']], [id, true]);
  const overHttp = await purser.ask('POST', '/v1/compute/create', { token: wallet.token, key: 'once', body: CREATE });
  assert.deepEqual([overHttp.body.id, overHttp.headers['idempotent-replayed']], [id, 'true']);
  assert.equal((await purser.machines()).length, 1);
  assert.equal((await purser.budget(wallet.token)).used_usd, PRICE);

  const changed = await client.tool('compute_create', { ...call, spec: { ...SPEC, max_seconds: 601 } });
  assert.deepEqual([changed.isError, changed.structuredContent.error.code], [true, 'idempotency_conflict']);
});

test('a key with spaces around it is the same key over MCP and over HTTP, which takes them off', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const client = await connectMcp(t, purser.url, token);
  const key = ' one key ';
  const { status, body } = await purser.ask('POST', '/v1/compute/create', { token, key, body: CREATE });
  assert.equal(status, 200);
  const again = await client.tool('compute_create', { ...CREATE, idempotency_key: key });
  assert.deepEqual([again.structuredContent.id, again._meta?.['idempotent-replayed']], [body.id, true]);
  const none = await client.tool('compute_create', { ...CREATE, idempotency_key: '  ' });
  assert.equal(none.structuredContent.error.code, 'invalid_idempotency_key');
  assert.equal((await purser.budget(token)).used_usd, PRICE);
});

test('two children have a token each, and what each spends is taken from the parent', async (t) => {
  const purser = await openMemoryServer(t);
  const wallet = await purser.openWallet(LONG);
  const client = await connectMcp(t, purser.url, wallet.token);
  const order = (name: string) => ({ name, budget_usd: '0.50', expires_in_seconds: 3600, idempotency_key: name });
  const [first, second] = await Promise.all(['a', 'b'].map((name) => client.tool('wallet_delegate', order(name))));
  const again = await client.tool('wallet_delegate', order('a'));
  assert.equal(again.structuredContent.id, first?.structuredContent.id);
  const tokens = [first, second].map((it) => it?.structuredContent.agent_token as string);
  assert.notEqual(tokens[0], tokens[1]);

  for (const token of tokens) {
    const child = await connectMcp(t, purser.url, token);
    assert(!(await child.tool('compute_create', { ...CREATE, idempotency_key: 'x' })).isError);
    assert.equal((await child.tool('wallet_budget')).structuredContent.used_usd, PRICE);
    const above = await child.tool('wallet_close', { id: wallet.id });
    assert.equal(above.structuredContent.error.code, 'not_found', 'a child cannot close its parent');
    assert.equal((await child.tool('wallet_close')).structuredContent.status, 'closed');
  }
  const budget = (await client.tool('wallet_budget')).structuredContent;
  assert.deepEqual([budget.used_usd, budget.delegated_usd], ['0.007083334', '0.00']);
  assert.deepEqual(purser.problems(), []);
});

test('a refusal is an error result with code, message and request id, and it moves nothing', async (t) => {
  const purser = await openMemoryServer(t);
  const wallet = await purser.openWallet({ ...LONG, budget_cents: 100 });
  const client = await connectMcp(t, purser.url, wallet.token);
  const refused: [string, Record<string, unknown>, string, RegExp][] = [
    ['compute_create', CREATE, 'idempotency_key_required', /^Send an idempotency_key of/],
    ['compute_create', { ...CREATE, idempotency_key: 7 }, 'invalid_idempotency_key', /^The idempotency_key must/],
    ['compute_create', { idempotency_key: 'a' }, 'invalid_request', /provider: is required/],
    ['compute_create', { ...CREATE, extra: 1, idempotency_key: 'a' }, 'invalid_request', /extra: unknown property/],
    [
      'compute_create',
      { ...RENT, spec: { ...RENT.spec, offer_id: 'x' }, idempotency_key: 'a' },
      'offer_not_found',
      /./,
    ],
    ['compute_exec', { id: 'res_none', command: 'true' }, 'not_found', /./],
    ['compute_exec', { id: 'res_none' }, 'invalid_request', /command: is required/],
    ['compute_status', { id: 7 }, 'invalid_request', /id/],
    ['wallet_close', { id: wallet.id }, 'not_found', /./],
    ['wallet_delegate', { name: 'a', budget_usd: '9', idempotency_key: 'a' }, 'insufficient_funds', /./],
  ];
  const before = await purser.budget(wallet.token);
  for (const [name, args, code, message] of refused) {
    const { isError, content, structuredContent } = await client.tool(name, args);
    assert.deepEqual([isError, structuredContent.error.code], [true, code], `${name} ${JSON.stringify(args)}`);
    assert.match(structuredContent.error.message, message);
    assert.match(structuredContent.request_id, /^req_/);
    assert.deepEqual(JSON.parse((content[0] as { text: string }).text), structuredContent);
  }
  await assert.rejects(client.tool('no_such_tool'), /There is no such tool/);
  await assert.rejects(client.tool('constructor'), /There is no such tool/);
  assert.deepEqual(await purser.budget(wallet.token), before);
  assert.deepEqual([await purser.machines(), purser.problems()], [[], []]);
  // Beside the GET of the client, which asks for a stream that there is not.
  const logged = purser.log.filter((it) => it.includes('"path":"/v1/mcp"') && !it.includes('method_not_allowed'));
  assert.equal(logged.length, refused.length, 'each is logged');
});

test('an argument that a tool does not take is refused by name, and the call does not become another', async (t) => {
  const purser = await openMemoryServer(t);
  const { id, token } = await purser.openWallet(LONG);
  const client = await connectMcp(t, purser.url, token);
  const child = await client.tool('wallet_delegate', { name: 'a', budget_usd: '1.00', idempotency_key: 'a' });
  const wrong: [string, Record<string, unknown>, RegExp][] = [
    [
      'wallet_close',
      { wallet_id: child.structuredContent.id },
      /^wallet_id: unknown property.* these arguments: id\.$/,
    ],
    ['wallet_budget', { id }, /^id: unknown property.* wallet_budget takes no arguments\.$/],
    ['compute_stop', { id: 'res_1', force: true }, /^force: unknown property/],
    ['compute_offers', { constructor: 1 }, /^constructor: unknown property/],
    ['wallet_close', { id: { toString: 1 } }, /^id: must be a string\.$/],
    ['compute_stop', { id: { toString: 1 } }, /^id: must be a string\.$/],
    ['compute_stop', { id: null }, /^id: must be a string\.$/],
    ['compute_create', { ...CREATE, key: 'a' }, /^key: .* provider, spec, snapshot, idempotency_key\.$/],
  ];
  for (const [name, args, message] of wrong) {
    const { isError, structuredContent } = await client.tool(name, args);
    assert.deepEqual([isError, structuredContent.error.code], [true, 'invalid_request'], name);
    assert.match(structuredContent.error.message, message);
  }
  assert.equal(purser.wallet(id).status, 'active');
  assert.equal((await purser.budget(token)).delegated_usd, '1.00');
});

test('a closed wallet is still read, and buys nothing', async (t) => {
  const purser = await openMemoryServer(t);
  const wallet = await purser.openWallet(LONG);
  const client = await connectMcp(t, purser.url, wallet.token);
  assert.equal((await purser.closeWallet(wallet.id)).status, 200);
  assert.equal((await client.tool('wallet_budget')).structuredContent.status, 'closed');
  const create = await client.tool('compute_create', { ...CREATE, idempotency_key: randomUUID() });
  assert.deepEqual([create.isError, create.structuredContent.error.code], [true, 'wallet_closed']);
  assert.deepEqual(purser.memory.calls, []);
});

test('only the token of a wallet is accepted, and no session is needed or offered', async (t) => {
  const purser = await openTestServer(t);
  const wallet = await purser.openWallet();
  const ask = async (token: string | undefined, headers = {}) => {
    const { status, body } = await purser.ask('POST', '/v1/mcp', { ...(token ? { token } : {}), body: ping, headers });
    return [status, body.error?.code];
  };
  const { api_key: routerKey } = (await purser.ask('POST', '/v1/router/key', { token: wallet.token, body: {} })).body;
  assert.deepEqual(await ask(wallet.token), [200, undefined]);
  assert.deepEqual(await ask(undefined), [401, 'unauthenticated']);
  assert.deepEqual(await ask(`${wallet.token}x`), [401, 'unauthenticated']);
  for (const token of [purser.accountKey, purser.operatorKey, routerKey])
    assert.deepEqual(await ask(token), [403, 'wrong_token_scope']);
  await assert.rejects(connectMcp(t, purser.url, `${wallet.token}x`), /unauthenticated/);

  assert.deepEqual(await ask(wallet.token, { origin: 'https://elsewhere.example' }), [403, 'wrong_token_scope']);
  assert.deepEqual(await ask(wallet.token, { origin: 'null' }), [403, 'wrong_token_scope']);
  assert.deepEqual(await ask(wallet.token, { origin: purser.app.state.baseUrl }), [200, undefined]);
  for (const method of ['GET', 'DELETE']) {
    const { status, headers } = await purser.ask(method, '/v1/mcp', { token: wallet.token });
    assert.deepEqual([status, headers.allow], [405, 'POST']);
  }
});

test('what is no message of the protocol is refused, and what wants no answer gets none', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const ask = (body: unknown, headers = {}) => purser.ask('POST', '/v1/mcp', { token, body, headers });
  await assertNothingMoves(purser, async () => {
    for (const body of ['{', [ping, ping], {}, { ...ping, jsonrpc: '1.0' }, { ...ping, id: {} }])
      assert.equal((await ask(body)).status, 400, JSON.stringify(body));
    assert.equal((await ask(ping, { 'content-type': 'text/plain' })).status, 415);
    assert.equal((await ask(ping, { 'mcp-protocol-version': '1999-01-01' })).status, 400);
    assert.equal((await ask({ ...ping, params: { a: 'x'.repeat(13 * 1024 * 1024) } })).status, 413);
    const unknown = await ask({ ...ping, method: 'resources/list' });
    assert.deepEqual([unknown.status, unknown.body.error.code], [200, -32601]);
    const notified = await ask({ jsonrpc: '2.0', method: 'notifications/initialized' });
    assert.deepEqual([notified.status, notified.text], [202, '']);
    const plain = await ask(ping, { accept: 'application/json' });
    assert.deepEqual([plain.status, plain.body], [200, { jsonrpc: '2.0', id: 1, result: {} }]);
  });

  // A subscription would be a stream without an end, on a server that has nothing to tell.
  const version = '2026-07-28';
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': version,
    'io.modelcontextprotocol/clientCapabilities': {},
  };
  const listen = {
    ...ping,
    method: 'subscriptions/listen',
    params: { notifications: { toolsListChanged: true }, _meta },
  };
  const listened = await ask(listen, { 'mcp-protocol-version': version, 'mcp-method': listen.method });
  assert.equal(listened.body.error.message, 'Subscription limit reached');
});

test('a command has the same limits as over HTTP, and its output arrives whole', async (t) => {
  const purser = await openMemoryServer(t);
  const wallet = await purser.openWallet(LONG);
  const client = await connectMcp(t, purser.url, wallet.token);
  const { id } = (await purser.lease(wallet.token)).body;
  const seen: unknown[] = [];
  const most = '"'.repeat(1024 * 1024);
  purser.backend.guest.exec = (async (_, { budget, ...order }) => {
    seen.push(order);
    assert(budget?.take(Buffer.from(most)), 'the output is counted');
    const stdout = Buffer.from(most);
    return { exitCode: 0, stdout, stderr: stdout, stdoutTruncated: true, stderrTruncated: false, timedOut: false };
  }) as Guest['exec'];
  const body = { id, command: 'yes', timeout: 7 };
  const { duration_ms: _, ...result } = (await client.tool('compute_exec', body)).structuredContent;
  const { duration_ms: __, ...answer } = (await purser.ask('POST', '/v1/compute/exec', { token: wallet.token, body }))
    .body;
  assert.deepEqual(result, answer);
  assert.deepEqual([result.stdout.length, result.stdout_truncated], [most.length, true]);
  assert.deepEqual(seen, Array(2).fill({ command: 'yes', timeoutSeconds: 7, streamBytesMax: most.length }));
});
