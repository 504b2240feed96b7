import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { type InstallationOptions, installation, type Serving } from '../helper/executable.ts';
import { openFailingDisk } from '../helper/failing-disk.ts';
import type { Answer } from '../helper/server.ts';
import { completion, gate, openUpstream } from '../helper/upstream.ts';
import { until, waitFor } from '../helper/waiting.ts';
import { readBooks } from './books.ts';

const READ_ONLY = 'the file system of the data directory is read-only';

async function open(t: TestContext, options: InstallationOptions) {
  const upstream = await openUpstream(t);
  const purser = installation(t, { ...options, upstream });
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '100000c');
  const { key } = await purser.json('key', 'create', '--account', accounts[0].id, '--name', 'tester');
  const openWallet = (it: Serving, idempotencyKey: string) =>
    it.ask('POST', '/v1/wallets', {
      token: key,
      key: idempotencyKey,
      body: { name: 'agent', budget_cents: 10000, expires_in_seconds: 0 },
    });
  const { body: wallet } = await openWallet(server, 'first');
  const chat = (it: Serving, idempotencyKey: string = randomUUID()) =>
    it.ask('POST', '/v1/chat/completions', {
      token: wallet.agent_token,
      key: idempotencyKey,
      body: { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 },
    });
  const budget = async (it: Serving) => (await it.ask('GET', '/v1/budget', { token: wallet.agent_token })).body;
  return { upstream, purser, server, accountId: accounts[0].id as string, wallet, openWallet, chat, budget };
}

const isReadOnly = ({ status, body, headers }: Answer) => {
  assert.deepEqual([status, body.error.code], [503, 'read_only']);
  assert(body.error.message.includes(READ_ONLY), body.error.message);
  assert(Number(headers['retry-after']) >= 1);
};

/** How many operations there ever were, and how often something was charged. */
async function booked(purser: ReturnType<typeof installation>) {
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
  const { operations } = readBooks((await purser.cli('ledger', 'export')).stdout);
  return { operations: operations.size, charges: [...operations.values()].flatMap((it) => it.charges).length };
}

test('a file system that turns read-only: nothing new begins, reads are answered, and after its repair the books are whole', async (t) => {
  const disk = openFailingDisk(t);
  if (!disk) return;
  const it = await open(t, {
    directory: join(disk.directory, 'data'),
    uncertain: { after_seconds: 3600, policy: 'release' },
  });
  const { upstream, purser, server, accountId, wallet, openWallet, chat, budget } = it;
  assert.equal((await chat(server, 'done before')).status, 200);
  const late = gate(completion());
  upstream.handle = late.handler;
  const inFlight = chat(server, 'in flight');
  await waitFor('it is in flight', upstream.arrived(2));

  disk.turnReadOnly();
  isReadOnly(await chat(server));
  isReadOnly(await openWallet(server, 'second'));
  const credit = await purser.cli('account', 'credit', accountId, '100c');
  assert.equal(credit.code, 5);
  assert(credit.stderr.includes(READ_ONLY), credit.stderr);
  const close = await purser.cli('wallet', 'close', wallet.id);
  assert.equal(close.code, 5, 'an end cannot be written either');
  const ready = await server.ask('GET', '/readyz');
  assert.deepEqual([ready.status, ready.body.reason], [503, READ_ONLY]);
  assert.notEqual((await budget(server)).held_usd, '0.00', 'a figure is no write');
  assert.equal((await chat(server, 'done before')).headers['idempotent-replayed'], 'true');
  late.open();
  const { status, body } = await inFlight;
  assert.deepEqual([status, body.error.code], [503, 'operation_uncertain']);
  assert.equal(upstream.calls.length, 2, 'nobody called for what was refused');
  const ended = await server.stop();
  assert.deepEqual(ended, { code: 0, signal: null }, server.output.stderr);

  const start = purser.launch('serve');
  await assert.rejects(start.serving);
  const { code } = await start.ended;
  assert.equal(code, 5, 'systemd tries again');
  assert.match(start.output.stderr, /^The file system of \S+ is read-only: [^\n]*\n$/);

  disk.repair();
  const next = await purser.serve();
  const found = await budget(next);
  assert.notEqual(found.held_usd, '0.00', 'whether the call was made is not known: its hold stays');
  assert.equal((await chat(next)).status, 200);
  const second = await openWallet(next, 'second');
  assert.deepEqual([second.status, second.headers['idempotent-replayed']], [201, undefined], 'a no was a no');
  await next.stop();
  assert.deepEqual(await booked(purser), { operations: 3, charges: 2 });
});

test('where it becomes writable again under a running server, what waited is settled and all goes on by itself', async (t) => {
  if (!hasComponent(t, 'root') || !hasComponent(t, 'strace')) return;
  const { upstream, purser, server, chat, budget } = await open(t, {});
  const late = gate(completion());
  upstream.handle = late.handler;
  const inFlight = chat(server, 'in flight');
  await waitFor('it is in flight', upstream.arrived(1));

  const writable = await refuseWrites(server.pid, purser.directory);
  late.open();
  assert.equal((await inFlight).body.error.code, 'operation_uncertain');
  isReadOnly(await chat(server));
  const ready = await server.ask('GET', '/readyz');
  assert.equal(ready.status, 503);
  assert(ready.body.reason.includes(READ_ONLY), 'as the look at the disk says it, or as the last write did');

  await writable();
  await until('what was in flight is settled', async () => {
    const { status, headers } = await chat(server, 'in flight');
    return status === 200 && headers['idempotent-replayed'] === 'true';
  });
  assert.equal((await chat(server)).status, 200);
  assert.equal((await server.ask('GET', '/readyz')).status, 200);
  assert.equal((await budget(server)).held_usd, '0.00');
  await server.stop();
  assert.deepEqual(await booked(purser), { operations: 2, charges: 2 });
});

/** From now on the kernel answers EROFS to whatever `pid` writes into the log of its database. The answer ends that. */
async function refuseWrites(pid: number, directory: string): Promise<() => Promise<void>> {
  const paths = ['purser.db-wal', 'purser.lock.holder'].flatMap((name) => ['-P', join(directory, name)]);
  const inject = '--inject=pwrite64,openat:error=EROFS';
  const strace = spawn('strace', ['-f', '-p', String(pid), ...paths, inject], { stdio: ['ignore', 'ignore', 'pipe'] });
  const [first] = await waitFor('strace is attached', once(strace.stderr, 'data') as Promise<[Buffer]>);
  assert.match(String(first), /attached/);
  return async () => {
    strace.kill('SIGINT');
    await waitFor('strace is gone', once(strace, 'close'));
  };
}
