import type { Period } from '../base/calendar.ts';
import { Refusal } from '../base/refusal.ts';
import { SPEND_BY, type SpendBy, type SpendScope } from '../ledger/spending.ts';
import { type Wallet, walletOf } from '../ledger/wallet.ts';
import { accountWith, walletsNamed, walletWith } from '../operator/find.ts';
import { spanIn, spanNamed, type TimeSpan } from './span.ts';
import { tagIn, type Visit } from './visit.ts';

const HOUR = 3600;
const DAY = 86_400;
const NAME_LENGTH_MAX = 1000;
const RANGE_DEFAULT = '7d';

/** The query of the page of spending. */
export type SpendView = TimeSpan & {
  by: SpendBy;
  and: SpendBy | undefined;
  zone: string;
  /** A name of `RANGES`; empty where the query has dates. */
  range: string;
  rangeText: string;
  /** The time of the same length before, whose sums are shown beside these. */
  before: TimeSpan | undefined;
  /** The length of a bar of the picture. */
  every: 'hour' | Period;
  scope: SpendScope;
  /** The scope in words, for a heading. */
  scopeName: string;
  only: { model?: string; tag?: string; kind?: string } | undefined;
};

/** Reads the query of the page of spending. Throws `invalid_request`, `not_found` and `conflict`. */
export function spendView(visit: Visit): SpendView {
  const { query, now, zone } = visit;
  const given = (name: string) => query.get(name)?.trim() || undefined;
  const by = SPEND_BY.find((it) => it === query.get('by')) ?? 'model';
  const and = SPEND_BY.find((it) => it === query.get('and') && it !== by);
  const { range, text: rangeText, ...span } = spanIn(query, zone, now) ?? spanNamed(RANGE_DEFAULT, zone, now);
  const { since, until } = span;
  const only = Object.fromEntries(
    (['model', 'tag', 'kind'] as const).flatMap((it) => {
      const value = it === 'tag' ? tagIn(visit) : given(it);
      return value === undefined ? [] : [[it, value]];
    }),
  );
  return {
    ...span,
    ...scopeOf(visit, given('account'), given('wallet')),
    by,
    and,
    zone,
    range,
    rangeText,
    before: given('beside') === 'before' ? { since: since - (until - since), until: since } : undefined,
    every: barLength(until - since),
    only: Object.keys(only).length ? only : undefined,
  };
}

/** Returns the length of a bar so that there are at most some hundred, and not only a few. */
function barLength(seconds: number): SpendView['every'] {
  if (seconds <= 3 * DAY + HOUR) return 'hour';
  if (seconds <= 95 * DAY) return 'day';
  return seconds <= 2 * 366 * DAY ? 'week' : 'month';
}

function scopeOf(visit: Visit, account: string | undefined, wallet: string | undefined) {
  const { app, viewer } = visit;
  const { read } = app.ledger;
  const owner =
    viewer.kind === 'account'
      ? viewer.accountId
      : account === undefined
        ? undefined
        : accountWith(read, account.slice(0, NAME_LENGTH_MAX));
  const accountId = typeof owner === 'string' ? owner : owner?.id;
  if (wallet !== undefined) {
    const it = viewer.kind === 'account' ? ownWallet(visit, viewer.accountId, wallet) : walletWith(read, wallet);
    if (accountId !== undefined && it.accountId !== accountId)
      throw new Refusal('not_found', 'This wallet is not of that account.');
    return { scope: { wallet: it.id }, scopeName: it.name };
  }
  const scope = accountId === undefined ? undefined : { account: accountId };
  return { scope, scopeName: typeof owner === 'object' ? owner.name : '' };
}

/** Returns the wallet of an account with this id or name; of several, the only open one. Throws `not_found` and `conflict`. */
function ownWallet({ app }: Visit, accountId: string, text: string): Wallet {
  const { read } = app.ledger;
  if (/^wal_/.test(text)) return walletOf(read, accountId, text);
  const [first, ...others] = walletsNamed(read, text, accountId);
  if (!first) throw new Refusal('not_found', 'There is no such wallet.');
  if (others.length) throw new Refusal('conflict', 'Several wallets have this name. Give the id of one.');
  return walletOf(read, accountId, first.id);
}
