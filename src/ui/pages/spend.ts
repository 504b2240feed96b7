import { startsBetween } from '../../base/calendar.ts';
import { csvCell } from '../../base/csv.ts';
import { formatUsd, type Nanos, ZERO } from '../../base/money.ts';
import { OPERATION_KINDS } from '../../db/enums.ts';
import { findAccount } from '../../ledger/account.ts';
import {
  OTHER_KEYS,
  SPEND_BY,
  type SpendBy,
  type Spending,
  type SpendRest,
  type SpendRow,
  spendingByPeriod,
  sumSpending,
} from '../../ledger/spending.ts';
import { findWallet } from '../../ledger/wallet.ts';
import { type Html, type HtmlValue, html } from '../html.ts';
import type { Page } from '../layout.ts';
import {
  address,
  card,
  count,
  dollars,
  endOf,
  type Field,
  filters,
  link,
  money,
  named,
  outside,
  pagesOf,
  table,
} from '../parts.ts';
import { spendingChart } from '../pictures.ts';
import { RANGES } from '../span.ts';
import { type SpendView, spendView } from '../spend-order.ts';
import { type CsvFile, subjectChoices, tagIn, type Visit } from '../visit.ts';

const NAMES: Record<SpendBy, string> = {
  model: 'Model or slot',
  wallet: 'Wallet',
  account: 'Account',
  day: 'Day',
  tag: 'Tag',
  kind: 'Kind',
};
/** The choices that answer what is asked most, by their texts. */
const OFTEN = {
  'This month by model': 'by=model&range=month',
  'The last 7 days beside the 7 before': 'by=model&range=7d&beside=before',
  'Yesterday by tag': 'by=tag&range=yesterday',
};
const ROW_COUNT = 200;
/** The key of the picture by day, where all is one. */
const CHARGED = 'charged';
/** The keys that have cells of their own in the picture and its table. */
const KEY_COUNT = 50;

/** A row with what the same keys were charged in the time before. */
type ComparedRow = SpendRow & { before: Nanos };

/** Shows the spending, by model, wallet, day, tag and so on: as a picture and as a table, or the table as a file. */
export async function spendPage(visit: Visit): Promise<Page | CsvFile> {
  const { app, query } = visit;
  const { read } = app.ledger;
  const view = spendView(visit);
  const { by, and, zone, scope, only, since, until, before } = view;
  const order = { by, and, zone, scope, only };
  const [sums, earlier] = await Promise.all([
    sumSpending(read, { ...order, since, until }),
    before && sumSpending(read, { ...order, ...before }),
  ]);
  const rows = besideEach(sums, earlier);
  if (query.get('as') === 'csv') return csvOf(visit, view, rows, sums, earlier);

  const starts = startsBetween(view.every, zone, since, until);
  const largest = [...sums.rows].sort((a, b) => (a.charged < b.charged ? 1 : -1)).map(({ key }) => key);
  const own = new Set([...new Set(largest)].slice(0, KEY_COUNT));
  const cells = await spendingByPeriod(read, {
    ...{ zone, scope, only, since, until },
    by: by === 'day' ? [] : [by],
    cells: starts,
    own,
  });
  const part = pagesOf(visit, 'sums', rows, ROW_COUNT, ['First', 'More']);
  const [choices, more] = fieldsOf(visit, view);
  const heading = `${and ? `By ${by} and ${and}` : `By ${by}`}, ${view.rangeText}`;
  const body = html`
    <nav class="often" aria-label="Often asked">${Object.entries(OFTEN).map(([text, choice]) => link(`/spend?${choice}`, text))}</nav>
    ${filters('/spend', choices, { more })}
    ${
      cells.length > 0 &&
      card(
        `Over time, by ${by}`,
        spendingChart(
          `Spending by ${by}`,
          cells.map((it) => ({ at: it.at, key: it.keys[0] ?? CHARGED, amount: it.charged })),
          { starts, every: view.every, zone, what: by === 'day' ? 'All' : NAMES[by], write: keyWriter(visit, by, own) },
        ),
        `by the ${view.every}, ${zone}`,
      )
    }
    ${card(
      view.scopeName ? html`${heading}: ${outside(view.scopeName)}` : heading,
      html`${sumsTable(visit, view, part.shown, sums.total)}${part.pages}`,
      html`${sentence(view, sums, earlier)} ${link(address('/spend', query, { as: 'csv', zone, sums: undefined }), 'CSV')}`,
      'sums',
    )}`;
  return { title: 'Spending', body, section: '/spend' };
}

/** Puts the sums of the time before beside the rows; a key that was charged only then has a row as well. */
function besideEach(sums: Spending, earlier: Spending | undefined): ComparedRow[] {
  const nameOf = ({ key, second }: SpendRow) => JSON.stringify([key, second]);
  const before = new Map(earlier?.rows.map((it) => [nameOf(it), it]));
  const rows = sums.rows.map((it) => {
    const name = nameOf(it);
    const charged = before.get(name)?.charged ?? ZERO;
    before.delete(name);
    return { ...it, before: charged };
  });
  const gone = [...before.values()].map((it) => ({
    ...it,
    ...{ operations: 0, promptTokens: 0, completionTokens: 0, charged: ZERO, before: it.charged },
  }));
  return [...rows, ...gone];
}

function sentence({ by, and }: SpendView, sums: Spending, earlier: Spending | undefined): Html {
  const isTagged = by === 'tag' || and === 'tag';
  return html`${dollars(sums.total)} in all${earlier && html`, ${dollars(earlier.total)} in the same time before`}${sums.rounding > 0n && html`, and ${dollars(sums.rounding)} by rounding closed wallets up to a cent`}${isTagged && ', each once; an operation is in the row of each of its tags'}${sums.others && html`, ${dollars(sums.others.charged)} of it in smaller sums that are not shown`}.`;
}

/** Returns whether the keys are ids, of what has names. */
const hasNames = (by: SpendBy): boolean => by === 'wallet' || by === 'account';

/** Returns the name of a key as text. */
function nameOf({ app }: Visit, by: SpendBy, key: string): string {
  const { read } = app.ledger;
  if (by === 'wallet') return named(key, findWallet(read, key)?.name);
  if (by === 'account') return named(key, findAccount(read, key)?.name);
  return key || '(no tag)';
}

/** Returns a function that writes a key of the picture: with the end of its id where others have its name, or the rest has. */
function keyWriter(visit: Visit, by: SpendBy, keys: Iterable<string>): (key: string) => string {
  if (!hasNames(by)) return (key) => nameOf(visit, by, key);
  const keysOf = Map.groupBy(keys, (key) => nameOf(visit, by, key));
  return (key) => {
    const name = nameOf(visit, by, key);
    return keysOf.get(name)?.length === 1 && name !== OTHER_KEYS ? name : `${name} ${endOf(key)}`;
  };
}

/** Writes a key, as a link to what it is or to what it was charged for. */
function shownKey(visit: Visit, by: SpendBy, key: string): HtmlValue {
  const { query, viewer } = visit;
  const name = outside(nameOf(visit, by, key));
  const narrowed = (change: Record<string, string>) => address('/spend', query, { ...change, sums: undefined });
  if (by === 'wallet') return link(`/wallets/${key}`, name);
  if (by === 'account') return viewer.kind === 'operator' ? link(`/accounts/${key}`, name) : name;
  if (by === 'model') return link(narrowed({ model: key, by: 'wallet' }), name);
  if (by === 'tag' && key) return link(narrowed({ tag: key, by: 'wallet' }), name);
  return name;
}

/** Shows sums as a table, each with its share of the total. */
function sumsTable(visit: Visit, view: SpendView, rows: readonly ComparedRow[], total: bigint): Html {
  const { by, and, before, rangeText } = view;
  return table(
    'Spending',
    [
      { label: NAMES[by] },
      ...(and ? [{ label: NAMES[and] }] : []),
      { label: 'Requests', kind: 'number' },
      { label: 'Prompt tokens', kind: 'number' },
      { label: 'Completion tokens', kind: 'number' },
      { label: 'Charged', kind: 'money' },
      ...(before
        ? [
            { label: 'Time before', kind: 'money' as const },
            { label: 'Change', kind: 'money' as const },
          ]
        : []),
      { label: 'Share' },
    ],
    rows.map((it) => [
      shownKey(visit, by, it.key),
      ...(and ? [shownKey(visit, and, it.second ?? '')] : []),
      count(it.operations),
      count(it.promptTokens),
      count(it.completionTokens),
      money(it.charged),
      ...(before
        ? [money(it.before), money((it.charged - it.before) as Nanos, it.charged > it.before ? '+' : '')]
        : []),
      share(it.charged, total),
    ]),
    html`Nothing was charged in this time: ${rangeText}. Choose another above.`,
  );
}

/** Returns the fields of the choice, and those that narrow it. */
function fieldsOf(visit: Visit, view: SpendView): [Field[], { title: string; fields: Field[]; isOpen: boolean }] {
  const { viewer, query, zone } = visit;
  const isOperator = viewer.kind === 'operator';
  const kinds = SPEND_BY.filter((it) => isOperator || it !== 'account');
  const text = (name: string) => query.get(name)?.trim() ?? '';
  const narrowing: Field[] = [
    { name: 'from', label: 'First day', value: text('from'), type: 'date' },
    { name: 'to', label: 'Last day', value: text('to'), type: 'date' },
    { name: 'zone', label: 'Time zone', value: zone },
    ...(isOperator ? [{ name: 'account', label: 'Account', value: text('account'), placeholder: 'name or id' }] : []),
    { name: 'wallet', label: 'Wallet', value: text('wallet'), placeholder: 'name or id' },
    {
      name: 'model',
      label: 'Model or slot',
      value: text('model'),
      options: subjectChoices(visit, text('model')),
    },
    { name: 'tag', label: 'Tag', value: tagIn(visit) ?? '', placeholder: 'team=red' },
    {
      name: 'kind',
      label: 'Kind',
      value: text('kind'),
      options: [['', 'all'], ...OPERATION_KINDS.map((it) => [it, it.replaceAll('_', ' ')] as const)],
    },
  ];
  const isNarrowed = view.range === '' || view.only !== undefined || text('account') !== '' || text('wallet') !== '';
  return [
    [
      { name: 'by', label: 'Sum', value: view.by, options: kinds.map((it) => [it, `by ${it}`] as const) },
      {
        name: 'and',
        label: 'And',
        value: view.and ?? '',
        options: [['', '–'], ...kinds.map((it) => [it, `by ${it}`] as const)],
      },
      {
        name: 'range',
        label: 'Of',
        value: view.range || '7d',
        options: Object.entries(RANGES).map(([name, range]) => [name, range.text] as const),
      },
      {
        name: 'beside',
        label: 'Beside it',
        value: view.before ? 'before' : '',
        options: [
          ['', 'nothing'],
          ['before', 'the same time before'],
        ],
      },
    ],
    { title: 'Days, time zone and filters', fields: narrowing, isOpen: isNarrowed },
  ];
}

/**
 * Makes a file of the table, with all its rows: the figures to the nano, names beside ids. The rounding of closed wallets is one, so
 * that the lines add up to what was spent.
 */
function csvOf(
  visit: Visit,
  { by, and, before }: SpendView,
  rows: readonly ComparedRow[],
  sums: Spending,
  earlier?: Spending,
): CsvFile {
  const keys = and ? [by, and] : [by];
  const heading = [
    ...keys.flatMap((it) => (hasNames(it) ? [`${it}_id`, it] : [it])),
    ...['requests', 'prompt_tokens', 'completion_tokens', 'charged_usd'],
    ...(before ? ['charged_before_usd'] : []),
  ];
  const cellsOf = (it: Omit<ComparedRow, 'key' | 'second'>) => [
    it.operations,
    it.promptTokens,
    it.completionTokens,
    formatUsd(it.charged),
    ...(before ? [formatUsd(it.before)] : []),
  ];
  const keyCells = (it: SpendBy, key: string) => (hasNames(it) ? [key, nameOf(visit, it, key)] : [key]);
  const lines = rows.map((it) => [
    ...keyCells(by, it.key),
    ...(and ? keyCells(and, it.second ?? '') : []),
    ...cellsOf(it),
  ]);
  const none = { operations: 0, promptTokens: 0, completionTokens: 0, charged: ZERO };
  const restLine = (key: string, now: SpendRest, before: Nanos = ZERO) => {
    const rest = cellsOf({ ...now, before });
    return [key, ...Array<string>(heading.length - rest.length - 1).fill(''), ...rest];
  };
  if (sums.others || earlier?.others) lines.push(restLine(OTHER_KEYS, sums.others ?? none, earlier?.others?.charged));
  if (sums.rounding || earlier?.rounding)
    lines.push(restLine('(rounding)', { ...none, charged: sums.rounding }, earlier?.rounding));
  return {
    name: 'spending.csv',
    csv: [heading, ...lines].map((line) => `${line.map(csvCell).join(',')}\r\n`).join(''),
  };
}

function share(part: bigint, whole: bigint): Html {
  const percent = whole > 0n ? (Number(part) / Number(whole)) * 100 : 0;
  return html`<svg class="time-left" role="img" aria-label="${percent.toFixed(0)}%" width="100%" height="8"><rect class="spent" width="${percent.toFixed(2)}%" height="8"></rect></svg>`;
}
