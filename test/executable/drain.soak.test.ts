import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { Agent } from 'undici';
import { ask, type Installation, installation, type Serving } from '../helper/executable.ts';
import { type Line, openLine, requestText } from '../helper/line.ts';
import { openModelServer } from '../helper/model-server.ts';
import { length } from '../helper/random.ts';
import type { Answer } from '../helper/server.ts';
import { gate, hang, openUpstream } from '../helper/upstream.ts';
import { waitFor } from '../helper/waiting.ts';

/** A request is accepted when the server has begun to read it. At SIGTERM no such request is reset. */

/** So many stops under load; the figures in docs/reliability.md are of more. */
const STOPS = length(2, 5);
const WORKER_COUNT = 32;
const LOAD_COUNT = 300;

async function open(t: Parameters<typeof installation>[0], settings: Record<string, unknown> = {}) {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, settings: { drain_seconds: 3600, ...settings } });
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '100000c');
  const create = ['wallet', 'create', '--account', accounts[0].id, '--name', 'agent', '--budget-cents', '50000'];
  const { id, agent_token: token } = await purser.json(...create);
  return { upstream, purser, server, walletId: id as string, token: token as string };
}

const body = (more: object = {}) =>
  JSON.stringify({ model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100, ...more });
const headers = (token: string) => ({
  authorization: `Bearer ${token}`,
  'content-type': 'application/json',
  'idempotency-key': randomUUID(),
});
const chat = (token: string, text = body()) => requestText('POST', '/v1/chat/completions', headers(token), text);
const budget = (token: string) => requestText('GET', '/v1/budget', { authorization: `Bearer ${token}` });

/** Tells the server to stop, and waits until it has begun to. */
async function stop(server: Serving): Promise<void> {
  server.kill('SIGTERM');
  await server.logged('stopping');
}
const ends = (line: Line) => waitFor(() => `the connection ends after: ${line.text()}`, line.ended);
const usedBy = async (purser: Installation, id: string) => (await purser.json('wallet', 'show', id)).used_usd;
const CLEAN = { code: 0, signal: null };

test('pipelined requests that were accepted are all answered, and only the last says that the connection ends', async (t) => {
  const { upstream, purser, server, token, walletId } = await open(t);
  const late = gate();
  upstream.handle = late.handler;
  const line = await openLine(server.url);
  line.write(chat(token) + chat(token) + chat(token)); // They are answered one after the other.
  await upstream.arrived(1);
  await stop(server);
  late.open();
  assert.equal(await ends(line), undefined);
  assert.deepEqual(line.statuses(), [200, 200, 200]);
  assert.equal(line.text().match(/^connection: close\r$/gim)?.length, 1);
  assert.deepEqual(await server.ended, CLEAN);
  assert.equal(await usedBy(purser, walletId), '0.00036'); // 3 × 0.00012
});

test('a request that comes while the server stops, on a connection that was open, is answered', async (t) => {
  const { upstream, purser, server, token, walletId } = await open(t);
  const late = gate();
  upstream.handle = late.handler;
  const busy = await openLine(server.url);
  const idle = await openLine(server.url);
  const fresh = await openLine(server.url);
  idle.write(budget(token));
  await idle.until(() => idle.statuses().length === 1);
  busy.write(chat(token));
  await upstream.arrived(1);
  await stop(server);

  busy.write(chat(token)); // It waits for another answer, which has not begun: this one is its next.
  idle.write(chat(token)); // It has been kept open after an answer.
  fresh.write(chat(token)); // Nothing has ever been asked on it.
  await waitFor('the other two are asked', upstream.arrived(3));
  late.open();
  for (const line of [busy, idle, fresh]) assert.equal(await ends(line), undefined);
  assert.deepEqual(
    [busy, idle, fresh].map((it) => it.statuses()),
    [[200, 200], [200, 200], [200]],
  );
  assert.deepEqual(await server.ended, CLEAN);
  assert.equal(await usedBy(purser, walletId), '0.00048');
});

test('while it stops, a server says on its open connections that it is not ready', async (t) => {
  const { upstream, server, token } = await open(t);
  const late = gate();
  upstream.handle = late.handler;
  const [busy, probe] = [await openLine(server.url), await openLine(server.url)];
  busy.write(chat(token));
  await upstream.arrived(1);
  await stop(server);
  probe.write(requestText('GET', '/readyz', {}));
  assert.match(await probe.until((text) => text.includes('}')), /^HTTP\/1.1 503 .*the server is stopping/s);
  late.open();
  assert.deepEqual(await server.ended, CLEAN);
});

test('what comes behind an answer that has announced the end of its connection is not begun, so it costs nothing', async (t) => {
  const { upstream, purser, server, token, walletId } = await open(t);
  const asked = { token, key: randomUUID(), body: {} };
  const { api_key: key } = (await server.ask('POST', '/v1/router/key', asked)).body;
  const more = Promise.withResolvers<void>();
  upstream.handle = async (_, response) => {
    const event = (data: object) => `data: ${JSON.stringify(data)}\n\n`;
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(event({ choices: [{ index: 0, delta: { content: 'first' } }] }));
    await more.promise;
    response.end(`${event({ choices: [], usage: { prompt_tokens: 10, completion_tokens: 5 } })}data: [DONE]\n\n`);
  };
  const line = await openLine(server.url);
  await stop(server);
  line.write(requestText('POST', '/v1/router/chat/completions', headers(key), body({ stream: true })));
  await line.until((text) => text.includes('first'));
  assert.match(line.text(), /^connection: close\r$/im);
  line.write(chat(token));
  const witness = await openLine(server.url).catch((error: NodeJS.ErrnoException) => error.code);
  assert.equal(witness, 'ECONNREFUSED', 'the server has had time to see the second request');
  more.resolve();
  await line.until((text) => text.includes('[DONE]'));
  await ends(line);
  assert.deepEqual(line.statuses(), [200]);
  assert.deepEqual(await server.ended, CLEAN);
  assert.equal(upstream.calls.length, 1);
  assert.equal(await usedBy(purser, walletId), '0.00012');
});

test('a body that comes to its end while the server stops is answered as ever; one that does not is told to come again', async (t) => {
  // Time enough for the rest of the one body, also on a busy machine; the other is waited for until it is over.
  const { purser, server, token, walletId } = await open(t, { drain_seconds: 5 });
  const [whole, half] = [await openLine(server.url), await openLine(server.url)];
  const text = chat(token);
  whole.write(text.slice(0, -10));
  half.write(text.slice(0, -10));
  await server.ask('GET', '/healthz'); // By now both heads have been read.
  await stop(server);
  whole.write(text.slice(-10));
  assert.equal(await ends(whole), undefined);
  assert.equal(await ends(half), undefined);
  assert.deepEqual([whole.statuses(), half.statuses()], [[200], [503]]);
  assert.match(half.text(), /"read_only"/);
  assert.deepEqual(await server.ended, CLEAN);
  assert.equal(await usedBy(purser, walletId), '0.00012');
});

test('a client that reads slowly gets its whole answer, as long as drain_seconds last', async (t) => {
  const { upstream, server, token } = await open(t);
  const padding = 'x'.repeat(16 * 1024 * 1024);
  upstream.handle = (_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ choices: [], usage: { prompt_tokens: 1, completion_tokens: 1 }, padding }));
  };
  const line = await openLine(server.url);
  line.socket.pause();
  line.write(chat(token));
  await server.logged('operation.charged');
  await stop(server);
  // Longer than a server without anything to do takes to end: what it waits for is this client.
  const early = await Promise.race([server.ended, new Promise((resolve) => setTimeout(resolve, 1500))]);
  assert.equal(early, undefined);
  line.socket.resume();
  assert.equal(await ends(line), undefined);
  assert.equal(line.text().split('\r\n\r\n')[1]?.match(/x+/)?.[0].length, padding.length);
  assert.deepEqual(await server.ended, CLEAN);
});

test('connections on which nothing is asked do not keep a server from stopping', async (t) => {
  const { server } = await open(t);
  const lines = await Promise.all(Array.from({ length: 50 }, () => openLine(server.url)));
  await server.ask('GET', '/healthz'); // On a newer connection: by now all of them have been taken.
  await stop(server);
  assert.deepEqual(await waitFor('the server ends before drain_seconds are over', server.ended), CLEAN);
  for (const line of lines) assert.equal(await ends(line), undefined);
});

test('what still runs at the end is told so: a plain answer, a stream that has begun, and one that has not', async (t) => {
  const { upstream, purser, server, token } = await open(t, { drain_seconds: 1 });
  const asked = { token, key: randomUUID(), body: {} };
  const { api_key: key } = (await server.ask('POST', '/v1/router/key', asked)).body;
  const stream = () => requestText('POST', '/v1/router/chat/completions', headers(key), body({ stream: true }));
  const [plain, begun, silent] = [await openLine(server.url), await openLine(server.url), await openLine(server.url)];
  upstream.handle = hang;
  plain.write(chat(token));
  silent.write(stream());
  await upstream.arrived(2);
  upstream.handle = (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: 'first' } }] })}\n\n`);
  };
  begun.write(stream());
  await begun.until((text) => text.includes('first'));
  await stop(server);
  for (const line of [plain, begun, silent]) assert.equal(await ends(line), undefined);
  assert.deepEqual([plain.statuses(), begun.statuses(), silent.statuses()], [[503], [200], [503]]);
  for (const line of [plain, begun, silent]) assert.match(line.text(), /"operation_uncertain"/);
  assert.doesNotMatch(begun.text(), /\[DONE\]/);
  assert.deepEqual(await server.ended, CLEAN);
  assert.equal((await purser.json('operation', 'list', '--uncertain')).operations.length, 2);
  const { operations } = await purser.json('operation', 'list');
  // Of an unknown outcome the upstream that was asked is known, at most.
  const usages = operations.map((it: { usage: { completion_tokens?: number } | null }) => it.usage?.completion_tokens);
  const delivered = Buffer.byteLength('first');
  assert.deepEqual(
    usages.sort(),
    [delivered, undefined, undefined],
    'what came of the stream that had begun is charged',
  );
});

test(`${STOPS} stops under load reset nothing on any open connection, plain or streaming`, async (t) => {
  const { upstream, purser, server: first, token } = await open(t);
  const asked = { token, key: randomUUID(), body: {} };
  const { api_key: key } = (await first.ask('POST', '/v1/router/key', asked)).body;
  const model = openModelServer();
  upstream.handle = (call, response) => void setImmediate(() => model.handle(call, response));

  const figures = { answered: 0, whileStopping: 0, refused: 0 };
  const reset: string[] = [];
  const took: number[] = [];
  let server = first;
  for (let round = 0; round < STOPS; round++) {
    if (round) server = await purser.serve();
    let isStopping = false;
    let answered = 0;
    const enough = Promise.withResolvers<void>();
    const worker = async (_: unknown, i: number) => {
      const agent = new Agent({ connections: 1, pipelining: 1 });
      const isStream = i % 4 === 0;
      const path = isStream ? '/v1/router/chat/completions' : '/v1/chat/completions';
      try {
        for (;;) {
          const it = { token: isStream ? key : token, key: randomUUID(), body: body(isStream ? { stream: true } : {}) };
          const answer: Answer = await ask(agent, server.url, 'POST', path, it);
          assert.equal(answer.status, 200, answer.text);
          if (isStream) assert.match(answer.text, /data: \[DONE\]\n\n$/);
          if (++answered === LOAD_COUNT) enough.resolve();
          if (isStopping) figures.whileStopping++;
        }
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException;
        if (code === 'ECONNREFUSED') figures.refused++;
        else reset.push(`${code ?? ''} ${(error as Error).message}`);
      } finally {
        await agent.destroy();
      }
    };
    const load = Promise.all(Array.from({ length: WORKER_COUNT }, worker));
    await waitFor('the load is on', enough.promise);
    const began = performance.now();
    isStopping = true;
    server.kill('SIGTERM');
    assert.deepEqual(await server.ended, CLEAN, server.output.stderr.slice(-1000));
    took.push(performance.now() - began);
    await waitFor('every worker has noticed', load);
    figures.answered += answered;
  }
  assert.deepEqual(reset, []);
  took.sort((a, b) => a - b);
  t.diagnostic(
    `${STOPS} stops, ${WORKER_COUNT} connections: ${figures.answered} requests answered, ${figures.whileStopping} of them after SIGTERM, ${reset.length} reset, ${figures.refused} new connections refused; exit after ${Math.round(took[took.length >> 1] as number)} ms (median), ${Math.round(took.at(-1) as number)} ms at most`,
  );
  assert((await purser.json('ledger', 'verify')).ok);
});
