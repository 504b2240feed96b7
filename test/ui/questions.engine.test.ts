import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import type { Locator, Page } from 'playwright-core';
import { sumSpending } from '../../src/ledger/spending.ts';
import { brief } from '../../src/ui/parts.ts';
import { openChromium } from '../helper/chromium.ts';
import { LONG } from '../lease/leases.ts';
import { openSample, type Sample } from './sample.ts';

// What an owner asks, answered on the page by a person with a mouse or a thumb, beginning on the first page.

const CLICK_COUNT_MAX = 3;
const DAY = 86_400;

/** A person at the page. A field that is written into costs a click as well; the Enter key does not. */
class Person {
  clicks = 0;
  readonly page: Page;
  constructor(page: Page) {
    this.page = page;
  }
  async click(what: Locator): Promise<void> {
    this.clicks++;
    await what.click();
  }
  /** Goes to an entry of the menu. */
  async open(entry: string): Promise<void> {
    await this.click(this.page.getByLabel('Main').getByRole('link', { name: entry, exact: true }));
    await this.page.getByRole('heading', { name: entry, level: 1 }).waitFor();
  }
  async write(field: Locator, text: string): Promise<void> {
    this.clicks++;
    await field.fill(text);
    await field.press('Enter');
  }
  /** Returns the cells of the row of a table that begins with this name, by their headings. */
  async row(table: string, name: string): Promise<Record<string, string>> {
    const region = this.page.getByRole('region', { name: table, exact: true });
    const row = region.getByRole('row').filter({ has: this.page.locator('td.name', { hasText: name }) });
    const headings = await region.locator('thead').locator('th, td').allInnerTexts();
    const cells = await row.first().locator('td').allInnerTexts();
    return Object.fromEntries(headings.map((it, at) => [it, (cells[at] as string).replaceAll(',', '')]));
  }
}

/** The sample nine days later: each question has one answer in it, and others beside it. */
async function openLater(t: TestContext): Promise<Sample> {
  const sample = await openSample(t, {}, 'batch import');
  const [first, second] = sample.wallets as [Sample['wallets'][0], Sample['wallets'][0]];
  sample.clock.advance(5 * DAY);
  for (const [wallet, name, value] of [
    [first, 'job', 'nightly'],
    [second, 'job', 'nightly'],
    [first, 'job', 'hourly'],
  ] as const)
    await sample.chat(wallet.token, { metadata: { [name]: value } });
  sample.clock.advance(DAY);
  await sample.chat(first.token);
  return sample;
}

const DESK = { width: 1280, height: 860 };
const PHONE = { width: 390, height: 844 };
const ON_THE_PHONE = 'stop an agent, on the phone';

/** How a person finds each answer. What changes the sample comes last. */
const QUESTIONS: Record<string, (person: Person, sample: Sample) => Promise<void>> = {
  async 'what did it cost this month?'({ page }, sample) {
    const now = new Date(sample.clock.wall());
    const since = Date.UTC(now.getUTCFullYear(), now.getUTCMonth()) / 1000;
    const { total } = await sumSpending(sample.app.ledger.read, {
      by: 'model',
      since,
      until: sample.app.clock.now() + 1,
    });
    assert.ok(total > 0n);
    const figure = page.locator('.figure').filter({ hasText: 'Charged this month' });
    assert.equal(await figure.locator('.value').innerText(), brief(total));
  },

  async 'which model grew, the last 7 days beside the 7 before?'(person, sample) {
    await person.open('Spending');
    await person.click(person.page.getByRole('link', { name: 'The last 7 days beside the 7 before' }));
    await person.page.getByText('in the same time before').waitFor();
    const now = sample.app.clock.now();
    const sums = (since: number, until: number) => sumSpending(sample.app.ledger.read, { by: 'model', since, until });
    const [late, early] = [await sums(now - 7 * DAY, now + 1), await sums(now - 14 * DAY - 1, now - 7 * DAY)];
    assert.ok(late.rows.length > 1 && early.rows.length > 1, 'both weeks have spending');
    for (const { key, charged } of late.rows) {
      const before = early.rows.find((it) => it.key === key)?.charged ?? 0n;
      const shown = await person.row('Spending', key);
      const nanos = (text: string | undefined) => BigInt((text ?? '').replace(/[.+]/g, '').replace('−', '-'));
      assert.deepEqual([nanos(shown.Charged), nanos(shown['Time before'])], [charged, before], key);
      assert.equal(nanos(shown.Change), charged - before, key);
    }
  },

  async 'why is this wallet empty: charged, delegated, held, and by which model?'(person, sample) {
    const [wallet] = sample.wallets as [Sample['wallets'][0]];
    await person.open('Wallets');
    await person.click(person.page.getByRole('link', { name: wallet.name, exact: true }));
    const { spent, held, delegated } = sample.wallet(wallet.id);
    assert.ok(spent > 0n && delegated > 0n);
    const legend = await person.page.locator('.legend').first().innerText();
    for (const [name, amount] of Object.entries({ spent, held, delegated })) {
      const [, shown = ''] = new RegExp(`${name}\\s+\\$([\\d.]+)`).exec(legend) ?? [];
      assert.equal(Number(shown), Number(amount) / 1e9, name);
    }
    const { rows } = await sumSpending(sample.app.ledger.read, { by: 'model', scope: { wallet: wallet.id } });
    for (const { key, charged } of rows)
      assert.equal(Number((await person.row('Spent by model', key)).Charged), Number(charged) / 1e9, key);
  },

  async 'where is request X?'(person, sample) {
    const { operations } = await sample.run('operation.list', { limit: 100 });
    const sought = operations.at(-1) as (typeof operations)[0];
    await person.open('Operations');
    await person.write(person.page.getByLabel(/request/i), sought.request_id);
    await person.page.waitForURL(`**/operations/${sought.id}`);
    await person.page.getByText(sought.request_id).first().waitFor();
  },

  async 'who used the tag job=nightly yesterday?'(person) {
    await person.open('Spending');
    await person.click(person.page.getByRole('link', { name: 'Yesterday by tag' }));
    await person.click(person.page.getByRole('link', { name: 'job=nightly', exact: true }));
    const names = person.page.getByRole('region', { name: 'Spending', exact: true }).locator('td.name');
    await person.page.getByRole('heading', { name: 'By wallet, yesterday' }).waitFor();
    assert.deepEqual((await names.allInnerTexts()).toSorted(), ['code review', 'research agent']);
  },

  async 'raise a budget by two dollars'(person, sample) {
    const [wallet] = sample.wallets as [Sample['wallets'][0]];
    const { budget } = sample.wallet(wallet.id);
    await person.open('Wallets');
    await person.click(person.page.getByRole('link', { name: wallet.name, exact: true }));
    await person.write(person.page.getByLabel('Raise the budget by'), '2');
    await person.page.getByText('The budget was changed.').waitFor();
    assert.equal(sample.wallet(wallet.id).budget - budget, 2_000_000_000n);
  },

  async 'which lease has the latest deadline?'(person, sample) {
    const { token } = await sample.openWallet({ ...LONG, name: 'the long one' });
    const { body } = await sample.lease(token, randomUUID(), { cpus: 0.5, memory_gib: 0.25, max_seconds: 3600 });
    const short = await sample.openWallet({ ...LONG, name: 'the short one' });
    await sample.lease(short.token);
    await person.open('Leases');
    const latest = person.page.locator('.figure').filter({ hasText: 'Latest deadline' });
    assert.match(await latest.innerText(), /the long one/);
    assert.equal(await latest.locator(`a[href="/leases/${body.id}"]`).count(), 1);
  },

  async [ON_THE_PHONE](person, sample) {
    const [wallet] = sample.wallets as [Sample['wallets'][0]];
    const row = person.page.getByRole('row').filter({ hasText: wallet.name });
    await person.click(row.getByRole('link', { name: 'Stop' }));
    await person.click(person.page.getByRole('button', { name: 'Freeze the wallet' }));
    await person.page.getByText('The wallet is frozen.').waitFor();
    assert.equal((await sample.chat(wallet.token)).body.error.code, 'wallet_frozen');
  },
};

test('what an owner asks', async (t) => {
  const sample = await openLater(t);
  const chromium = await openChromium(t, sample.url);
  if (!chromium) return;
  for (const [question, answer] of Object.entries(QUESTIONS))
    await t.test(question, async (t) => {
      const [viewport, hasTouch] = question === ON_THE_PHONE ? [PHONE, true] : [DESK, false];
      const { page, context } = await chromium.open({ viewport, timezoneId: 'UTC', hasTouch });
      await page.goto((await sample.run('ui.link', {})).url);
      const person = new Person(page);
      await answer(person, sample);
      t.diagnostic(`${person.clicks} clicks`);
      assert.ok(person.clicks <= CLICK_COUNT_MAX, `${person.clicks} clicks`);
      assert.deepEqual(chromium.faults, []);
      await context.close();
    });
});
