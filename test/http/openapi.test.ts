import assert from 'node:assert/strict';
import test from 'node:test';
import * as v from 'valibot';
import { ROUTES } from '../../src/http/app.ts';
import type { Endpoint } from '../../src/http/door.ts';
import { REFUSALS, type RefusalCode } from '../../src/refusal.ts';
import { type Answer, type House, openHouse } from '../helper/house.ts';
import { gate } from '../helper/upstream.ts';
import { INTERFACE, WITH_BODY } from './interface.ts';

type Operation = {
  security: Record<string, unknown>[];
  parameters?: { name: string; in: string; required: boolean; schema: Record<string, unknown> }[];
  requestBody?: {
    required: boolean;
    content: { 'application/json': { schema: Record<string, any>; example: unknown } };
  };
  responses: Record<
    string,
    {
      content: {
        'application/json': { schema: unknown; example?: unknown; examples?: Record<string, { value: any }> };
      };
    }
  >;
};
type Document = {
  openapi: string;
  info: { version: string };
  servers: { url: string }[];
  paths: Record<string, Record<string, Operation>>;
};

/** `POST /v1/wallets/{id}/close`, as both the interface and the document write it. */
const ENDPOINTS = new Map(ROUTES.map(([method, path, it]) => [`${method} ${path.replace(/:(\w+)/g, '{$1}')}`, it]));
const endpointOf = (line: string): Endpoint => ENDPOINTS.get(line) as Endpoint;

async function documentOf(house: House): Promise<Document> {
  const answer = await house.ask('GET', '/v1/openapi.json');
  assert.equal(answer.status, 200);
  assert.equal(answer.headers['content-type'], 'application/json');
  return answer.body;
}

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

/** Asserts that a value is what the schema says, to the last member: what the schema does not know is a fault too. */
function assertIs(schema: v.GenericSchema, value: unknown, what: string): void {
  const parsed = v.safeParse(schema, value);
  assert.deepEqual(parsed.issues?.map((it) => `${v.getDotPath(it)}: ${it.message}`) ?? [], [], what);
  assert.deepEqual(parsed.output, value, `${what}: members that the schema does not know`);
}

test('the document is OpenAPI 3.1.0, of interface version 0.1.0, and says where it is served', async (t) => {
  const house = await openHouse(t);
  const document = await documentOf(house);
  assert.equal(document.openapi, '3.1.0');
  assert.equal(document.info.version, '0.1.0');
  const { env } = (
    await house.ask('POST', '/v1/wallets', {
      token: house.accountKey,
      key: 'a',
      body: { name: 'a', budget_cents: 100 },
    })
  ).body;
  assert.deepEqual(document.servers, [{ url: env.SVC_BROKER_URL }]);
});

test('the document covers exactly the endpoints of the interface', async (t) => {
  const document = await documentOf(await openHouse(t));
  const written = operationsOf(document).map(([line]) => line);
  assert.deepEqual(written.sort(), INTERFACE.map(({ method, path }) => `${method} ${path}`).sort());
});

test('every reference in the document leads somewhere', async (t) => {
  const document = await documentOf(await openHouse(t));
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
  const operations = operationsOf(await documentOf(await openHouse(t)));
  const ids = operations.map(([, operation]) => (operation as unknown as { operationId: string }).operationId);
  assert.equal(new Set(ids).size, INTERFACE.length);
  for (const [line, { parameters = [] }] of operations) {
    const inPath = parameters.filter((it) => it.in === 'path').map((it) => `{${it.name}}`);
    assert.deepEqual(inPath, line.match(/\{\w+\}/g) ?? [], line);
  }
});

test('success is documented with the status of the interface, and only with that', async (t) => {
  const operations = new Map(operationsOf(await documentOf(await openHouse(t))));
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
  const operations = new Map(operationsOf(await documentOf(await openHouse(t))));
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
  const operations = new Map(operationsOf(await documentOf(await openHouse(t))));
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
  const { paths } = await documentOf(await openHouse(t));
  for (const [path, { get, post }] of Object.entries(paths)) {
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
  for (const { name, schema, required } of paths['/v1/resources']?.get?.parameters ?? []) {
    assert.ok(['wallet_id', 'before'].includes(name));
    assert.deepEqual([required, ...range(schema)], [false, 'string', 0, 200]);
  }
  assert.deepEqual(schemaOf('/v1/wallets').required, ['name', 'budget_cents']);
  const closed = Object.keys(paths).filter((path) =>
    JSON.stringify(schemaOf(path) ?? '').includes('"additionalProperties":false'),
  );
  assert.deepEqual(closed, ['/v1/wallets', '/v1/compute/create', '/v1/compute/extend']);
});

test('every refusal is documented under its own status, and what any request may meet everywhere', async (t) => {
  const everywhere: RefusalCode[] = [
    'unauthenticated',
    'wrong_token_scope',
    'rate_limited',
    'internal_error',
    'read_only',
  ];
  const withBody: RefusalCode[] = ['invalid_request', 'invalid_json', 'payload_too_large', 'unsupported_media_type'];
  for (const [line, { responses, requestBody }] of operationsOf(await documentOf(await openHouse(t)))) {
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
  for (const [line, operation] of operationsOf(await documentOf(await openHouse(t)))) {
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

/** Endpoints behind which there is nothing yet, so that no request of theirs succeeds. */
// biome-ignore format: a list
const TO_COME = [
  'POST /v1/billing/checkout', 'POST /v1/compute/create', 'POST /v1/compute/extend', 'POST /v1/compute/stop',
  'POST /v1/compute/ssh', 'POST /v1/compute/status', 'POST /v1/compute/exec', 'POST /v1/compute/upload',
  'POST /v1/transfer/sign',
];

test('every real answer is what the schema of its endpoint says, to the last member', async (t) => {
  const house = await openHouse(t);
  const seen = new Set<string>();
  function check(line: string, { status, body, text }: Answer) {
    assert.equal(
      status,
      INTERFACE.find(({ method, path }) => `${method} ${path}` === line)?.status,
      `${line}: ${text}`,
    );
    assertIs(endpointOf(line).answer, body, line);
    seen.add(line);
  }
  const account = (line: string, id = '', asked: object = {}) => {
    const [method, path] = line.split(' ') as [string, string];
    return house.ask(method, path.replace('{id}', id), {
      token: line.includes('/v1/keys') ? house.operatorKey : house.accountKey,
      ...asked,
    });
  };

  const created = await account('POST /v1/wallets', '', {
    key: 'a',
    body: { name: 'agent', budget_cents: 500, expires_in_seconds: 0 },
  });
  check('POST /v1/wallets', created);
  const { id, agent_token: token } = created.body;
  const wallet = (line: string, asked: object = {}) =>
    house.ask(...(line.split(' ') as [string, string]), { token, ...asked });

  const key = await account('POST /v1/keys', '', { body: { name: 'ci' } });
  check('POST /v1/keys', key);
  const slow = gate();
  house.upstream.handle = slow.handler;
  const running = house.chat(token);
  await house.upstream.arrived(1);
  check('GET /v1/budget', await wallet('GET /v1/budget'));
  slow.open();
  check('POST /v1/chat/completions', await running);

  check('POST /v1/router/key', await wallet('POST /v1/router/key', { body: {} }));
  for (const line of ['GET /v1/budget', 'GET /v1/compute/offers', 'GET /v1/compute/list', 'GET /v1/models'])
    check(line, await wallet(line));
  const reads = ['GET /v1/wallets/{id}', 'GET /v1/wallets/{id}/token', 'GET /v1/wallets/{id}/resources'];
  for (const line of ['GET /v1/account', 'GET /v1/keys', 'GET /v1/wallets', 'GET /v1/resources', ...reads])
    check(line, await account(line, id));
  check('POST /v1/run/close', await wallet('POST /v1/run/close'));
  check('POST /v1/wallets/{id}/close', await account('POST /v1/wallets/{id}/close', id));
  check('GET /v1/wallets/{id}', await account('GET /v1/wallets/{id}', id));
  check('GET /v1/budget', await wallet('GET /v1/budget'));
  check('DELETE /v1/keys/{id}', await account('DELETE /v1/keys/{id}', key.body.id));
  check('DELETE /v1/keys/{id}', await account('DELETE /v1/keys/{id}', key.body.id));
  check('GET /v1/keys', await account('GET /v1/keys'));

  const implemented = INTERFACE.map(({ method, path }) => `${method} ${path}`).filter(
    (line) => !TO_COME.includes(line),
  );
  assert.deepEqual([...seen].sort(), implemented.sort());
});
