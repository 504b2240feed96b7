import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import * as v from 'valibot';
import { REFUSALS, type RefusalCode } from '../../src/base/refusal.ts';
import { shopOf } from '../billing/paid.ts';
import { openTestServer } from '../helper/server.ts';
import { completion, failure, gate } from '../helper/upstream.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';
import { KEYS } from '../transfer/object-store.ts';
import { assertIs, type Document, documentOf, endpointOf, holdToDocument, type Operation } from './documented.ts';
import { INTERFACE, WITH_BODY } from './interface.ts';

/** The endpoints of the design, sections 7, 13 and 16, copied by hand. */
const EXTRAS = [
  'POST /v1/wallets/{id}/budget',
  'POST /v1/wallets/{id}/extend',
  'POST /v1/wallets/{id}/freeze',
  'POST /v1/wallets/{id}/unfreeze',
  'PUT /v1/wallets/{id}/refill',
  'DELETE /v1/wallets/{id}/refill',
  'POST /v1/compute/keep',
  'POST /v1/compute/egress',
  'POST /v1/compute/pause',
  'POST /v1/compute/resume',
  'POST /v1/compute/snapshot',
  'POST /v1/compute/snapshot/delete',
  'GET /v1/compute/snapshots',
  'POST /v1/compute/download',
  'POST /v1/compute/files',
  'POST /v1/compute/process/start',
  'POST /v1/compute/process/list',
  'POST /v1/compute/process/log',
  'POST /v1/compute/process/kill',
  'GET /v1/spend',
  'GET /v1/run/spend',
  'GET /v1/run/operations',
  'GET /v1/run/wallets',
  'POST /v1/run/wallets',
  'GET /v1/run/wallets/{id}',
  'POST /v1/run/wallets/{id}/close',
  'POST /v1/compute/port',
];

function operationsOf(document: Document): [line: string, operation: Operation][] {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]): [string, Operation] => [
      `${method.toUpperCase()} ${path}`,
      operation,
    ]),
  );
}

/** Every object anywhere inside a JSON value. */
function* objectsIn(value: unknown): Generator<Record<string, unknown>> {
  if (typeof value !== 'object' || value === null) return;
  if (!Array.isArray(value)) yield value as Record<string, unknown>;
  for (const inside of Object.values(value)) yield* objectsIn(inside);
}

let plain: Promise<Document> | undefined;
/** The document of a server without settings of its own: the same from each. */
function plainDocument(t: TestContext): Promise<Document> {
  plain ??= openTestServer(t).then(documentOf);
  return plain;
}

test('the document is OpenAPI 3.1.0, of interface version 0.1.0, and says where it is served', async (t) => {
  const purser = await openTestServer(t);
  const document = await documentOf(purser);
  assert.equal(document.openapi, '3.1.0');
  assert.equal(document.info.version, '0.1.0');
  const { env } = (
    await purser.ask('POST', '/v1/wallets', {
      token: purser.accountKey,
      key: 'a',
      body: { name: 'a', budget_cents: 100 },
    })
  ).body;
  assert.deepEqual(document.servers, [{ url: env.SVC_BROKER_URL }]);
});

test('the document covers exactly the endpoints of the interface, of leases to work in, of money that moves and of what was spent', async (t) => {
  const document = await plainDocument(t);
  const written = operationsOf(document).map(([line]) => line);
  assert.deepEqual(written.sort(), [...INTERFACE.map(({ method, path }) => `${method} ${path}`), ...EXTRAS].sort());
});

test('the headers that answers carry beside their type are described', async (t) => {
  const purser = await openTestServer(t);
  const paths = (await documentOf(purser)).paths as Record<string, any>;
  const opening = { token: purser.accountKey, key: 'a', body: { name: 'a', budget_cents: 100 } };
  const { agent_token: token } = (await purser.ask('POST', '/v1/wallets', opening)).body;
  const dear = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 1000 };
  purser.upstream.handle = failure(429);
  for (const [method, path, asked, status, expected] of [
    ['POST', '/v1/wallets', opening, 201, 'idempotent-replayed'],
    ['GET', '/v1/budget', {}, 401, 'www-authenticate'],
    ['POST', '/v1/chat/completions', { token, key: 'b', body: dear }, 429, 'retry-after'],
  ] as const) {
    const answer = await purser.ask(method, path, asked);
    assert.equal(answer.status, status, answer.text);
    const described = Object.keys(paths[path][method.toLowerCase()].responses[status].headers);
    for (const name of [expected, 'x-request-id']) {
      assert(answer.headers[name] !== undefined, name);
      assert(described.map((it) => it.toLowerCase()).includes(name), `${method} ${path} ${status}: ${name}`);
    }
  }
});

test('every reference in the document leads somewhere', async (t) => {
  const document = await plainDocument(t);
  const references = [...objectsIn(document)].flatMap(({ $ref }) => (typeof $ref === 'string' ? [$ref] : []));
  assert.ok(references.length > INTERFACE.length, 'at least every error has one');
  for (const reference of references) {
    assert.match(reference, /^#\//);
    const found = reference
      .slice(2)
      .split('/')
      .reduce<any>((at, step) => at?.[step], document);
    assert.equal(typeof found, 'object', reference);
  }
});

test('every operation has an id of its own, and every parameter of its path is there', async (t) => {
  const operations = operationsOf(await plainDocument(t));
  const ids = operations.map(([, operation]) => (operation as unknown as { operationId: string }).operationId);
  assert.equal(new Set(ids).size, INTERFACE.length + EXTRAS.length);
  for (const [line, { parameters = [] }] of operations) {
    const inPath = parameters.filter((it) => it.in === 'path').map((it) => `{${it.name}}`);
    assert.deepEqual(inPath, line.match(/\{\w+\}/g) ?? [], line);
  }
});

test('success is documented with the status of the interface, and only with that', async (t) => {
  const operations = new Map(operationsOf(await plainDocument(t)));
  for (const { method, path, status } of INTERFACE) {
    const { responses } = operations.get(`${method} ${path}`) as Operation;
    assert.deepEqual(
      Object.keys(responses).filter((it) => it < '400'),
      [String(status)],
      `${method} ${path}`,
    );
  }
});

test('the header Idempotency-Key is documented exactly where it is required, with its length', async (t) => {
  const operations = new Map(operationsOf(await plainDocument(t)));
  for (const { method, path, key } of INTERFACE) {
    const { parameters = [] } = operations.get(`${method} ${path}`) as Operation;
    const header = parameters.filter((it) => it.in === 'header');
    if (!key) assert.deepEqual(header, [], `${method} ${path}`);
    else {
      assert.deepEqual(
        header.map((it) => [it.name, it.required]),
        [['Idempotency-Key', true]],
      );
      assert.deepEqual(header[0]?.schema, { type: 'string', minLength: 1, maxLength: 128 });
    }
  }
});

test('the tokens of every endpoint are documented as the interface gives them', async (t) => {
  const operations = new Map(operationsOf(await plainDocument(t)));
  const tokens = {
    Account: ['accountKey', 'session', 'operatorKey'],
    Session: ['session', 'operatorKey'],
    Wallet: ['walletToken'],
  };
  for (const { method, path, auth } of INTERFACE)
    assert.deepEqual(
      (operations.get(`${method} ${path}`) as Operation).security.flatMap(Object.keys),
      tokens[auth],
      path,
    );
});

test('bodies and their limits are documented as the interface, section 8, has them', async (t) => {
  const { paths } = await plainDocument(t);
  for (const path of new Set(INTERFACE.map((line) => line.path))) {
    const { get, post } = paths[path] as NonNullable<(typeof paths)[string]>;
    assert.equal(
      post?.requestBody !== undefined,
      WITH_BODY.some((line) => line.path === path),
      path,
    );
    assert.equal(get?.requestBody, undefined, path);
  }
  const schemaOf = (path: string) =>
    paths[path]?.post?.requestBody?.content['application/json'].schema as Record<string, any>;
  const range = ({ type, minimum, maximum, minLength, maxLength, default: standard }: Record<string, unknown>) =>
    [type, minimum ?? minLength, maximum ?? maxLength, standard].filter((it) => it !== undefined);
  const field = (path: string, name: string) => {
    const schema = schemaOf(path).properties[name];
    return range(schema.anyOf?.[0] ?? schema); // What may be null says so in its second branch.
  };

  assert.deepEqual(field('/v1/wallets', 'name'), ['string', 1, 80]);
  assert.deepEqual(field('/v1/wallets', 'budget_cents'), ['integer', 100, 1_000_000]);
  assert.deepEqual(field('/v1/wallets', 'expires_in_seconds'), ['integer', 0, 2_592_000, 86_400]);
  assert.deepEqual(field('/v1/keys', 'name'), ['string', 1, 80]);
  assert.deepEqual(field('/v1/billing/checkout', 'amount_cents'), ['integer', 500, 100_000]);
  assert.deepEqual(field('/v1/compute/extend', 'additional_seconds'), ['integer', 1, 86_400]);
  assert.deepEqual(field('/v1/compute/exec', 'timeout'), ['integer', 1, 3600, 300]);
  assert.deepEqual(field('/v1/transfer/sign', 'expires_seconds'), ['integer', 1, 604_800, 900]);
  assert.equal(field('/v1/chat/completions', 'max_tokens')[1], 1);
  const query = paths['/v1/resources']?.get?.parameters ?? [];
  assert.deepEqual(query.map((it) => it.name).sort(), ['before', 'limit', 'status', 'wallet_id']);
  for (const { name, schema, required } of query) {
    assert.equal(required, false);
    if (name === 'before' || name === 'wallet_id') assert.deepEqual(range(schema), ['string', 0, 200]);
  }
  assert.deepEqual(schemaOf('/v1/wallets').required, ['name', 'budget_cents']);
  const closed = [...new Set(INTERFACE.map(({ path }) => path))].filter((path) =>
    JSON.stringify(schemaOf(path) ?? '').includes('"additionalProperties":false'),
  );
  // Chat lists what has a price (design 2.5).
  assert.deepEqual(closed, ['/v1/wallets', '/v1/compute/create', '/v1/compute/extend', '/v1/chat/completions']);
});

test('every refusal is documented under its own status, and what any request may meet everywhere', async (t) => {
  const everywhere: RefusalCode[] = [
    'invalid_request',
    'request_timeout',
    'head_too_large',
    'unauthenticated',
    'wrong_token_scope',
    'rate_limited',
    'internal_error',
    'read_only',
  ];
  const withBody: RefusalCode[] = ['invalid_json', 'payload_too_large', 'unsupported_media_type'];
  for (const [line, { responses, requestBody }] of operationsOf(await plainDocument(t))) {
    const codes: string[] = [];
    for (const [status, { content }] of Object.entries(responses))
      for (const [code, { value }] of Object.entries(content['application/json'].examples ?? {})) {
        assert.equal(String(REFUSALS[code as RefusalCode].status), status, `${line}: ${code}`);
        assert.equal(value.error.code, code);
        codes.push(code);
      }
    assert.equal(new Set(codes).size, codes.length, `${line}: a code twice`);
    for (const code of [...everywhere, ...(requestBody ? withBody : [])])
      assert.ok(codes.includes(code), `${line}: ${code}`);
    if (line.includes('{id}')) assert.ok(codes.includes('not_found'), line);
  }
});

test('the examples of the document are what the schemas of their endpoints say', async (t) => {
  for (const [line, operation] of operationsOf(await plainDocument(t))) {
    const { body, answer, example, status = 200 } = endpointOf(line);
    const answered = operation.responses[status]?.content['application/json'];
    assert.deepEqual(answered?.example, example.answer, line);
    assertIs(answer, example.answer, `${line}: answer`);
    assert.equal(operation.requestBody !== undefined, body !== undefined, line);
    if (!body) continue;
    assert.deepEqual(operation.requestBody?.content['application/json'].example, example.body, line);
    assert.ok(v.is(body, example.body), `${line}: body`);
  }
});

test('the bodies that the interface allows are what the schemas take', () => {
  for (const { path, body } of WITH_BODY)
    assert.ok(v.is(endpointOf(`POST ${path}`).body as v.GenericSchema, body), path);
});

test('every operation says in what part of the interface it is and who calls it, and the licence is named', async (t) => {
  const document = (await plainDocument(t)) as Document & Record<string, any>;
  assert.deepEqual(document.info.license, { name: 'MIT', identifier: 'MIT' });
  assert.equal(typeof document.info.contact.name, 'string');
  const tags = document.tags.map((it: { name: string }) => it.name);
  const used = new Set<string>();
  for (const [line, operation] of operationsOf(document) as [string, Operation & Record<string, any>][]) {
    assert.equal(operation.tags.length, 1, line);
    assert(tags.includes(operation.tags[0]), line);
    assert.match(operation.description, /\. Takes an? .*\.$/, line);
    for (const scheme of operation.security.flatMap(Object.keys)) used.add(scheme);
  }
  assert.deepEqual(Object.keys(document.components.securitySchemes).sort(), [...used].sort(), 'none is unused');
});

test('an object that may hold more than is listed says so: some generators take it for an empty one', async (t) => {
  const document = await plainDocument(t);
  for (const it of objectsIn(document))
    if (it.type === 'object' && Object.keys(it.properties ?? {}).length === 0)
      assert.notEqual(it.additionalProperties, undefined, JSON.stringify(it));
});

test('the document lists each member of a chat that is taken, those too that a model adds by its settings', async (t) => {
  const change = (settings: Record<string, any>) => {
    for (const upstream of settings.router.upstreams) upstream.forward = ['my_sampler'];
    return settings;
  };
  const purser = await openTestServer(t, { change });
  const { token } = await purser.openWallet();
  const { paths } = await documentOf(purser);
  const request = paths['/v1/chat/completions']?.post?.requestBody;
  const properties = request?.content['application/json'].schema.properties;
  for (const name of ['my_sampler', 'temperature', 'top_k', 'metadata', 'n']) {
    assert(name in properties, name);
    assert.equal((await purser.chat(token, { [name]: name === 'n' ? 1 : undefined })).status, 200, name);
  }
  assert.equal((await purser.chat(token, { my_sampler: 1, top_k: 1 })).status, 200);
  assert(!('web_search_options' in properties));
});

test('the document stands under /openapi.json too', async (t) => {
  const purser = await openTestServer(t);
  const { text } = await purser.ask('GET', '/v1/openapi.json');
  const alias = await purser.ask('GET', '/openapi.json');
  assert.deepEqual([alias.status, alias.headers['content-type'], alias.text], [200, 'application/json', text]);
  assert.equal((await purser.ask('POST', '/openapi.json')).status, 405);
});

test('the rules of names, paths, commands and messages are in the document, and true of what it takes', async (t) => {
  const { paths } = await plainDocument(t);
  const fieldsOf = (path: string) =>
    paths[path]?.post?.requestBody?.content['application/json'].schema.properties as Record<string, any>;
  for (const path of ['/v1/wallets', '/v1/keys']) {
    const { pattern, description } = fieldsOf(path).name;
    for (const good of ['a', '🤖 ü', '\u202e']) assert.match(good, new RegExp(pattern, 'u'), JSON.stringify(good));
    for (const bad of ['a\nb', '\0', '\u001b[31m', '\u007f', '\u009b'])
      assert.doesNotMatch(bad, new RegExp(pattern, 'u'), JSON.stringify(bad));
    assert.match(description, /control characters/);
  }
  assert.match(fieldsOf('/v1/compute/upload').path.description, /\.\./);
  assert.match(fieldsOf('/v1/transfer/sign').object.description, /\.\./);
  assert.equal(fieldsOf('/v1/compute/upload').content_base64.contentEncoding, 'base64');
  assert.doesNotMatch('a\0', new RegExp(fieldsOf('/v1/compute/exec').command.pattern, 'u'));
  const { messages } = fieldsOf('/v1/chat/completions');
  assert.deepEqual(
    [messages.type, messages.items, messages.minItems],
    ['array', { type: 'object', additionalProperties: true }, 1],
  );
  const key = paths['/v1/router/key']?.post?.requestBody;
  assert.equal(key?.required, false);
  assert.notEqual(key?.content['application/json'].schema.additionalProperties, false, 'free-form');
});

test('every paid endpoint documents every refusal of the paid path', async (t) => {
  const { paths } = await plainDocument(t);
  const codesOf = (path: string) =>
    Object.values(paths[path]?.post?.responses ?? {}).flatMap(({ content }) =>
      Object.keys(content['application/json'].examples ?? {}),
    );
  // biome-ignore format: a list
  const paid = [
    'insufficient_funds', 'funds_held', 'account_suspended', 'wallet_closed', 'wallet_expired', 'idempotency_conflict',
    'idempotency_in_progress', 'operation_uncertain', 'read_only', 'rate_limited',
  ];
  for (const path of ['/v1/compute/create', '/v1/compute/extend', '/v1/chat/completions'])
    for (const code of paid) assert(codesOf(path).includes(code), `${path}: ${code}`);
  for (const path of ['/v1/compute/exec', '/v1/compute/upload', '/v1/compute/ssh'])
    for (const code of [
      'wallet_closed',
      'wallet_expired',
      'provider_not_configured',
      'resource_not_active',
      'not_found',
    ])
      assert(codesOf(path).includes(code), `${path}: ${code}`);
});

/** A purser with everything behind its endpoints: machines that are remembered, a payment provider, transfer storage. */
async function openWholeServer(t: TestContext) {
  const { options } = await shopOf(t);
  const transfer = { endpoint: 'http://s3.test', region: 'garage', bucket: 'agents', path_style: true, ...KEYS };
  const settings = { ...options.settings, transfer };
  return openMemoryServer(t, { ...options, creditCents: 100_000, settings });
}

test('every endpoint succeeds with an answer that is what its schema says, to the last member', async (t) => {
  const purser = await openWholeServer(t);
  const seen = holdToDocument(purser);
  const account = (line: string, id = '', asked: object = {}) => {
    const [method, path] = line.split(' ') as [string, string];
    const token = /\/v1\/(keys|billing)/.test(line) ? purser.operatorKey : purser.accountKey;
    return purser.ask(method, path.replace('{id}', id), { token, ...asked });
  };
  const body = { name: 'agent', budget_cents: 500, expires_in_seconds: 7200 };
  const { id, agent_token: token } = (await account('POST /v1/wallets', '', { key: 'a', body })).body;
  const wallet = (line: string, asked: object = {}) =>
    purser.ask(...(line.split(' ') as [string, string]), { token, ...asked });

  const key = await account('POST /v1/keys', '', { body: { name: 'ci' } });
  await account('POST /v1/billing/checkout', '', { key: 'a', body: { amount_cents: 500 } });
  const slow = gate();
  purser.upstream.handle = slow.handler;
  const running = purser.chat(token);
  await purser.upstream.arrived(1);
  await wallet('GET /v1/budget');
  slow.open();
  await running;
  purser.upstream.handle = completion(null); // Some model servers write their missing usage so.
  await purser.chat(token);

  const lease = await purser.rent(token);
  const resource = { id: lease.body.id };
  await purser.extend(token, resource.id, 60);
  const inside: Record<string, object> = {
    status: resource,
    ssh: resource,
    exec: { ...resource, command: 'true' },
    upload: { ...resource, path: '/a', content_base64: 'YQ==' },
    stop: resource,
  };
  for (const [name, asked] of Object.entries(inside)) await wallet(`POST /v1/compute/${name}`, { body: asked });
  await wallet('POST /v1/transfer/sign', { body: { object: 'a', operation: 'get' } });
  await wallet('POST /v1/router/key');
  for (const line of ['GET /v1/budget', 'GET /v1/compute/offers', 'GET /v1/compute/list', 'GET /v1/models'])
    await wallet(line);
  const reads = ['GET /v1/wallets/{id}', 'GET /v1/wallets/{id}/token', 'GET /v1/wallets/{id}/resources'];
  for (const line of ['GET /v1/account', 'GET /v1/keys', 'GET /v1/wallets', 'GET /v1/resources', ...reads])
    await account(line, id);
  await wallet('POST /v1/run/close');
  await account('POST /v1/wallets/{id}/close', id);
  await account('GET /v1/wallets/{id}', id);
  await wallet('GET /v1/budget');
  await account('DELETE /v1/keys/{id}', key.body.id);
  await account('DELETE /v1/keys/{id}', key.body.id);
  await account('GET /v1/keys');
  assert.deepEqual([...seen].sort(), INTERFACE.map(({ method, path }) => `${method} ${path}`).sort());
});

test('what the agent endpoints refuse with is in the document, on each of them', async (t) => {
  const purser = await openWholeServer(t);
  const seen = holdToDocument(purser);
  purser.app.answerSeconds = 0.5;
  const rich = await purser.openWallet(LONG);
  const lease = (await purser.rent(rich.token)).body;
  const one = (await purser.lease(rich.token)).body;
  /** Every agent endpoint with a body that its rules allow, about this resource. */
  const askAll = async (token: string, id = lease.id) => {
    for (const { method, path, key, body, auth } of INTERFACE) {
      if (auth !== 'Wallet' || path === '/v1/run/close' || path === '/v1/compute/stop') continue;
      const about = body && 'id' in body ? { ...body, id } : body;
      await purser.ask(method, path, { token, body: about, key: key ? randomUUID() : undefined });
    }
  };
  await askAll(purser.accountKey);
  await askAll(rich.token, 'res_none');
  await purser.extend(rich.token, one.id, 60);
  await purser.extend(rich.token, lease.id, 86_400, 'same');
  await purser.rent(rich.token, 'k');
  await purser.lease(rich.token, 'k');
  await purser.lease(rich.token, randomUUID(), { max_seconds: 3601 });

  const poor = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 0 });
  const poorLease = (await purser.rent(poor.token)).body;
  for (let i = 0; i < 15; i++) await purser.rent(poor.token);
  await purser.extend(poor.token, poorLease.id, 600);
  await purser.rent(poor.token);

  purser.memory.before.exec = () => Promise.reject(new Error('the engine is gone'));
  await askAll(rich.token);
  purser.memory.room = 0;
  await purser.rent(rich.token);
  purser.memory.room = Number.POSITIVE_INFINITY;
  purser.memory.after.create = () => Promise.reject(new Error('the connection was reset'));
  await purser.rent(rich.token, 'doubt');
  purser.memory.after = {};
  purser.memory.before.extend = () => Promise.reject(new Error('the connection was reset'));
  await purser.extend(rich.token, lease.id, 60);
  purser.memory.before = {};

  const { backendOf } = purser.app.slots;
  purser.app.slots.backendOf = () => undefined; // As after a slot was taken out of the configuration.
  await askAll(rich.token);
  purser.app.slots.backendOf = backendOf;
  await purser.run('account.suspend', { id: purser.accountId });
  await askAll(rich.token);
  await purser.run('account.resume', { id: purser.accountId });
  await purser.run('freeze', {});
  await askAll(rich.token);
  await purser.run('unfreeze', {});
  await purser.stop(rich.token, lease.id);
  await askAll(rich.token);
  await purser.closeWallet(rich.id);
  await askAll(rich.token);
  const brief = await purser.openWallet({ expires_in_seconds: 700 });
  purser.clock.advance(700);
  await askAll(brief.token);

  const expected = {
    '/v1/compute/create': ['insufficient_funds', 'account_suspended', 'read_only', 'capacity_unavailable'],
    '/v1/compute/extend': [
      'insufficient_funds',
      'extension_not_supported',
      'lease_limit_exceeded',
      'operation_uncertain',
    ],
    '/v1/compute/exec': ['wallet_closed', 'provider_unavailable', 'provider_not_configured', 'resource_not_active'],
    '/v1/compute/upload': ['wallet_closed', 'provider_not_configured', 'resource_not_active'],
    '/v1/compute/ssh': ['wallet_closed', 'provider_not_configured', 'resource_not_active'],
    '/v1/chat/completions': ['wallet_expired', 'account_suspended', 'read_only'],
    '/v1/router/key': ['wallet_expired'],
    '/v1/transfer/sign': ['wallet_expired'],
  };
  for (const [path, codes] of Object.entries(expected))
    for (const code of codes) assert(seen.has(`POST ${path} ${code}`), `POST ${path} ${code} was met`);
});
