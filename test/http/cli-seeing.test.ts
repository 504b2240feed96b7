import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import test from 'node:test';
import { promisify } from 'node:util';
import { formatUsd, Nanos, parseUsd } from '../../src/base/money.ts';
import { clawBack } from '../../src/ledger/account.ts';
import { writeWith } from '../helper/closures.ts';
import { EXECUTABLE } from '../helper/executable.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { reset } from '../helper/upstream.ts';

/** What a command answers on stdout. */
const typing =
  (purser: TestServer) =>
  async (...args: string[]): Promise<string> =>
    (await promisify(execFile)(EXECUTABLE, ['--data', purser.directory, ...args])).stdout;

test('spend, status, lists and the timeline as an operator types them', async (t) => {
  const events = { receivers: [{ url: 'http://127.0.0.1:1/', secret: 'a signing secret of a test' }] };
  const purser = await openTestServer(t, { settings: { events } });
  await purser.run('events.test', {});
  const type = typing(purser);
  const { id, token } = await purser.openWallet({ name: 'agent-7' });
  await purser.chat(token, { metadata: { team: '=1+1,"x"' } });
  await purser.chat(token, { model: 'flat' });
  await purser.openWallet({ name: 'other' });

  assert.deepEqual(JSON.parse(await type('spend', '--json', '--wallet', 'agent-7', '--since', '7d')), {
    rows: [
      { key: 'flat', operations: 1, prompt_tokens: 10, completion_tokens: 5, charged_usd: '0.01' },
      { key: 'chat', operations: 1, prompt_tokens: 10, completion_tokens: 5, charged_usd: '0.00012' },
    ],
    total_usd: '0.01012',
    rounding_usd: '0.00',
    spent_usd: '0.01012',
  });
  assert.equal(
    await type('spend', '--by', 'tag', '--csv'),
    'key,operations,prompt_tokens,completion_tokens,charged_usd\n,1,10,5,0.01\n"team==1+1,""x""",1,10,5,0.00012\n',
  );
  for (const sums of [['spend'], ['operation', 'list']])
    await assert.rejects(type(...sums, '--since', '2026-03-02', '--until', '2026-03-01'), {
      code: 2,
      stderr: /since must be before until/,
    });
  assert.match(
    await type('spend', '--by', 'wallet'),
    /^WALLET +NAME .*\n.*agent-7 +2 +20 +10 +0\.01012\ntotal .*0\.01012$/m,
  );
  assert.match(await type('wallet', 'list', '--limit', '1'), /\n1 of 2, --all shows all; older: --before wal_/);
  assert.equal(JSON.parse(await type('wallet', 'list', '--all', '--json')).wallets.length, 2);
  for (const list of ['wallet', 'operation', 'checkout', 'events'])
    assert.doesNotMatch(await type(list, 'list', '--all'), /[\ufdd0\ufdd1]/, 'the marks of headings are not written');
  const lines = (await type('wallet', 'timeline', 'agent-7')).trimEnd().split('\n');
  assert.equal(lines.length, 6, 'who, heading, opening, two operations, foot');
  assert.match(lines[5] as string, /^2 charged 0\.01012 · chat 0\.00012 · flat 0\.01$/);
  assert.match(await type('wallet', 'timeline', id, '--steps'), /released/);
  assert.match(await type('status'), /^wallets +2 open: 0\.01012 of 20\.00 USD used/m);
  await purser.run('wallet.close', { id: 'agent-7' });
  assert.match(await type('spend', '--by', 'kind'), /^chat .*0\.01012\n\(rounding\) .*0\.00988\ntotal .*0\.02000$/m);
  for (const by of ['kind', 'wallet', 'day']) {
    const [, ...rows] = (await type('spend', '--by', by, '--csv')).trimEnd().split('\n');
    const nanos = rows.reduce((total, row) => total + parseUsd(row.slice(row.lastIndexOf(',') + 1)), 0n);
    assert.equal(formatUsd(Nanos(nanos)), '0.02', `the lines by ${by} add up to what was spent`);
  }

  await purser.close();
  const alone = JSON.parse(await type('status', '--json'));
  assert.deepEqual([alone.uptime_seconds, alone.ready, alone.wallets.open], [null, false, 1]);
  assert.match(alone.reason, /no server is running/);
});

test('the figures below a statement are the sum of its lines, of an account that owes money, too', async (t) => {
  const purser = await openTestServer(t, { creditCents: 2000 });
  const { token } = await purser.openWallet({ budget_cents: 1500 });
  await purser.chat(token, { model: 'flat' });
  const order = { accountId: purser.accountId, cents: 1200, sessionId: 'cs_1', reason: 'refund re_1' };
  await writeWith(purser.app.ledger, (tx) => clawBack(tx, order, purser.app.clock.now()));
  const shown = await typing(purser)('account', 'statement', purser.accountId);
  const lines = [...shown.matchAll(/ (?:credit|clawback) +(-?[\d.]+) /g)].map(([, it]) => it);
  assert.deepEqual(lines, ['20.00', '-12.00'], shown);
  assert.match(shown, /: 0\.00 USD available, 14\.99 in wallets, 0\.01 spent, 7\.00 owed\n$/);
});

test('operations of unknown outcome are listed oldest first, of one wallet, too', async (t) => {
  const purser = await openTestServer(t, { unknownCountMax: Number.POSITIVE_INFINITY });
  const type = typing(purser);
  const { id, token } = await purser.openWallet();
  purser.upstream.handle = reset;
  for (let i = 0; i < 3; i++) await purser.chat(token);
  const all = (await purser.run('operation.list', {})).operations.map((it) => it.id).reverse();
  for (const limits of [[], ['--wallet', id]]) {
    const list = ['operation', 'list', '--uncertain', ...limits];
    const shown = JSON.parse(await type(...list, '--limit', '2', '--json'));
    assert.deepEqual([shown.operations.map((it: { id: string }) => it.id), shown.total], [all.slice(0, 2), 3]);
    assert.match(await type(...list, '--limit', '2'), /\n2 of 3, --all shows all\n$/);
  }
  await assert.rejects(type('operation', 'list', '--uncertain', '--state', 'settled'), { code: 2 });
});

test('operations are narrowed by the options of the list, and the foot leads on where they are not counted', async (t) => {
  const purser = await openTestServer(t);
  const type = typing(purser);
  const { token } = await purser.openWallet();
  for (const model of ['flat', 'chat', 'flat', 'flat']) await purser.chat(token, { model, metadata: { team: model } });
  const all = (await purser.run('operation.list', {})).operations.map((it) => it.id);
  const ids = async (...options: string[]) =>
    JSON.parse(await type('operation', 'list', '--json', ...options)).operations.map((it: { id: string }) => it.id);
  assert.deepEqual(await ids('--model', 'flat'), [all[0], all[1], all[3]]);
  assert.deepEqual(await ids('--tag', 'team=chat'), [all[2]]);
  assert.deepEqual(await ids('--state', 'charged', '--min', '1c'), [all[0], all[1], all[3]]);
  assert.deepEqual(await ids('--max', '0.00999'), [all[2]]);
  assert.deepEqual(await ids('--until', '1h'), []);
  const shown = await type('operation', 'list', '--model', 'flat', '--limit', '2');
  assert.ok(shown.endsWith(`\n2 shown, --all shows all; older: --before ${all[1]}\n`), shown);
  assert.doesNotMatch(await type('operation', 'list', '--model', 'flat', '--all'), / shown/);
  await assert.rejects(type('operation', 'list', '--min', '5'), { code: 2 });
  const { body } = await purser.ask('GET', '/v1/run/operations?state=charged&tag=team%3Dflat&limit=2', { token });
  assert.deepEqual([body.operations.map((it: { id: string }) => it.id), body.next_cursor], [all.slice(0, 2), all[1]]);
  const rest = `/v1/run/operations?model=flat&cost_min_usd=0.01&since=0&until=9999999999&before=${all[1]}`;
  const { body: last } = await purser.ask('GET', rest, { token });
  assert.deepEqual([last.operations.map((it: { id: string }) => it.id), last.next_cursor], [[all[3]], '']);
  for (const query of ['state=open', 'cost_min_usd=five', 'since=yesterday', 'tag='])
    assert.equal((await purser.ask('GET', `/v1/run/operations?${query}`, { token })).status, 400, query);
});
