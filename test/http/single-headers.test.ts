import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { LIST_HEADERS, SINGLE_HEADERS } from '../../src/http/head.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { sendText } from './raw.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

const WALLET = JSON.stringify({ name: 'agent', budget_cents: 500 });

/** The text of a request to open a wallet, with these lines in its head. */
const opening = (purser: TestServer, ...lines: string[]) =>
  [
    'POST /v1/wallets HTTP/1.1',
    'host: a',
    `authorization: Bearer ${purser.accountKey}`,
    'content-type: application/json',
    `content-length: ${WALLET.length}`,
    'connection: close',
    ...lines,
    '',
    WALLET,
  ].join('\r\n');

test('a key in two lines is no key of its own: the retry with one line is the same request', async (t) => {
  const purser = await openTestServer(t);
  await assertNothingMoves(purser, async () => {
    for (const second of ['Idempotency-Key: K', 'idempotency-key: other']) {
      const [refused] = await sendText(purser, opening(purser, 'idempotency-key: K', second));
      assert(refused);
      assertRefused(refused, 400, 'invalid_idempotency_key');
      assert.match(refused.body.error.message, /exactly one Idempotency-Key header/i);
    }
  });
  const [first] = await sendText(purser, opening(purser, 'idempotency-key: K'));
  const [again] = await sendText(purser, opening(purser, 'idempotency-key: K'));
  assert.deepEqual([first?.status, again?.status], [201, 201]);
  assert.equal(again?.body.id, first?.body.id);
});

test('a header with one value that comes twice is a 400 that names it, wherever a request comes in', async (t) => {
  const purser = await openTestServer(t);
  const port = '/v1/compute/res_none/port/80';
  const places = [
    ['GET /v1/account', []],
    ['POST /v1/chat/completions', []],
    ['POST /v1/router/chat/completions', []],
    ['POST /v1/router/messages', []],
    ['POST /v1/mcp', []],
    [`GET ${port}`, []],
    [`GET ${port}`, ['connection: upgrade', 'upgrade: websocket']],
    ['GET /sign-in', []],
    ['POST /sign-in/key', []],
    ['POST /webhooks/stripe', []],
    ['GET /healthz', []],
    ['GET /nowhere', []],
  ] as const;
  const names = [...SINGLE_HEADERS, 'mcp-protocol-version', 'x-purser-tag-job'].filter((it) => it !== 'content-length');
  await assertNothingMoves(purser, async () => {
    for (const [place, lines] of places)
      for (const name of names) {
        const host = name === 'host' ? [] : ['host: a'];
        const head = [`${place} HTTP/1.1`, ...host, ...lines, `${name}: a`, `${name.toUpperCase()}: b`, '', ''];
        const [answer] = await sendText(purser, head.join('\r\n'));
        const code = name === 'idempotency-key' ? 'invalid_idempotency_key' : 'invalid_request';
        assert.equal(answer?.status, 400, `${place} ${name}: ${answer?.text}`);
        if (place !== 'POST /v1/router/messages') assert.equal(answer?.body.error.code, code); // Anthropic's shape has none.
        assert.equal(answer?.body.error.message, `Send exactly one ${name.toUpperCase()} header.`);
        assert.equal(answer?.body.request_id, answer?.headers['x-request-id']);
      }
  });
});

test('the clients of the gateway get that refusal as they read all others', async (t) => {
  const purser = await openTestServer(t);
  const twice = ['host: a', 'x-api-key: a', 'x-api-key: b', '', ''].join('\r\n');
  const [chat] = await sendText(purser, `POST /v1/router/chat/completions?a=b HTTP/1.1\r\n${twice}`);
  assert.equal(chat?.body.error.type, 'invalid_request_error');
  const [message] = await sendText(purser, `POST /v1/router/messages?beta=true HTTP/1.1\r\n${twice}`);
  assert.equal(message?.body.type, 'error');
});

test('two lengths are refused', async (t) => {
  const purser = await openTestServer(t);
  await assertNothingMoves(purser, async () => {
    for (const length of [WALLET.length, WALLET.length + 1]) {
      const [answer] = await sendText(purser, opening(purser, 'idempotency-key: K', `content-length: ${length}`));
      assert(answer);
      assertRefused(answer, 400, 'invalid_request');
    }
  });
});

test('a header that is a list may come in several lines', async (t) => {
  const purser = await openTestServer(t);
  const lines = ['accept: application/json', 'accept: */*', 'cookie: a=1', 'cookie: b=2', 'x-forwarded-for: 192.0.2.1'];
  const [answer] = await sendText(
    purser,
    opening(purser, 'idempotency-key: K', ...lines, 'x-forwarded-for: 192.0.2.2'),
  );
  assert.equal(answer?.status, 201, answer?.text);
});

test('of a head with many headers every one is read', async (t) => {
  const purser = await openTestServer(t);
  const [answer] = await sendText(
    purser,
    opening(purser, 'idempotency-key: K', ...Array(1900).fill('a:'), 'idempotency-key: L'),
  );
  assert(answer);
  assertRefused(answer, 400, 'invalid_idempotency_key');
});

test('a token in the name of a header is not repeated by the refusal', async (t) => {
  const purser = await openTestServer(t);
  const line = `x-purser-tag-${purser.accountKey}: a`;
  const [answer] = await sendText(purser, opening(purser, line, line));
  assert.equal(answer?.status, 400);
  assert(!answer?.text.includes(purser.accountKey));
  assert(!purser.log.some((it) => it.includes(purser.accountKey)));
});

/** Every way in which the source reads a header of a request by its name. */
const READS = [
  /\b(?:headers|incoming\.headers|request\.headers)\.([a-z]+)\b(?!\()/g,
  /\bheaders\[\s*'([\w-]+)'\s*\](?! =)/g,
  /\breq\.header\('([\w-]+)'\)/g,
  /'([a-z-]+)': \w+(?:, '[a-z-]+': \w+)* \} = (?:\w+\.)*headers\b/g,
  /'([a-z-]+)': \w+ \} = (?:\w+\.)*headers\b/g,
];
/** What looks like a header of a request and is not: members of an answer's headers. */
const OF_ANSWERS = new Set(['location', 'retry-after', 'allow', 'get', 'set', 'append', 'push', 'flat']);

test('every header that the source reads is known to have one value or to be a list', () => {
  const files = globSync('src/{http,ui}/**/*.ts').concat('src/main/serve.ts');
  const read = new Set<string>();
  for (const file of files) {
    const source = readFileSync(file, 'utf8');
    for (const pattern of READS) for (const [, name = ''] of source.matchAll(pattern)) read.add(name);
  }
  for (const known of ['idempotency-key', 'authorization', 'traceparent', 'stripe-signature', 'anthropic-version'])
    assert(read.has(known), `the patterns find ${known}`);
  const unknown = [...read].filter((it) => !SINGLE_HEADERS.has(it) && !LIST_HEADERS.has(it) && !OF_ANSWERS.has(it));
  assert.deepEqual(unknown, [], 'add it to the lists of src/http/head.ts');
});
