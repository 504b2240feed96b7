import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { installation, type Serving } from '../helper/executable.ts';
import type { Answer } from '../helper/server.ts';
import { openSmallDisk } from '../helper/small-disk.ts';
import { withoutCost } from '../helper/sse.ts';
import { gate, type Handler, openUpstream } from '../helper/upstream.ts';
import { until, waitFor } from '../helper/waiting.ts';
import { nanos, readBooks } from './books.ts';

/** The reserve of such a disk is 8 MiB. */
const DISK_MEBIBYTES = 64;
const PLAIN_COUNT = 60;
const STREAM_COUNT = 20;
const ANSWER_BYTES = 30_000;
/** `1 prompt token, 1 completion token` at the prices of the model `chat`. */
const CHARGE = 1000n + 2000n + 100_000n;

const usage = { prompt_tokens: 1, completion_tokens: 1 };
/** An answer that tells its operation, of about ANSWER_BYTES that no compression makes small. */
const answer: Handler = ({ headers, body }, response) => {
  const id = headers['idempotency-key'];
  const padding = () => Array.from({ length: ANSWER_BYTES / 36 }, () => randomUUID()).join('');
  if (!body.stream) {
    response.writeHead(200, { 'content-type': 'application/json' });
    return response.end(JSON.stringify({ id, choices: [], usage, padding: padding() }));
  }
  const event = (data: object) => `data: ${JSON.stringify({ id, ...data })}\n\n`;
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.write(event({ choices: [{ index: 0, delta: { content: padding() } }] }));
  response.end(`${event({ choices: [], usage })}data: [DONE]\n\n`);
};
const idIn = (text: string) => /"id":"(op_\w+)"/.exec(text)?.[1] as string;

async function open(t: Parameters<typeof installation>[0] & Parameters<typeof openSmallDisk>[0]) {
  const disk = openSmallDisk(t, DISK_MEBIBYTES);
  if (!disk) return undefined;
  const upstream = await openUpstream(t);
  upstream.handle = answer;
  const purser = installation(t, {
    upstream,
    directory: join(disk.directory, 'data'),
    settings: { drain_seconds: 60 },
  });
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '100000c');
  const { key } = await purser.json('key', 'create', '--account', accounts[0].id, '--name', 'tester');
  const walletRequest = { name: 'agent', budget_cents: 10000, expires_in_seconds: 0 };
  const openWallet = (it: Serving, idempotencyKey: string) =>
    it.ask('POST', '/v1/wallets', { token: key, key: idempotencyKey, body: walletRequest });
  const { body: wallet } = await openWallet(server, 'first');
  const routerKey = (
    await server.ask('POST', '/v1/router/key', { token: wallet.agent_token, key: randomUUID(), body: {} })
  ).body.api_key;
  const messages = [{ role: 'user', content: 'hi' }];
  const chat = (it: Serving, idempotencyKey: string = randomUUID(), stream = false) =>
    it.ask('POST', stream ? '/v1/router/chat/completions' : '/v1/chat/completions', {
      token: stream ? routerKey : wallet.agent_token,
      key: idempotencyKey,
      body: { model: 'chat', messages, max_tokens: 100, ...(stream ? { stream } : {}) },
    });
  return { disk, upstream, purser, server, accountId: accounts[0].id as string, key, wallet, openWallet, chat };
}

/** Every acknowledged answer is in the books once, at its price, and nothing else was charged. */
async function audit(purser: ReturnType<typeof installation>, acknowledged: readonly string[]) {
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
  const { operations } = readBooks((await purser.cli('ledger', 'export')).stdout);
  const charged = [...operations].filter(([, it]) => it.charges.length);
  assert.deepEqual(charged.map(([id]) => id).sort(), [...acknowledged].sort());
  for (const [id, { charges }] of charged) assert.deepEqual(charges, [CHARGE], id);
}

const isReadOnly = ({ status, body, headers }: Answer) => {
  assert.deepEqual([status, body.error.code], [503, 'read_only']);
  assert(Number(headers['retry-after']) >= 1);
};

/**
 * Waits until the server has seen that its disk is full. A check stays valid for a moment; a request within it would find the
 * disk full as it writes, and use the reserve up.
 */
const foundFull = (server: Serving) =>
  until('the disk is found full', async () => (await server.ask('GET', '/readyz')).status === 503);

test('a disk that is filled to the brim: what is in flight is settled, nothing new begins, and it is over by itself', async (t) => {
  const it = await open(t);
  if (!it) return;
  const { disk, upstream, purser, server, accountId, key, wallet, openWallet, chat } = it;
  const late = gate(answer);
  upstream.handle = late.handler;
  const keys = Array.from({ length: PLAIN_COUNT + STREAM_COUNT }, () => randomUUID());
  const isStream = (i: number) => i >= PLAIN_COUNT;
  const inFlight = keys.map((it, i) => chat(server, it, isStream(i)));
  await waitFor('all are in flight', upstream.arrived(keys.length));
  await server.logged('disk.reserve_made');

  disk.fill();
  await foundFull(server);
  isReadOnly(await chat(server));
  isReadOnly(await openWallet(server, 'second'));
  for (const command of [
    ['key', 'create', '--account', accountId, '--name', 'another'],
    ['operator-key', 'mint'],
    ['account', 'credit', accountId, '100c'],
    ['account', 'create', 'another'],
  ])
    assert.match((await purser.cli(...command)).stderr, /No new work can be started/, command.join(' '));
  const ready = await server.ask('GET', '/readyz');
  assert.equal(ready.status, 503);
  // None, or already the reserve: a write of the server's own, such as its look at the disk, may have needed that.
  assert.match(ready.body.reason, /^the disk has [08]\.0 MiB free/);
  assert.equal((await server.ask('GET', '/v1/account', { token: key })).body.available_cents, 90_000);
  assert.equal((await openWallet(server, 'first')).body.id, wallet.id, 'a replay is nothing new');

  late.open();
  const answers = await Promise.all(inFlight);
  assert.deepEqual(
    answers.map(({ status }) => status),
    keys.map(() => 200),
  );
  for (const { text } of answers.slice(PLAIN_COUNT)) assert(text.endsWith('data: [DONE]\n\n'));
  await server.logged('disk.reserve_used');
  assert(!existsSync(join(purser.directory, 'reserve')));
  const acknowledged = answers.map(({ text }) => idIn(text));
  for (const i of [0, PLAIN_COUNT]) {
    const again = await chat(server, keys[i], isStream(i));
    assert.equal(again.headers['idempotent-replayed'], 'true');
    // What is left is told as it is now.
    assert.equal(withoutCost(again.text), withoutCost(answers[i]?.text ?? ''));
  }

  disk.fill(); // What is left of the reserve is gone, too.
  assert.equal((await server.ask('GET', '/v1/budget', { token: wallet.agent_token })).body.held_usd, '0.00');
  disk.free();
  const recovered = await until('new work is done again', async () => {
    const answer = await chat(server);
    if (answer.status === 200) return answer;
    isReadOnly(answer);
    return undefined;
  });
  acknowledged.push(idIn(recovered.text));
  assert.equal((await server.ask('GET', '/readyz')).status, 200);
  await server.logged('disk.reserve_made', 2);
  await server.stop();
  await audit(purser, acknowledged);
});

test('a server that is killed on a full disk starts on it again by its reserve, and stops on it properly', async (t) => {
  const it = await open(t);
  if (!it) return;
  const { disk, purser, server, wallet, chat } = it;
  const acknowledged = [idIn((await chat(server)).text)];
  await server.logged('disk.reserve_made');
  disk.fill();
  server.kill('SIGKILL');
  await server.ended;
  disk.fill(); // With what the kernel gave back.
  const next = await purser.serve();
  const { body } = await next.ask('GET', '/v1/budget', { token: wallet.agent_token });
  assert.equal(nanos(body.used_usd), CHARGE);
  isReadOnly(await chat(next));
  const closed = await purser.json('wallet', 'close', wallet.id);
  assert.equal(closed.status, 'closed', 'an end needs no room');
  disk.fill();
  assert.deepEqual(await next.stop(), { code: 0, signal: null });
  disk.free();
  await audit(purser, acknowledged);
});

test('a server that was stopped starts on a disk that has been filled since, by its reserve', async (t) => {
  const it = await open(t);
  if (!it) return;
  const { disk, purser, server, wallet, chat } = it;
  const acknowledged = [idIn((await chat(server)).text)];
  await server.logged('disk.reserve_made');
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  disk.fill();
  const next = await purser.serve();
  const { body } = await next.ask('GET', '/v1/budget', { token: wallet.agent_token });
  assert.equal(nanos(body.used_usd), CHARGE);
  isReadOnly(await chat(next));
  assert.deepEqual(await next.stop(), { code: 0, signal: null });
  disk.free();
  await audit(purser, acknowledged);
});

test('a disk that Purser itself fills is never found full: the reserve is left alone', async (t) => {
  const it = await open(t);
  if (!it) return;
  const { disk, purser, server, chat } = it;
  await server.logged('disk.reserve_made');
  disk.fill(10 * 1024 * 1024);
  const acknowledged: string[] = [];
  const worker = async () => {
    for (;;) {
      const answer = await chat(server);
      if (answer.status !== 200) return isReadOnly(answer);
      acknowledged.push(idIn(answer.text));
    }
  };
  await waitFor('every worker is refused', Promise.all(Array.from({ length: 16 }, worker)));
  assert(acknowledged.length > 50, `${acknowledged.length} were served before`);
  assert.doesNotMatch(server.output.stderr, /disk\.reserve_used|SQLITE_FULL/);
  assert(disk.freeBytes() > 0);
  disk.free();
  await server.logged('disk.enough');
  await server.stop();
  await audit(purser, acknowledged);
});
