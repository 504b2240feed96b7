import type { Database as Client } from 'better-sqlite3';
import { book, GENESIS, HASHED_COLUMNS, hashEntryHex } from './journal.ts';

/** Rows fetched at a time: fetching them one by one costs half as much again. */
const PAGE_COUNT = 1000;

type EntryRow = [prevHash: string, hash: string, fields: string];
type OperationRow = [
  rowid: bigint,
  id: string,
  walletId: string,
  state: string,
  outcome: string | null,
  hold: bigint,
  charge: bigint | null,
  holdEntry: bigint | null,
  settleEntry: bigint | null,
];
/**
 * The balance of a book of the journal, and the amount that sales took from it, in nano-dollars. A wallet has two, which refer to
 * each other.
 */
type Book = { name: string; amount: bigint; sold: bigint; other: Book | undefined };
/** The book of an operation's hold, the numbers and sums of its entries, and its row. */
type SeenOperation = {
  heldIn: Book;
  heldBy: number;
  settledBy: number | undefined;
  hold: bigint;
  charge: bigint;
  released: bigint;
  row: OperationRow | undefined;
};
type FundingRow = [accountId: string, kind: string, cents: bigint];
type EntryFields = [seq: string, at: string, causeId: string, debit: string, credit: string, amount: string];
const FIELD_COUNT = 6 satisfies EntryFields['length'];
type WalletRow = {
  id: string;
  account_id: string;
  parent_id: string | null;
  status: string;
  budget_nanos: bigint;
  held_nanos: bigint | null;
  spent_nanos: bigint | null;
  delegated_nanos: bigint;
  returned_cents: bigint | null;
};
type AccountRow = {
  id: string;
  available_cents: bigint;
  reserved_cents: bigint;
  spent_cents: bigint;
  owed_cents: bigint;
};

const NANOS_PER_CENT = 10_000_000n;

/** An entry of the journal, with the books that it moves money between. */
type JournalEntry = { seq: number; causeId: string; from: Book; to: Book; amount: bigint };

/** The sums of the journal's entries, and the rows that they are compared with as they are read. */
type Sums = {
  fault: (text: string) => void;
  /** The books by name, except those of wallets. */
  readonly books: Map<string, Book>;
  /** The books of available money, by wallet: each refers to the book of its holds, so one look-up finds both. */
  readonly walletBooks: Map<string, Book>;
  /** The sums of the entries of each unsettled operation; dropped once its row agrees. */
  readonly open: Map<string, SeenOperation>;
  operationCount: number;
  readonly findOperation: (id: string) => OperationRow | undefined;
  /** The sum of the entries of each funding, in nano-dollars. One part may pay off debt or be taken as debt. */
  readonly fundings: Map<string, bigint>;
  fundingCount: number;
  readonly findFunding: (id: string) => FundingRow | undefined;
  /** The budget that each wallet was given, when it opened and by changes. */
  readonly given: Map<string, bigint>;
  /** The sums of the entries of each change of a wallet. */
  readonly changes: Map<string, bigint>;
  readonly findChange: (id: string) => string | undefined;
};

/** The sums of each account's wallets, in cents: reserved by the open ones, spent by the closed ones. */
type Budgets = { readonly reserved: Map<string, bigint>; readonly spent: Map<string, bigint> };

/**
 * Rebuilds every balance from the journal, reading it once, and compares every row with it: operations, fundings, changes of
 * wallets, wallets and accounts. Returns the newest entry.
 */
export function verifyJournal(client: Client, fault: (text: string) => void): { seq: number; hash: string } {
  const sums = noSums(client, fault);
  const head = walkEntries(client, sums);
  for (const [id, seen] of sums.open) checkOperation(sums, id, seen);
  checkChanges(client, sums);
  checkFundings(sums);
  checkCounts(client, sums);
  checkAccounts(client, sums, checkWallets(client, sums));
  checkNames(sums);
  return head;
}

function noSums(client: Client, fault: Sums['fault']): Sums {
  const funding = client.prepare('select account_id, kind, amount_cents from funding where id = ?').raw();
  const change = client.prepare('select wallet_id from wallet_change where id = ?').pluck();
  return {
    fault,
    books: new Map(),
    walletBooks: new Map(),
    open: new Map(),
    operationCount: 0,
    findOperation: operationsInOrder(client),
    fundings: new Map(),
    fundingCount: 0,
    findFunding: (id) => funding.get(id) as FundingRow | undefined,
    given: new Map(),
    changes: new Map(),
    findChange: (id) => change.get(id) as string | undefined,
  };
}

/**
 * Returns a function that finds an operation's row by its id. The rows have the order of their holds in the journal, so
 * that they are usually read in pages; any other is looked up.
 */
function operationsInOrder(client: Client): (id: string) => OperationRow | undefined {
  const columns = 'rowid, id, wallet_id, state, outcome, hold_nanos, charge_nanos, hold_entry, settle_entry';
  const page = client
    .prepare(`select ${columns} from operation where rowid > ? and hold_nanos > 0 order by rowid limit ${PAGE_COUNT}`)
    .raw();
  const byId = client.prepare(`select ${columns} from operation where id = ?`).raw();
  let rows = page.all(-1) as OperationRow[];
  let next = 0;
  return (id) => {
    const row = rows[next];
    if (row?.[1] !== id) return byId.get(id) as OperationRow | undefined;
    next++;
    if (next === rows.length) {
      rows = page.all(row[0]) as OperationRow[];
      next = 0;
    }
    return row;
  };
}

function bookOf(sums: Sums, name: string): Book {
  if (name.startsWith('wallet:')) return walletBookOf(sums, name.slice('wallet:'.length));
  if (name.startsWith('hold:')) return walletBookOf(sums, name.slice('hold:'.length)).other as Book;
  let it = sums.books.get(name);
  if (!it) {
    it = { name, amount: 0n, sold: 0n, other: undefined };
    sums.books.set(name, it);
  }
  return it;
}

function walletBookOf({ walletBooks }: Sums, id: string): Book {
  let it = walletBooks.get(id);
  if (!it) {
    const holds: Book = { name: book.hold(id), amount: 0n, sold: 0n, other: undefined };
    it = { name: book.wallet(id), amount: 0n, sold: 0n, other: holds };
    holds.other = it;
    walletBooks.set(id, it);
  }
  return it;
}

const add = (map: Map<string, bigint>, name: string, amount: bigint) => map.set(name, (map.get(name) ?? 0n) + amount);

/** Checks the chain, the numbers and the times of all entries, and adds each to the sums. Returns the newest. */
function walkEntries(client: Client, sums: Sums): { seq: number; hash: string } {
  const { fault } = sums;
  let prev = GENESIS.hash.toString('hex');
  let expected = 1;
  let after = -(2n ** 63n);
  let lastAt = 0;
  const { prevHash, hash, fields } = HASHED_COLUMNS;
  const page = client
    .prepare(`select ${prevHash}, ${hash}, ${fields} from entry where seq > ? order by seq limit ${PAGE_COUNT}`)
    .raw();
  for (;;) {
    const rows = page.all(after) as EntryRow[];
    for (const row of rows) checkEntry(row);
    const last = rows.at(-1);
    if (!last) break;
    after = BigInt(last[2].split('\n', 1)[0] as string); // Exact, even if it was damaged.
  }
  return { seq: expected - 1, hash: prev };

  function checkEntry([prevHash, hash, fields]: EntryRow) {
    const parts = fields.split('\n');
    const [seqText, atText] = parts as EntryFields;
    const seq = Number(seqText);
    if (seq !== expected) fault(`entries ${expected} to ${seq - 1} are missing`);
    if (prevHash !== prev) fault(`entry ${seq} does not follow the one before it: its previous hash differs`);
    const isWhole = parts.length === FIELD_COUNT;
    if (!isWhole || hashEntryHex(prevHash, fields) !== hash)
      fault(`entry ${seq} was changed: its hash does not match its fields`);
    const at = Number(atText);
    if (at < lastAt) fault(`entry ${seq} is earlier than the one before it`);
    expected = seq + 1;
    prev = hash;
    lastAt = at;
    if (isWhole) addEntry(sums, seq, parts as EntryFields); // Otherwise a field has a line feed, and the books of the entry are unknown.
  }
}

/** Moves the amount of an entry between its books, and adds it to the sum of its cause. */
function addEntry(sums: Sums, seq: number, [, , causeId, debit, credit, amountText]: EntryFields): void {
  const amount = BigInt(amountText);
  const isOperation = causeId.startsWith('op_');
  const seen = isOperation ? sums.open.get(causeId) : undefined;
  const known = seen?.heldIn; // Most look-ups are for the books of the operation.
  const to = credit === known?.other?.name ? known.other : bookOf(sums, credit);
  const from = debit === known?.name ? known : debit === to.other?.name ? to.other : bookOf(sums, debit);
  from.amount -= amount;
  to.amount += amount;
  const entry: JournalEntry = { seq, causeId, from, to, amount };
  if (isOperation) followOperation(sums, entry, seen);
  else if (causeId.startsWith('evt_')) followFunding(sums, entry);
  else if (causeId.startsWith('chg_')) followChange(sums, entry);
  else if (causeId.startsWith('wal_') && to.name === book.wallet(causeId)) add(sums.given, causeId, amount);
}

function followOperation(
  sums: Sums,
  { seq, causeId: id, from, to, amount }: JournalEntry,
  seen: SeenOperation | undefined,
): void {
  const { fault, open } = sums;
  if (to.name.startsWith('hold:')) {
    if (seen) fault(`entry ${seq}: operation ${id} holds twice`);
    if (from !== to.other) fault(`entry ${seq}: the hold of ${id} comes from ${from.name}`);
    const row = sums.findOperation(id);
    open.set(id, { heldIn: to, heldBy: seq, settledBy: undefined, hold: amount, charge: 0n, released: 0n, row });
    return;
  }
  if (from !== seen?.heldIn) {
    fault(`entry ${seq}: operation ${id} settles from ${from.name}, where it holds nothing`);
    return;
  }
  seen.settledBy ??= seq;
  if (to.name.startsWith('sales:')) {
    seen.charge += amount;
    from.sold += amount;
  } else if (to === seen.heldIn.other) seen.released += amount;
  else fault(`entry ${seq}: operation ${id} pays into ${to.name}`);
  if (seen.charge + seen.released >= seen.hold) {
    checkOperation(sums, id, seen);
    open.delete(id);
  }
}

/** Returns the id of the wallet whose holds are in this book. */
const heldFor = ({ name }: Book): string => name.slice('hold:'.length);

function checkOperation(sums: Sums, id: string, seen: SeenOperation) {
  const { fault } = sums;
  sums.operationCount++;
  if (!seen.row) return fault(`operation ${id} has entries but no row`);
  const [, , walletId, state, outcome, hold, charge, holdEntry, settleEntry] = seen.row;
  const heldOf = heldFor(seen.heldIn);
  if (walletId !== heldOf) fault(`operation ${id} is of wallet ${walletId}, its entries of ${heldOf}`);
  if (
    Number(holdEntry) !== seen.heldBy ||
    settleEntry !== (seen.settledBy === undefined ? null : BigInt(seen.settledBy))
  )
    fault(`operation ${id} names other entries than its own`);
  if (hold !== seen.hold) fault(`operation ${id} holds ${hold} nanos, its entries ${seen.hold}`);
  const settled = seen.charge + seen.released === seen.hold;
  if (settled !== (state === 'settled'))
    fault(`operation ${id} is ${state}, its entries say ${settled ? 'settled' : 'open'}`);
  if (settled && charge !== seen.charge) fault(`operation ${id} charged ${charge} nanos, its entries ${seen.charge}`);
  // A key freed by mistake would allow a second effect (design 2.7).
  if (settled && seen.charge > 0n && outcome !== 'charged')
    fault(`operation ${id} is ${outcome}, its entries say charged`);
}

function followFunding(sums: Sums, { seq, causeId: id, from, to, amount }: JournalEntry) {
  const { fault, fundings } = sums;
  const row = sums.findFunding(id);
  if (!row) return fault(`entry ${seq}: funding ${id} has no row`);
  const [accountId, kind, cents] = row;
  const isTaken = kind === 'debit' || kind === 'clawback';
  const [own, other] = isTaken ? [from.name, to.name] : [to.name, from.name];
  const mayOwe = kind !== 'debit' && own === book.owed(accountId);
  if (other !== book.funding || (own !== book.account(accountId) && !mayOwe))
    fault(`entry ${seq}: funding ${id} moves from ${from.name} to ${to.name}`);
  const moved = (fundings.get(id) ?? 0n) + amount;
  fundings.set(id, moved);
  if (moved < cents * NANOS_PER_CENT) return;
  fundings.delete(id);
  sums.fundingCount++;
  if (moved > cents * NANOS_PER_CENT) fault(`funding ${id} is of ${cents} cents, its entries of ${moved} nanos`);
}

/** Reports the fundings whose entries sum to less than their rows. */
function checkFundings(sums: Sums): void {
  for (const [id, moved] of sums.fundings) {
    const [, , cents] = sums.findFunding(id) as FundingRow;
    sums.fault(`funding ${id} is of ${cents} cents, its entries of ${moved} nanos`);
    sums.fundingCount++;
  }
}

function followChange(sums: Sums, { seq, causeId: id, from, to, amount }: JournalEntry) {
  const { fault } = sums;
  const walletId = sums.findChange(id);
  if (walletId === undefined) return fault(`entry ${seq}: the change ${id} of a wallet has no row`);
  const own = book.wallet(walletId);
  if (to.name !== own && from.name !== own) fault(`entry ${seq}: the change ${id} of ${walletId} moves other money`);
  const moved = to.name === own ? amount : -amount;
  add(sums.changes, id, moved);
  add(sums.given, walletId, moved);
}

function checkChanges(client: Client, { fault, changes }: Sums): void {
  for (const [id, walletId, amount] of client
    .prepare('select id, wallet_id, amount_nanos from wallet_change')
    .raw()
    .iterate() as IterableIterator<[string, string, bigint]>)
    if ((changes.get(id) ?? 0n) !== amount)
      fault(`the change ${id} of ${walletId} is of ${amount} nanos, its entries of ${changes.get(id) ?? 0n}`);
}

/** The condition that an operation owns its key although it was released, or the other way round. */
const IS_WRONGLY_FREED = "freed is not iif(outcome is 'released' and answered_at is null, 1, null)";

/** Reports operations and fundings that have rows but no entries, and a key that is free or taken by mistake. */
function checkCounts(client: Client, { fault, operationCount, fundingCount }: Sums): void {
  // An operation with a hold of 0 moves nothing, so it has no entries.
  const [priced, unlike] = client
    .prepare(`select count(*) filter (where hold_nanos > 0), min(id) filter (where ${IS_WRONGLY_FREED}) from operation`)
    .raw()
    .get() as [bigint, string | null];
  if (unlike !== null) fault(`operation ${unlike} does not own its key as its outcome says`);
  if (priced !== BigInt(operationCount))
    fault(`${priced} operations hold money, ${operationCount} of them are in the journal`);
  const funded = client.prepare('select count(*) from funding').pluck().get() as bigint;
  if (funded !== BigInt(fundingCount)) fault(`there are ${funded} fundings, ${fundingCount} of them in the journal`);
}

/** Checks every wallet against its books and the sums of its children. Removes the books of wallets that have a row. */
function checkWallets(client: Client, sums: Sums): Budgets {
  const budgets: Budgets = { reserved: new Map(), spent: new Map() };
  const belowOf = childrenOf(client);
  for (const wallet of client
    .prepare(
      `select id, account_id, parent_id, status, budget_nanos, held_nanos, spent_nanos, delegated_nanos, returned_cents
        from wallet left join balance using (number)`,
    )
    .iterate() as IterableIterator<WalletRow>)
    checkWallet(sums, budgets, wallet, belowOf(wallet.id));
  return budgets;
}

/** The spending of a wallet's closed children, and the budgets of its open ones. */
type Below = { spent: bigint; delegated: bigint };
const NOTHING_BELOW: Below = { spent: 0n, delegated: 0n };

/** Returns a function that sums the children of a wallet. Most wallets have none, and are not queried. */
function childrenOf(client: Client): (walletId: string) => Below {
  const parents = new Set(
    client.prepare('select distinct parent_id from wallet where parent_id is not null').pluck().all() as string[],
  );
  const children = client.prepare(
    `select coalesce(sum(case when status = 'closed' then spent_nanos end), 0) as spent,
      coalesce(sum(case when status <> 'closed' then budget_nanos end), 0) as delegated
      from wallet join balance using (number) where parent_id is not null and parent_id = ?`,
  );
  return (id) => (parents.has(id) ? (children.get(id) as Below) : NOTHING_BELOW);
}

function checkWallet(sums: Sums, { reserved, spent }: Budgets, wallet: WalletRow, below: Below): void {
  const { fault, walletBooks, given } = sums;
  const { id, budget_nanos: budget, delegated_nanos: delegated } = wallet;
  const { amount: inJournal, other } = walletBookOf(sums, id);
  const { amount: held, sold } = other as Book;
  walletBooks.delete(id);
  const charged = sold + below.spent;
  if (delegated !== below.delegated)
    fault(`wallet ${id} has delegated ${delegated} nanos, its open children have ${below.delegated}`);
  if (budget !== (given.get(id) ?? 0n))
    fault(`wallet ${id} has a budget of ${budget} nanos, the journal gave it ${given.get(id) ?? 0n}`);
  if (wallet.held_nanos === null) fault(`wallet ${id} has no row of balance`);
  if (held !== wallet.held_nanos) fault(`wallet ${id} holds ${wallet.held_nanos} nanos, the journal ${held}`);
  if (charged !== wallet.spent_nanos)
    fault(`wallet ${id} has spent ${wallet.spent_nanos} nanos, the journal ${charged}`);
  if (wallet.status !== 'closed') {
    const free = budget - held - charged - delegated;
    if (inJournal !== free) fault(`wallet ${id} has ${free} nanos available, the journal ${inJournal}`);
    if (wallet.parent_id === null) add(reserved, wallet.account_id, budget / NANOS_PER_CENT);
    return;
  }
  if (inJournal !== 0n) fault(`wallet ${id} is closed, but ${inJournal} nanos are left in its book`);
  if (wallet.parent_id !== null) {
    if (wallet.returned_cents !== (budget - charged) / NANOS_PER_CENT)
      fault(`wallet ${id} returned ${wallet.returned_cents} cents, but had ${budget - charged} nanos left`);
    return;
  }
  const kept = budget / NANOS_PER_CENT - (wallet.returned_cents ?? 0n);
  if (kept !== (charged + NANOS_PER_CENT - 1n) / NANOS_PER_CENT)
    fault(`wallet ${id} returned ${wallet.returned_cents} cents, but had spent ${charged} nanos`);
  add(spent, wallet.account_id, kept);
}

/** Checks every account against its books and its wallets. Removes the books of accounts that have a row. */
function checkAccounts(client: Client, sums: Sums, { reserved, spent }: Budgets): void {
  const { fault, books } = sums;
  for (const account of client
    .prepare('select id, available_cents, reserved_cents, spent_cents, owed_cents from account')
    .iterate() as IterableIterator<AccountRow>) {
    const { id } = account;
    const available = bookOf(sums, book.account(id)).amount;
    const owed = -bookOf(sums, book.owed(id)).amount;
    books.delete(book.account(id));
    books.delete(book.owed(id));
    if (owed !== account.owed_cents * NANOS_PER_CENT)
      fault(`account ${id} owes ${account.owed_cents} cents, the journal ${owed} nanos`);
    if (owed > 0n && available > 0n) fault(`account ${id} owes ${owed} nanos, though ${available} are available`);
    if (available !== account.available_cents * NANOS_PER_CENT)
      fault(`account ${id} has ${account.available_cents} cents available, the journal ${available} nanos`);
    const open = reserved.get(id) ?? 0n;
    if (open !== account.reserved_cents)
      fault(`account ${id} has ${account.reserved_cents} cents reserved, its open wallets ${open}`);
    const kept = spent.get(id) ?? 0n;
    if (kept !== account.spent_cents)
      fault(`account ${id} has spent ${account.spent_cents} cents, its closed wallets ${kept}`);
  }
}

/** Reports the remaining books: the row of such a name is missing, even if its balance is zero. */
function checkNames({ fault, books, walletBooks }: Sums): void {
  const ofNobody = [...walletBooks.values()].flatMap((it) => [it, it.other as Book]);
  for (const { name, amount } of [...books.values(), ...ofNobody])
    if (/^(account|owed|wallet):/.test(name) || (name.startsWith('hold:') && amount !== 0n))
      fault(`the book ${name} has ${amount} nanos, but nothing has this name`);
}
