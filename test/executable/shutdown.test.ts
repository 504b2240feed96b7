import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import net from 'node:net';
import { json } from 'node:stream/consumers';
import test from 'node:test';
import Client from 'better-sqlite3';
import { type Installation, installation, type Serving, within } from '../helper/executable.ts';
import { freePort } from '../helper/free-port.ts';
import type { Answer } from '../helper/server.ts';
import { completion, gate, hang, openUpstream } from '../helper/upstream.ts';

const WORKER_COUNT = 16;
const CONNECTION_COUNT = 20;

const chatBody = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };
const chat = (server: Serving, token: string, key: string) =>
  server.ask('POST', '/v1/chat/completions', { token, key, body: chatBody });

async function walletOf(purser: Installation): Promise<{ id: string; token: string }> {
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '100000');
  const create = ['wallet', 'create', '--account', accounts[0].id, '--name', 'agent', '--budget-cents', '50000'];
  const { id, agent_token: token } = await purser.json(...create);
  return { id, token };
}

test('what is in flight at SIGTERM is answered, new connections are refused, and the exit code is 0', async (t) => {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, settings: { drain_seconds: 60 } });
  const server = await purser.serve();
  const wallet = await walletOf(purser);
  const late = gate();
  upstream.handle = late.handler;
  const inFlight = Array.from({ length: CONNECTION_COUNT }, () => chat(server, wallet.token, randomUUID()));
  await upstream.arrived(CONNECTION_COUNT);

  server.kill('SIGTERM');
  await within(refusing(server), () => 'no connection is accepted');
  late.open();
  const answers = await Promise.all(inFlight);
  assert.deepEqual(
    answers.map((it) => it.status),
    answers.map(() => 200),
  );
  assert(
    answers.every((it) => it.headers.connection === 'close'),
    'and told that the connection ends',
  );
  assert.deepEqual(await server.ended, { code: 0, signal: null });
  assert.deepEqual((await purser.json('operation', 'list', '--uncertain')).operations, []);
  assert.equal((await purser.json('wallet', 'show', wallet.id)).used_usd, '0.0024'); // 20 × 0.00012
});

test('SIGTERM under load resets no request that was accepted', async (t) => {
  const upstream = await openUpstream(t);
  upstream.handle = (call, response) => void setImmediate(() => completion()(call, response));
  const purser = installation(t, { upstream, settings: { drain_seconds: 60 } });
  let server = await purser.serve();
  const wallet = await walletOf(purser);
  for (let round = 0; round < 5; round++) {
    if (round) server = await purser.serve();
    const answered: Answer[] = [];
    const unanswered: string[] = [];
    const worker = async () => {
      for (;;) {
        const key = randomUUID();
        try {
          answered.push(await chat(server, wallet.token, key));
        } catch {
          unanswered.push(key); // Refused, or cut off: which of the two is decided below.
          return;
        }
      }
    };
    const workers = Array.from({ length: WORKER_COUNT }, worker);
    await server.logged('operation.charged', 30 + 20 * round);
    server.kill('SIGTERM');
    await within(Promise.all(workers), () => 'every worker has noticed');
    assert.deepEqual(await server.ended, { code: 0, signal: null }, server.output.stderr.slice(-1000));

    // Those that come when all is drained are told to come again.
    const told = answered.filter((it) => it.status !== 200).map((it) => it.body.error.code);
    assert.deepEqual(
      told.filter((code) => code !== 'read_only'),
      [],
    );
    const accepted = keysIn(purser);
    assert.deepEqual(
      unanswered.filter((key) => accepted.has(key)),
      [],
      'accepted, and cut off without an answer',
    );
    assert(answered.length >= 30);
  }
  assert((await purser.json('ledger', 'verify')).ok);
});

test('what still runs after drain_seconds is answered 503 operation_uncertain, and the next start has its hold', async (t) => {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, settings: { drain_seconds: 1 } });
  const server = await purser.serve();
  const wallet = await walletOf(purser);
  upstream.handle = hang;
  const keys = ['first', 'second', 'third'];
  const asked = keys.map((key) => chat(server, wallet.token, key));
  await upstream.arrived(3);
  const joined = await accepted(server, wallet.token, 'first'); // It waits for the first attempt's answer.

  server.kill('SIGTERM');
  const answers = await within(Promise.all([...asked, joined.answer]), () => 'all four are answered');
  for (const { status, body, headers } of answers) {
    assert.deepEqual([status, body.error.code], [503, 'operation_uncertain']);
    assert.match(String(headers['retry-after']), /^\d+$/);
  }
  assert.deepEqual(await server.ended, { code: 0, signal: null });

  const { operations } = await purser.json('operation', 'list', '--uncertain');
  const found = operations.map((it: { idempotency_key: string; state: string; hold_usd: string }) => [
    it.idempotency_key,
    it.state,
  ]);
  assert.deepEqual(
    found,
    keys.map((key) => [key, 'uncertain']),
  );
  const next = await purser.serve();
  const { body: budget } = await next.ask('GET', '/v1/budget', { token: wallet.token });
  assert.equal(budget.used_usd, '0.00');
  assert.deepEqual(
    budget.holds.map((it: { amount_usd: string; state: string }) => [it.amount_usd, it.state]),
    operations.map((it: { hold_usd: string }) => [it.hold_usd, 'uncertain']),
  );
  const again = await chat(next, wallet.token, 'first');
  assert.deepEqual([again.status, again.body.error.code], [503, 'operation_uncertain'], 'and its key is not free');
  assert.equal(upstream.calls.length, 3, 'nobody was called a second time');
});

test('a close that waits for a request in flight at SIGTERM is answered too, over HTTP and over the socket', async (t) => {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, settings: { drain_seconds: 1, close_wait_seconds: 20 } });
  const server = await purser.serve();
  const wallets = [await walletOf(purser), await walletOf(purser)] as const;
  upstream.handle = hang;
  const asked = wallets.map(({ token }) => chat(server, token, 'first'));
  await upstream.arrived(2);
  const { key } = await purser.json('operator-key', 'mint');
  const overHttp = server.ask('POST', `/v1/wallets/${wallets[0].id}/close`, { token: key });
  const atSocket = purser.cli('wallet', 'close', wallets[1].id);
  for (const { id } of wallets) await closing(purser, id);
  server.kill('SIGTERM');
  for (const answer of await Promise.all(asked)) assert.equal(answer.status, 503);
  const { status, body } = await overHttp;
  assert.deepEqual([status, body.error.code], [409, 'cleanup_pending']);
  const { code, stderr } = await atSocket;
  assert.equal(code, 4, stderr);
  assert.match(stderr, /is closing; its cleanup goes on/);
  assert.deepEqual(await server.ended, { code: 0, signal: null });

  const next = await purser.serve();
  await next.logged('wallet.closed', 2);
  for (const { id } of wallets) assert.equal((await purser.json('wallet', 'show', id)).status, 'closed');
});

test('until what is in flight is answered, the operator can see it, and do what cannot wait', async (t) => {
  const upstream = await openUpstream(t);
  const port = await freePort();
  const settings = { drain_seconds: 60, metrics: { listen: `127.0.0.1:${port}` } };
  const purser = installation(t, { upstream, settings });
  const server = await purser.serve();
  const wallet = await walletOf(purser);
  const late = gate();
  upstream.handle = late.handler;
  const asked = chat(server, wallet.token, 'first');
  await upstream.arrived(1);
  server.kill('SIGTERM');
  await within(refusing(server), () => 'no connection is accepted');

  const { operations } = await purser.json('operation', 'list');
  assert.deepEqual([operations.length, operations[0].state], [1, 'reserved']);
  await purser.json('wallet', 'freeze', wallet.id);
  const metrics = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  assert.match(metrics, /^purser_ready 0$/m);
  late.open();
  assert.equal((await asked).status, 200);
  assert.deepEqual(await server.ended, { code: 0, signal: null });
  assert.notEqual((await purser.json('wallet', 'show', wallet.id)).frozen_at, null);
});

test('a second signal ends the server at once, whatever runs', async (t) => {
  for (const [first, second] of [
    ['SIGTERM', 'SIGTERM'],
    ['SIGINT', 'SIGTERM'],
    ['SIGTERM', 'SIGINT'],
  ] as const) {
    const upstream = await openUpstream(t);
    const purser = installation(t, { upstream, settings: { drain_seconds: 3600 } });
    const server = await purser.serve();
    const wallet = await walletOf(purser);
    upstream.handle = hang;
    const asked = chat(server, wallet.token, 'first').catch((error: Error) => error);
    await upstream.arrived(1);
    server.kill(first);
    await within(refusing(server), () => 'it has begun to stop');
    server.kill(second);
    assert.notEqual((await server.ended).code, 0);
    assert((await asked) instanceof Error);
    const { operations } = await purser.json('operation', 'list');
    const left = operations.map((it: { idempotency_key: string; state: string }) => [it.idempotency_key, it.state]);
    assert.deepEqual(left, [['first', 'uncertain']]);
  }
});

test('SIGINT alone, and a signal before it serves, end it as cleanly as SIGTERM', async (t) => {
  const purser = installation(t);
  const server = await purser.serve();
  assert.deepEqual(await server.stop('SIGINT'), { code: 0, signal: null });
  await server.logged('stopped');
  const early = await purser.serve();
  assert.deepEqual(await early.stop(), { code: 0, signal: null }, 'the moment it says that it serves');
});

/** A chat that the server has begun to read for certain: it said `100 Continue`. */
function accepted(server: Serving, token: string, key: string): Promise<{ answer: Promise<Omit<Answer, 'text'>> }> {
  const answer = Promise.withResolvers<Omit<Answer, 'text'>>();
  const begun = Promise.withResolvers<{ answer: Promise<Omit<Answer, 'text'>> }>();
  const headers = {
    'content-type': 'application/json',
    authorization: `Bearer ${token}`,
    'idempotency-key': key,
    expect: '100-continue',
  };
  const request = http.request(`${server.url}/v1/chat/completions`, { method: 'POST', headers }, async (response) => {
    answer.resolve({ status: response.statusCode ?? 0, headers: response.headers, body: await json(response) });
  });
  request.once('error', answer.reject);
  request.once('continue', () => {
    request.end(JSON.stringify(chatBody));
    begun.resolve({ answer: answer.promise });
  });
  request.flushHeaders();
  return begun.promise;
}

/** Resolves when the close of the wallet is under way. */
async function closing(purser: Installation, id: string): Promise<void> {
  while ((await purser.json('wallet', 'show', id)).status === 'active');
}

/** Resolves when a new connection is refused. */
async function refusing(server: Serving): Promise<void> {
  const { hostname, port } = new URL(server.url);
  for (;;) {
    const isOpen = await new Promise<boolean>((resolve) => {
      const socket = net.connect(Number(port), hostname);
      socket.once('connect', () => resolve(true)).once('error', () => resolve(false));
      socket.once('connect', () => socket.destroy());
    });
    if (!isOpen) return;
  }
}

/** The idempotency keys of every operation there is: what was accepted. */
function keysIn(purser: Installation): Set<string> {
  const client = new Client(`${purser.directory}/purser.db`, { readonly: true });
  try {
    return new Set(client.prepare('select idempotency_key from operation').pluck().all() as string[]);
  } finally {
    client.close();
  }
}
