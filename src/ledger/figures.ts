import { and, count, eq, min, sql } from 'drizzle-orm';
import { centsToNanos, Nanos, ZERO } from '../base/money.ts';
import { prepare, type Reader } from '../db/handle.ts';
import { accounts, balances, operations, resources, wallets } from '../db/schema.ts';
import { IS_OPEN } from './operation.ts';
import { IS_OPEN_WALLET } from './wallet.ts';

const sum = (column: unknown) => sql<bigint>`coalesce(sum(${column}), 0)`.mapWith(BigInt);

const OF_WALLET = eq(balances.number, wallets.number);

const reads = prepare((read: Reader) => ({
  accounts: read
    .select({
      count: count(),
      available: sum(accounts.availableCents),
      reserved: sum(accounts.reservedCents),
      spent: sum(accounts.spentCents),
      owed: sum(accounts.owedCents),
    })
    .from(accounts)
    .prepare(),
  wallets: read
    .select({
      count: count(),
      budget: sum(wallets.budget),
      spent: sum(balances.spent),
      held: sum(balances.held),
      delegated: sum(wallets.delegated),
    })
    .from(wallets)
    .innerJoin(balances, OF_WALLET)
    .where(IS_OPEN_WALLET)
    .prepare(),
  open: read
    .select({
      state: operations.state,
      count: count(),
      amount: sum(operations.hold),
      oldest: min(operations.createdAt),
    })
    .from(operations)
    .where(IS_OPEN)
    .groupBy(operations.state)
    .prepare(),
  leases: read
    .select({ status: resources.status, count: count() })
    .from(resources)
    .where(sql`${resources.endedAt} is null`)
    .groupBy(resources.status)
    .prepare(),
  spentOpen: read
    .select({ accountId: wallets.accountId, spent: sum(balances.spent) })
    .from(wallets)
    .innerJoin(balances, OF_WALLET)
    .where(IS_OPEN_WALLET)
    .groupBy(wallets.accountId)
    .prepare(),
  spentOpenOf: read
    .select({ spent: sum(balances.spent) })
    .from(wallets)
    .innerJoin(balances, OF_WALLET)
    .where(and(eq(wallets.accountId, sql.placeholder('accountId')), IS_OPEN_WALLET))
    .prepare(),
}));

/** Money on hold: how many operations hold it, and since when the oldest does (Unix seconds). */
export type Holds = { count: number; amount: Nanos; oldestAt: number | null };

/**
 * The money of an account, or of all: `spent` is the journal's charges in all wallets, with the rounding of closed ones to a cent;
 * `inWallets` is what open wallets may still spend, holds included; the three are the credit.
 */
export type AccountMoney = { spent: Nanos; inWallets: Nanos; available: Nanos };

type OfAccount = Pick<typeof accounts.$inferSelect, 'id' | 'availableCents' | 'reservedCents' | 'spentCents'>;

const moneyWith = (account: OfAccount, spentInOpen: Nanos): AccountMoney => ({
  spent: Nanos(centsToNanos(account.spentCents) + spentInOpen),
  inWallets: Nanos(centsToNanos(account.reservedCents) - spentInOpen),
  available: centsToNanos(account.availableCents),
});

/** Returns the money of an account. */
export function moneyOf(read: Reader, account: OfAccount): AccountMoney {
  return moneyWith(account, Nanos(reads(read).spentOpenOf.get({ accountId: account.id })?.spent ?? 0n));
}

/** Returns a function that gives the money of each account, after one query for all of them. */
export function moneyOfEach(read: Reader): (account: OfAccount) => AccountMoney {
  const spent = spentByOpenWallets(read);
  return (account) => moneyWith(account, spent.get(account.id) ?? ZERO);
}

/** Sums the money that the books hold at the moment. */
export function figures(read: Reader) {
  const ofAccounts = reads(read).accounts.get();
  const ofWallets = reads(read).wallets.get();
  const open = reads(read).open.all();
  const holds = (state: 'reserved' | 'uncertain'): Holds => {
    const it = open.find((row) => row.state === state);
    return { count: Number(it?.count ?? 0), amount: Nanos(it?.amount ?? 0n), oldestAt: it?.oldest ?? null };
  };
  const cents = (amount = 0n) => centsToNanos(Number(amount));
  const spentInOpen = ofWallets?.spent ?? 0n;
  return {
    accounts: {
      count: Number(ofAccounts?.count ?? 0),
      available: cents(ofAccounts?.available),
      reserved: cents(ofAccounts?.reserved),
      inWallets: Nanos(cents(ofAccounts?.reserved) - spentInOpen),
      spent: Nanos(cents(ofAccounts?.spent) + spentInOpen),
      owed: cents(ofAccounts?.owed),
    },
    /** The wallets that are not closed. */
    wallets: {
      count: Number(ofWallets?.count ?? 0),
      budget: Nanos(ofWallets?.budget ?? 0n),
      spent: Nanos(ofWallets?.spent ?? 0n),
      held: Nanos(ofWallets?.held ?? 0n),
      delegated: Nanos(ofWallets?.delegated ?? 0n),
    },
    reserved: holds('reserved'),
    uncertain: holds('uncertain'),
    leases: Object.fromEntries(
      reads(read)
        .leases.all()
        .map((it) => [it.status, Number(it.count)]),
    ),
  };
}

/** Returns the spending of the wallets that are not closed, by account. */
function spentByOpenWallets(read: Reader): Map<string, Nanos> {
  return new Map(
    reads(read)
      .spentOpen.all()
      .map((it) => [it.accountId, Nanos(it.spent)]),
  );
}
