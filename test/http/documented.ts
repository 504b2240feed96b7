import assert from 'node:assert/strict';
import * as v from 'valibot';
import type { Endpoint } from '../../src/http/endpoint.ts';
import { EXTRAS, ROUTES } from '../../src/http/routes.ts';
import type { Answer, TestServer } from '../helper/server.ts';

export type Operation = {
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
export type Document = {
  openapi: string;
  info: { version: string; license: unknown; contact: { name: string } };
  servers: { url: string }[];
  paths: Record<string, Record<string, Operation>>;
};

/** `POST /v1/wallets/{id}/close`, as both the interface and the document write it. */
const ENDPOINTS = new Map(
  [...ROUTES, ...EXTRAS].map(([method, path, it]) => [`${method} ${path.replace(/:(\w+)/g, '{$1}')}`, it]),
);
export const endpointOf = (line: string): Endpoint => ENDPOINTS.get(line) as Endpoint;

export async function documentOf(purser: TestServer): Promise<Document> {
  const answer = await purser.ask('GET', '/v1/openapi.json');
  assert.equal(answer.status, 200);
  assert.equal(answer.headers['content-type'], 'application/json');
  return answer.body;
}

/** Asserts that a value is what the schema says, to the last member: what the schema does not know is a fault too. */
export function assertIs(schema: v.GenericSchema, value: unknown, what: string): void {
  const parsed = v.safeParse(schema, value);
  assert.deepEqual(parsed.issues?.map((it) => `${v.getDotPath(it)}: ${it.message}`) ?? [], [], what);
  assert.deepEqual(parsed.output, value, `${what}: members that the schema does not know`);
}

/** The operation that a request reached, as the document writes it; undefined for what the document does not describe. */
function lineOf(document: Document, method: string, path: string): string | undefined {
  const name = path.replace(/\?.*$/, '');
  const templates = Object.keys(document.paths).sort((a, b) => a.split('{').length - b.split('{').length);
  const template = templates.find((it) => new RegExp(`^${it.replace(/\{\w+\}/g, '[^/]+')}$`).test(name));
  const operation = template && document.paths[template]?.[method.toLowerCase()];
  return operation && `${method} ${template}`;
}

/** Asserts that the document has this answer: its status, its code, and a body that its schema describes. */
function assertDocumented(document: Document, line: string, answer: Answer): void {
  const what = `${line}: ${answer.status} ${answer.text.slice(0, 300)}`;
  const [method, path] = line.split(' ') as [string, string];
  const { responses } = (document.paths[path] as Record<string, Operation>)[method.toLowerCase()] as Operation;
  const documented = responses[answer.status]?.content['application/json'];
  assert(documented, `no such status in the document: ${what}`);
  if (answer.status < 400) assertIs(endpointOf(line).answer, answer.body, what);
  else assert(documented.examples?.[answer.body.error.code], `no such code in the document: ${what}`);
}

/** Holds every answer of a server to its own API document from here on. Answers the lines and codes that were seen. */
export function holdToDocument(purser: TestServer): Set<string> {
  const seen = new Set<string>();
  const { ask } = purser;
  let document: Document | undefined;
  purser.ask = async (method, path, asked) => {
    const answer = await ask(method, path, asked);
    document ??= (await ask('GET', '/v1/openapi.json')).body as Document;
    const line = lineOf(document, method, path);
    if (line) {
      assertDocumented(document, line, answer);
      seen.add(answer.status < 400 ? line : `${line} ${answer.body.error.code}`);
    }
    return answer;
  };
  return seen;
}
