import assert from 'node:assert/strict';
import test from 'node:test';
import { periodAt } from '../../src/base/calendar.ts';
import { formatUsd, Nanos } from '../../src/base/money.ts';
import { brief, dollars } from '../../src/ui/parts.ts';
import { handClock, openTestServer, type TestServer } from '../helper/server.ts';
import { asAccount, asOperator, openSample, type Sample } from './sample.ts';

/** What each figure of an account is, as a sum of the journal: `books` are those that its entries go to and come from. */
const FIGURES = {
  spent: 'what left its wallets and holds to sales, and to the rounding of closed wallets',
  in_wallets: 'what its wallets and holds have',
  available: 'what its own book has',
};

function journalOf({ app }: Sample, accountId: string): Record<keyof typeof FIGURES, Nanos> {
  const sum = (sql: string) =>
    Nanos(app.ledger.client.prepare(sql).pluck().safeIntegers().get({ account: accountId }) as bigint);
  const own = `(select 'wallet:' || id from wallet where account_id = :account union all
    select 'hold:' || id from wallet where account_id = :account)`;
  const balance = (books: string) =>
    `(select coalesce(sum(amount_nanos), 0) from entry where credit in ${books})
      - (select coalesce(sum(amount_nanos), 0) from entry where debit in ${books})`;
  const sales = `(select distinct credit from entry where credit like 'sales:%' or credit = 'rounding')`;
  return {
    spent: sum(`select coalesce(sum(amount_nanos), 0) from entry where debit in ${own} and credit in ${sales}`),
    in_wallets: sum(`select ${balance(own)}`),
    available: sum(`select ${balance(`(select 'account:' || :account)`)}`),
  };
}

test('an account has one figure of what it spent, in wallets and available, and each is a sum of the journal', async (t) => {
  const sample = await openSample(t);
  const { id } = await sample.openWallet({ name: 'to be rounded' });
  await sample.chat((await sample.run('wallet.token', { id })).agent_token);
  await sample.run('wallet.close', { id });
  const { token } = await sample.openWallet({ name: 'with a child' });
  for (const [name, isClosed] of [
    ['open child', false],
    ['closed child', true],
  ] as const) {
    const body = { name, budget_usd: '1.5' };
    const child = await sample.ask('POST', '/v1/run/wallets', { token, key: name, body });
    await sample.chat(child.body.agent_token);
    if (isClosed) await sample.ask('POST', `/v1/run/wallets/${child.body.id}/close`, { token });
  }
  const journal = journalOf(sample, sample.accountId);
  assert.equal(new Set(Object.values(journal)).size, 3, 'no figure is another');
  const wanted = Object.fromEntries(Object.entries(journal).map(([name, sum]) => [name, formatUsd(sum)]));

  const account = await sample.run('account.show', { id: sample.accountId });
  assert.equal(account.spent_usd, wanted.spent);
  assert.equal(account.in_wallets_usd, wanted.in_wallets);
  assert.equal(account.available_cents, Number(journal.available / 10_000_000n));
  const listed = (await sample.run('account.list', {})).accounts.find((it) => it.id === sample.accountId);
  assert.deepEqual([listed?.spent_usd, listed?.in_wallets_usd], [wanted.spent, wanted.in_wallets]);

  const funded = sample.app.ledger.client
    .prepare(`select sum(amount_nanos) from entry where debit = 'funding' and credit = 'account:' || ?`)
    .pluck()
    .safeIntegers()
    .get(sample.accountId);
  assert.equal(journal.spent + journal.in_wallets + journal.available, funded, 'the three are the credit that came in');

  const { body: spend } = await sample.ask('GET', '/v1/spend', { token: sample.accountKey });
  assert.equal(spend.spent_usd, wanted.spent);
  assert.notEqual(spend.rounding_usd, '0.00');
  const byOperator = await sample.run('spend', { account: sample.accountId });
  assert.equal(byOperator.spent_usd, wanted.spent);
  const ofClosed = await sample.run('spend', { wallet: id });
  assert.equal(ofClosed.spent_usd, '0.01');

  const { accounts } = await sample.run('account.list', {});
  const all = { spent: 0n, in_wallets: 0n, available: 0n };
  for (const it of accounts)
    for (const [name, sum] of Object.entries(journalOf(sample, it.id))) all[name as keyof typeof FIGURES] += sum;
  const status = (await sample.run('status', {})).accounts;
  assert.deepEqual(
    [status.spent_usd, status.in_wallets_usd, status.available_usd],
    [all.spent, all.in_wallets, all.available].map((it) => formatUsd(Nanos(it))),
  );
  assert.equal((await sample.run('spend', {})).spent_usd, status.spent_usd);
  const metrics = await sample.app.events.registry.metrics();
  const charged = /^purser_accounts_charged_usd (\S+)$/m.exec(metrics)?.[1];
  assert.equal(Number(charged).toFixed(9), (Number(all.spent) / 1e9).toFixed(9));

  const shown = ['spent', 'in_wallets', 'available'] as const;
  for (const [browser, path] of [
    [await asOperator(sample), `/accounts/${sample.accountId}`],
    [await asAccount(sample), '/'],
  ] as const) {
    const { html } = await browser.get(path);
    const figure = (name: string) => new RegExp(`data-live="account\\.${name}">([^<]+)<`).exec(html)?.[1];
    assert.deepEqual(
      shown.map(figure),
      shown.map((name) => dollars(journal[name])),
      path,
    );
  }
});

/** What each figure of the first page is, as a sum of the journal since `since`; `free` is what all wallets have. */
const FIGURES_OF_NOW = {
  today: 'what left holds to sales since midnight of the reader',
  month: 'what left holds to sales since the first of the reader’s month',
  free: 'what wallets have',
};

function journalOfNow({ app }: TestServer, zone: string): Record<keyof typeof FIGURES_OF_NOW, Nanos> {
  const sum = (sql: string, ...given: number[]) =>
    Nanos(
      app.ledger.client
        .prepare(`select coalesce(sum(amount_nanos), 0) from entry where ${sql}`)
        .pluck()
        .safeIntegers()
        .get(...given) as bigint,
    );
  const sales = (since: number) => sum("credit like 'sales:%' and at >= ?", since);
  const now = app.clock.now();
  return {
    today: sales(periodAt('day', zone, now).start),
    month: sales(periodAt('month', zone, now).start),
    free: Nanos(sum("credit like 'wallet:%'") - sum("debit like 'wallet:%'")),
  };
}

test('the first page begins with today, this month and how long budgets last, in days of the reader', async (t) => {
  const time = handClock();
  time.leap(Date.UTC(2026, 2, 30, 20) / 1000 - time.wall() / 1000);
  const purser = await openTestServer(t, { time });
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 30 * 86_400 });
  const figure = (html: string, name: string) => new RegExp(`data-live="${name}">([^<]+)<`).exec(html)?.[1];
  // One charge in the evening of the 30th, one in the morning and two in the afternoon of the 31st.
  for (const [hours, chats] of [
    [0, 1],
    [9, 1],
    [11, 2],
  ] as const) {
    time.advance(hours * 3600);
    for (let i = 0; i < chats; i++) assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
  }
  time.advance(4 * 3600);
  const browser = await asOperator(purser);
  const seen = new Set<string>();
  for (const zone of ['UTC', 'Pacific/Kiritimati', 'Pacific/Pago_Pago', 'Asia/Kathmandu']) {
    browser.cookies.set('purser-zone', zone);
    const { html } = await browser.get('/');
    const wanted = Object.entries(journalOfNow(purser, zone)).map(([name, sum]) => [name, brief(sum)]);
    const shown = wanted.map(([name]) => [name, figure(html, name as string)]);
    assert.deepEqual(shown, wanted, zone);
    seen.add(JSON.stringify(shown));
    assert.ok(html.includes(`since midnight, ${zone}<`));
    assert.equal(figure(html, 'daily'), '$0.04', 'a day has passed since the first charge');
    assert.equal(figure(html, 'lasts'), '124 days');
    const spending = (await browser.get('/spend?range=month')).html;
    assert.ok(spending.includes(`<span>${dollars(journalOfNow(purser, zone).month)} in all`), `Spending, ${zone}`);
    assert.ok(html.indexOf('data-live="today"') < html.indexOf('Nothing needs a person'));
  }
  assert.ok(seen.size >= 3, 'the days of these zones differ');
  for (const zone of ['Mars/Olympus', '"><script>', '']) {
    browser.cookies.set('purser-zone', zone);
    assert.ok((await browser.get('/')).html.includes('since midnight, UTC<'), zone);
  }
  const fresh = await asOperator(await openTestServer(t));
  assert.equal(figure((await fresh.get('/')).html, 'lasts'), 'nothing is spent');
});

test('the first page counts a budget that was passed on to children once, as the status does', async (t) => {
  const purser = await openTestServer(t);
  let { token } = await purser.openWallet({ budget_cents: 500 });
  for (const budget_usd of ['4', '2.5']) {
    const body = { name: 'child', budget_usd };
    const { body: child } = await purser.ask('POST', '/v1/run/wallets', { token, key: budget_usd, body });
    token = child.agent_token;
    assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
  }
  const { wallets } = await purser.run('status', {});
  assert.deepEqual([wallets.open, wallets.budget_usd], [3, '5.00']);
  const { html } = await (await asOperator(purser)).get('/');
  const figure = (name: string) => new RegExp(`data-live="${name}">([^<]+)<`).exec(html)?.[1];
  assert.deepEqual(
    [figure('wallets'), figure('budget'), figure('free')],
    ['3', dollars(wallets.budget_usd), dollars(wallets.available_usd)],
  );
});

test('while the clock is behind the books, the first page counts what was charged until now, as Spending does', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 0 });
  assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
  purser.clock.advance(7 * 86_400);
  for (let i = 0; i < 2; i++) assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
  purser.clock.leap(-7 * 86_400 + 60);
  await purser.reopen();
  assert.equal(purser.app.clock.doubt()?.direction, 'behind');
  const browser = await asOperator(purser);
  const { html } = await browser.get('/');
  const figure = (name: string) => new RegExp(`data-live="${name}">([^<]+)<`).exec(html)?.[1];
  assert.deepEqual([figure('hour'), figure('daily')], ['$0.01', '$0.01']);
  const spent = (await browser.get('/spend?range=today')).html;
  assert.ok(spent.includes(`<span>${figure('today')} in all`), `${figure('today')}`);
});
