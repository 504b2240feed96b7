import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { formatUsd, Nanos, parseUsd } from '../../src/base/money.ts';
import { handClock, openTestServer } from '../helper/server.ts';
import { asAccount, asOperator, openMany, tableOf } from './sample.ts';

const DAY = 86_400;

const columns = (html: string, ...labels: string[]) =>
  tableOf(html, 'Spending').map((row) => labels.map((it) => row[it]));

/** Reads a file of comma-separated values, with quotes. */
const csvRows = (text: string) =>
  text
    .trimEnd()
    .split('\r\n')
    .map((line) => [...line.matchAll(/("(?:[^"]|"")*"|[^,]*)(?:,|$)/g)].map(([, cell = '']) => cell).slice(0, -1));

/**
 * Two wallets with charges of a cent each over 15 days: 2 a week and a half ago and 3 in the last week on `flat`, 1 on `chat`; at
 * noon of 31 March 2026.
 */
async function openPast(t: TestContext) {
  const time = handClock();
  const at = (day: number, hour: number) => Date.UTC(2026, 2, day, hour) / 1000;
  time.leap(at(16, 12) - time.wall() / 1000);
  const purser = await openTestServer(t, { time });
  const options = { budget_cents: 500, expires_in_seconds: 30 * DAY };
  const red = await purser.openWallet({ ...options, name: 'red agent' });
  const blue = await purser.openWallet({ ...options, name: '=blue "agent"' });
  const spend = async (day: number, hour: number, token: string, model: string, team: string) => {
    time.advance(at(day, hour) - time.wall() / 1000);
    assert.equal((await purser.chat(token, { model, metadata: { team } })).status, 200);
  };
  await spend(20, 12, red.token, 'flat', 'red');
  await spend(21, 12, red.token, 'dear', 'red');
  await spend(22, 23, blue.token, 'flat', 'blue');
  await spend(28, 23, red.token, 'flat', 'red');
  await spend(30, 1, red.token, 'flat', 'red');
  await spend(30, 23, blue.token, 'flat', 'blue');
  time.advance(at(31, 12) - time.wall() / 1000);
  return { purser, red, blue, browser: await asOperator(purser) };
}

test('the last 7 days stand beside the 7 before, with both sums, for models that only one of them has as well', async (t) => {
  const { browser } = await openPast(t);
  const { html } = await browser.get('/spend?range=7d&beside=before');
  const [flat, dear, ...others] = columns(html, 'Model or slot', 'Charged', 'Time before', 'Change');
  assert.deepEqual(flat, ['flat', '0.030000000', '0.020000000', '+0.010000000']);
  assert.deepEqual(dear?.slice(0, 2), ['dear', '0.000000000']);
  assert.equal(dear?.[3], `−${dear?.[2]}`);
  assert.deepEqual(others, []);
  assert.match(html, /\$0\.03 in all, \$0\.\d+ in the same time before/);
});

test('days are those of the zone, and a range of own days includes both', async (t) => {
  const { browser } = await openPast(t);
  const days = async (query: string) =>
    columns((await browser.get(`/spend?by=day&from=2026-03-22&to=2026-03-30${query}`)).html, 'Day', 'Requests');
  assert.deepEqual(await days(''), [
    ['2026-03-22', '1'],
    ['2026-03-28', '1'],
    ['2026-03-30', '2'],
  ]);
  assert.deepEqual(await days('&zone=Pacific/Kiritimati'), [
    ['2026-03-22', '1'],
    ['2026-03-23', '1'],
    ['2026-03-29', '1'],
    ['2026-03-30', '1'],
  ]);
  browser.cookies.set('purser-zone', 'Pacific/Kiritimati');
  assert.deepEqual(await days(''), await days('&zone=Pacific/Kiritimati'), 'the zone of the reader');
  for (const query of ['zone=Mars/Olympus', 'from=2026-02-30', 'from=yesterday', 'from=2026-03-02&to=2026-03-01'])
    assert.equal((await browser.get(`/spend?${query}`)).status, 400, query);
});

test('spending is narrowed to a wallet, a model, a tag, a kind, and summed by two keys', async (t) => {
  const { browser, red, blue, purser } = await openPast(t);
  const rows = async (query: string, ...labels: string[]) =>
    columns((await browser.get(`/spend?range=30d&${query}`)).html, ...labels, 'Requests');
  assert.deepEqual(await rows('by=wallet&tag=team%3Dblue', 'Wallet'), [['=blue &quot;agent&quot;', '2']]);
  assert.deepEqual(await rows('by=tag&wallet=red+agent', 'Tag'), [['team=red', '4']]);
  assert.deepEqual(await rows(`by=tag&wallet=${blue.id}`, 'Tag'), [['team=blue', '2']]);
  assert.deepEqual(await rows('by=wallet&model=dear', 'Wallet'), [['red agent', '1']]);
  assert.deepEqual(await rows('by=kind&kind=chat', 'Kind'), [['chat', '6']]);
  assert.deepEqual(await rows('by=kind&kind=compute_create', 'Kind'), []);
  const two = await rows('by=wallet&and=model', 'Wallet', 'Model or slot');
  assert.deepEqual(two.map((row) => row.join(' ')).sort(), [
    '=blue &quot;agent&quot; flat 2',
    'red agent dear 1',
    'red agent flat 3',
  ]);
  // Who used a tag yesterday: one address.
  assert.deepEqual(
    columns((await browser.get('/spend?by=wallet&range=yesterday&tag=team%3Dblue')).html, 'Wallet', 'Requests'),
    [['=blue &quot;agent&quot;', '1']],
  );
  const other = await purser.run('account.create', { name: 'other', creditCents: 500 });
  const foreign = await purser.run('wallet.create', {
    account: other.id,
    name: 'foreign',
    budget_cents: 100,
    expires_in_seconds: 0,
  });
  const holder = await asAccount(purser);
  for (const wallet of [foreign.id, 'foreign', 'no such'])
    assert.equal((await holder.get(`/spend?wallet=${encodeURIComponent(wallet)}`)).status, 404, wallet);
  assert.deepEqual(columns((await holder.get(`/spend?range=30d&by=tag&wallet=${red.id}`)).html, 'Tag', 'Requests'), [
    ['team=red', '4'],
  ]);
  assert.equal((await browser.get(`/spend?account=other&wallet=${red.id}`)).status, 404);
  assert.equal((await browser.get('/spend?account=other')).html.includes('Nothing was charged'), true);
});

test('the holder of an account finds a wallet by its whole name, however many newer names contain it', async (t) => {
  const count = 1001;
  const purser = await openTestServer(t, { creditCents: (count + 4) * 100 });
  const of = { account: purser.accountId, budget_cents: 100, expires_in_seconds: 0 };
  await purser.run('wallet.create', { ...of, name: 'agent' });
  const twin = await purser.run('wallet.create', { ...of, name: 'twin' });
  await purser.run('wallet.create', { ...of, name: 'twin' });
  await openMany(purser, count, (at) => `agent ${at}`);
  const holder = await asAccount(purser);
  assert.match((await holder.get('/spend?wallet=agent')).html, /: agent</);
  assert.equal((await holder.get('/spend?wallet=twin')).status, 409);
  await purser.run('wallet.close', { id: twin.id });
  assert.equal((await holder.get('/spend?wallet=twin')).status, 200, 'the only one that is open');
});

test('a tag that begins or ends with a space is followed to what was charged for it, and not to another', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ budget_cents: 500 });
  const values = ['red', 'red ', 'red\u00a0', ' '];
  for (const [at, team] of values.entries())
    for (let i = 0; i <= at; i++) await purser.chat(token, { model: 'flat', metadata: { team } });
  const browser = await asOperator(purser);
  const linkOf = (html: string, tag: string) =>
    [...html.matchAll(/<a href="([^"]*tag=[^"]*)">([^<]*)</g)].find(([, , text]) => text === tag)?.[1] as string;
  for (const [at, team] of values.entries()) {
    const spent = (await browser.get('/spend?by=tag')).html;
    const followed = await browser.get(linkOf(spent, `team=${team}`).replaceAll('&amp;', '&'));
    assert.deepEqual(columns(followed.html, 'Requests'), [[String(at + 1)]], JSON.stringify(team));
    assert.ok(followed.html.includes(`name="tag" type="text" value="team=${team}"`), 'the form keeps it');
    const operations = (await browser.get('/operations')).html;
    const found = await browser.get(linkOf(operations, `team=${team}`).replaceAll('&amp;', '&'));
    assert.equal(tableOf(found.html, 'Operations').length, at + 1, JSON.stringify(team));
    assert.ok(found.html.includes(`name="tag" type="text" value="team=${team}"`), 'the form keeps it');
  }
  for (const path of ['/spend?by=model&tag=', '/spend?by=model&tag=+'])
    assert.deepEqual(columns((await browser.get(path)).html, 'Requests'), [['10']], path);
  assert.equal(tableOf((await browser.get('/operations?tag=+')).html, 'Operations').length, 10);
  assert.deepEqual(purser.problems(), []);
});

test('wallets of one name are apart in the picture as in the table, also one that is named as the rest', async (t) => {
  const purser = await openTestServer(t);
  const wanted: string[] = [];
  for (const [name, chats] of [
    ['agent', 1],
    ['agent', 2],
    ['(others)', 3],
    ['alone', 4],
  ] as const) {
    const { id, token } = await purser.openWallet({ name, budget_cents: 200 });
    for (let i = 0; i < chats; i++) assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
    wanted.push(`${name === 'alone' ? name : `${name} …${id.slice(-6)}`} $0.0${chats}`);
  }
  const { html } = await (await asOperator(purser)).get('/spend?by=wallet');
  const legend = /<ul class="legend">(.*?)<\/ul>/s.exec(html)?.[1] ?? '';
  const shown = [...legend.matchAll(/<li>(.*?)<\/li>/g)].map(([, it = '']) => it.replace(/<[^>]+>/g, ''));
  assert.deepEqual(shown, wanted.reverse());
});

test('the file has every row that is seen, with ids beside names, and no cell that a spreadsheet runs', async (t) => {
  const { browser, red, blue } = await openPast(t);
  const path = '/spend?by=wallet&and=model&range=7d&beside=before';
  const { html } = await browser.get(path);
  const href = /href="([^"]+)">CSV</.exec(html)?.[1]?.replaceAll('&amp;', '&') as string;
  const { html: file, headers } = await browser.get(href);
  assert.equal(headers['content-type'], 'text/csv; charset=utf-8');
  assert.match(headers['content-disposition'] as string, /^attachment/);
  const [heading, ...rows] = csvRows(file);
  assert.deepEqual(heading, [
    ...['wallet_id', 'wallet', 'model', 'requests', 'prompt_tokens', 'completion_tokens', 'charged_usd'],
    'charged_before_usd',
  ]);
  const seen = tableOf(html, 'Spending');
  assert.equal(rows.length, 3);
  assert.equal(seen.length, 3);
  for (const [at, row] of rows.entries()) {
    const it = seen[at] as Record<string, string>;
    const isBlue = row[0] === blue.id;
    if (!isBlue) assert.equal(row[0], red.id);
    assert.equal(row[1], isBlue ? '"\'=blue ""agent"""' : 'red agent');
    assert.deepEqual(
      [row[2], row[3], row[4], row[5]],
      [it['Model or slot'], it.Requests, it['Prompt tokens'], it['Completion tokens']],
    );
    for (const [cell, label] of [
      [row[6], 'Charged'],
      [row[7], 'Time before'],
    ] as const)
      assert.equal(Number(cell).toFixed(9), it[label], label);
  }
});

test('the lines of the file add up to what was spent, with the rounding of closed wallets', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  assert.equal((await purser.chat(token)).status, 200);
  await purser.run('wallet.close', { id });
  const { spent_usd: spent } = await purser.run('account.show', { id: purser.accountId });
  assert.equal(spent, '0.01');
  const browser = await asOperator(purser);
  for (const [path, at] of [
    ['/spend?by=model&range=1d&as=csv', 4],
    ['/spend?by=wallet&and=kind&range=1d&beside=before&as=csv', 6],
  ] as const) {
    const [heading, ...rows] = csvRows((await browser.get(path)).html);
    assert.equal(heading?.[at], 'charged_usd');
    const total = rows.reduce((sum, row) => sum + parseUsd(row[at] as string), 0n);
    assert.equal(formatUsd(Nanos(total)), spent, rows.join());
    assert.equal(rows.at(-1)?.[0], '(rounding)');
  }
});

test('the picture follows the sums, has an axis of dates and round amounts, and bars that fit the time', async (t) => {
  const { browser } = await openPast(t);
  const picture = async (query: string) => {
    const [, html = ''] =
      /(<figure class="picture">.*?<\/figure>)/s.exec((await browser.get(`/spend?${query}`)).html) ?? [];
    const all = (pattern: RegExp) => [...html.matchAll(pattern)].map(([, text]) => text);
    return {
      bars: all(/<rect class="s\d"[^>]*><title>(.*?)<\/title>/g),
      times: all(/<text [^>]*>(.*?)<\/text>/g),
      amounts: all(/<div class="y"[^>]*><span>([^<]+)<\/span>/g),
      series: all(/<li><span class="swatch s\d"><\/span>(.*?) <b>/g),
    };
  };
  const week = await picture('by=tag&range=7d');
  assert.deepEqual(week.series, ['team=red', 'team=blue']);
  assert.deepEqual(week.amounts, ['$0.02']);
  assert.deepEqual(week.times, ['24 Mar', '26 Mar', '28 Mar', '30 Mar']);
  assert.ok(week.bars.includes('Monday, 30 March 2026: team=blue $0.01'), String(week.bars));
  assert.deepEqual((await picture('by=day&range=7d')).series, ['charged']);
  assert.ok((await picture('range=yesterday')).times.every((it) => /^30 Mar, \d\d:00$/.test(it as string)));
  const year = await picture('from=2025-06-01&to=2026-03-31');
  assert.ok(
    year.times.length >= 3 && year.times.every((it) => /^\d+ \w+ \d\d$/.test(it as string)),
    String(year.times),
  );
  const years = await picture('from=2022-06-01&to=2026-03-31');
  assert.ok(
    years.times.every((it) => /^\w+ 20\d\d$/.test(it as string)),
    String(years.times),
  );
});
