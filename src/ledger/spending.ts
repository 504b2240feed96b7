import { periodAt } from '../base/calendar.ts';
import { Nanos, ZERO } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { nextTurn } from '../base/turn.ts';
import type { Reader } from '../db/handle.ts';
import { plain } from '../db/plain.ts';
import type { operations } from '../db/schema.ts';
import { findWallet } from './wallet.ts';
import { operationPages, PAGE_COUNT } from './wallet-operations.ts';
import { walletsBelow, walletsOfAccount } from './wallet-tree.ts';

export const SPEND_BY = ['model', 'wallet', 'account', 'day', 'tag', 'kind'] as const;
export type SpendBy = (typeof SPEND_BY)[number];

/** The scope of the charged operations that are summed: a wallet and all below it, an account, or all. */
export type SpendScope = { wallet: string } | { account: string } | undefined;

export type SpendOrder = {
  by: SpendBy;
  /** The rows are of a key and a second one. */
  and?: SpendBy | undefined;
  /** The zone of the days; UTC by default. */
  zone?: string | undefined;
  /** Only charges for this model or slot, with this tag (`name=value`; empty for none), of this kind. */
  only?: { model?: string | undefined; tag?: string | undefined; kind?: string | undefined } | undefined;
  scope?: SpendScope;
  /** Charged at or after this, Unix seconds. */
  since?: number | undefined;
  /** Charged before this, Unix seconds. */
  until?: number | undefined;
};

export type SpendRow = {
  key: string;
  second?: string;
  operations: number;
  promptTokens: number;
  completionTokens: number;
  charged: Nanos;
};

/** The sum of the keys that have no row of their own. */
export type SpendRest = Omit<SpendRow, 'key' | 'second'>;
export type Spending = {
  rows: SpendRow[];
  others: SpendRest | undefined;
  /** The sum of the charges. */
  total: Nanos;
  /** The amount that wallets closed in this time spent beyond their charges: their spending is rounded up to a cent. */
  rounding: Nanos;
};

/**
 * The most keys that are summed at a time: agents may invent any number of tags. When there are more, the half with the smallest
 * sums becomes a part of the rest.
 */
const KEY_COUNT_MAX = 10_000;

const COLUMNS = 'number, id, wallet_id, kind, subject, outcome, charge_nanos, usage, tags, settled_at';
type Charged = Pick<
  typeof operations.$inferSelect,
  'number' | 'id' | 'walletId' | 'kind' | 'subject' | 'outcome' | 'charge' | 'usage' | 'tags' | 'settledAt'
>;
type ChargedRow = [
  ...[number: bigint, id: string, walletId: string, kind: Charged['kind'], subject: string],
  ...[outcome: Charged['outcome']],
  ...[charge: bigint | null, usage: string | null, tags: string | null, settledAt: bigint | null],
];
const chargedFrom = ([number, id, walletId, kind, subject, outcome, charge, usage, tags, at]: ChargedRow): Charged => {
  const settledAt = at === null ? null : Number(at);
  const what = { number: Number(number), id, walletId, kind, subject, outcome };
  return { ...what, charge: charge as Nanos | null, usage, tags, settledAt };
};

/** The amount by which a closed wallet's spending is rounded up to a cent. */
const ROUNDING = '(spent_nanos + 9999999) / 10000000 * 10000000 - spent_nanos';

const pages = plain({
  // `outcome = 'charged'` must match the partial index's condition.
  all: `select ${COLUMNS} from operation where outcome = 'charged' and settled_at >= ? and settled_at < ?
    and (settled_at, number) > (?, ?) order by settled_at, number limit ${PAGE_COUNT}`,
  // Rows that do not count are left out later: a page then takes the same time whatever it contains.
  roundings: `select max(id), coalesce(sum(${ROUNDING})
      filter (where parent_id is null and closed_at >= ? and closed_at < ?), 0)
    from (select id, parent_id, spent_nanos, closed_at from wallet cross join balance using (number) where id > ? order by id limit ${PAGE_COUNT})`,
  roundingsOfAccount: `select max(id), coalesce(sum(${ROUNDING})
      filter (where parent_id is null and closed_at >= ? and closed_at < ?), 0)
    from (select id, parent_id, spent_nanos, closed_at from wallet cross join balance using (number) where account_id = ? and id > ? order by id
      limit ${PAGE_COUNT})`,
  roundingOfWallet: `select ${ROUNDING} from wallet join balance using (number)
    where closed_at >= ? and closed_at < ? and id = ? and parent_id is null`,
  ofWallet: `select ${COLUMNS} from operation where number >> 8 = ? and wallet_id = ? order by number`,
});

/**
 * Sums charges by model, wallet, account, UTC day, tag or kind: the journal's entries to sales, with the tokens of their
 * operations. An operation belongs to the second in which it was charged. Rows are ordered by day, or else by amount, largest
 * first: at most `rowsMax`, with the sum of all `others`. By tag, an operation counts for each of its tags, one without any under
 * the empty key; the total counts it once. A sum of `only` some charges has no rounding, which belongs to no charge.
 *
 * The total, and the rows together with the rest, are exact; with more than 10,000 keys a row may lack charges from before its key
 * was among the largest. Reads by pages and lets other work run between them.
 */
export async function sumSpending(read: Reader, order: SpendOrder, rowsMax = KEY_COUNT_MAX): Promise<Spending> {
  const rows = new Map<string, SpendRow>();
  const keysOf = keysBy(read, order.by, order.zone);
  const secondsOf = order.and && keysBy(read, order.and, order.zone);
  const rest = nothing();
  let total = ZERO;
  /** Keeps the largest rows, and adds the others to the rest. */
  const keep = (count: number) => {
    if (rows.size <= count) return;
    for (const [name, row] of [...rows].sort(([, a], [, b]) => byAmount(a, b)).slice(count)) {
      add(rest, row);
      rows.delete(name);
    }
  };
  for await (const operation of chargedOperations(read, order)) {
    const charged = operation.charge as Nanos;
    const { prompt_tokens: promptTokens = 0, completion_tokens: completionTokens = 0 } = parseJson(
      operation.usage ?? '{}',
    ) as { prompt_tokens?: number; completion_tokens?: number };
    total = Nanos(total + charged);
    const sum = { operations: 1, promptTokens, completionTokens, charged };
    const addTo = (name: string, keys: Pick<SpendRow, 'key' | 'second'>) => {
      let row = rows.get(name);
      if (!row) {
        if (rows.size >= KEY_COUNT_MAX) keep(KEY_COUNT_MAX / 2);
        row = { ...keys, ...nothing() };
        rows.set(name, row);
      }
      add(row, sum);
    };
    for (const key of keysOf(operation)) {
      if (!secondsOf) addTo(key, { key });
      else for (const second of secondsOf(operation)) addTo(JSON.stringify([key, second]), { key, second });
    }
  }
  keep(rowsMax);
  const others = rest.operations ? rest : undefined;
  return {
    rows: [...rows.values()].sort(order.by === 'day' ? byKey : byAmount),
    others,
    total,
    rounding: order.only ? ZERO : await sumRounding(read, order),
  };
}

/** Sums what closed wallets without a parent spent beyond their charges. Reads in the same way as `sumSpending`. */
async function sumRounding(
  read: Reader,
  { scope, since = 0, until = Number.MAX_SAFE_INTEGER }: Omit<SpendOrder, 'by'>,
): Promise<Nanos> {
  const { roundings, roundingsOfAccount, roundingOfWallet } = pages(read);
  if (scope && 'wallet' in scope) return Nanos(roundingOfWallet.get<[bigint]>(since, until, scope.wallet)?.[0] ?? 0n);
  let sum = ZERO;
  for (let after = ''; ; ) {
    const [last, more] = (
      scope
        ? roundingsOfAccount.get<[string | null, bigint]>(since, until, scope.account, after)
        : roundings.get<[string | null, bigint]>(since, until, after)
    ) as [string | null, bigint];
    if (last === null) return sum;
    sum = Nanos(sum + more);
    after = last;
    await nextTurn();
  }
}

const nothing = (): SpendRest => ({ operations: 0, promptTokens: 0, completionTokens: 0, charged: ZERO });

function add(sum: SpendRest, more: SpendRest): void {
  sum.operations += more.operations;
  sum.promptTokens += more.promptTokens;
  sum.completionTokens += more.completionTokens;
  sum.charged = Nanos(sum.charged + more.charged);
}

const inOrder = (a = '', b = '') => (a === b ? 0 : a < b ? -1 : 1);
const byKey = (a: SpendRow, b: SpendRow) => inOrder(a.key, b.key) || inOrder(a.second, b.second);
const byAmount = (a: SpendRow, b: SpendRow) => (a.charged === b.charged ? byKey(a, b) : a.charged < b.charged ? 1 : -1);

export type SpendCell = { at: number; keys: string[]; operations: number; charged: Nanos };
type SpendGrid = Omit<SpendOrder, 'by' | 'and'> & {
  /** The keys of a cell, in this order. */
  by: readonly SpendBy[];
  /**
   * The length of a cell in seconds; a cell begins at a multiple of it, so that a day is a UTC day. Or where the cells begin, in
   * order.
   */
  cells: number | readonly number[];
  /** Only these first keys have cells of their own; the others share those of `OTHER_KEYS`. */
  own?: ReadonlySet<string>;
};

/** The key of what has no cell of its own. */
export const OTHER_KEYS = '(others)';

/**
 * Sums charges in cells of time, by several keys at once. By tag, an operation counts in the cell of each of its tags. Reads in
 * the same way as `sumSpending`.
 */
export async function spendingByPeriod(
  read: Reader,
  { by, cells: periods, own, ...order }: SpendGrid,
): Promise<SpendCell[]> {
  const cells = new Map<string, SpendCell>();
  const keysOf = by.map((it) => keysBy(read, it, order.zone));
  const startOf =
    typeof periods === 'number' ? (at: number) => Math.floor(at / periods) * periods : startAmong(periods);
  for await (const operation of chargedOperations(read, { ...order, by: 'model' })) {
    const at = startOf(operation.settledAt as number);
    const combined = keysOf.reduce<string[][]>(
      (all, of) => all.flatMap((keys) => of(operation).map((key) => [...keys, key])),
      [[]],
    );
    for (const [first, ...others] of combined) {
      const keys = first === undefined ? [] : [own?.has(first) === false ? OTHER_KEYS : first, ...others];
      const name = [at, ...keys].join('\n');
      let cell = cells.get(name);
      if (!cell) {
        cell = { at, keys, operations: 0, charged: ZERO };
        cells.set(name, cell);
      }
      cell.operations += 1;
      cell.charged = Nanos(cell.charged + (operation.charge as Nanos));
    }
  }
  return [...cells.values()];
}

/** Returns a function that gives the last of these times that is not after `at`. */
function startAmong(starts: readonly number[]): (at: number) => number {
  return (at) => {
    let [low, high] = [0, starts.length - 1];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if ((starts[middle] as number) <= at) low = middle;
      else high = middle - 1;
    }
    return starts[low] as number;
  };
}

/** Returns a function that gives the date of a time in a zone. In every zone a day begins at a quarter of an hour. */
function dateIn(zone: string): (at: number) => string {
  const dates = new Map<number, string>();
  return (at) => {
    const quarter = Math.floor(at / 900);
    let date = dates.get(quarter);
    if (date === undefined) {
      date = zone === 'UTC' ? new Date(at * 1000).toISOString().slice(0, 10) : periodAt('day', zone, at).date;
      dates.set(quarter, date);
    }
    return date;
  };
}

function tagsOf({ tags }: Charged): string[] {
  if (tags === null) return [''];
  return Object.entries(parseJson(tags) as Record<string, string>).map(([name, value]) => `${name}=${value}`);
}

function keysBy(read: Reader, by: SpendBy, zone = 'UTC'): (operation: Charged) => string[] {
  const dateOf = dateIn(zone);
  const accounts = new Map<string, string>();
  const accountOf = (walletId: string) => {
    let id = accounts.get(walletId);
    if (id === undefined) {
      id = findWallet(read, walletId)?.accountId ?? '';
      accounts.set(walletId, id);
    }
    return id;
  };
  const keys: Record<SpendBy, (operation: Charged) => string[]> = {
    model: (it) => [it.subject],
    wallet: (it) => [it.walletId],
    account: (it) => [accountOf(it.walletId)],
    day: (it) => [dateOf(it.settledAt as number)],
    kind: (it) => [it.kind],
    tag: tagsOf,
  };
  return keys[by];
}

async function* chargedOperations(read: Reader, order: SpendOrder): AsyncGenerator<Charged> {
  const { only } = order;
  for await (const it of chargedIn(read, order)) {
    if (only?.model !== undefined && it.subject !== only.model) continue;
    if (only?.kind !== undefined && it.kind !== only.kind) continue;
    if (only?.tag === undefined || tagsOf(it).includes(only.tag)) yield it;
  }
}

async function* chargedIn(
  read: Reader,
  { scope, since = 0, until = Number.MAX_SAFE_INTEGER }: SpendOrder,
): AsyncGenerator<Charged> {
  if (!scope) {
    for (let after = { at: since, number: 0 }; ; ) {
      const page = pages(read).all.all<ChargedRow>(after.at, until, after.at, after.number).map(chargedFrom);
      yield* page;
      const last = page.at(-1);
      if (!last || page.length < PAGE_COUNT) return;
      after = { at: last.settledAt as number, number: last.number };
      await nextTurn();
    }
  }
  const walletIds = 'wallet' in scope ? walletsBelow(read, scope.wallet) : walletsOfAccount(read, scope.account);
  const counts = (it: Charged) =>
    it.outcome === 'charged' && (it.settledAt as number) >= since && (it.settledAt as number) < until;
  const readBlock = (block: number, walletId: string) =>
    pages(read).ofWallet.all<ChargedRow>(block, walletId).map(chargedFrom);
  for await (const page of operationPages(read, walletIds, readBlock)) yield* page.filter(counts);
}
