import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { suite } from 'node:test';
import { openedOnce } from '../helper/opened-once.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { type Line, WITH_BODY } from './interface.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

/** A value that a field must not have, as JSON text, because 1e400 and 2^53 have no other faithful form. */
type Wrong = readonly [what: string, json: string];

const NO_NUMBER: Wrong[] = [
  ['"100" for 100', '"100"'],
  ['null', 'null'],
  ['true', 'true'],
  ['a list', '[100]'],
  ['an object', '{"a":1}'],
];
const NO_TEXT: Wrong[] = [
  ['a number', '1'],
  ['null', 'null'],
  ['true', 'true'],
  ['a list', '["a"]'],
  ['an object', '{"a":"b"}'],
];
const wholeNumber = (min: number, max = 2 ** 53 - 1): Wrong[] => [
  ...NO_NUMBER,
  [`${min - 1}, one too few`, String(min - 1)],
  [`${BigInt(max) + 1n}, one too many`, String(BigInt(max) + 1n)],
  ['a fraction', `${min}.5`],
  ['2^53', '9007199254740992'],
  ['1e400', '1e400'],
  ['-1e400', '-1e400'],
  ['-1', '-1'],
];
const positive: Wrong[] = [
  ...NO_NUMBER,
  ['0', '0'],
  ['-1', '-1'],
  ['three decimals', '1.001'],
  ['1e-9', '1e-9'],
  ['2^53', '9007199254740992'],
  ['1e400', '1e400'],
];
const name: Wrong[] = [
  ...NO_TEXT,
  ['nothing', '""'],
  ['81 characters', JSON.stringify('a'.repeat(81))],
  ['81 characters of two UTF-16 units each', JSON.stringify('🤖'.repeat(81))],
  ['80 characters of two units and one more', JSON.stringify(`${'🤖'.repeat(80)}a`)],
  ['a NUL', '"a\\u0000b"'],
  ['a line feed', '"a\\nb"'],
  ['an escape sequence', '"\\u001b[31mred"'],
  ['a DEL', '"a\\u007f"'],
  ['a C1 control character', '"a\\u0085"'],
  ['the first half of a surrogate pair', '"a\\ud83d"'],
  ['the second half of a surrogate pair', '"\\ude00a"'],
];
const noObject: Wrong[] = [
  ['a text', '"a"'],
  ['a number', '1'],
  ['null', 'null'],
  ['a list', '[]'],
];
const expiry: Wrong[] = [...wholeNumber(0, 2_592_000), ...[1, 30, 59].map((it): Wrong => [`${it} s`, String(it)])];

type Subject = {
  path: string;
  /** What its schema is tried on; the line of the interface unless said otherwise. */
  body?: Record<string, unknown>;
  /** Fields that must be there. */
  required: string[];
  wrong: Record<string, Wrong[]>;
};

const id = { required: ['id'], wrong: { id: NO_TEXT } };
const specs: Record<string, Record<string, unknown>> = {
  provider_one: { gpu: 'h100', gpus: 1, cpus: 1.25, memory_gib: 4, max_seconds: 60 },
  provider_two: { chip: 'h100', max_seconds: 60 },
  provider_three: { offer_id: 'small', disk_gb: 1, max_seconds: 60 },
};
const provider: Wrong[] = [...NO_TEXT, ['an unknown one', '"provider_four"'], ['an inherited name', '"constructor"']];

const SUBJECTS: Subject[] = [
  { path: '/v1/keys', required: ['name'], wrong: { name } },
  {
    path: '/v1/wallets',
    required: ['name', 'budget_cents'],
    wrong: { name, budget_cents: wholeNumber(100, 1_000_000), expires_in_seconds: expiry },
  },
  { path: '/v1/billing/checkout', required: ['amount_cents'], wrong: { amount_cents: wholeNumber(500, 100_000) } },
  {
    path: '/v1/compute/create',
    body: { provider: 'provider_one', spec: specs.provider_one },
    required: ['provider', 'spec', 'spec.cpus', 'spec.memory_gib', 'spec.max_seconds', 'spec.gpu', 'spec.gpus'],
    wrong: {
      provider,
      spec: [
        ...noObject,
        ['the spec of another provider', JSON.stringify(specs.provider_two)],
        ['an unknown member', JSON.stringify({ ...specs.provider_one, disk_gb: 1 })],
        ['an inherited member', '{"gpu":"h100","gpus":1,"cpus":1,"memory_gib":1,"max_seconds":60,"__proto__":{}}'],
      ],
      'spec.gpu': [...NO_TEXT, ['nothing', '""']],
      'spec.gpus': wholeNumber(1, 2 ** 53 - 1),
      'spec.cpus': positive,
      'spec.memory_gib': positive,
      'spec.max_seconds': wholeNumber(60),
    },
  },
  {
    path: '/v1/compute/create',
    body: { provider: 'provider_two', spec: specs.provider_two },
    required: ['spec', 'spec.chip', 'spec.max_seconds'],
    wrong: { spec: noObject, 'spec.chip': [...NO_TEXT, ['nothing', '""']], 'spec.max_seconds': wholeNumber(60) },
  },
  {
    path: '/v1/compute/create',
    body: { provider: 'provider_three', spec: specs.provider_three },
    required: ['spec', 'spec.offer_id', 'spec.disk_gb', 'spec.max_seconds'],
    wrong: {
      spec: noObject,
      'spec.offer_id': [...NO_TEXT, ['nothing', '""']],
      'spec.disk_gb': wholeNumber(1),
      'spec.max_seconds': wholeNumber(60),
    },
  },
  {
    path: '/v1/compute/extend',
    required: ['id', 'additional_seconds'],
    wrong: { id: NO_TEXT, additional_seconds: wholeNumber(1, 86_400) },
  },
  { path: '/v1/compute/stop', ...id },
  { path: '/v1/compute/ssh', ...id },
  { path: '/v1/compute/status', ...id },
  {
    path: '/v1/compute/exec',
    required: ['id', 'command'],
    wrong: { id: NO_TEXT, command: [...NO_TEXT, ['a NUL', '"a\\u0000b"']], timeout: wholeNumber(1, 3600) },
  },
  {
    path: '/v1/compute/upload',
    required: ['id', 'path', 'content_base64'],
    wrong: {
      id: NO_TEXT,
      path: NO_TEXT,
      content_base64: [...NO_TEXT, ['what is no base64', '"%%%%"'], ['a torn end', '"YQ="']],
    },
  },
  {
    path: '/v1/transfer/sign',
    required: ['object', 'operation'],
    wrong: {
      object: NO_TEXT,
      operation: [...NO_TEXT, ['another', '"delete"'], ['capitals', '"GET"']],
      expires_seconds: wholeNumber(1, 604_800),
    },
  },
  { path: '/v1/router/key', required: [], wrong: {} },
  // What is the matter of the road of a chat is in bad-chat.test.ts.
  {
    path: '/v1/chat/completions',
    required: ['model', 'messages'],
    wrong: { model: NO_TEXT, max_tokens: wholeNumber(1).filter(([what]) => what !== 'null') },
  },
];

const lineOf = (path: string) =>
  WITH_BODY.find((line) => line.path === path) as Line & { body: Record<string, unknown> };

/** The body with one field replaced by JSON text, or left out. Fields of an object inside are named with a dot. */
function bodyWith(body: Record<string, unknown>, field: string, json: string | undefined): string {
  const [first, rest] = field.split(/\.(.*)/) as [string, string | undefined];
  const members = Object.entries({ [first]: null, ...body }).flatMap(([key, value]) => {
    const inside = rest === undefined ? json : bodyWith(value as Record<string, unknown>, rest, json);
    const text = key === first ? inside : JSON.stringify(value);
    return text === undefined ? [] : [`${JSON.stringify(key)}:${text}`];
  });
  return `{${members.join(',')}}`;
}

async function tokensOf(purser: TestServer): Promise<Record<Line['auth'], string>> {
  return { Account: purser.accountKey, Session: purser.operatorKey, Wallet: (await purser.openWallet()).token };
}

test('the table names every endpoint that takes a body', () => {
  assert.deepEqual([...new Set(SUBJECTS.map((it) => it.path))].sort(), WITH_BODY.map((it) => it.path).sort());
});

suite('any endpoint with a body, and a wrong value', () => {
  const opened = openedOnce(openTestServer);
  for (const { path, body = lineOf(path).body, required, wrong } of SUBJECTS) {
    const line = lineOf(path);
    const title = `POST ${path}${'provider' in body ? ` (${body.provider})` : ''}`;

    test(`${title} refuses every wrong value of every field, names the field, and moves nothing`, async (t) => {
      const purser = opened();
      const token = (await tokensOf(purser))[line.auth];
      const post = (text: string) =>
        purser.ask('POST', path, { token, key: line.key ? randomUUID() : undefined, body: text });

      await assertNothingMoves(purser, async () => {
        for (const [field, values] of Object.entries(wrong))
          for (const [what, json] of values)
            await t.test(`${field} that is ${what}`, async () => {
              const answer = await post(bodyWith(body, field, json));
              assertRefused(answer, 400, 'invalid_request', bodyWith(body, field, json));
              assert.match(
                answer.body.error.message,
                new RegExp(`\\b${field.split('.')[0]}\\b`),
                'the message names the field',
              );
            });
        for (const field of required)
          await t.test(`${field} left out`, async () => {
            const answer = await post(bodyWith(body, field, undefined));
            assertRefused(answer, 400, 'invalid_request');
            assert.match(
              answer.body.error.message,
              new RegExp(`\\b${field.split('.')[0]}\\b`),
              'the message names the field',
            );
          });
        for (const [what, json] of noObject)
          await t.test(`${what} for the whole body`, async () =>
            assertRefused(await post(json), 400, 'invalid_request'),
          );
        for (const text of [
          '{"a":NaN}',
          '{"a":Infinity}',
          '{"a":0x64}',
          '{"a":1,}',
          "{'a':1}",
          '{"a":1}{}',
          '{"a":01}',
          '\ufeff{}',
        ])
          await t.test(`${JSON.stringify(text)}, which is no JSON`, async () =>
            assertRefused(await post(text), 400, 'invalid_json'),
          );
      });
    });
  }
});

// Design 2.5: refused where the interface forbids them, ignored elsewhere; an option of a gateway key that binds nothing
// would be a false promise, so unknown ones are refused too.
const FORBIDS_OTHERS = ['/v1/wallets', '/v1/compute/create', '/v1/compute/extend'];
const OTHERS: Record<string, string> = {
  extra: '1',
  budget: 'null',
  constructor: '{}',
  toString: '"a"',
};
Object.defineProperty(OTHERS, '__proto__', { value: '{}', enumerable: true });

for (const { path, auth, key, body } of WITH_BODY) {
  if (path === '/v1/chat/completions') continue;
  const ask = (purser: TestServer, token: string, other: string, json: string) =>
    purser.ask('POST', path, { token, key: key ? randomUUID() : undefined, body: bodyWith(body, other, json) });

  if (FORBIDS_OTHERS.includes(path))
    test(`POST ${path} refuses properties that the interface does not know, inherited names among them`, async (t) => {
      const purser = await openTestServer(t);
      const token = (await tokensOf(purser))[auth];
      await assertNothingMoves(purser, async () => {
        for (const [other, json] of Object.entries(OTHERS)) {
          const answer = await ask(purser, token, other, json);
          assertRefused(answer, 400, 'invalid_request', other);
          assert.match(answer.body.error.message, new RegExp(other), 'the message names the property');
        }
      });
    });
  else
    test(`POST ${path} ignores properties that the interface does not know`, async (t) => {
      const purser = await openTestServer(t);
      const token = (await tokensOf(purser))[auth];
      const { status, body: answered } = await purser.ask('POST', path, {
        token,
        key: key ? randomUUID() : undefined,
        body,
      });
      for (const [other, json] of Object.entries(OTHERS)) {
        const answer = await ask(purser, token, other, json);
        assert.equal(answer.status, status, `${other}: ${answer.text}`);
        assert.equal(answer.body.error?.code, answered.error?.code);
      }
    });
}

test('the limits of the interface themselves are allowed', async (t) => {
  const purser = await openTestServer(t, { creditCents: 10_000_000 });
  const wallet = (json: string) =>
    purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key: randomUUID(), body: json });
  for (const json of [
    '{"name":"a","budget_cents":100,"expires_in_seconds":0}',
    '{"name":"a","budget_cents":100,"expires_in_seconds":60}',
    '{"name":"a","budget_cents":1000000,"expires_in_seconds":2592000}',
    '{"name":"a","budget_cents":1e2}',
    '{"name":"a","budget_cents":100.0}',
    JSON.stringify({ name: 'a'.repeat(80), budget_cents: 100 }),
    JSON.stringify({ name: '🤖'.repeat(80), budget_cents: 100 }),
    JSON.stringify({ name: 'Ünïcode – 名前 🤖', budget_cents: 100 }),
    '{"name":"a\\ud83e\\udd16","budget_cents":100}',
  ]) {
    const answer = await wallet(json);
    assert.equal(answer.status, 201, `${json}: ${answer.text}`);
  }
  assert.deepEqual(purser.problems(), []);
});

test('of duplicate members the last one wins', async (t) => {
  const purser = await openTestServer(t);
  const wallet = (json: string) =>
    purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key: randomUUID(), body: json });
  assertRefused(await wallet('{"name":"a","budget_cents":100,"budget_cents":"x"}'), 400, 'invalid_request');
  const { status, body } = await wallet('{"name":"a","budget_cents":"x","budget_cents":700}');
  assert.equal(status, 201);
  assert.equal((await purser.run('wallet.show', { id: body.id })).budget_cents, 700);
});

test('a wallet lives a day unless it is told otherwise, and one of 0 seconds never expires', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ expires_in_seconds: undefined });
  const day = await purser.run('wallet.show', { id });
  assert.equal((day.expires_at as number) - day.created_at, 86_400);
  const never = await purser.run('wallet.show', { id: (await purser.openWallet({ expires_in_seconds: 0 })).id });
  assert.equal(never.expires_at, null);
});
