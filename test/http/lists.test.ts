import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { assertRefused } from './refused.ts';

test('a list of wallets is paged by before and limit, and filtered by status', async (t) => {
  const purser = await openTestServer(t);
  const ids: string[] = [];
  for (let i = 0; i < 7; i++) ids.unshift((await purser.openWallet({ name: `agent-${i}` })).id);
  await purser.run('wallet.close', { id: ids[3] as string });
  const list = async (query: string) =>
    (await purser.ask('GET', `/v1/wallets?${query}`, { token: purser.accountKey })).body.wallets.map(
      (it: { id: string }) => it.id,
    );
  assert.deepEqual(await list('limit=3'), ids.slice(0, 3));
  assert.deepEqual(await list(`limit=3&before=${ids[2]}`), ids.slice(3, 6));
  assert.deepEqual(await list(`before=${ids[5]}`), ids.slice(6));
  assert.deepEqual(await list('before='), ids);
  assert.deepEqual(await list('status=closed'), [ids[3]]);
  assert.equal((await list('status=active')).length, 6);
  purser.clock.advance(7200);
  assert.deepEqual(await list('status=active'), [], 'expiry counts before the reaper has come');
  assert.equal((await list('status=expired')).length + (await list('status=closed')).length, 7);
});

test('an unknown query parameter, a bad limit, status or cursor is refused by every list', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const lists: [string, string][] = [
    ['/v1/wallets', purser.accountKey],
    ['/v1/keys', purser.accountKey],
    ['/v1/resources', purser.accountKey],
    [`/v1/wallets/${id}/resources`, purser.accountKey],
    ['/v1/compute/list', token],
    ['/v1/run/operations', token],
    ['/v1/run/wallets', token],
  ];
  for (const [path, as] of lists) {
    assert.equal((await purser.ask('GET', `${path}?limit=100&before=`, { token: as })).status, 200, path);
    for (const query of ['after=x', 'limit=0', 'limit=101', 'limit=ten', 'status=odd'])
      assertRefused(
        await purser.ask('GET', `${path}?${query}`, { token: as }),
        400,
        'invalid_request',
        `${path}?${query}`,
      );
    assertRefused(await purser.ask('GET', `${path}?before=xyz`, { token: as }), 400, 'invalid_cursor', path);
  }
});

test('the operator finds by name, by a unique beginning, and an operation by its request', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ name: 'agent-7' });
  const answer = await purser.chat(token);
  const [operation] = (await purser.run('operation.list', { wallet: 'agent-7', state: 'settled' })).operations;
  assert.equal(operation?.wallet_id, id);
  const requestId = answer.headers['x-request-id'] as string;
  assert.equal((await purser.run('operation.show', { id: requestId })).id, operation?.id);
  assert.equal((await purser.run('operation.show', { id: operation?.id.slice(0, -3) as string })).id, operation?.id);
  assert.equal((await purser.run('wallet.show', { id: id.slice(0, -2) })).id, id);
  assert.equal((await purser.run('account.show', { id: 'default' })).id, purser.accountId);
  const second = await purser.openWallet({ name: 'agent-7' });
  await assert.rejects(purser.run('wallet.show', { id: 'agent-7' }), { code: 'conflict' });
  await purser.run('wallet.close', { id: second.id });
  assert.equal((await purser.run('wallet.show', { id: 'agent-7' })).id, id, 'the only one that is open');
  await assert.rejects(purser.run('wallet.show', { id: 'wal_' }), { code: 'not_found' });
  await assert.rejects(purser.run('operation.show', { id: 'req_00000000000000000000000000' }), { code: 'not_found' });
});

test('a name that is the beginning of an id leads no command of the operator to another', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ name: 'runaway' });
  const shown = id.slice(0, -2);
  assert.equal((await purser.run('wallet.show', { id: shown })).id, id);
  const decoy = await purser.openWallet({ name: shown });
  const ambiguous = { code: 'conflict', message: new RegExp(`${decoy.id}, ${id}\\.`) };
  await assert.rejects(purser.run('wallet.freeze', { id: shown }), ambiguous);
  await purser.run('wallet.close', { id: decoy.id });
  await assert.rejects(purser.run('wallet.close', { id: shown }), ambiguous, 'a closed one has its name too');
  assert.equal((await purser.run('wallet.show', { id })).status, 'active');
  assert.equal((await purser.run('wallet.show', { id: decoy.id })).status, 'closed');

  const account = purser.accountId.slice(0, -2);
  assert.equal((await purser.run('account.show', { id: account })).id, purser.accountId);
  await purser.run('account.create', { name: account });
  await assert.rejects(purser.run('account.debit', { id: account, cents: 1, reason: 'x' }), { code: 'conflict' });
});

test('lists of the operator count what they do not show, and a statement has every reason', async (t) => {
  const purser = await openTestServer(t);
  for (let i = 0; i < 5; i++) await purser.openWallet({ name: `w${i}` });
  const { token } = await purser.openWallet();
  await purser.chat(token);
  const page = await purser.run('wallet.list', { account: 'default', limit: 2 });
  assert.deepEqual([page.wallets.length, page.total], [2, 6]);
  const rest = await purser.run('wallet.list', { before: page.wallets[1]?.id as string });
  assert.equal(rest.wallets.length, 4);
  assert.deepEqual((await purser.run('wallet.list', { since: purser.app.clock.now() + 1 })).wallets, []);
  assert.equal((await purser.run('account.list', {})).accounts[0]?.spent_usd, '0.00012');
  await purser.run('account.debit', { id: 'default', cents: 5, reason: 'by mistake' });
  const { lines } = await purser.run('account.statement', { id: 'default' });
  assert.deepEqual(
    lines.map((it) => [it.kind, it.amount_cents, it.reason]),
    [
      ['credit', 100_000, null],
      ['debit', -5, 'by mistake'],
    ],
  );
});

test('every credit is in the log, that of a new account, too', async (t) => {
  const purser = await openTestServer(t, { creditCents: 300 });
  const { id } = await purser.run('account.create', { name: 'research', creditCents: 700 });
  await purser.run('account.create', { name: 'without' });
  const told = purser.log.map((it) => JSON.parse(it)).filter((it) => it.event === 'account.funded');
  assert.deepEqual(
    told.map((it) => [it.account, it.kind, it.cents, it.available_cents]),
    [
      [purser.accountId, 'credit', 300, 300],
      [id, 'credit', 700, 700],
    ],
  );
});

test('a credit or a debit that is repeated with its key moves money once, and the log has it once', async (t) => {
  const purser = await openTestServer(t, { creditCents: 0 });
  for (const [command, cents] of [
    ['account.credit', 700],
    ['account.debit', 200],
  ] as const) {
    const order = { id: purser.accountId, cents, reason: 'invoice 17', key: command };
    await Promise.all([1, 2, 3].map(() => purser.run(command, order)));
    await assert.rejects(purser.run(command, { ...order, cents: cents + 1 }), { code: 'conflict' });
  }
  assert.equal((await purser.run('account.show', { id: purser.accountId })).available_cents, 500);
  const told = purser.log.map((it) => JSON.parse(it)).filter((it) => it.event === 'account.funded');
  assert.deepEqual(
    told.map((it) => [it.kind, it.cents]),
    [
      ['credit', 700],
      ['debit', 200],
    ],
  );
});

test('status has every part, and what it says of money is true', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  await purser.chat(token);
  const status = await purser.run('status', {});
  assert.deepEqual(
    Object.keys(status),
    'version uptime_seconds ready reason frozen moved clock disk backup accounts wallets holds uncertain leases upstreams backends events faults'.split(
      ' ',
    ),
  );
  assert.deepEqual([status.ready, status.reason, status.wallets.open], [true, null, 1]);
  assert.deepEqual([status.wallets.budget_usd, status.wallets.used_usd], ['10.00', '0.00012']);
  assert.deepEqual(
    status.upstreams.map((it) => [it.name, it.up]),
    [['local', true]],
  );
  const back = await purser.upstream.leave();
  await purser.run('freeze', { reason: 'friday' });
  const now = await purser.run('status', {});
  assert.deepEqual([now.upstreams[0]?.up, now.upstreams[0]?.reason], [false, 'ECONNREFUSED']);
  assert.match(now.frozen.sentence as string, /friday/);
  await back();
});

test('events, checkouts and keys are paged and counted too, and found by name and by a unique beginning', async (t) => {
  const purser = await openTestServer(t);
  const ids: string[] = [];
  for (const name of ['one', 'two', 'three']) {
    const { id } = await purser.openWallet({ name });
    await purser.run('wallet.close', { id });
    ids.push(id);
  }
  const first = await purser.run('events.list', { limit: 2 });
  assert.deepEqual([first.events.map(({ data }) => data.wallet_id), first.total], [[ids[2], ids[1]], 3]);
  const rest = await purser.run('events.list', { before: first.events[1]?.id as string });
  assert.deepEqual(
    rest.events.map(({ data }) => data.wallet_id),
    [ids[0]],
  );
  const named = await purser.run('events.list', { wallet: 'two' });
  assert.deepEqual([named.events.map(({ data }) => data.wallet_id), named.total], [[ids[1]], 1]);
  assert.deepEqual((await purser.run('events.list', { since: Math.floor(purser.clock.wall() / 1000) + 1 })).events, []);
  await assert.rejects(purser.run('events.list', { wallet: 'nobody' }), /There is no wallet nobody/);
  await assert.rejects(purser.run('events.resend', { id: 'msg_' }), /There is no event msg_/);
  await assert.rejects(
    purser.run('events.resend', { id: first.events[0]?.id.slice(0, -1) as string }),
    /No receiver is configured/,
  );

  assert.deepEqual(await purser.run('checkout.list', { account: 'default', status: 'paid', limit: 5 }), {
    checkouts: [],
    total: 0,
  });
  await assert.rejects(purser.run('checkout.show', { id: 'chk_0' }), /There is no checkout chk_0/);

  const { id } = await purser.run('key.create', { account: 'default', name: 'second' });
  const keys = await purser.run('key.list', { account: 'default', limit: 1 });
  assert.deepEqual([keys.keys.map((it) => it.id), keys.total], [[id], 2]);
  assert.equal((await purser.run('key.list', { account: 'default', before: id })).keys.length, 1);
  await assert.rejects(purser.run('key.revoke', { id: 'key_' }), /There is no such key/);
  await assert.rejects(purser.run('key.revoke', { id: id.slice(0, 6) }), /may be more than one key/);
  assert.equal((await purser.run('key.revoke', { id: id.slice(0, -1) })).id, id);
});
