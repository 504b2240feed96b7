import { toJsonSchema } from '@valibot/to-json-schema';
import type * as v from 'valibot';
import type { Scope } from '../access/principal.ts';
import { REFUSALS, type RefusalCode } from '../base/refusal.ts';
import { AccountBody } from '../wire/account.ts';
import { ResourceSummary } from '../wire/compute.ts';
import { KeyRecord } from '../wire/key.ts';
import { ModelRecord } from '../wire/models.ts';
import { ErrorBody } from '../wire/parts.ts';
import { Allocation, WalletRecord } from '../wire/wallet.ts';
import { BODY_BYTES_MAX, type Endpoint } from './endpoint.ts';

/** The version that the interface declares (interface, section 9). */
export const INTERFACE_VERSION = '0.1.0';

/** The parts of the interface, by the paths of their operations. */
const TAGS: readonly [name: string, description: string, paths: RegExp][] = [
  ['account', 'The credit of an account, its keys, and what was spent', /^\/v1\/(account|keys|billing|spend)\b/],
  ['wallets', 'Wallets carved from that credit, and what they rented', /^\/v1\/(wallets|resources)\b/],
  ['agent', 'The wallet as its agent sees it', /^\/v1\/(budget|run)\b/],
  ['compute', 'Leases of machines, and work inside of them', /^\/v1\/compute\b/],
  ['models', 'Language models by the request', /^\/v1\/(models|chat|router)\b/],
  ['transfer', 'Signed addresses of objects', /^\/v1\/transfer\b/],
];

/** The schemas that are named components of the document. */
const NAMED = {
  Error: ErrorBody,
  Account: AccountBody,
  Key: KeyRecord,
  Wallet: WalletRecord,
  Allocation,
  Resource: ResourceSummary,
  Model: ModelRecord,
};

/** Additional refusals where a session is accepted: the identity provider may be unreachable. */
const WITH_SESSION: RefusalCode[] = ['provider_unavailable'];
const EVERYWHERE: RefusalCode[] = [
  'invalid_request',
  'request_timeout',
  'head_too_large',
  'unauthenticated',
  'wrong_token_scope',
  'rate_limited',
  'internal_error',
  'read_only',
];
const WITH_BODY: RefusalCode[] = ['invalid_json', 'payload_too_large', 'unsupported_media_type'];
const WITH_KEY: RefusalCode[] = ['idempotency_key_required', 'invalid_idempotency_key'];

/** The caller of an endpoint, by its scope. The gateway's own endpoints are not in the document: its clients know them. */
const SECURITY: Partial<Record<Scope, Record<string, never[]>[]>> = {
  account: [{ accountKey: [] }, { session: [] }, { operatorKey: [] }],
  session: [{ session: [] }, { operatorKey: [] }],
  wallet: [{ walletToken: [] }],
};
const CALLERS: Partial<Record<Scope, string>> = {
  account: 'an account key, a signed-in session or an operator key',
  session: 'a signed-in session or an operator key',
  wallet: 'a wallet token',
};
const bearer = (description: string) => ({ type: 'http', scheme: 'bearer', description });

export type JsonObject = Record<string, unknown>;

/**
 * Generates the OpenAPI 3.1 document from the schemas that validate requests. `servers` names `baseUrl`; `forwarded` are
 * the members of a chat that this installation accepts in addition to the standard ones.
 */
export function openApiDocument(
  routes: readonly [string, string, Endpoint][],
  baseUrl: string,
  forwarded: readonly string[],
): JsonObject {
  const paths: Record<string, JsonObject> = {};
  for (const [method, path, endpoint] of routes) {
    const name = path.replace(/:(\w+)/g, '{$1}');
    paths[name] = { ...paths[name], [method.toLowerCase()]: operation(method, path, endpoint, forwarded) };
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Purser',
      version: INTERFACE_VERSION,
      description:
        'Bounded spending wallets for software agents: compute leases and metered language-model requests, paid from prepaid credit.',
      license: { name: 'MIT', identifier: 'MIT' },
      contact: { name: 'The operator of this installation', url: baseUrl },
    },
    servers: [{ url: baseUrl }],
    tags: TAGS.map(([name, description]) => ({ name, description })),
    paths,
    components: {
      schemas: Object.fromEntries(
        Object.entries(NAMED).map(([name, schema]) => [name, jsonSchema(schema, 'output', without(name))]),
      ),
      securitySchemes: {
        accountKey: bearer('An account key, cnv_live_…'),
        operatorKey: bearer('An operator key of this installation, cnv_operator_…'),
        session: bearer('An access token of the configured identity provider'),
        walletToken: bearer('A wallet token, svc_agent_…'),
      },
    },
  };
}

const REQUEST_ID = { 'X-Request-Id': 'The id of the request, as in the log' };
const REPLAYED = { 'Idempotent-Replayed': '`true` where this is the answer to an earlier request with this key' };
const LATER = { 'Retry-After': 'Seconds after which to try again, where that may help' };
/** Headers of refusals, by status. */
const REFUSED: Record<number, Record<string, string>> = {
  401: { 'WWW-Authenticate': '`Bearer`' },
  402: LATER,
  409: LATER,
  429: LATER,
  503: LATER,
};
const headersOf = (described: Record<string, string>): JsonObject =>
  Object.fromEntries(
    Object.entries(described).map(([name, description]) => [name, { description, schema: { type: 'string' } }]),
  );

/** Returns the parameters of an operation: in its path, its query and its headers. */
function parametersOf(path: string, it: Endpoint): JsonObject[] {
  const parameters: JsonObject[] = [...path.matchAll(/:(\w+)/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    schema: { type: 'string' },
  }));
  for (const [name, schema] of it.query ? propertiesOf(it.query) : [])
    parameters.push({ name, in: 'query', required: false, schema });
  const streams = Object.entries(it.streams ?? {});
  const ofStreams = new Map(streams.flatMap(([, { query }]) => propertiesOf(query)));
  for (const [name, schema] of ofStreams)
    parameters.push({
      name,
      in: 'query',
      required: false,
      description: `beside a body of ${streams.map(([type]) => type).join(' or ')}, and only there`,
      schema,
    });
  if (it.idempotent)
    parameters.push({
      name: 'Idempotency-Key',
      in: 'header',
      required: true,
      description:
        '1 to 128 printable ASCII characters. Retry with the same key and body; never retry an ambiguous operation under a new key.',
      schema: { type: 'string', minLength: 1, maxLength: 128 },
    });
  return parameters;
}

/** Returns the responses of an operation by status: the answer, and its refusals. */
function responsesOf(it: Endpoint): Record<string, JsonObject> {
  const codes = new Set([
    ...EVERYWHERE,
    ...(it.scope === 'account' || it.scope === 'session' ? WITH_SESSION : []),
    ...(it.body ? WITH_BODY : []),
    ...(it.idempotent ? WITH_KEY : []),
    ...(it.refusals ?? []),
  ]);
  const responses: Record<string, JsonObject> = {
    [it.status ?? 200]: {
      description: 'Done',
      headers: headersOf({ ...REQUEST_ID, ...(it.idempotent ? REPLAYED : {}), ...it.headers }),
      content: {
        'application/json': { schema: jsonSchema(it.answer, 'output'), example: it.example.answer },
        ...Object.fromEntries(
          Object.entries(it.otherAnswers ?? {}).map(([type, description]) => [
            type,
            { schema: { type: 'string', description } },
          ]),
        ),
      },
    },
  };
  for (const code of codes) {
    const status = REFUSALS[code].status;
    responses[status] ??= {
      description: '',
      headers: headersOf({ ...REQUEST_ID, ...REFUSED[status] }),
      content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' }, examples: {} } },
    };
    const response = responses[status] as {
      description: string;
      content: { 'application/json': { examples: JsonObject } };
    };
    response.description = [response.description, `\`${code}\``].filter(Boolean).join(' · ');
    response.content['application/json'].examples[code] = {
      value: { error: { code, message: REFUSALS[code].message }, request_id: 'req_01k9v3c2mq8r5t7w1x4z6b0d2f' },
    };
  }
  return responses;
}

function operation(method: string, path: string, it: Endpoint, forwarded: readonly string[]): JsonObject {
  const parameters = parametersOf(path, it);
  const streams = Object.entries(it.streams ?? {});
  return {
    operationId: operationId(method, path),
    summary: it.summary,
    description: describe(it),
    tags: TAGS.filter(([, , paths]) => paths.test(path)).map(([name]) => name),
    security: SECURITY[it.scope],
    ...(parameters.length ? { parameters } : {}),
    ...(it.body
      ? {
          requestBody: {
            required: it.isBodyOptional !== true,
            content: {
              'application/json': { schema: bodySchema(it, it.body, forwarded), example: it.example.body },
              ...Object.fromEntries(
                streams.map(([type, { description }]) => [type, { schema: { type: 'string', description } }]),
              ),
            },
          },
        }
      : {}),
    responses: responsesOf(it),
  };
}

const propertiesOf = (schema: v.GenericSchema) =>
  Object.entries((jsonSchema(schema, 'input').properties ?? {}) as Record<string, JsonObject>);

/** Describes, in sentences, the properties of an operation that its schemas do not express: its callers, its key, its size. */
function describe({ summary, scope, idempotent, body, bodyBytesMax = BODY_BYTES_MAX, streams }: Endpoint): string {
  const sentences = [`${summary}.`, `Takes ${CALLERS[scope]}.`];
  if (idempotent) sentences.push('Retry it with the same Idempotency-Key and body: it has its effect once.');
  const kind = streams ? 'JSON body' : 'body';
  if (body) sentences.push(`The ${kind} has at most ${bodyBytesMax / 1024} KiB.`);
  return sentences.join(' ');
}

/** Returns the schema of a body, with the members that only this installation accepts. */
function bodySchema(it: Endpoint, body: v.GenericSchema, forwarded: readonly string[]): JsonObject {
  const schema = jsonSchema(body, 'input');
  if (!it.modelRequest) return schema;
  const more = Object.fromEntries(forwarded.map((name) => [name, {}]));
  return { ...schema, properties: { ...more, ...(schema.properties as JsonObject) } };
}

/** Derives the operation id: `POST /v1/wallets/:id/close` is `postWalletsIdClose`. */
function operationId(method: string, path: string): string {
  const words = path.slice('/v1/'.length).split(/[/:_]+/);
  return method.toLowerCase() + words.map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join('');
}

/** Returns the JSON Schema keywords that a schema or an action carries (`checked` in wire/parts.ts). */
const keywordsOf = (it: object): JsonObject => ('keywords' in it ? (it.keywords as JsonObject) : {});

/** Returns the named schemas but one, which is not a reference to itself. */
const without = (self: string) => Object.fromEntries(Object.entries(NAMED).filter(([name]) => name !== self));

/** Adds the properties of the schema itself: that an object accepts other members, and the keywords that it carries. */
function described(schema: v.GenericSchema, json: JsonObject): JsonObject {
  const { properties, ...keywords } = keywordsOf(schema) as { properties?: JsonObject };
  return {
    ...json,
    ...(schema.type === 'loose_object' ? { additionalProperties: true } : {}), // Without it some generators allow no other members.
    ...keywords,
    ...(properties ? { properties: { ...properties, ...(json.properties as JsonObject) } } : {}),
  };
}

/** Converts a schema to JSON Schema. `definitions` become references by their names; checks in code add their keywords. */
export function jsonSchema(
  schema: v.GenericSchema,
  typeMode: 'input' | 'output',
  definitions: Record<string, v.GenericSchema> = NAMED,
): JsonObject {
  const {
    $schema: _,
    $defs: __,
    ...json
  } = toJsonSchema(schema, {
    typeMode,
    definitions,
    errorMode: 'ignore',
    overrideSchema: ({ valibotSchema, jsonSchema }) =>
      described(valibotSchema as v.GenericSchema, jsonSchema as JsonObject),
    overrideAction: ({ valibotAction, jsonSchema }) => ({ ...jsonSchema, ...keywordsOf(valibotAction) }),
    overrideRef: ({ referenceId }) => `#/components/schemas/${referenceId}`,
  }) as JsonObject;
  return json;
}
