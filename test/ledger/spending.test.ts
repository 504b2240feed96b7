import assert from 'node:assert/strict';
import test from 'node:test';
import { formatUsd, Nanos } from '../../src/base/money.ts';
import { resetConnection } from '../../src/net/reset.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completion, failure, type hang } from '../helper/upstream.ts';

// Who spent what: the sums of `spend` are the journal's, by every key, in every time, for every reader.

type Entry = { at: number; causeId: string; credit: string; amount: bigint };

/** What the journal itself says was sold: entries to `sales:…`, with the operation that caused each. */
function sales(purser: TestServer) {
  const { client } = purser.app.ledger;
  const entries = client
    .prepare("select at, cause_id as causeId, credit, amount_nanos as amount from entry where credit like 'sales:%'")
    .safeIntegers()
    .all() as Entry[];
  return entries.map((it) => ({ ...it, at: Number(it.at) }));
}

const usd = (amounts: bigint[]) => formatUsd(Nanos(amounts.reduce((sum, it) => sum + it, 0n)));
const asMap = (rows: { key: string; charged_usd: string }[]) =>
  Object.fromEntries(rows.filter((it) => it.charged_usd !== '0.00').map((it) => [it.key, it.charged_usd]));

function grouped(entries: (Entry & { key: string })[]) {
  const groups = Map.groupBy(entries, (it) => it.key);
  return Object.fromEntries([...groups].map(([key, of]) => [key, usd(of.map((it) => it.amount))]));
}

test(`after random operations every sum is the journal's (seed ${SEED})`, async (t) => {
  const random = createRandom(SEED);
  const purser = await openTestServer(t, {
    change: (settings) => ({ ...settings, router: { ...settings.router, uncertain: { after_seconds: 60 } } }),
  });
  const other = await purser.run('account.create', { name: 'other', creditCents: 100_000 });
  const otherKey = (await purser.run('key.create', { account: other.id, name: 'k' })).key;
  const wallets: { id: string; token: string; account: string; parent?: string }[] = [];
  for (let i = 0; i < 3; i++)
    wallets.push({ ...(await purser.openWallet({ expires_in_seconds: 0 })), account: purser.accountId });
  const opened = await purser.ask('POST', '/v1/wallets', {
    token: otherKey,
    key: 'w',
    body: { name: 'theirs', budget_cents: 500, expires_in_seconds: 0 },
  });
  wallets.push({ id: opened.body.id, token: opened.body.agent_token, account: other.id });
  const [parent] = wallets as [(typeof wallets)[0]];
  const child = await purser.ask('POST', '/v1/run/wallets', {
    token: parent.token,
    key: 'c',
    body: { name: 'child', budget_usd: '2.00', expires_in_seconds: 0 },
  });
  assert.equal(child.status, 201, child.text);
  wallets.push({ id: child.body.id, token: child.body.agent_token, account: purser.accountId, parent: parent.id });

  const tagged = new Map<string, string>();
  for (let i = 0; i < length(300, 800); i++) {
    const wallet = random.pick(wallets);
    const model = random.pick(['chat', 'flat', 'free']);
    const usage = { prompt_tokens: random.whole(1, 20), completion_tokens: random.whole(0, 100), total_tokens: 0 };
    usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
    const what = random.weighted({ answered: 8, refused: 1, reset: 1, noUsage: 1 });
    purser.upstream.handle = {
      answered: completion(usage),
      refused: failure(400),
      reset: ((_, response) => resetConnection(response.socket)) as typeof hang,
      noUsage: completion(undefined),
    }[what];
    const tag = random.pick(['red', 'blue', undefined]);
    const answer = await purser.chat(wallet.token, { model, ...(tag ? { metadata: { team: tag } } : {}) });
    assert.ok([200, 400, 503].includes(answer.status), answer.text);
    tagged.set(answer.headers['x-request-id'] as string, tag ? `team=${tag}` : '');
    if (random.whole(1, 10) === 1) purser.clock.advance(random.whole(1, 20_000) / 10);
  }
  // Half of what is uncertain is decided by hand, with a charge or without.
  const { operations } = await purser.run('operation.list', { uncertain: true });
  for (const { id } of operations.filter((_, i) => i % 2 === 0))
    await purser.run('operation.resolve', { id, decision: random.pick(['charge', 'release']), reason: 'test' });

  const byId = new Map(
    (
      purser.app.ledger.client.prepare('select * from operation').all() as {
        id: string;
        wallet_id: string;
        subject: string;
        kind: string;
        request_id: string;
        settled_at: number;
      }[]
    ).map((it) => [it.id, it]),
  );
  const walletById = new Map(wallets.map((it) => [it.id, it]));
  const entries = sales(purser).map((it) => ({ ...it, operation: byId.get(it.causeId) as never as any }));
  assert.ok(entries.length > 50, 'enough was charged');
  const keys = {
    model: (it: (typeof entries)[0]) => it.operation.subject,
    wallet: (it: (typeof entries)[0]) => it.operation.wallet_id,
    account: (it: (typeof entries)[0]) => walletById.get(it.operation.wallet_id)?.account as string,
    day: (it: (typeof entries)[0]) => new Date(it.at * 1000).toISOString().slice(0, 10),
    kind: (it: (typeof entries)[0]) => it.credit.slice('sales:'.length),
    tag: (it: (typeof entries)[0]) => tagged.get(it.operation.request_id) as string,
  };
  for (const by of Object.keys(keys) as (keyof typeof keys)[])
    for (let i = 0; i < 8; i++) {
      const since = i === 0 ? undefined : random.pick(entries).at;
      const after = entries.filter(({ at }) => at > (since ?? 0));
      const until = i % 2 === 0 || after.length === 0 ? undefined : random.pick(after).at;
      const within = entries.filter((it) => it.at >= (since ?? 0) && it.at < (until ?? Number.POSITIVE_INFINITY));
      const expect = (of: typeof entries) => ({
        rows: grouped(of.map((it) => ({ ...it, key: keys[by](it) }))),
        total: usd(of.map((it) => it.amount)),
      });
      const said = (body: any) => ({ rows: asMap(body.rows), total: body.total_usd });
      const order = { by, ...(since === undefined ? {} : { since }), ...(until === undefined ? {} : { until }) };
      const where = JSON.stringify({ ...order, seed: SEED });
      assert.deepEqual(said(await purser.run('spend', order)), expect(within), where);

      const account = random.pick([purser.accountId, other.id]);
      const ofAccount = within.filter((it) => walletById.get(it.operation.wallet_id)?.account === account);
      assert.deepEqual(said(await purser.run('spend', { ...order, account })), expect(ofAccount), where);
      const query = new URLSearchParams(
        Object.entries(order).map(([name, value]): [string, string] => [name, String(value)]),
      );
      const token = account === other.id ? otherKey : purser.accountKey;
      const asked = await purser.ask('GET', `/v1/spend?${query}`, { token });
      assert.deepEqual(said(asked.body), expect(ofAccount), where);

      const wallet = random.pick(wallets);
      const isBelow = (id: string) => id === wallet.id || walletById.get(id)?.parent === wallet.id;
      const ofTree = within.filter((it) => isBelow(it.operation.wallet_id));
      const run = await purser.ask('GET', `/v1/run/spend?${query}`, { token: wallet.token });
      assert.deepEqual(said(run.body), expect(ofTree), where);
    }
  assert.deepEqual(purser.problems(), []);
});

test('a row counts operations and tokens, free ones too; what is refused or unknown is in none', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ name: 'counter' });
  await purser.chat(token, { model: 'free' });
  await purser.chat(token, { model: 'free' });
  await purser.chat(token);
  purser.upstream.handle = failure(400);
  await purser.chat(token);
  const { rows, total_usd, names } = await purser.run('spend', { by: 'wallet' });
  assert.deepEqual(rows, [
    { key: id, operations: 3, prompt_tokens: 30, completion_tokens: 15, charged_usd: '0.00012' },
  ]);
  assert.deepEqual([total_usd, names], ['0.00012', { [id]: 'counter' }]);
  const byModel = (await purser.run('spend', {})).rows;
  assert.deepEqual(
    byModel.map((it) => [it.key, it.operations, it.charged_usd]),
    [
      ['chat', 1, '0.00012'],
      ['free', 2, '0.00'],
    ],
  );
});

test('an unknown parameter, a bad time and another account’s wallet are refused', async (t) => {
  const purser = await openTestServer(t);
  const other = await purser.run('account.create', { name: 'other' });
  const key = (await purser.run('key.create', { account: other.id, name: 'k' })).key;
  const { id, token } = await purser.openWallet();
  const status = async (query: string, as = purser.accountKey) =>
    (await purser.ask('GET', `/v1/spend?${query}`, { token: as })).status;
  for (const query of ['by=colour', 'since=7d', 'since=-1', 'limit=3', 'until=1e9', 'wallet=x'])
    assert.equal(await status(query), 400, query);
  assert.equal(await status(`wallet_id=${id}`), 200);
  assert.equal(await status(`wallet_id=${id}`, key), 404);
  assert.equal((await purser.ask('GET', '/v1/run/spend?wallet_id=x', { token })).status, 400);
  assert.equal((await purser.ask('GET', '/v1/run/spend', { token: purser.accountKey })).status, 403);
});
