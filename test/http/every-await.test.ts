import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http, { createServer, type IncomingMessage, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import test, { type TestContext } from 'node:test';
import type Client from 'better-sqlite3';
import { failAt, failNowhere, Injected, step } from '../helper/every-await.ts';
import { STATEMENTS } from '../helper/lost-disk.ts';
import { completionStream } from '../helper/sse.ts';
import { completion } from '../helper/upstream.ts';
import { until, waitFor } from '../helper/waiting.ts';

// After the hooks that change what they load.
const { ContainedRequest, ContainedResponse } = await import('../../src/http/exchange.ts');
const { hostSession, WATCHDOG } = await import('../compute/engines/host-session.ts');
const { LONG, openMemoryServer, SPEC } = await import('../lease/leases.ts');

/** Every read of the database outside of a write is a step, too. A write that fails is the await of it. */
for (const name of ['get', 'all']) {
  const real = STATEMENTS[name];
  STATEMENTS[name] = function read(this: Client.Statement, ...values: unknown[]) {
    const fault = this.database.inTransaction ? undefined : step(() => `${this.source.slice(0, 80)}`);
    if (fault) throw fault;
    return Reflect.apply(real, this, values);
  };
}

/** So is everything that is written of the answer, and the last listener of each event of the request and its response. */
for (const name of ['writeHead', 'write', 'end'] as const) {
  const real = http.ServerResponse.prototype[name] as (...args: unknown[]) => unknown;
  http.ServerResponse.prototype[name] = function write(this: http.ServerResponse, ...args: unknown[]) {
    const fault = this instanceof ContainedResponse ? step(() => `response.${name}`) : undefined;
    if (fault) throw fault;
    return Reflect.apply(real, this, args);
  } as never;
}
for (const { prototype } of [http.IncomingMessage, http.ServerResponse]) {
  const { emit } = prototype;
  prototype.emit = function (this: http.IncomingMessage | http.ServerResponse, ...event: [string]) {
    const isHeard = Reflect.apply(emit, this, event);
    const isOurs = this instanceof ContainedRequest || this instanceof ContainedResponse;
    const fault = isOurs && isHeard ? step(() => `a listener of ${event[0]}`) : undefined;
    if (fault) throw fault;
    return isHeard;
  } as never;
}

type Bench = Awaited<ReturnType<typeof openBench>>;

async function openBench(t: TestContext) {
  // The circuit of a model server would refuse after a few failures, before most of the steps.
  const purser = await openMemoryServer(t, { unknownCountMax: 1e6 });
  Object.assign(purser.backend.guest, { session: hostSession(), relay: WATCHDOG });
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const tenant = createServer((_, response) => response.end('hello'));
  tenant.on('upgrade', (_, socket) => {
    socket.on('error', () => {});
    socket.end('HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello');
  });
  tenant.listen(0, '127.0.0.1');
  await once(tenant, 'listening');
  t.after(() => {
    tenant.closeAllConnections();
    tenant.close();
  });
  const { api_key: gatewayKey } = (await purser.ask('POST', '/v1/router/key', { token, body: {} })).body;
  return {
    purser,
    token,
    gatewayKey,
    id: id as string,
    base: `/v1/compute/${id}/port/${(tenant.address() as AddressInfo).port}/`,
  };
}

/** Sends a request and waits until it has been answered, whole or not, or its connection has closed. Returns the status. */
async function send(
  { purser }: Pick<Bench, 'purser'>,
  method: string,
  path: string,
  token: string,
  body?: object,
  more = {},
) {
  const headers = {
    authorization: `Bearer ${token}`,
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
    ...more,
  };
  const asked = request(`${purser.url}${path}`, { method, headers, agent: false }).end(body && JSON.stringify(body));
  const over = Promise.withResolvers<number | undefined>();
  let status: number | undefined;
  asked.on('response', (answer: IncomingMessage) => {
    status = answer.statusCode;
    answer.resume().on('error', () => {});
  });
  asked.on('upgrade', (_, socket) => {
    status = 101;
    socket
      .on('error', () => {})
      .once('close', () => over.resolve(status))
      .resume();
  });
  asked.on('error', () => {}).once('close', () => status !== 101 && over.resolve(status));
  return waitFor(`${method} ${path} is over`, over.promise);
}

const CHAT = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };
const key = () => ({ 'idempotency-key': randomUUID() });
const call = (name: string, args: object) => ({
  jsonrpc: '2.0',
  id: 1,
  method: 'tools/call',
  params: { name, arguments: args },
});

/** The requests: each with the status that it has when nothing fails. */
const REQUESTS: Record<string, [status: number, send: (bench: Bench) => Promise<number | undefined>]> = {
  'a chat': [200, (bench) => send(bench, 'POST', '/v1/chat/completions', bench.token, CHAT, key())],
  'a stream': [
    200,
    (bench) => {
      bench.purser.upstream.handle = completionStream();
      return send(bench, 'POST', '/v1/router/chat/completions', bench.gatewayKey, { ...CHAT, stream: true });
    },
  ],
  'a new lease': [
    200,
    ({ purser, token }) =>
      send({ purser }, 'POST', '/v1/compute/create', token, { provider: 'provider_one', spec: SPEC }, key()),
  ],
  'a command in a lease': [
    200,
    (bench) => send(bench, 'POST', '/v1/compute/exec', bench.token, { id: bench.id, command: 'echo hello' }),
  ],
  'a new wallet': [
    201,
    (bench) =>
      send(
        bench,
        'POST',
        '/v1/wallets',
        bench.purser.accountKey,
        { name: 'x', budget_cents: 100, expires_in_seconds: 600 },
        key(),
      ),
  ],
  'a request to a port': [200, (bench) => send(bench, 'GET', bench.base, bench.token)],
  'an upgrade': [
    101,
    (bench) => send(bench, 'GET', bench.base, bench.token, undefined, { connection: 'Upgrade', upgrade: 'x' }),
  ],
  'a call of a tool': [
    200,
    (bench) =>
      send(
        bench,
        'POST',
        '/v1/mcp',
        bench.token,
        call('wallet_delegate', { name: 'x', budget_usd: '0.01', idempotency_key: randomUUID() }),
      ),
  ],
};

for (const [name, [expected, run]] of Object.entries(REQUESTS))
  test(`${name}: whichever await or read on its way fails, the process serves on and the books are whole`, async (t) => {
    const bench = await openBench(t);
    const { purser, token } = bench;
    const printed = ['error', 'info'].map((it) => t.mock.method(console, it as 'error', () => {}));
    const handle = completion();
    const reached: string[] = [];
    for (let number = 1; ; number++) {
      purser.upstream.handle = handle;
      const plan = failAt(number);
      const status = await run(bench);
      await until('nothing is in flight', async () => purser.app.inFlight.count() === 0);
      failNowhere();
      if (plan.at === undefined) {
        assert.equal(status, expected, `without a failure: ${reached.at(-1)}`);
        break;
      }
      reached.push(`${plan.at}: ${status}`);
      assert.equal((await purser.ask('GET', '/healthz')).status, 200, plan.at);
    }
    failNowhere();
    t.diagnostic(`${reached.length} steps failed, one each:\n${reached.join('\n')}`);
    assert(reached.length > 4, reached.join('\n'));

    purser.upstream.handle = handle;
    assert.equal((await purser.chat(token)).status, 200);
    const { failed } = await purser.app.reaper.runOnce();
    assert.equal(failed, 0);
    const left = purser.app.ledger.client
      .prepare(
        "select state, count(*) as count from operation where state not in ('settled', 'uncertain') group by state",
      )
      .all();
    assert.deepEqual(left, [], 'recovery treats every hold');
    assert.deepEqual(purser.problems(), []);
    const { last } = purser.app.events.faults();
    assert.notEqual(last?.where, 'process');
    assert.deepEqual(
      printed.flatMap((it) => it.mock.calls.map(({ arguments: said, stack }) => `${said} ${stack.stack}`)),
      [],
    );
    const lines = purser.log.filter((line) => line.includes(Injected.name) || line.includes('injected at'));
    for (const line of lines) assert(!/"event":"process\.failed"/.test(line), line);
  });
