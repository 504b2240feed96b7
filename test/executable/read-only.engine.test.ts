import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { type InstallationOptions, installation, type Serving } from '../helper/executable.ts';
import { openFailingDisk } from '../helper/failing-disk.ts';
import { completion, gate, openUpstream } from '../helper/upstream.ts';
import { waitFor } from '../helper/waiting.ts';
import { readBooks } from './books.ts';

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

/** How many operations there ever were, and how often something was charged. */
async function booked(purser: ReturnType<typeof installation>) {
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
  const { operations } = readBooks((await purser.cli('ledger', 'export')).stdout);
  return { operations: operations.size, charges: [...operations.values()].flatMap((it) => it.charges).length };
}

test('a file system that turns read-only: what was in flight is unknown, nothing new begins, the server ends, and after the repair the books are whole', async (t) => {
  const disk = openFailingDisk(t);
  if (!disk) return;
  const it = await open(t, {
    directory: join(disk.directory, 'data'),
    uncertain: { after_seconds: 3600, policy: 'release' },
  });
  const { upstream, purser, server, chat, budget } = it;
  assert.equal((await chat(server, 'done before')).status, 200);
  const late = gate(completion());
  upstream.handle = late.handler;
  const inFlight = chat(server, 'in flight');
  await waitFor('it is in flight', upstream.arrived(2));

  disk.turnReadOnly();
  for (const { status, body } of [await chat(server), await inFlight]) {
    assert.deepEqual([status, body.error.code], [503, 'operation_uncertain']);
    assert.match(body.error.message, /not known: a commit failed/);
  }
  assert.deepEqual(await waitFor('the server ends', server.ended), { code: 6, signal: null });
  assert.match(server.output.stderr, /"event":"commit\.failed"/);
  assert.equal(upstream.calls.length, 2, 'nobody called for what was refused');
  late.open();

  const start = purser.launch('serve');
  await assert.rejects(start.serving);
  const { code } = await start.ended;
  assert.equal(code, 5, 'systemd tries again');
  assert.match(start.output.stderr, /^The file system of \S+ is read-only: [^\n]*\n$/);

  await disk.repair();
  const next = await purser.serve();
  const found = await budget(next);
  assert.notEqual(found.held_usd, '0.00', 'whether the call was made is not known: its hold stays');
  assert.equal((await chat(next)).status, 200);
  await next.stop();
  assert.deepEqual(await booked(purser), { operations: 3, charges: 2 });
});
