import assert from 'node:assert/strict';
import test from 'node:test';
import * as v from 'valibot';
import { canonicalJson, fingerprint, fingerprintOf } from '../../src/base/fingerprint.ts';
import { parseText } from '../../src/base/json-text.ts';
import { Router } from '../../src/config/router.ts';
import { boundRequest, readModelRequest, validRequest } from '../../src/http/model-request.ts';
import { boundChat } from '../../src/router/bound.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { measuredFor } from '../../src/router/measure.ts';
import { belowFrom, jsonWriter } from '../helper/json-writer.ts';
import { SEED } from '../helper/random.ts';

const RUN_COUNT = 3000;
const MODEL = { id: 'm', upstream: 'u', context_length: 1e6, max_output_tokens: 100, pricing: { request: '0.1' } };
const ROUTER = v.parse(Router, { upstreams: [{ name: 'u', base_url: 'http://127.0.0.1:1/v1' }], models: [MODEL] });
const model = createCatalogue({ router: ROUTER }).find('m');
const [route] = model.routes;

/** The request that a body is read as, and the text that is sent for it. */
function sent(text: string | Buffer): { body: string; bytes: number; fingerprint: Buffer; completion: number } {
  const order = { kind: 'routerChat', isKeyed: true } as const;
  const request = validRequest(
    readModelRequest(
      Buffer.from(text),
      order,
      () => measuredFor(model),
      () => {},
    ),
  );
  const bounded = boundRequest(model, request);
  const { promptTokens: bytes, completionTokens: completion } = bounded.maxUsage(route);
  return { body: String(bounded.bodyFor(route)), bytes, completion, fingerprint: request.fingerprint };
}

const MESSAGES = '"messages":[{"role":"user","content":"hi"}]';

test(`any body is sent as what it was parsed as, and priced as what is sent (seed ${SEED})`, () => {
  const random = belowFrom(SEED);
  const { pick, space, list, member, string, text, value } = jsonWriter(random, () => isCompact);
  let isCompact = false;
  let asItCame = 0;
  for (let i = 0; i < RUN_COUNT; i++) {
    isCompact = i % 2 === 0;
    const long = () => `"${text().slice(1, -1)}${(text().slice(1, -1) || 'e').repeat(1 + random(4000))}"`;
    const either = () => (random(20) ? text() : long());
    const messageMember = () =>
      pick([
        () => member('role', string(pick(['user', 'tool', 'assistant']))),
        () => member('content', either()),
        () =>
          member('content', `[${list([`{"type":"text","text":${either()}}`, `{"type":"text","text":${text()}}`])}]`),
        () => member('name', either()),
        () => member('refusal', either()),
        () => member('reasoning', either()),
        () => member('tool_calls', `[{"function":{"name":"a","arguments":${either()}}}]`),
      ])();
    const messages = () =>
      `[${list([`{${list([member('role', string('user')), ...Array.from({ length: random(4) }, messageMember)])}}`])}]`;
    const tool = () => `[{"type":"function","function":${value(3)}}]`;
    const members = Array.from({ length: random(8) }, () =>
      pick([
        () => member('max_tokens', pick(['1', '5', '100', '1e1', 'null'])),
        () => member('stream', pick(['true', 'false', 'null'])),
        () => member('temperature', pick(['1.0', '0.2', '1', '1e400', 'null', '0.30000000000000000001'])),
        () => member('stop', value(2)),
        () => member('user', text()),
        () => member('tools', tool()),
        () => member('logit_bias', value(2)),
        () => member('metadata', value(2)),
        () => member('store', pick(['false', 'null'])),
        () => member('messages', messages()),
        () => member('model', string('m')),
      ])(),
    );
    members.splice(random(members.length + 1), 0, member('messages', messages()));
    members.splice(random(members.length + 1), 0, member('model', string('m')));
    const once = members.filter((it, at) => members.findIndex((other) => nameOf(other) === nameOf(it)) === at);
    const written = `${space()}{${list(isCompact ? once : members)}}${space()}`;
    const raw = JSON.parse(written);
    const asObject = boundChat(model, raw, raw.stream === true);
    const { body, bytes, completion, fingerprint: print } = sent(written);
    const what = `seed ${SEED}, run ${i}: ${written}`;
    // -0 is forwarded as it came, where JSON.stringify writes 0.
    assert.equal(canonicalJson(JSON.parse(body)), canonicalJson(JSON.parse(String(asObject.bodyFor(route)))), what);
    assert.deepEqual({ promptTokens: bytes, completionTokens: completion, images: 0 }, asObject.maxUsage(route), what);
    assert.deepEqual(print, fingerprint(raw), what);
    // No name twice at any level, and so nothing that a server could read in place of what was priced.
    assert.equal(parseText(Buffer.from(body), 0, () => {}).outline.memberCount, countNames(JSON.parse(body)), what);
    if (body !== String(asObject.bodyFor(route))) asItCame++;
  }
  assert(asItCame > RUN_COUNT / 20, `${asItCame} were not written again`);
});

const nameOf = (member: string) => Object.keys(JSON.parse(`{${member}}`))[0];

function countNames(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  const own = Array.isArray(value) ? 0 : Object.keys(value).length;
  return Object.values(value).reduce((sum: number, it) => sum + countNames(it), own);
}

test(`the fingerprint of any text is that of its value (seed ${SEED})`, () => {
  const random = belowFrom(SEED);
  const { value, space } = jsonWriter(random);
  for (let i = 0; i < RUN_COUNT; i++) {
    const text = `${space()}${value(5)}${space()}`;
    const bytes = Buffer.from(text);
    const parsed = parseText(bytes, 0, () => {});
    assert.deepEqual(fingerprintOf(parsed.text), fingerprint(JSON.parse(text)), `seed ${SEED}: ${text}`);
  }
});

test(`left out are members of the outermost object alone, whatever stands beside and in them (seed ${SEED})`, () => {
  const random = belowFrom(SEED);
  const { list, member, pick, space, string, value } = jsonWriter(random);
  const isLeftOut = (name: string) => name === 'user' || name === 'b';
  for (let i = 0; i < RUN_COUNT; i++) {
    const members = Array.from({ length: random(6) }, () =>
      member(pick(['user', 'b', 'a', 'c']), pick([value(3), `{${list([member('user', string('b'))])}}`])),
    );
    const text = `${space()}{${list(members)}}`;
    const bytes = Buffer.from(text);
    const kept = Object.entries(JSON.parse(text)).filter(([name]) => !isLeftOut(name));
    const parsed = parseText(bytes, 0, () => {});
    assert.deepEqual(fingerprintOf(parsed.text, isLeftOut), fingerprint(Object.fromEntries(kept)), text);
  }
});

for (const [isKeyed, print] of [
  [true, '741b361a5311b2ceb432be241108bb55f4ccf67e99bd554cc427ff00effaa510'],
  [false, '1b659dd692eed64cc91b5ca7f3b6efad4e8becc49d17ecb5e5049264002c09b9'],
] as const)
  test(`a body has the fingerprint that is stored with operations of earlier versions, ${isKeyed ? 'with' : 'without'} a key`, () => {
    const body =
      '{ "stop": null, "messages": [{"role":"user","content":"caf\\u00e9 \\/ \\n"}], "temperature": 1.0, "model":"m", "user":"u", "stop":["b","a"] }';
    const order = { kind: 'routerChat', isKeyed } as const;
    const none = () => undefined;
    const request = readModelRequest(Buffer.from(body), order, none, none);
    assert.equal(validRequest(request).fingerprint.toString('hex'), print);
  });

test('what is forwarded is forwarded byte for byte, and the rest is written beside it', () => {
  const { body } = sent(
    '{"temperature": 1.0, "user": "\\u00fc/\\/", "model": "m", "messages": [{"content": "h\\u0069", "role": "user"}], "stop": null, "metadata": {}, "seed": 7, "max_tokens": 5}\n',
  );
  assert.equal(
    body,
    '{"model":"m","stream":false,"max_tokens":5,"temperature": 1.0, "user": "\\u00fc/\\/","messages": [{"content": "h\\u0069", "role": "user"}],"seed": 7}',
  );
});

const SMUGGLED: [what: string, body: string, sent: string][] = [
  [
    'a second max_tokens: the last counts, and no other is sent',
    `{"model":"m","max_tokens":99,${MESSAGES},"max_tokens":5}`,
    `{"model":"m","stream":false,"max_tokens":5,${MESSAGES}}`,
  ],
  [
    'a second max_tokens under an escaped name',
    `{"model":"m","max_tokens":5,${MESSAGES},"max\\u005ftokens":6}`,
    `{"model":"m","stream":false,"max_tokens":6,${MESSAGES}}`,
  ],
  [
    'messages twice: only those that are priced',
    `{"model":"m","messages":[{"role":"user","content":"${'long '.repeat(20)}"}],"max_tokens":5,${MESSAGES}}`,
    `{"model":"m","stream":false,"max_tokens":5,${MESSAGES}}`,
  ],
  [
    'a second content in a message',
    '{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"not priced","content":"hi"}]}',
    `{"model":"m","stream":false,"max_tokens":5,${MESSAGES}}`,
  ],
  [
    'a number of more digits than are priced',
    `{"model":"m","max_tokens":5,${MESSAGES},"seed":1${'0'.repeat(25)}}`,
    `{"model":"m","stream":false,"max_tokens":5,${MESSAGES},"seed":1e+25}`,
  ],
  [
    'white space, which a server might keep with a schema',
    `{"model":"m","max_tokens":5,${MESSAGES},"response_format":{"type":   \n "json_object"}}`,
    `{"model":"m","stream":false,"max_tokens":5,${MESSAGES},"response_format":{"type":"json_object"}}`,
  ],
  [
    'a member of the same name further in, which is no duplicate',
    `{"model":"m","max_tokens":5,${MESSAGES},"response_format":{ "max_tokens":9,"model":"x"}}`,
    `{"model":"m","stream":false,"max_tokens":5,${MESSAGES},"response_format":{ "max_tokens":9,"model":"x"}}`,
  ],
];
for (const [what, body, expected] of SMUGGLED)
  test(`what is priced is what is sent: ${what}`, () => assert.equal(sent(body).body, expected));

test('a byte order mark is no JSON', () => {
  assert.throws(() => sent(`\ufeff{"model":"m",${MESSAGES}}`), /not valid JSON/);
});
