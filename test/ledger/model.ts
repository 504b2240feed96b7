/**
 * What the books promise, in one screen and without a database: the model that the random walks are held against.
 * Every function does one thing and says how it ends: `ok`, `too_late`, or the code of a refusal.
 */
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
  returned: number | null;
  expiresAt: number | null;
};
type Operation = { wallet: string; state: string; hold: bigint; charge: bigint | null; outcome: string | null };

export class Model {
  now = 1000;
  frozen = false;
  readonly accounts = new Map<string, Account>();
  readonly wallets = new Map<string, Wallet>();
  readonly operations = new Map<string, Operation>();
  readonly payments = new Map<string, Payment>();

  account = (id: string) => this.accounts.get(id) as Account;
  wallet = (id: string) => this.wallets.get(id) as Wallet;
  operation = (id: string) => this.operations.get(id) as Operation;
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

  open(id: string, owner: string, cents: number, seconds: number): string {
    const account = this.account(owner);
    if (account.suspended || account.disputed) return 'account_suspended';
    if (this.frozen) return 'read_only';
    if (account.owed > 0) return 'insufficient_funds';
    if (account.available < cents) return 'insufficient_funds';
    account.available -= cents;
    account.reserved += cents;
    const expiresAt = seconds ? this.now + seconds : null;
    const budget = BigInt(cents) * CENT;
    const figures = { budget, held: 0n, spent: 0n, returned: null };
    this.wallets.set(id, { account: owner, status: 'active', reason: null, ...figures, expiresAt });
    return 'ok';
  }

  hold(id: string, walletId: string, hold: bigint): string {
    const wallet = this.wallet(walletId);
    if (wallet.reason === 'expired' || this.isDue(walletId)) return 'wallet_expired';
    if (wallet.status !== 'active') return 'wallet_closed';
    if (this.account(wallet.account).suspended) return 'account_suspended';
    if (this.frozen) return 'read_only';
    const left = wallet.budget - wallet.held - wallet.spent;
    if (left < hold) return left + wallet.held < hold ? 'insufficient_funds' : 'funds_held';
    wallet.held += hold;
    this.operations.set(id, { wallet: walletId, state: 'reserved', hold, charge: null, outcome: null });
    return 'ok';
  }

  settle(id: string, outcome: 'charged' | 'released' | 'unknown', charge: bigint): string {
    const operation = this.operation(id);
    if (operation.state === 'settled') return 'too_late';
    operation.state = outcome === 'unknown' ? 'uncertain' : 'settled';
    if (outcome === 'unknown') return 'ok';
    Object.assign(operation, { outcome, charge });
    const wallet = this.wallet(operation.wallet);
    wallet.held -= operation.hold;
    wallet.spent += charge;
    return 'ok';
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
