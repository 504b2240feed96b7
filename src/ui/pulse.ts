import { Nanos, ZERO } from '../base/money.ts';
import type { Reader } from '../db/handle.ts';
import { figures } from '../ledger/figures.ts';
import { type SpendCell, spendingByPeriod } from '../ledger/spending.ts';

const MINUTE = 60;
export const PULSE_SECONDS = 3600;
/** A charge is written within seconds of its time, so charges older than this are not read again. */
const LATE_SECONDS = 30;
/** Pause for this multiple of the last reading's duration, to limit the load. */
const PAUSE_FACTOR = 20;
const PAUSE_MILLISECONDS_MIN = 500;

/** The length of the cells of the month: in every zone a day begins at a multiple of it. */
const QUARTER = 900;
const DAY = 86_400;
/** Contains the month so far in every zone. */
const MONTH_SECONDS = 33 * DAY;
/** The rate at which budgets are spent is the average of this many days: one day of the week differs from another. */
const RATE_SECONDS = 7 * DAY;

/** The data behind the operator's first page, read once for all viewers. */
export type Pulse = {
  /** Returns the charges of the last hour, in minutes, by wallet and model; reads only new ones. */
  read(now: number): Promise<readonly SpendCell[]>;
  /** Returns the charges of the last 33 days, in quarters of an hour; reads only new ones. */
  month(now: number): Promise<readonly SpendCell[]>;
  /** Returns the figures of the books now, or from a moment ago. */
  figures(): ReturnType<typeof figures>;
};

type Spender = {
  walletId: string;
  charged: Nanos;
  operations: number;
  models: { model: string; charged: Nanos }[];
};

/** Creates the record of the last hour's spending. `milliseconds` is a monotonic clock. */
export function createPulse(read: Reader, milliseconds: () => number = () => performance.now()): Pulse {
  let held: { value: ReturnType<typeof figures>; restUntil: number } | undefined;
  const restAfter = (begun: number) =>
    milliseconds() + Math.max(PAUSE_MILLISECONDS_MIN, PAUSE_FACTOR * (milliseconds() - begun));

  /** Returns a function that gives the charges of the last `length` seconds, in cells of `seconds`. */
  function recent(by: readonly ('wallet' | 'model')[], seconds: number, length: number) {
    let cells: SpendCell[] = [];
    let readTo = 0;
    let restUntil = Number.NEGATIVE_INFINITY;
    let running: Promise<void> | undefined;

    async function refresh(now: number) {
      const begun = milliseconds();
      const oldest = Math.floor((now - length) / seconds) * seconds;
      const since = Math.max(oldest, Math.floor((readTo - LATE_SECONDS) / seconds) * seconds);
      // A clock in doubt may be behind the books.
      const fresh = await spendingByPeriod(read, { by, cells: seconds, since, until: now + 1 });
      cells = [...cells.filter(({ at }) => at >= oldest && at < since), ...fresh];
      readTo = now;
      restUntil = restAfter(begun);
    }

    return async (now: number): Promise<readonly SpendCell[]> => {
      if (milliseconds() >= restUntil && !running) {
        running = refresh(now).finally(() => {
          running = undefined;
        });
      }
      await running;
      return cells;
    };
  }

  return {
    read: recent(['wallet', 'model'], MINUTE, PULSE_SECONDS),
    month: recent([], QUARTER, MONTH_SECONDS),
    figures() {
      if (!held || milliseconds() >= held.restUntil) {
        const begun = milliseconds();
        held = { value: figures(read), restUntil: restAfter(begun) };
      }
      return held.value;
    },
  };
}

/** Returns the sum of the charges in cells that begin at `since` (Unix seconds) or later. */
export const chargedSince = (cells: readonly SpendCell[], since: number): Nanos =>
  cells.reduce((sum, { at, charged }) => (at >= since ? Nanos(sum + charged) : sum), ZERO);

/**
 * Returns what is charged on an average day, from cells of `Pulse.month`: of the last seven, or fewer where the first charge
 * is younger.
 */
export function chargedDaily(cells: readonly SpendCell[], now: number): Nanos {
  const since = Math.floor((now - RATE_SECONDS) / QUARTER) * QUARTER;
  const first = cells.reduce((least, { at }) => (at >= since && at < least ? at : least), now);
  return Nanos((chargedSince(cells, since) * BigInt(DAY)) / BigInt(Math.max(DAY, now - first)));
}

/** Returns the spenders of these cells, with their models; the largest first. */
export function spendersOf(cells: readonly SpendCell[]): Spender[] {
  const spenders = new Map<string, { charged: Nanos; operations: number; models: Map<string, Nanos> }>();
  for (const { keys, charged, operations } of cells) {
    const [walletId, model] = keys as [string, string];
    const it = spenders.get(walletId) ?? { charged: ZERO, operations: 0, models: new Map<string, Nanos>() };
    it.charged = Nanos(it.charged + charged);
    it.operations += operations;
    it.models.set(model, Nanos((it.models.get(model) ?? 0n) + charged));
    spenders.set(walletId, it);
  }
  const byCharge = (a: { charged: Nanos }, b: { charged: Nanos }) => (a.charged < b.charged ? 1 : -1);
  return [...spenders]
    .map(([walletId, { models, ...it }]) => ({
      walletId,
      ...it,
      models: [...models].map(([model, charged]) => ({ model, charged })).sort(byCharge),
    }))
    .sort(byCharge);
}
