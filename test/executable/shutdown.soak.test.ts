import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import Client from 'better-sqlite3';
import { type Installation, installation } from '../helper/executable.ts';
import { freePort } from '../helper/free-port.ts';
import type { Answer } from '../helper/server.ts';
import { completion, gate, hang, openUpstream } from '../helper/upstream.ts';
import { waitFor } from '../helper/waiting.ts';
import { chat, refusing, walletOf } from './shutdown-shared.ts';

const WORKER_COUNT = 16;

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
    await waitFor('every worker has noticed', Promise.all(workers));
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
  await waitFor('no connection is accepted', refusing(server));

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
    await waitFor('it has begun to stop', refusing(server));
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

/** Resolves when the close of the wallet is under way. */
async function closing(purser: Installation, id: string): Promise<void> {
  while ((await purser.json('wallet', 'show', id)).status === 'active');
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
