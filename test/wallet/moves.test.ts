import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { eq } from 'drizzle-orm';
import { walletChanges } from '../../src/db/schema.ts';
import { fingerprint } from '../../src/fingerprint.ts';
import { insertChange } from '../../src/ledger/wallet-change.ts';
import { ZERO } from '../../src/money.ts';
import { refillWallets } from '../../src/reaper/chores.ts';
import { extend } from '../../src/wallet/change.ts';
import { writeWith } from '../helper/closures.ts';
import { handClock, openTestServer, type TestServer } from '../helper/server.ts';
import { completion, failure, gate } from '../helper/upstream.ts';

// Budget that moves while a wallet is open: raise, lower, extend, freeze, refill and delegate (design, section 13).

const post = (purser: TestServer, path: string, body: object, key?: string) =>
  purser.ask('POST', path, { token: purser.accountKey, body, ...(key === undefined ? {} : { key }) });
const recordOf = async (purser: TestServer, id: string) =>
  (await purser.ask('GET', `/v1/wallets/${id}`, { token: purser.accountKey })).body;
const changesOf = ({ app }: TestServer, id: string) =>
  app.ledger.read.select().from(walletChanges).where(eq(walletChanges.walletId, id)).all();
const accountOf = async (purser: TestServer) =>
  (await purser.ask('GET', '/v1/account', { token: purser.accountKey })).body;

test('a raise and a lower move credit between account and wallet, once a key', async (t) => {
  const purser = await openTestServer(t, { creditCents: 2000 });
  const { id } = await purser.openWallet({ budget_cents: 1000 });
  const raised = await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 500 }, 'k1');
  assert.equal(raised.status, 200, raised.text);
  assert.equal(raised.body.budget_usd, '15.00');
  const again = await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 500 }, 'k1');
  assert.deepEqual([again.body.budget_usd, again.headers['idempotent-replayed']], ['15.00', 'true']);
  assert.equal(
    (await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 501 }, 'k1')).body.error.code,
    'idempotency_conflict',
  );
  const tooMuch = await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 501 }, 'k2');
  assert.deepEqual([tooMuch.status, tooMuch.body.error.code], [402, 'insufficient_funds']);
  assert.equal((await post(purser, `/v1/wallets/${id}/budget`, { add_cents: -1200 }, 'k3')).body.budget_usd, '3.00');
  assert.equal((await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 0 }, 'k4')).status, 400);
  assert.equal(
    (await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 1 })).body.error.code,
    'idempotency_key_required',
  );
  const account = await accountOf(purser);
  assert.deepEqual([account.available_cents, account.reserved_cents], [1700, 300]);
  assert.deepEqual(purser.problems(), []);
});

test('the same key may change the budget and the expiry: each endpoint has keys of its own', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 3600 });
  const { expires_at } = await recordOf(purser, id);
  assert.equal((await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 5 }, 'k')).body.budget_usd, '10.05');
  for (const replayed of [undefined, 'true']) {
    const extended = await post(purser, `/v1/wallets/${id}/extend`, { seconds: 60 }, 'k');
    assert.deepEqual([extended.status, extended.headers['idempotent-replayed']], [200, replayed], extended.text);
    assert.equal(extended.body.expires_at, expires_at + 60);
  }
  const other = await post(purser, `/v1/wallets/${id}/extend`, { seconds: 61 }, 'k');
  assert.equal(other.body.error.code, 'idempotency_conflict');
  assert.equal((await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 5 }, 'k')).body.budget_usd, '10.05');
});

test('an extension of an older version, whose key was kept as it came, is not made again', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ expires_in_seconds: 3600 });
  const { expires_at } = await recordOf(purser, id);
  const row = { walletId: id, kind: 'extend' as const, amount: ZERO, expiresAt: expires_at, idempotencyKey: 'k' };
  await writeWith(purser.app.ledger, (tx) =>
    insertChange(tx, { ...row, fingerprint: fingerprint({ extend: { seconds: 60 } }) }, expires_at - 3600),
  );
  const again = await post(purser, `/v1/wallets/${id}/extend`, { seconds: 60 }, 'k');
  assert.deepEqual([again.body.expires_at, again.headers['idempotent-replayed']], [expires_at, 'true'], again.text);
});

test('lowering stops at what is spent, held and delegated', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 1000 });
  assert.equal((await purser.chat(token, { model: 'flat' })).status, 200); // 0.01 USD
  await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body: { name: 'child', budget_usd: '2.005' } });
  const lowered = await post(purser, `/v1/wallets/${id}/budget`, { add_cents: -100_000 }, 'k');
  assert.deepEqual(
    [lowered.body.budget_usd, lowered.body.used_usd, lowered.body.delegated_usd, lowered.body.available_usd],
    ['2.02', '0.01', '2.005', '0.005'],
  );
  assert.deepEqual(purser.problems(), []);
});

test('an extended wallet lives longer, with the same token', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ expires_in_seconds: 60 });
  const { expires_at } = await recordOf(purser, id);
  const extended = await post(purser, `/v1/wallets/${id}/extend`, { seconds: 3600 }, 'k');
  assert.equal(extended.body.expires_at, expires_at + 3600);
  assert.equal(
    (await post(purser, `/v1/wallets/${id}/extend`, { seconds: 3600 }, 'k')).body.expires_at,
    expires_at + 3600,
  );
  purser.clock.advance(120);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.chat(token)).status, 200);
  purser.clock.advance(3600);
  assert.equal((await purser.chat(token)).body.error.code, 'wallet_expired');
  assert.equal(
    (await post(purser, `/v1/wallets/${id}/extend`, { seconds: 60 }, 'k2')).body.error.code,
    'wallet_expired',
  );
  const never = await purser.openWallet({ expires_in_seconds: 0 });
  assert.equal((await post(purser, `/v1/wallets/${never.id}/extend`, { seconds: 60 }, 'k')).status, 400);
});

test('a frozen wallet takes no holds, and all below it none; reads go on', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const child = (await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body: { name: 'c', budget_usd: '1' } }))
    .body;
  const frozen = await post(purser, `/v1/wallets/${id}/freeze`, { reason: 'it loops' });
  assert.equal(frozen.status, 200, frozen.text);
  assert.equal(frozen.body.frozen_at, Math.floor(purser.clock.wall() / 1000));
  for (const it of [token, child.agent_token]) {
    const refused = await purser.chat(it);
    assert.deepEqual([refused.status, refused.body.error.code], [403, 'wallet_frozen']);
    assert.match(refused.body.error.message, /it loops/);
    const budget = await purser.ask('GET', '/v1/budget', { token: it });
    assert.deepEqual([budget.status, budget.body.frozen_at], [200, frozen.body.frozen_at]);
  }
  const recordOf = async () => (await purser.ask('GET', `/v1/wallets/${child.id}`, { token: purser.accountKey })).body;
  const { frozen_at, freeze_reason } = await recordOf();
  assert.deepEqual([frozen_at, freeze_reason], [frozen.body.frozen_at, 'it loops'], 'of the nearest that is frozen');
  purser.clock.advance(5);
  const own = (await post(purser, `/v1/wallets/${child.id}/freeze`, { reason: 'it waits' })).body;
  assert.deepEqual([own.frozen_at, own.freeze_reason], [frozen_at + 5, 'it waits'], 'its own comes first');
  assert.equal((await post(purser, `/v1/wallets/${child.id}/unfreeze`, {})).body.frozen_at, frozen_at);
  assert.equal((await post(purser, `/v1/wallets/${id}/unfreeze`, {})).body.frozen_at, null);
  assert.equal((await recordOf()).frozen_at, null);
  assert.equal((await purser.chat(child.agent_token)).status, 200);
  const closed = (await post(purser, `/v1/wallets/${child.id}/close`, {})).body;
  await post(purser, `/v1/wallets/${id}/freeze`, {});
  assert.deepEqual(await recordOf(), closed, 'what a wallet was closed with is final');
  assert.deepEqual(purser.problems(), []);
});

test('freezing again changes the reason, and nothing else', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet();
  const since = (await purser.run('wallet.freeze', { id, reason: 'it loops' })).frozen_at;
  purser.clock.advance(60);
  const { frozen_at, freeze_reason } = await purser.run('wallet.freeze', { id, reason: 'an audit' });
  assert.deepEqual([frozen_at, freeze_reason], [since, 'an audit']);
  assert.equal((await purser.run('wallet.freeze', { id })).freeze_reason, 'an audit');
  const all = (await purser.run('freeze', { reason: 'one' })).frozen_at;
  purser.clock.advance(60);
  assert.equal((await purser.run('freeze', { reason: 'two' })).frozen_at, all);
  assert.match((await purser.ask('GET', '/readyz', {})).body.frozen, /\(two\)/);
  assert.equal((await purser.run('wallet.unfreeze', { id })).freeze_reason, null);
});

test('unfreezing an account reaches the children that were frozen by themselves', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const asked = { token, key: 'c', body: { name: 'c', budget_usd: '1' } };
  const child = (await purser.ask('POST', '/v1/run/wallets', asked)).body;
  await purser.run('wallet.freeze', { id: child.id, reason: 'it loops' });
  const { wallets } = await purser.run('wallet.unfreeze-account', { account: purser.accountId });
  assert.deepEqual(
    wallets.map((it) => [it.id, it.frozen_at]),
    [[child.id, null]],
  );
  await purser.run('wallet.freeze', { id });
  await purser.run('wallet.unfreeze-account', { account: purser.accountId });
  assert.equal((await purser.chat(child.agent_token)).status, 200);
});

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

for (const carry of ['none', 0])
  test(`a daily refill that carries ${carry} sets what is available back, once a day, however long the server slept`, async (t) => {
    const purser = await openTestServer(t, { creditCents: 3000 });
    const { id, token } = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
    const set = await purser.ask('PUT', `/v1/wallets/${id}/refill`, {
      token: purser.accountKey,
      body: { cents: 500, every: 'day', zone: 'Europe/Berlin', carry },
    });
    assert.equal(set.status, 200, set.text);
    assert.equal((await recordOf(purser, id)).refill.next_at, set.body.refill.next_at);
    assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
    const wait = set.body.refill.next_at - Math.floor(purser.clock.wall() / 1000);
    purser.clock.advance(wait + 3 * 86_400 + 7200);
    await purser.app.reaper.runOnce();
    await purser.app.reaper.runOnce();
    const after = await recordOf(purser, id);
    assert.deepEqual([after.available_usd, after.budget_usd], ['5.00', '5.01']);
    await purser.reopen();
    await purser.app.reaper.runOnce();
    assert.equal((await recordOf(purser, id)).available_usd, '5.00');
    assert.deepEqual(purser.problems(), []);
    const off = await purser.ask('DELETE', `/v1/wallets/${id}/refill`, { token: purser.accountKey });
    assert.equal(off.body.refill, null);
  });

test('a refill that takes back what was left over lowers the wallet, and the timeline says so', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill: { cents: 300, every: 'day' } });
  purser.clock.advance(86_400);
  await purser.app.reaper.runOnce();
  await purser.run('wallet.refill', { id, refill: { cents: 500, every: 'day' } });
  purser.clock.advance(86_400);
  await purser.app.reaper.runOnce();
  const { steps } = await purser.run('wallet.timeline', { id });
  assert.deepEqual(
    steps.map((it) => [it.what, it.amount_usd, it.available_usd]),
    [
      ['opened', '10.00', '10.00'],
      ['lowered', '7.00', '3.00'],
      ['refilled', '2.00', '5.00'],
    ],
  );
});

test('what a wallet has given to its children is once in the figures of the status', async (t) => {
  const purser = await openTestServer(t, { creditCents: 3000 });
  const { token } = await purser.openWallet({ budget_cents: 1000 });
  const body = { name: 'child', budget_usd: '4', expires_in_seconds: 3600 };
  assert.equal((await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body })).status, 201);
  const { accounts, wallets } = await purser.run('status', {});
  assert.deepEqual([wallets.open, wallets.budget_usd, wallets.available_usd], [2, '10.00', '10.00']);
  assert.equal(wallets.budget_usd, accounts.reserved_usd);
});

/** Parks what a wallet has in a chain of children, as many deep, before a midnight, and closes them after it. */
async function parkOver(
  purser: TestServer,
  token: string,
  depth: number,
  midnight: (deepest: string) => Promise<void>,
) {
  const chain: { id: string; token: string }[] = [];
  for (let parent = token; chain.length < depth; parent = chain.at(-1)?.token as string) {
    const { available_usd: budget_usd } = await purser.budget(parent);
    const body = { name: 'bank', budget_usd, expires_in_seconds: 0 };
    const { body: child } = await purser.ask('POST', '/v1/run/wallets', { token: parent, key: randomUUID(), body });
    chain.push({ id: child.id, token: child.agent_token });
  }
  await midnight(chain.at(-1)?.token as string);
  const closed = await purser.ask('POST', `/v1/run/wallets/${chain[0]?.id}/close`, { token });
  assert.equal(closed.status, 200, closed.text);
}

for (const [carry, available] of [
  ['none', '2.00'],
  [50, '2.50'],
  ['all', '22.00'],
] as const)
  for (const depth of [1, 2])
    test(`what is parked in children ${depth} deep over ten midnights is left over: carry ${carry} has ${available}`, async (t) => {
      const purser = await openTestServer(t);
      const { id, token } = await purser.openWallet({ budget_cents: 200, expires_in_seconds: 0 });
      await purser.run('wallet.refill', { id, refill: { cents: 200, every: 'day', carry } });
      for (let day = 0; day < 10; day++)
        await parkOver(purser, token, depth, async () => {
          purser.clock.advance(86_400);
          await purser.app.reaper.runOnce();
        });
      assert.equal((await recordOf(purser, id)).available_usd, available);
      assert.deepEqual(purser.problems(), []);
    });

for (const [carry, available] of [
  ['none', '2.00'],
  [100, '3.00'],
  ['all', '10.00'],
] as const)
  for (const where of ['the wallet', 'its child'] as const)
    test(`what ${where} holds over four midnights is left over: carry ${carry} has ${available}`, async (t) => {
      const purser = await openTestServer(t);
      const { id, token } = await purser.openWallet({ budget_cents: 200, expires_in_seconds: 0 });
      await purser.run('wallet.refill', { id, refill: { cents: 200, every: 'day', carry } });
      for (let day = 0; day < 4; day++) {
        const { handler, open } = gate(failure(400));
        purser.upstream.handle = handler;
        const overMidnight = async (holder: string) => {
          const cents = Math.round(Number((await purser.budget(holder)).available_usd) * 100);
          const before = purser.upstream.calls.length;
          const held = purser.chat(holder, { model: 'dear', max_tokens: Math.min(cents, 1000) });
          await purser.upstream.arrived(before + 1);
          purser.clock.advance(86_400);
          await purser.app.reaper.runOnce();
          open();
          assert.equal((await held).status, 400);
        };
        if (where === 'the wallet') await overMidnight(token);
        else await parkOver(purser, token, 1, overMidnight);
      }
      assert.equal((await recordOf(purser, id)).available_usd, available);
      assert.deepEqual(purser.problems(), []);
    });

test('a refill lowers no wallet below what it has itself, and what children have spent is not left over', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill: { cents: 200, every: 'day' } });
  const delegate = async (parent: string, budget_usd: string) => {
    const body = { name: 'child', budget_usd, expires_in_seconds: 0 };
    const { body: child } = await purser.ask('POST', '/v1/run/wallets', { token: parent, key: randomUUID(), body });
    return { id: child.id as string, token: child.agent_token as string };
  };
  const child = await delegate(token, '9.00');
  const grandchild = await delegate(child.token, '8.00');
  const nextDay = async () => {
    purser.clock.advance(86_400);
    await purser.app.reaper.runOnce();
    return (await recordOf(purser, id)).available_usd;
  };
  assert.equal(await nextDay(), '0.00', 'its own dollar goes; nine are with the children');
  purser.upstream.handle = completion({ prompt_tokens: 1, completion_tokens: 800 });
  assert.equal((await purser.chat(grandchild.token, { model: 'dear', max_tokens: 800 })).status, 200);
  assert.equal((await purser.budget(grandchild.token)).available_usd, '0.00');
  assert.equal(await nextDay(), '1.00', 'the child has the other one');
  assert.deepEqual(purser.problems(), []);
});

test('a child that needs the refill of its parent brings it, before the reaper does, when it opens and when it is raised', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  const nextDay = () => purser.clock.advance(86_400);
  await purser.run('wallet.refill', { id, refill: { cents: 500, every: 'day' } });
  const order = { token, key: 'c', body: { name: 'sub-agent', budget_usd: '4.50', expires_in_seconds: 0 } };
  const early = await purser.ask('POST', '/v1/run/wallets', order);
  assert.deepEqual([early.status, early.body.error.code], [402, 'insufficient_funds']);
  nextDay();
  const child = await purser.ask('POST', '/v1/run/wallets', order);
  assert.equal(child.status, 201, child.text);
  assert.equal((await recordOf(purser, id)).available_usd, '0.50');
  await purser.run('wallet.refill', { id, refill: { cents: 1000, every: 'day' } });
  nextDay();
  const raised = await purser.ask('POST', `/v1/wallets/${child.body.id}/budget`, {
    token: purser.accountKey,
    key: 'r',
    body: { add_cents: 500 },
  });
  assert.deepEqual([raised.status, raised.body.available_usd], [200, '9.50'], raised.text);
  await purser.app.reaper.runOnce();
  assert.equal((await recordOf(purser, id)).available_usd, '0.50', 'once a day');
  assert.deepEqual(purser.problems(), []);
});

/** A server whose wall clock begins at this moment. */
function openAt(t: TestContext, moment: string, creditCents: number) {
  const time = handClock();
  time.advance((Date.parse(moment) - time.wall()) / 1000);
  return openTestServer(t, { creditCents, time });
}
const DAY = 86_400;
const refillsOf = (purser: TestServer, id: string) => changesOf(purser, id).filter((it) => it.kind === 'refill').length;

test('a refill that fell short stays owed when the same settings come again, and needs no reaper once the credit is there', async (t) => {
  const purser = await openAt(t, '2027-01-31T12:00:00Z', 300);
  const { id, token } = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  const put = () =>
    purser.ask('PUT', `/v1/wallets/${id}/refill`, { token: purser.accountKey, body: { cents: 500, every: 'month' } });
  await put();
  assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
  purser.clock.advance(DAY);
  await purser.app.reaper.runOnce();
  const { next_at: retried } = (await recordOf(purser, id)).refill;
  assert.equal((await put()).body.refill.next_at, retried);
  assert.equal(refillsOf(purser, id), 0);
  await purser.run('account.credit', { id: purser.accountId, cents: 10_000 });
  const { status, text } = await purser.chat(token, { model: 'dear', max_tokens: 400 });
  assert.equal(status, 200, text);
  assert.equal(refillsOf(purser, id), 1, 'the request that needs it brings it');
  assert.equal((await recordOf(purser, id)).refill.next_at, Date.parse('2027-03-01T00:00:00Z') / 1000);
  assert.deepEqual(purser.problems(), []);
});

test('a refill that is due happens before its terms change, and before the budget does', async (t) => {
  const purser = await openAt(t, '2027-01-31T12:00:00Z', 10_000);
  const terms = (id: string, cents: number) => purser.run('wallet.refill', { id, refill: { cents, every: 'month' } });
  const changed = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  const raised = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  const lowered = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  for (const { id } of [changed, raised, lowered]) await terms(id, 500);
  purser.clock.advance(DAY); // And no pass of the reaper: as for a command of a stopped server.
  await terms(changed.id, 600);
  await purser.run('wallet.budget', { id: raised.id, add_cents: 1000 });
  await purser.run('wallet.budget', { id: lowered.id, add_cents: -200 });
  await purser.app.reaper.runOnce();
  const figures = await Promise.all([changed, raised, lowered].map(({ token }) => purser.budget(token)));
  assert.deepEqual(
    figures.map((it) => it.available_usd),
    ['5.00', '15.00', '3.00'],
  );
  for (const { id } of [changed, raised, lowered]) assert.equal(refillsOf(purser, id), 1);
  assert.deepEqual(purser.problems(), []);
});

test('a refill of another zone or rhythm on the same date takes the place of none', async (t) => {
  const purser = await openAt(t, '2027-01-30T12:00:00Z', 50_000);
  const { id, token } = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill: { cents: 100, every: 'day', zone: 'Asia/Tokyo' } });
  purser.clock.advance(DAY + 4 * 3600); // The 1st of February has begun in Tokyo, at 15:00 UTC.
  await purser.app.reaper.runOnce();
  assert.equal(refillsOf(purser, id), 1);
  await purser.run('wallet.refill', { id, refill: { cents: 5000, every: 'month', zone: 'UTC' } });
  const { next_at: next } = (await recordOf(purser, id)).refill;
  assert.equal(next, Date.parse('2027-02-01T00:00:00Z') / 1000);
  for (let day = 0; day < 3; day++) {
    purser.clock.advance(DAY);
    await purser.app.reaper.runOnce();
  }
  assert.deepEqual([(await purser.budget(token)).available_usd, refillsOf(purser, id)], ['50.00', 2]);
  assert.deepEqual(purser.problems(), []);
});

test('a wallet that is extended in its last second is not ended by a pass that began before', async (t) => {
  for (const writesHere of [true, false]) {
    const purser = await openTestServer(t, { writesHere });
    const { id, token } = await purser.openWallet({ expires_in_seconds: 60 });
    purser.clock.advance(59);
    const order = {
      walletId: id,
      idempotencyKey: null,
      fingerprint: Buffer.alloc(32),
      requestId: 'req_x',
      seconds: 3600,
    };
    const extended = extend(purser.app, order);
    purser.clock.advance(1);
    const pass = purser.app.reaper.runOnce();
    assert.equal((await extended).wallet.status, 'active');
    assert.equal((await pass).expired, 0);
    assert.equal((await recordOf(purser, id)).status, 'active');
    assert.equal((await purser.chat(token)).status, 200);
  }
});

test('freezing an account freezes the others when one of its wallets ends at that moment', async (t) => {
  const purser = await openTestServer(t, { creditCents: 5000 });
  const [ends, stays] = [
    await purser.openWallet({ budget_cents: 100 }),
    await purser.openWallet({ budget_cents: 100 }),
  ];
  const [, frozen] = await Promise.all([
    purser.run('wallet.close', { id: ends.id }),
    purser.run('wallet.freeze-account', { account: purser.accountId }),
  ]);
  const ids = (frozen as { wallets: { id: string }[] }).wallets.map((it) => it.id);
  assert.deepEqual(ids, [stays.id]);
  assert.notEqual((await recordOf(purser, stays.id)).frozen_at, null);
});

test('refills come to an end when a whole page of wallets expires just before them', async (t) => {
  const purser = await openTestServer(t, { creditCents: 1_000_000 });
  const openOne = async (expires_in_seconds: number) => {
    const { id } = await purser.openWallet({ expires_in_seconds });
    await purser.run('wallet.refill', { id, refill: { cents: 500, every: 'day' } });
    return id;
  };
  await Promise.all(Array.from({ length: 100 }, () => openOne(60)));
  const last = await openOne(0);
  purser.clock.advance(86_400);
  const reaped = { refilled: 0, failed: 0 } as Parameters<typeof refillWallets>[1];
  await refillWallets(purser.app, reaped); // As in a pass whose clock has gone on since it looked for what expires.
  assert.equal(reaped.failed, 0);
  const refilled = changesOf(purser, last);
  assert.deepEqual(
    refilled.map(({ kind }) => kind),
    ['refill'],
  );
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

test('what is frozen is said by readyz, the doctor’s books, the log of every start and the metrics', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet();
  const ready = async () => (await purser.ask('GET', '/readyz', {})).body;
  assert.equal((await ready()).frozen, undefined);
  await purser.run('wallet.freeze', { id, reason: 'it loops' });
  assert.deepEqual(await ready(), { ready: true, frozen: '1 wallet is frozen: no new holds' });
  await purser.run('freeze', { reason: 'an audit' });
  assert.match((await ready()).frozen, /^the installation is frozen since .*Z \(an audit\), 1 wallet is/);
  await purser.reopen();
  const line = purser.log.map((it) => JSON.parse(it)).find((it) => it.event === 'frozen');
  assert.match(line.reason, /an audit/);
  const metrics = await purser.app.events.registry.metrics();
  assert.match(metrics, /^purser_frozen_installations 1$/m);
  assert.match(metrics, /^purser_frozen_wallets 1$/m);
  await purser.run('unfreeze', {});
  await purser.run('wallet.unfreeze', { id });
  assert.deepEqual(await ready(), { ready: true });
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
