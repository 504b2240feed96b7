import { dayOf, isZone, type Period, periodAt } from '../base/calendar.ts';
import { Refusal } from '../base/refusal.ts';
import { SPEND_BY, type SpendBy, type SpendScope } from '../ledger/spending.ts';
import { listWallets, type Wallet, walletOf } from '../ledger/wallet.ts';
import { accountWith, walletWith } from '../operator/find.ts';
import type { Visit } from './visit.ts';

const HOUR = 3600;
const DAY = 86_400;
const ZONE_LENGTH_MAX = 64;
const NAMED_COUNT_MAX = 1000;

type Span = { since: number; until: number };
type Range = { text: string; spanAt: (now: number, zone: string) => Span };

const last = (text: string, seconds: number): Range => ({
  text,
  spanAt: (now) => ({ since: now - seconds, until: now + 1 }),
});
const current = (text: string, every: Period): Range => ({
  text,
  spanAt: (now, zone) => ({ since: periodAt(every, zone, now).start, until: now + 1 }),
});
const previous = (text: string, every: Period): Range => ({
  text,
  spanAt(now, zone) {
    const until = periodAt(every, zone, now).start;
    return { since: periodAt(every, zone, until - 1).start, until };
  },
});

/** The times that can be chosen by name. */
export const RANGES: Record<string, Range> = {
  today: current('today', 'day'),
  yesterday: previous('yesterday', 'day'),
  '1d': last('the last 24 hours', DAY),
  '7d': last('the last 7 days', 7 * DAY),
  '30d': last('the last 30 days', 30 * DAY),
  '90d': last('the last 90 days', 90 * DAY),
  month: current('this month', 'month'),
  'last-month': previous('last month', 'month'),
};
const RANGE_DEFAULT = '7d';

/** What the query of the page of spending asks for. */
export type SpendView = Span & {
  by: SpendBy;
  and: SpendBy | undefined;
  zone: string;
  /** A name of `RANGES`; empty where the query has dates. */
  range: string;
  rangeText: string;
  /** The time of the same length before, whose sums are shown beside these. */
  before: Span | undefined;
  /** The length of a bar of the picture. */
  every: 'hour' | Period;
  scope: SpendScope;
  /** What the scope is, for a heading. */
  scopeName: string;
  only: { model?: string; tag?: string; kind?: string } | undefined;
};

/** Reads the query of the page of spending. Throws `invalid_request`, `not_found` and `conflict`. */
export function spendView(visit: Visit): SpendView {
  const { query, now } = visit;
  const given = (name: string) => query.get(name)?.trim() || undefined;
  const by = SPEND_BY.find((it) => it === query.get('by')) ?? 'model';
  const and = SPEND_BY.find((it) => it === query.get('and') && it !== by);
  const zone = given('zone') ?? visit.zone;
  if (zone.length > ZONE_LENGTH_MAX || !isZone(zone))
    throw new Refusal('invalid_request', 'There is no such time zone. Write it as Europe/Berlin or UTC.');
  const named = given('range');
  const range = named !== undefined && Object.hasOwn(RANGES, named) ? named : RANGE_DEFAULT;
  const own = ownSpan(given('from'), given('to'), zone, now);
  const chosen = RANGES[range] as Range;
  const span = own ?? chosen.spanAt(now, zone);
  const { since, until } = span;
  const only = Object.fromEntries(
    (['model', 'tag', 'kind'] as const).flatMap((it) => {
      const value = given(it);
      return value === undefined ? [] : [[it, value]];
    }),
  );
  return {
    ...span,
    ...scopeOf(visit, given('account'), given('wallet')),
    by,
    and,
    zone,
    range: own ? '' : range,
    rangeText: own?.text ?? chosen.text,
    before: given('beside') === 'before' ? { since: since - (until - since), until: since } : undefined,
    every: barLength(until - since),
    only: Object.keys(only).length ? only : undefined,
  };
}

/** Returns the time between two dates, the last day included; undefined without dates. */
function ownSpan(from: string | undefined, to: string | undefined, zone: string, now: number) {
  if (from === undefined && to === undefined) return undefined;
  const today = periodAt('day', zone, now);
  const [first, end] = [from === undefined ? undefined : dayOf(from, zone), to === undefined ? today : dayOf(to, zone)];
  if ((from !== undefined && !first) || !end)
    throw new Refusal('invalid_request', 'Write the first and the last day as 2026-03-31.');
  const since = (first ?? end).start;
  if (since >= end.next) throw new Refusal('invalid_request', 'The first day is after the last one.');
  return { since, until: end.next, text: `${(first ?? end).date} to ${end.date}` };
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
        : accountWith(read, account.slice(0, NAMED_COUNT_MAX));
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
function ownWallet({ app, now }: Visit, accountId: string, text: string): Wallet {
  const { read } = app.ledger;
  if (/^wal_/.test(text)) return walletOf(read, accountId, text);
  const named = listWallets(read, { accountId, named: text, now }, { limit: NAMED_COUNT_MAX }).filter(
    ({ name }) => name === text,
  );
  const open = named.filter(({ status }) => status !== 'closed');
  const [first, ...others] = open.length ? open : named;
  if (!first) throw new Refusal('not_found', 'There is no such wallet.');
  if (others.length) throw new Refusal('conflict', 'Several wallets have this name. Give the id of one.');
  return first;
}
