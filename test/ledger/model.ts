/**
 * What the books promise, in one screen and without a database: the model that the random walks are held against.
 * Every function does one thing and says how it ends: `ok`, `too_late`, or the code of a refusal.
 */
import assert from 'node:assert/strict';

const CENT = 10_000_000n;

type Account = {
  available: number;
  reserved: number;
  spent: number;
  owed: number;
  suspended: boolean;
  disputed: boolean;
};
export const NEW_ACCOUNT: Account = {
  available: 0,
  reserved: 0,
  spent: 0,
  owed: 0,
  suspended: false,
  disputed: false,
};
type Reversal = { kind: 'refund' | 'dispute'; cents: number; state: 'inquiry' | 'taken' | 'lost' | 'returned' };
type Payment = { account: string; cents: number; taken: number; reversals: Map<string, Reversal> };
type Wallet = {
  account: string;
  status: string;
  reason: string | null;
  budget: bigint;
  held: bigint;
  spent: bigint;
  delegated: bigint;
  returned: number | null;
  expiresAt: number | null;
  parent: string | null;
  paused: boolean;
  refillAt: number | null;
};
/** A refill of every day in UTC, and the days that it has happened on. */
type Refill = { cents: number; carry: 'none' | 'all' | number; days: Set<number> };
const DAY = 86_400;
const up = (amount: bigint) => (amount >= 0n ? (amount + CENT - 1n) / CENT : -(-amount / CENT)) * CENT;
type Operation = {
  wallet: string;
  state: string;
  hold: bigint;
  charge: bigint | null;
  outcome: string | null;
  /** Settled by a policy or by the operator, so that there was no answer. */
  isDecided: boolean;
};

export class Model {
  now = 1000;
  frozen = false;
  readonly accounts = new Map<string, Account>();
  readonly wallets = new Map<string, Wallet>();
  readonly operations = new Map<string, Operation>();
  readonly payments = new Map<string, Payment>();
  readonly refills = new Map<string, Refill>();

  account = (id: string) => this.accounts.get(id) as Account;
  wallet = (id: string) => this.wallets.get(id) as Wallet;
  operation = (id: string) => this.operations.get(id) as Operation;
  left = (id: string) => {
    const { budget, held, spent, delegated } = this.wallet(id);
    return budget - held - spent - delegated;
  };
  children = (id: string) => [...this.wallets].filter(([, it]) => it.parent === id && it.status !== 'closed');
  /** The wallet itself and those above it. */
  above = (id: string | null): string[] => (id === null ? [] : [id, ...this.above(this.wallet(id).parent)]);
  below = (id: string): string[] => this.children(id).flatMap(([child]) => [child, ...this.below(child)]);
  openOperations = (wallet: string) =>
    [...this.operations].filter(([, it]) => it.wallet === wallet && it.state !== 'settled').map(([id]) => id);
  isDue = (id: string) => this.wallet(id).status === 'active' && (this.wallet(id).expiresAt ?? Infinity) <= this.now;

  fund(id: string, cents: number): string {
    const account = this.account(id);
    if (account.available + cents < 0) return 'insufficient_funds';
    if (cents < 0) account.available += cents;
    else this.#receive(account, cents);
    return 'ok';
  }

  /** What comes in pays what is owed first. */
  #receive(account: Account, cents: number): void {
    const debt = Math.min(account.owed, cents);
    account.owed -= debt;
    account.available += cents - debt;
  }

  pay(id: string, owner: string, cents: number): string {
    this.payments.set(id, { account: owner, cents, taken: 0, reversals: new Map() });
    return this.fund(owner, cents);
  }

  /** A refund or dispute is told of: what is available is taken back, and the rest is owed. */
  reverse(paymentId: string, id: string, told: Reversal): string {
    const payment = this.payments.get(paymentId) as Payment;
    if (payment.reversals.get(id)?.state === 'returned') return 'ok';
    const isNew = !payment.reversals.has(id);
    payment.reversals.set(id, told);
    const asked = [...payment.reversals.values()].filter(({ state }) => state === 'taken' || state === 'lost');
    const taken = Math.min(
      payment.cents,
      asked.reduce((sum, it) => sum + it.cents, 0),
    );
    const account = this.account(payment.account);
    const more = taken - payment.taken;
    payment.taken = taken;
    if (more < 0) this.#receive(account, -more);
    else {
      const now = Math.min(account.available, more);
      account.available -= now;
      account.owed += more - now;
    }
    const undecided = [...this.payments.values()].some(
      (it) => it.account === payment.account && [...it.reversals.values()].some(isUndecided),
    );
    if (!undecided) account.disputed = false;
    else if (isNew && isUndecided(told)) account.disputed = true;
    return 'ok';
  }

  suspend(id: string, suspended: boolean): string {
    this.account(id).suspended = suspended;
    if (!suspended) this.account(id).disputed = false;
    return 'ok';
  }

  freezeAll(frozen: boolean): string {
    this.frozen = frozen;
    return 'ok';
  }

  /** Why an account gives no budget, whatever it has. */
  #refusesBudget(owner: string): string | undefined {
    const account = this.account(owner);
    if (account.suspended || account.disputed) return 'account_suspended';
    if (this.frozen) return 'read_only';
    return account.owed > 0 ? 'insufficient_funds' : undefined;
  }

  #inactive(id: string): string | undefined {
    if (this.wallet(id).reason === 'expired' || this.isDue(id)) return 'wallet_expired';
    return this.wallet(id).status === 'active' ? undefined : 'wallet_closed';
  }

  #paused = (id: string) => (this.above(id).some((it) => this.wallet(it).paused) ? 'wallet_frozen' : undefined);

  open(id: string, owner: string, cents: number, seconds: number): string {
    const account = this.account(owner);
    const refused = this.#refusesBudget(owner) ?? (account.available < cents ? 'insufficient_funds' : undefined);
    if (refused) return refused;
    account.available -= cents;
    account.reserved += cents;
    this.#insert(id, owner, null, BigInt(cents) * CENT, seconds ? this.now + seconds : null);
    return 'ok';
  }

  #insert(id: string, account: string, parent: string | null, budget: bigint, expiresAt: number | null): void {
    const figures = { budget, held: 0n, spent: 0n, delegated: 0n, returned: null };
    const rest = { parent, paused: false, refillAt: null };
    this.wallets.set(id, { account, status: 'active', reason: null, ...figures, expiresAt, ...rest });
  }

  delegate(id: string, parentId: string, budget: bigint, seconds: number): string {
    return this.#afterRefill(parentId, () => this.#delegate(id, parentId, budget, seconds));
  }

  #delegate(id: string, parentId: string, budget: bigint, seconds: number): string {
    const parent = this.wallet(parentId);
    const refused = this.#inactive(parentId) ?? this.#refusesBudget(parent.account) ?? this.#paused(parentId);
    if (refused) return refused;
    if (this.above(parentId).length > 4) return 'wallet_limit_exceeded';
    if (this.left(parentId) < budget)
      return this.left(parentId) + parent.held < budget ? 'insufficient_funds' : 'funds_held';
    parent.delegated += budget;
    const wanted = seconds ? this.now + seconds : Number.POSITIVE_INFINITY;
    const end = Math.min(wanted, parent.expiresAt ?? Number.POSITIVE_INFINITY);
    this.#insert(id, parent.account, parentId, budget, Number.isFinite(end) ? end : null);
    return 'ok';
  }

  /** Raises, or with negative cents lowers: to no less than what is spent, held and delegated. */
  changeBudget(id: string, cents: number): string {
    const change = () => this.#changeBudget(id, cents);
    const { parent } = this.wallet(id);
    return this.#afterRefill(id, () => (parent === null ? change() : this.#afterRefill(parent, change)));
  }

  #changeBudget(id: string, cents: number): string {
    const refused = this.#inactive(id) ?? (cents > 0 ? this.#refusesBudget(this.wallet(id).account) : undefined);
    if (refused) return refused;
    const amount = cents > 0 ? BigInt(cents) * CENT : -BigInt(Math.min(-cents, Number(this.left(id) / CENT))) * CENT;
    return this.#give(id, amount);
  }

  #give(id: string, amount: bigint): string {
    const wallet = this.wallet(id);
    if (wallet.parent !== null) {
      const above = this.wallet(wallet.parent);
      if (this.left(wallet.parent) < amount)
        return this.left(wallet.parent) + above.held < amount ? 'insufficient_funds' : 'funds_held';
      above.delegated += amount;
    } else {
      const account = this.account(wallet.account);
      const cents = Number(amount / CENT);
      if (account.available < cents) return 'insufficient_funds';
      account.reserved += cents;
      if (cents > 0) account.available -= cents;
      else this.#receive(account, -cents);
    }
    wallet.budget += amount;
    return 'ok';
  }

  extend(id: string, seconds: number): string {
    const refused = this.#inactive(id);
    if (refused) return refused;
    const wallet = this.wallet(id);
    if (wallet.expiresAt === null) return 'invalid_request';
    const last = wallet.parent === null ? null : this.wallet(wallet.parent).expiresAt;
    if (last !== null && wallet.expiresAt + seconds > last) return 'wallet_limit_exceeded';
    wallet.expiresAt += seconds;
    return 'ok';
  }

  pause(id: string, paused: boolean): string {
    const refused = this.#inactive(id);
    if (refused) return refused;
    this.wallet(id).paused = paused;
    return 'ok';
  }

  setRefill(id: string, order: Omit<Refill, 'days'>): string {
    return this.#afterRefill(id, () => this.#setRefill(id, order));
  }

  #setRefill(id: string, order: Omit<Refill, 'days'>): string {
    const refused = this.#inactive(id) ?? (this.wallet(id).parent === null ? undefined : 'invalid_request');
    if (refused) return refused;
    const days = this.refills.get(id)?.days ?? new Set();
    const isOwed = this.#isOwed(id);
    this.refills.set(id, { ...order, days });
    const wallet = this.wallet(id);
    wallet.refillAt = Math.min(this.#nextDay(), isOwed ? (wallet.refillAt as number) : Number.POSITIVE_INFINITY);
    return 'ok';
  }

  #nextDay(): number {
    return (Math.floor(this.now / DAY) + 1) * DAY;
  }

  /** Whether a refill is due, or fell short today. */
  #isOwed(id: string): boolean {
    const { refillAt } = this.wallet(id);
    return refillAt !== null && (refillAt <= this.now || (refillAt <= this.now + 60 && refillAt < this.#nextDay()));
  }

  /** Refills a wallet once for the day that it is, if its boundary has passed; also one that fell short, if it is needed. */
  refill(id: string, isNeeded = false): string {
    const [wallet, refill, day] = [this.wallet(id), this.refills.get(id), Math.floor(this.now / DAY)];
    const isWanted = isNeeded ? this.#isOwed(id) : wallet.refillAt !== null && wallet.refillAt <= this.now;
    if (!refill || !isWanted || this.#inactive(id)) return 'ok';
    const next = this.#nextDay();
    wallet.refillAt = next;
    if (refill.days.has(day)) return 'ok';
    const [own, full] = [this.left(id), BigInt(refill.cents) * CENT];
    // What is held is left over as well: it comes back when it settles.
    const left = this.below(id).reduce(
      (sum, child) => sum + this.left(child) + this.wallet(child).held,
      own + wallet.held,
    );
    const cap = typeof refill.carry === 'number' ? BigInt(refill.carry) * CENT : 0n;
    const missing = refill.carry === 'all' ? full : full + (left < cap ? left : cap) - left;
    const amount = up(missing < -own ? -own : missing); // What the children have stays with them.
    const refused = amount > 0n ? this.#refusesBudget(wallet.account) : undefined;
    if (refused ?? (this.#give(id, amount) === 'ok' ? undefined : 'short'))
      wallet.refillAt = Math.min(next, this.now + 60);
    else refill.days.add(day);
    return 'ok';
  }

  /** Does something after a refill that is owed. What was refused has not happened, and neither has the refill. */
  #afterRefill(id: string, act: () => string, isNeeded = true): string {
    const [wallet, refill] = [this.wallet(id), this.refills.get(id)];
    const account = this.account(wallet.account);
    const before = [{ ...wallet }, { ...account }, new Set(refill?.days)] as const;
    this.refill(id, isNeeded);
    const end = act();
    if (end === 'ok') return end;
    Object.assign(wallet, before[0]);
    Object.assign(account, before[1]);
    if (refill) refill.days = before[2];
    return end;
  }

  hold(id: string, walletId: string, hold: bigint): string {
    const wallet = this.wallet(walletId);
    const refused = this.#inactive(walletId) ?? this.#paused(walletId);
    if (refused) return refused;
    const account = this.account(wallet.account);
    if (account.suspended) return 'account_suspended';
    if (this.frozen) return 'read_only';
    return this.#afterRefill(walletId, () => this.#hold(id, walletId, hold), this.left(walletId) < hold);
  }

  #hold(id: string, walletId: string, hold: bigint): string {
    const [wallet, left] = [this.wallet(walletId), this.left(walletId)];
    const later = left + wallet.held;
    assert(later >= 0n);
    if (left < hold) return later >= hold ? 'funds_held' : 'insufficient_funds';
    wallet.held += hold;
    this.operations.set(id, {
      wallet: walletId,
      state: 'reserved',
      hold,
      charge: null,
      outcome: null,
      isDecided: false,
    });
    return 'ok';
  }

  settle(id: string, outcome: 'charged' | 'released' | 'unknown', charge: bigint, isDecided = false): string {
    const operation = this.operation(id);
    if (operation.state === 'settled') return 'too_late';
    operation.state = outcome === 'unknown' ? 'uncertain' : 'settled';
    if (outcome === 'unknown') return 'ok';
    Object.assign(operation, { outcome, charge, isDecided });
    const wallet = this.wallet(operation.wallet);
    wallet.held -= operation.hold;
    wallet.spent += charge;
    return 'ok';
  }

  /** A retry asks again on the hold of an operation without an answer. What a refusal says is no outcome of the first. */
  takeOver(id: string, outcome: 'charged' | 'refused' | 'unknown', charge: bigint): string {
    const operation = this.operation(id);
    if (operation.state !== 'uncertain' && !(operation.outcome === 'charged' && operation.isDecided)) return 'too_late';
    const refused = this.#inactive(operation.wallet) ?? this.#paused(operation.wallet);
    if (refused) return refused;
    if (this.account(this.wallet(operation.wallet).account).suspended) return 'account_suspended';
    if (this.frozen) return 'read_only';
    if (outcome === 'refused' || operation.state === 'settled') return 'ok';
    return this.settle(id, outcome, charge);
  }

  freeze(id: string, reason: string): string {
    const wallet = this.wallet(id);
    if (wallet.status !== 'active') return 'ok';
    wallet.reason = this.isDue(id) ? 'expired' : reason;
    wallet.status = wallet.reason === 'expired' ? 'expired' : 'closing';
    return 'ok';
  }

  close(id: string): string {
    const wallet = this.wallet(id);
    if (wallet.status === 'closed') return 'ok';
    if (wallet.parent !== null) {
      const above = this.wallet(wallet.parent);
      wallet.status = 'closed';
      wallet.returned = Number((wallet.budget - wallet.spent) / CENT);
      above.delegated -= wallet.budget;
      above.spent += wallet.spent;
      return 'ok';
    }
    const spent = Number((wallet.spent + CENT - 1n) / CENT);
    const account = this.account(wallet.account);
    wallet.status = 'closed';
    wallet.returned = Number(wallet.budget / CENT) - spent;
    account.reserved -= spent + wallet.returned;
    this.#receive(account, wallet.returned);
    account.spent += spent;
    return 'ok';
  }

  /** What a crash leaves in flight is uncertain when the books are opened again. */
  crash(): void {
    for (const it of this.operations.values()) if (it.state === 'reserved') it.state = 'uncertain';
  }
}

const isUndecided = ({ kind, state }: Reversal) => kind === 'dispute' && (state === 'inquiry' || state === 'taken');
