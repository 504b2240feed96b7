import { findAccount } from '../../ledger/account.ts';
import {
  SPEND_BY,
  type SpendBy,
  type Spending,
  type SpendScope,
  spendingByPeriod,
  sumSpending,
} from '../../ledger/spending.ts';
import { findWallet } from '../../ledger/wallet.ts';
import { type Html, type HtmlValue, html } from '../html.ts';
import type { Page } from '../layout.ts';
import { card, count, dollars, filters, link, money, named, outside, pagesOf, table } from '../parts.ts';
import { spendingChart } from '../pictures.ts';
import { accountIn, type Visit } from '../visit.ts';

const HOUR = 3600;
const DAY = 86_400;
const RANGES: Record<string, { text: string; seconds: number; step: number }> = {
  '1d': { text: 'the last 24 hours', seconds: DAY, step: HOUR },
  '7d': { text: 'the last 7 days', seconds: 7 * DAY, step: 6 * HOUR },
  '30d': { text: 'the last 30 days', seconds: 30 * DAY, step: DAY },
  '90d': { text: 'the last 90 days', seconds: 90 * DAY, step: DAY },
};
const NAMES: Record<SpendBy, string> = {
  model: 'Model or slot',
  wallet: 'Wallet',
  account: 'Account',
  day: 'Day (UTC)',
  tag: 'Tag',
  kind: 'Kind',
};
const ROW_COUNT = 200;

/** Shows the spending, by model, wallet, day, tag and so on: as a picture and as a table. */
export async function spendPage(visit: Visit): Promise<Page> {
  const { app, viewer, query, now } = visit;
  const { read } = app.ledger;
  const isOperator = viewer.kind === 'operator';
  const by = SPEND_BY.find((it) => it === query.get('by')) ?? 'model';
  const rangeName = Object.hasOwn(RANGES, query.get('range') ?? '') ? (query.get('range') as string) : '7d';
  const range = RANGES[rangeName] as (typeof RANGES)[string];
  const accountId = accountIn(visit);
  const scope: SpendScope = accountId === undefined ? undefined : { account: accountId };
  const since = Math.floor((now - range.seconds) / range.step) * range.step;
  const pictured = by === 'day' || by === 'tag' ? 'model' : by;
  const [sums, cells] = await Promise.all([
    sumSpending(read, { by, scope, since }),
    spendingByPeriod(read, { by: [pictured], scope, since, seconds: range.step }),
  ]);
  const nameOf = (key: string, kind: SpendBy): string => {
    if (kind === 'wallet') return named(key, findWallet(read, key)?.name);
    if (kind === 'account') return named(key, findAccount(read, key)?.name);
    return key || '(no tag)';
  };
  const shown = (key: string): HtmlValue => {
    const name = outside(nameOf(key, by));
    if (by === 'wallet') return link(`/wallets/${key}`, name);
    return by === 'account' && isOperator ? link(`/accounts/${key}`, name) : name;
  };
  const total = sums.total;
  const part = pagesOf(visit, 'sums', sums.rows, ROW_COUNT, ['First', 'More']);
  const list = sumsTable(part.shown, total, by, range.text, shown);
  const account = isOperator && accountId !== undefined ? findAccount(read, accountId) : undefined;
  const choices = SPEND_BY.filter((it) => isOperator || it !== 'account').map((it) => [it, `by ${it}`] as const);
  const body = html`
    ${filters('/spend', [
      { name: 'by', label: 'Sum', value: by, options: choices },
      {
        name: 'range',
        label: 'Of',
        value: rangeName,
        options: Object.entries(RANGES).map(([name, { text }]) => [name, text] as const),
      },
      ...(account
        ? [
            {
              name: 'account',
              label: 'Account',
              value: account.id,
              options: [
                [account.id, named(account.id, account.name)],
                ['', 'all accounts'],
              ] as const,
            },
          ]
        : []),
    ])}
    ${
      cells.length > 0 &&
      card(
        `Over time, by ${pictured}`,
        spendingChart(
          `Spending by ${pictured}`,
          cells.map((it) => ({ at: it.at, key: nameOf(it.keys[0] as string, pictured), amount: it.charged })),
          { since, until: now, step: range.step, what: NAMES[pictured] },
        ),
      )
    }
    ${card(`By ${by}`, html`${list}${part.pages}`, html`${dollars(total)} in all${sums.rounding > 0n && html`, and ${dollars(sums.rounding)} by rounding closed wallets up to a cent`}${by === 'tag' && ', each once; an operation is in the row of each of its tags'}${sums.others && html`, ${dollars(sums.others.charged)} of it in smaller sums that are not shown`}`, 'sums')}`;
  return { title: 'Spending', body, section: '/spend' };
}

/** Shows sums as a table, each with its share of the total. */
const sumsTable = (
  sums: Readonly<Spending['rows']>,
  total: bigint,
  by: SpendBy,
  rangeText: string,
  nameOf: (key: string) => HtmlValue,
): Html =>
  table(
    'Spending',
    [
      { label: NAMES[by] },
      { label: 'Requests', kind: 'number' },
      { label: 'Prompt tokens', kind: 'number' },
      { label: 'Completion tokens', kind: 'number' },
      { label: 'Charged', kind: 'money' },
      { label: 'Share' },
    ],
    sums.map((it) => [
      nameOf(it.key),
      count(it.operations),
      count(it.promptTokens),
      count(it.completionTokens),
      money(it.charged),
      share(it.charged, total),
    ]),
    html`Nothing was charged in ${rangeText}. Choose a longer time above.`,
  );

function share(part: bigint, whole: bigint): Html {
  const percent = whole > 0n ? (Number(part) / Number(whole)) * 100 : 0;
  return html`<svg class="time-left" role="img" aria-label="${percent.toFixed(0)}%" width="100%" height="8"><rect class="spent" width="${percent.toFixed(2)}%" height="8"></rect></svg>`;
}
