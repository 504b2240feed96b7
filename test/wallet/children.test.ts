import assert from 'node:assert/strict';
import test from 'node:test';
import type { Database as Client } from 'better-sqlite3';
import { Nanos } from '../../src/base/money.ts';
import { openWallet } from '../../src/ledger/open-wallet.ts';
import { listWallets } from '../../src/ledger/wallet.ts';
import { CLOSE_COUNT_MAX, endSpending } from '../../src/wallet/close.ts';
import { writeWith } from '../helper/closures.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { addTenant, childOf, walletOf } from '../helper/tenants.ts';
import { opening, walletOrder } from '../ledger/books.ts';
import { post, recordOf } from './moves-shared.ts';

test('a child spends its part, and gives back the rest to the nano', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 500 });
  const body = { name: 'sub-agent', budget_usd: '1.000000001', expires_in_seconds: 7200 };
  const child = await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body });
  assert.equal(child.status, 201, child.text);
  const replay = await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body });
  assert.deepEqual([replay.body.agent_token, replay.body.id], [child.body.agent_token, child.body.id]);
  const parent = await recordOf(purser, id);
  assert.deepEqual([parent.delegated_usd, parent.available_usd], ['1.000000001', '3.999999999']);
  const list = (await purser.ask('GET', '/v1/run/wallets', { token })).body.wallets;
  assert.deepEqual(
    list.map((it: any) => [it.id, it.parent_id, it.expires_at]),
    [[child.body.id, id, parent.expires_at]], // 7,200 s would be past the parent's end
  );
  assert.equal((await purser.chat(child.body.agent_token)).status, 200);
  const spent = (await purser.budget(child.body.agent_token)).used_usd;
  const seen = (await purser.ask('GET', '/v1/run/operations', { token })).body.operations;
  assert.deepEqual(
    seen.map((it: any) => [it.wallet_id, it.kind, it.charge_usd]),
    [[child.body.id, 'chat', spent]],
  );
  const tooMuch = await purser.ask('POST', '/v1/run/wallets', {
    token,
    key: 'd',
    body: { name: 'x', budget_usd: '4' },
  });
  assert.equal(tooMuch.body.error.code, 'insufficient_funds');
  const closed = await purser.ask('POST', `/v1/run/wallets/${child.body.id}/close`, { token });
  assert.deepEqual([closed.status, closed.body.status], [200, 'closed']);
  const after = await recordOf(purser, id);
  assert.deepEqual([after.delegated_usd, after.used_usd], ['0.00', spent]);
  assert.deepEqual(purser.problems(), []);
  const stranger = await purser.openWallet();
  const other = await purser.ask('POST', `/v1/run/wallets/${child.body.id}/close`, { token: stranger.token });
  assert.equal(other.status, 404);
});

test('closing a parent closes its children first, deepest first; the depth has a limit', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 500 });
  let above = token;
  const below: string[] = [];
  for (const dollars of ['4', '3', '2', '1']) {
    const it = await purser.ask('POST', '/v1/run/wallets', {
      token: above,
      key: 'c',
      body: { name: dollars, budget_usd: dollars },
    });
    assert.equal(it.status, 201, it.text);
    above = it.body.agent_token;
    below.push(it.body.id);
    assert.equal((await purser.chat(above)).status, 200);
  }
  const tooDeep = await purser.ask('POST', '/v1/run/wallets', {
    token: above,
    key: 'c',
    body: { name: '5', budget_usd: '0.5' },
  });
  assert.deepEqual([tooDeep.status, tooDeep.body.error.code], [409, 'wallet_limit_exceeded']);
  const closed = await post(purser, `/v1/wallets/${id}/close`, {});
  assert.deepEqual([closed.status, closed.body.status, closed.body.delegated_usd], [200, 'closed', '0.00']);
  const times = below.map((it) => purser.wallet(it).status);
  assert.deepEqual(times, ['closed', 'closed', 'closed', 'closed']);
  const own = below.map((it) => purser.wallet(it).spent);
  assert.deepEqual(
    [...own.keys()].map((i) => own[i] === (own[3] as bigint) * BigInt(4 - i)),
    [true, true, true, true],
  );
  assert.equal(purser.wallet(id).spent, own[0]);
  assert.deepEqual(purser.problems(), []);
});

test('what a wallet has given to its children is once in the figures of the status', async (t) => {
  const purser = await openTestServer(t, { creditCents: 3000 });
  const { token } = await purser.openWallet({ budget_cents: 1000 });
  const body = { name: 'child', budget_usd: '4', expires_in_seconds: 3600 };
  assert.equal((await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body })).status, 201);
  const { accounts, wallets } = await purser.run('status', {});
  assert.deepEqual([wallets.open, wallets.budget_usd, wallets.available_usd], [2, '10.00', '10.00']);
  assert.equal(wallets.budget_usd, accounts.in_wallets_usd);
});

test('a tree of a thousand spenders never spends a nano more than its root has', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 500 });
  const child = async (above: string, dollars: string, key: string): Promise<string> => {
    const it = await purser.ask('POST', '/v1/run/wallets', {
      token: above,
      key,
      body: { name: key, budget_usd: dollars },
    });
    return it.body.agent_token ?? assert.fail(it.text);
  };
  // Ten teams of ten: everything that the root has is handed down, and each agent gets a tenth of a cent over two calls.
  const teams = await Promise.all(Array.from({ length: 10 }, (_, i) => child(token, '0.5', `team ${i}`)));
  const agents = (
    await Promise.all(
      teams.map((team) => Promise.all(Array.from({ length: 10 }, (_, i) => child(team, '0.021', `${i}`)))),
    )
  ).flat();
  const spenders = Array.from({ length: 1000 }, (_, i) => agents[i % agents.length] as string);
  const calls = [
    ...spenders,
    // Meanwhile the teams spend what they kept, and the root, which kept nothing, nothing.
    ...teams.flatMap((it) => Array.from({ length: 40 }, () => it)),
    ...Array.from({ length: 10 }, () => token),
  ].map((it, i) => ({ it, at: (i * 7919) % 1409 }));
  calls.sort((a, b) => a.at - b.at); // Everybody at the same time, in the same order every time.
  const answers: Awaited<ReturnType<typeof purser.chat>>[] = [];
  // On a busy machine more at once would not all be read before the server's limit for the head of a request.
  for (let i = 0; i < calls.length; i += 200)
    answers.push(...(await Promise.all(calls.slice(i, i + 200).map(({ it }) => purser.chat(it, { model: 'flat' })))));
  const paid = answers.filter(({ status }) => status === 200).length;
  for (const { status, body } of answers)
    if (status !== 200) assert(['insufficient_funds', 'funds_held'].includes(body.error.code), body.error.code);
  // Two calls of a cent each by every agent, and by every team the 29 cents that it kept.
  assert.equal(paid, 100 * 2 + 10 * 29);
  assert.equal((await post(purser, `/v1/wallets/${id}/close`, {})).status, 200);
  assert.equal(purser.wallet(id).spent, BigInt(paid) * 10_000_000n);
  assert.deepEqual(purser.problems(), []);
});

test('a child over HTTP: amounts to the nano, and what is no amount is refused by its field', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const ask = (budget_usd: unknown, key: string) =>
    purser.ask('POST', '/v1/run/wallets', { token, key, body: { name: 'child', budget_usd } });
  assert.equal((await ask(0.25, 'a')).status, 201);
  assert.equal((await ask('0.000000001', 'b')).status, 201);
  for (const [i, wrong] of ['0', '-1', '1e3', '0.0000000001', 'much', null, '1000000'].entries()) {
    const refused = await ask(wrong, `w${i}`);
    assert.deepEqual([refused.status, refused.body.error.code], [400, 'invalid_request'], String(wrong));
    assert.match(refused.body.error.message, /budget_usd/);
  }
});

test('the timeline of a wallet has the request that opened a child, and none for what a child gave back', async (t) => {
  const purser = await openTestServer(t);
  const opened = await purser.ask('POST', '/v1/wallets', {
    token: purser.accountKey,
    key: 'parent',
    body: { name: 'parent', budget_cents: 500 },
  });
  const { id, agent_token: token } = opened.body;
  const child = await purser.ask('POST', '/v1/run/wallets', {
    token,
    key: 'child',
    body: { name: 'child', budget_usd: '1' },
  });
  assert.equal((await purser.ask('POST', `/v1/run/wallets/${child.body.id}/close`, { token })).status, 200);
  const requests = async (wallet: string) =>
    (await purser.run('wallet.timeline', { id: wallet })).steps.map(({ what, request_id }) => [what, request_id]);
  const [openedBy, childBy] = [opened, child].map(({ headers }) => headers['x-request-id']);
  assert.deepEqual(await requests(id), [
    ['opened', openedBy],
    ['delegated', childBy],
    ['recovered', null],
  ]);
  assert.deepEqual((await requests(child.body.id))[0], ['opened', childBy]);
});

/** Opens a wallet with five children that have 110 of their own each, and returns it with the first of the five. */
async function openLarge(purser: TestServer) {
  const { id, token } = await purser.openWallet({ expires_in_seconds: 7200 });
  const { ledger, clock } = purser.app;
  const { masterKeyId } = purser.wallet(id);
  const children: { id: string; token: string }[] = [];
  for (let i = 0; i < 5; i++) children.push(await childOf(purser, token, '1'));
  const orders = children.flatMap(({ id: parentId }) =>
    Array.from({ length: 110 }, () => ({ parentId, budget: Nanos(1n), expiresInSeconds: 3600, masterKeyId })),
  );
  await Promise.all(
    orders.map((it) => ledger.write(openWallet, opening(walletOrder(purser.accountId, it), clock.now()))),
  );
  return { id, token, child: children[0] as { id: string; token: string } };
}

/** Runs passes until everything is closed. Returns what each has closed. */
async function closedByPass(purser: TestServer, id: string): Promise<number[]> {
  const closed: number[] = [];
  while (purser.wallet(id).status !== 'closed') {
    const pass = await purser.app.reaper.runOnce();
    assert.equal(pass.failed, 0);
    assert(pass.closed < CLOSE_COUNT_MAX + 100, `${pass.closed} in one pass`);
    closed.push(pass.closed);
    assert.equal(pass.rest > 0, Math.max(pass.closed, pass.expired) >= CLOSE_COUNT_MAX);
  }
  return closed;
}

test('a large tree expires and closes in passes of which each closes a part', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { id, child } = await openLarge(purser);
  purser.clock.advance(7200);
  const { expired } = await purser.app.reaper.runOnce();
  assert.equal(expired, CLOSE_COUNT_MAX);
  assert.equal((await closedByPass(purser, id)).length, 1);
  assert.deepEqual(
    listWallets(purser.app.ledger.read, { parentId: child.id, now: 0 }, { limit: 1000 }).map((it) => it.closeReason),
    Array(110).fill('expired'),
  );
  assert.deepEqual([purser.wallet(id).delegated, purser.wallet(id).spent], [0n, 0n]);
  assert.deepEqual(purser.problems(), []);
});

test('the end of a large tree is one row, and from then on nothing in it spends, also after a crash', async (t) => {
  const purser = await openTestServer(t, { settings: { close_wait_seconds: 0 } });
  await purser.app.reaper.stop();
  const { id, token, child } = await openLarge(purser);
  const grandchild = await childOf(purser, child.token, '0.5');
  const changed = await writeWith(purser.app.ledger, (tx) => {
    const { $client } = tx as unknown as { $client: Client };
    const changes = () => $client.prepare('select total_changes()').pluck().get() as bigint;
    const before = changes();
    endSpending.run(tx, { id, reason: 'agent_request', now: purser.app.clock.now() });
    return Number(changes() - before);
  });
  assert.equal(changed, 1);
  await purser.reopen(); // It ended before anything was closed.
  await purser.app.reaper.stop();
  assert.equal(purser.wallet(grandchild.id).status, 'active', 'its row is as it was');

  for (const below of [child, grandchild]) {
    const refusals = await Promise.all([
      purser.chat(below.token),
      purser.ask('POST', '/v1/run/wallets', { token: below.token, key: 'x', body: { name: 'x', budget_usd: '0.1' } }),
      purser.ask('POST', '/v1/router/key', { token: below.token, body: {} }),
      purser.ask('GET', `/v1/wallets/${below.id}/token`, { token: purser.accountKey }),
      post(purser, `/v1/wallets/${below.id}/budget`, { add_cents: 1 }, `raise ${below.id}`),
      post(purser, `/v1/wallets/${below.id}/budget`, { add_cents: -1 }, `lower ${below.id}`),
      post(purser, `/v1/wallets/${below.id}/extend`, { seconds: 1 }, `extend ${below.id}`),
      post(purser, `/v1/wallets/${below.id}/freeze`, {}),
    ]);
    assert.deepEqual(
      refusals.map(({ body }) => body.error?.code),
      refusals.map(() => 'wallet_closed'),
    );
    const { status, close_reason: reason, cleanup } = await recordOf(purser, below.id);
    assert.deepEqual([status, reason, cleanup.pending], ['closing', 'agent_request', true]);
    assert.equal((await purser.budget(below.token)).status, 'closing');
  }
  const seen = await purser.ask('GET', '/v1/run/wallets', { token });
  assert(seen.body.wallets.every((it: any) => it.status === 'closing'));

  assert.equal((await closedByPass(purser, id)).length, 2);
  assert.deepEqual([purser.wallet(id).delegated, purser.wallet(id).spent], [0n, 0n]);
  assert.equal(purser.wallet(grandchild.id).closingSince, purser.wallet(id).closingSince);
  assert.deepEqual(purser.problems(), []);
});

test('a large tree of one tenant does not keep those of others from being closed in the same pass', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { ledger, clock } = purser.app;
  const { id } = await openLarge(purser);
  const other = await addTenant(purser, 'other');
  const [alone, above] = [await walletOf(purser, other), await walletOf(purser, other)];
  await childOf(purser, above.token, '1');
  for (const it of [id, alone.id, above.id])
    await ledger.write(endSpending, { id: it, reason: 'agent_request', now: clock.now() });
  const { rest, closed } = await purser.app.reaper.runOnce();
  assert(rest > 0 && closed <= CLOSE_COUNT_MAX, `${closed} closed`);
  assert.deepEqual(
    [id, alone.id, above.id].map((it) => purser.wallet(it).status),
    ['closing', 'closed', 'closed'],
  );
  while ((await purser.app.reaper.runOnce()).rest > 0);
  assert.equal(purser.wallet(id).status, 'closed');
});

test('closes of one wallet at the same time cost what one costs', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { id, token } = await purser.openWallet();
  for (let i = 0; i < 3; i++) await childOf(purser, token, '1');
  const { write } = purser.app.ledger;
  const closings: unknown[] = [];
  t.mock.method(purser.app.ledger, 'write', (work: { name: string }, order: never) => {
    if (work.name === 'wallet.close') closings.push(order);
    return write(work as never, order);
  });
  const closed = await Promise.all(Array.from({ length: 10 }, () => purser.ask('POST', '/v1/run/close', { token })));
  assert.deepEqual(new Set(closed.map(({ status }) => status)), new Set([200]));
  assert.equal(purser.wallet(id).status, 'closed');
  assert.equal(closings.length, 4);
});

test('what has ended with a wallet above it keeps the reason and the time of that, whatever ends it later', async (t) => {
  const purser = await openTestServer(t, { settings: { close_wait_seconds: 0 } });
  await purser.app.reaper.stop();
  const { id, token } = await purser.openWallet({ expires_in_seconds: 0 });
  const body = { name: 'c', budget_usd: '1', expires_in_seconds: 60 };
  const { body: child } = await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body });
  const below = await childOf(purser, child.agent_token, '0.5');
  const since = purser.app.clock.now();
  await purser.app.ledger.write(endSpending, { id, reason: 'account_request', now: since });
  const shown = async () => {
    const records = [await recordOf(purser, child.id), await recordOf(purser, below.id)];
    const { body } = await purser.chat(child.agent_token);
    return [...records.map((it) => [it.status, it.close_reason]), body.error.code];
  };
  const ended = ['closing', 'account_request'];
  assert.deepEqual(await shown(), [ended, ended, 'wallet_closed']);
  purser.clock.advance(100); // Past the expiry of both.
  assert.deepEqual(await shown(), [ended, ended, 'wallet_closed']);
  assert.equal((await purser.ask('POST', '/v1/run/close', { token: child.agent_token })).status, 200);
  await purser.app.reaper.runOnce();
  for (const it of [child.id, below.id])
    assert.deepEqual([purser.wallet(it).closeReason, purser.wallet(it).closingSince], ['account_request', since]);

  const first = await purser.openWallet({ expires_in_seconds: 0 });
  const { body: expired } = await purser.ask('POST', '/v1/run/wallets', { token: first.token, key: 'c', body });
  purser.clock.advance(100);
  await purser.app.ledger.write(endSpending, { id: first.id, reason: 'account_request', now: purser.app.clock.now() });
  const { status, close_reason: reason } = await recordOf(purser, expired.id);
  assert.deepEqual([status, reason], ['expired', 'expired'], 'that came first');
});

test('a list by status has a child that has ended with its parent under the status in its record', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { id, token } = await purser.openWallet({ expires_in_seconds: 0 });
  const child = await childOf(purser, token, '1');
  const other = await purser.openWallet({ expires_in_seconds: 0 });
  await purser.app.ledger.write(endSpending, { id, reason: 'agent_request', now: purser.app.clock.now() });
  const shown = (wallets: { id: string; status: string }[]) => wallets.map((it) => [it.id, it.status]);
  const wanted = { active: [other.id], closing: [child.id, id], expired: [], closed: [] };
  for (const [status, ids] of Object.entries(wanted) as [keyof typeof wanted, string[]][]) {
    const rows = ids.map((it) => [it, status]);
    const run = await purser.ask('GET', `/v1/run/wallets?status=${status}`, { token });
    assert.deepEqual(
      shown(run.body.wallets),
      rows.filter(([it]) => it === child.id),
    );
    const own = await purser.ask('GET', `/v1/wallets?status=${status}`, { token: purser.accountKey });
    assert.deepEqual(shown(own.body.wallets), rows);
    const { wallets, total } = await purser.run('wallet.list', { status });
    assert.deepEqual([shown(wallets), total], [rows, rows.length]);
  }
});
