import type { Database as Client } from 'better-sqlite3';
import { findBadChecksums } from '../db/checksum.ts';
import { findMissingRows } from '../db/tally.ts';
import { parseJson } from '../parse-json.ts';
import { book, GENESIS, HASHED_COLUMNS, hashEntryHex } from './journal.ts';
import { verifyCheckouts } from './verify-checkouts.ts';
import { verifyResources } from './verify-resources.ts';

export type Verdict = {
  ok: boolean;
  entries: number;
  head: { seq: number; hash: string };
  /** The faults, of which a list that is too long names only the first and how many more there are. */
  problems: string[];
  /** The number of faults, of those too that are not listed. */
  faults: number;
};

/** Returns a verdict as `ledger verify --json` prints it (design, section 4): with `faults` only where not all are listed. */
export function printVerdict({ faults, ...verdict }: Verdict): string {
  return JSON.stringify(faults > verdict.problems.length ? { ...verdict, faults } : verdict);
}

/** Reads what `ledger verify --json` printed. Throws for anything else. */
export function readVerdict(text: string): Verdict {
  const verdict = parseJson(text) as Partial<Verdict>;
  if (!verdict.problems) throw new Error(text);
  return { faults: verdict.problems.length, ...verdict } as Verdict;
}

/** Cap of listed faults; the rest are only counted. */
const PROBLEM_COUNT_MAX = 1000;
/** Faults that were found, the first of them listed. */
export type Faults = { listed: string[]; count: number };

/** Runs a check and returns the faults that it reports. */
export function faultsOf(check: (fault: (text: string) => void) => void): Faults {
  const faults: Faults = { listed: [], count: 0 };
  check((text) => {
    if (faults.count++ < PROBLEM_COUNT_MAX) faults.listed.push(text);
  });
  return faults;
}

/** Returns the verdict on the journal, with the faults of the books and of the rows. */
export function verdictOf(head: Verdict['head'], ...parts: readonly Faults[]): Verdict {
  const problems = parts.flatMap(({ listed }) => listed).slice(0, PROBLEM_COUNT_MAX);
  const faults = parts.reduce((sum, { count }) => sum + count, 0);
  if (faults > problems.length) problems.push(`and ${faults - problems.length} more`);
  return { ok: faults === 0, entries: head.seq, head, problems, faults };
}

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
];
/** The balance of a book of the journal, and what sales took from it, in nano-dollars. A wallet has two, which know each other. */
type Book = { name: string; amount: bigint; sold: bigint; other: Book | undefined };
/** The book of an operation's hold, the sums of its entries, and its row. */
type Seen = {
  heldIn: Book;
  hold: bigint;
  charge: bigint;
  released: bigint;
  row: OperationRow | undefined;
};
type Fields = [seq: string, at: string, causeId: string, debit: string, credit: string, amount: string];
const FIELD_COUNT = 6 satisfies Fields['length'];
type WalletRow = {
  id: string;
  account_id: string;
  parent_id: string | null;
  status: string;
  budget_nanos: bigint;
  held_nanos: bigint;
  spent_nanos: bigint;
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
const NOTHING_BELOW = { spent: 0n, delegated: 0n };

/**
 * Rebuilds every balance from the journal and lists every fault: those of `verifyBooks`, and every row whose checksum does
 * not match. Reads one snapshot and writes nothing.
 */
export function verifyLedger(client: Client): Verdict {
  return client
    .transaction(() => {
      const { head, faults } = verifyBooks(client);
      return verdictOf(
        head,
        faults,
        faultsOf((fault) => findBadChecksums(client, fault)),
      );
    })
    .deferred();
}

/**
 * Returns a function that finds an operation's row by its id. The rows have the order of their holds in the journal, so
 * that they are usually read in pages; any other is looked up.
 */
function operationsInOrder(client: Client): (id: string) => OperationRow | undefined {
  const columns = 'rowid, id, wallet_id, state, outcome, hold_nanos, charge_nanos';
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

/**
 * Rebuilds every balance from the journal and finds every fault of it: the chain, the numbering, the timestamps, and each
 * operation, wallet, funding, checkout and account against its entries. For use inside a transaction. Returns the newest
 * entry as well.
 */
export function verifyBooks(client: Client): { head: Verdict['head']; faults: Faults } {
  let head: Verdict['head'] = { seq: 0, hash: '' };
  const faults = faultsOf((fault) => {
    head = followJournal(client, fault);
  });
  return { head, faults };
}

/** Returns the id of the wallet whose holds this book has. */
const heldFor = ({ name }: Book): string => name.slice('hold:'.length);

function followJournal(client: Client, fault: (text: string) => void): Verdict['head'] {
  const books = new Map<string, Book>();
  /** The books of available money, by wallet: each knows the book of its holds, so one look-up finds both. */
  const walletBooks = new Map<string, Book>();
  function bookOf(name: string): Book {
    if (name.startsWith('wallet:')) return walletBookOf(name.slice('wallet:'.length));
    if (name.startsWith('hold:')) return walletBookOf(name.slice('hold:'.length)).other as Book;
    let it = books.get(name);
    if (!it) {
      it = { name, amount: 0n, sold: 0n, other: undefined };
      books.set(name, it);
    }
    return it;
  }
  function walletBookOf(id: string): Book {
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
  /** The sums of the entries of each unsettled operation; dropped once its row agrees. */
  const open = new Map<string, Seen>();
  const findOperation = operationsInOrder(client);
  const fundingRow = client.prepare('select account_id, kind, amount_cents from funding where id = ?').raw();
  const changeRow = client.prepare('select wallet_id from wallet_change where id = ?').pluck();
  let operationCount = 0;
  /** The sum of the entries of each funding, in nano-dollars. One part may pay off debt or be taken as debt. */
  const parts = new Map<string, bigint>();
  let fundingCount = 0;
  /** By wallet: the budget it was given, when it opened and by changes. */
  const given = new Map<string, bigint>();
  /** What the entries of each change of a wallet add up to. */
  const changed = new Map<string, bigint>();

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
  const head = { seq: expected - 1, hash: prev };

  function checkEntry([prevHash, hash, fields]: EntryRow) {
    const parts = fields.split('\n');
    const [seqText, atText, causeId, debit, credit, amountText] = parts as Fields;
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
    if (!isWhole) return; // A field has a line feed: whose money it moves cannot be told.

    const amount = BigInt(amountText);
    const isOperation = causeId.startsWith('op_');
    const seen = isOperation ? open.get(causeId) : undefined;
    const known = seen?.heldIn; // Most look-ups are for the books of the operation.
    const to = credit === known?.other?.name ? known.other : bookOf(credit);
    const from = debit === known?.name ? known : debit === to.other?.name ? to.other : bookOf(debit);
    from.amount -= amount;
    to.amount += amount;
    if (isOperation) follow(seq, causeId, from, to, amount, seen);
    else if (causeId.startsWith('evt_')) checkFunding(seq, causeId, debit, credit, amount);
    else if (causeId.startsWith('chg_')) followChange(seq, causeId, debit, credit, amount);
    else if (causeId.startsWith('wal_') && credit === book.wallet(causeId)) add(given, causeId, amount);
  }

  function follow(seq: number, id: string, from: Book, to: Book, amount: bigint, seen: Seen | undefined) {
    if (to.name.startsWith('hold:')) {
      if (seen) fault(`entry ${seq}: operation ${id} holds twice`);
      if (from !== to.other) fault(`entry ${seq}: the hold of ${id} comes from ${from.name}`);
      open.set(id, { heldIn: to, hold: amount, charge: 0n, released: 0n, row: findOperation(id) });
      return;
    }
    if (from !== seen?.heldIn) {
      fault(`entry ${seq}: operation ${id} settles from ${from.name}, where it holds nothing`);
      return;
    }
    if (to.name.startsWith('sales:')) {
      seen.charge += amount;
      from.sold += amount;
    } else if (to === seen.heldIn.other) seen.released += amount;
    else fault(`entry ${seq}: operation ${id} pays into ${to.name}`);
    if (seen.charge + seen.released >= seen.hold) {
      agree(id, seen);
      open.delete(id);
    }
  }

  function agree(id: string, seen: Seen) {
    operationCount++;
    if (!seen.row) return fault(`operation ${id} has entries but no row`);
    const [, , walletId, state, outcome, hold, charge] = seen.row;
    const heldOf = heldFor(seen.heldIn);
    if (walletId !== heldOf) fault(`operation ${id} is of wallet ${walletId}, its entries of ${heldOf}`);
    if (hold !== seen.hold) fault(`operation ${id} holds ${hold} nanos, its entries ${seen.hold}`);
    const settled = seen.charge + seen.released === seen.hold;
    if (settled !== (state === 'settled'))
      fault(`operation ${id} is ${state}, its entries say ${settled ? 'settled' : 'open'}`);
    if (settled && charge !== seen.charge) fault(`operation ${id} charged ${charge} nanos, its entries ${seen.charge}`);
    // A key freed by mistake would allow a second effect (design 2.7).
    if (settled && seen.charge > 0n && outcome !== 'charged')
      fault(`operation ${id} is ${outcome}, its entries say charged`);
  }

  function checkFunding(seq: number, id: string, debit: string, credit: string, amount: bigint) {
    const row = fundingRow.get(id) as [string, string, bigint] | undefined;
    if (!row) return fault(`entry ${seq}: funding ${id} has no row`);
    const [accountId, kind, cents] = row;
    const isTaken = kind === 'debit' || kind === 'clawback';
    const [own, other] = isTaken ? [debit, credit] : [credit, debit];
    const mayOwe = kind !== 'debit' && own === book.owed(accountId);
    if (other !== book.funding || (own !== book.account(accountId) && !mayOwe))
      fault(`entry ${seq}: funding ${id} moves from ${debit} to ${credit}`);
    const moved = (parts.get(id) ?? 0n) + amount;
    parts.set(id, moved);
    if (moved < cents * NANOS_PER_CENT) return;
    parts.delete(id);
    fundingCount++;
    if (moved > cents * NANOS_PER_CENT) fault(`funding ${id} is of ${cents} cents, its entries of ${moved} nanos`);
  }

  function followChange(seq: number, id: string, debit: string, credit: string, amount: bigint) {
    const walletId = changeRow.get(id) as string | undefined;
    if (walletId === undefined) return fault(`entry ${seq}: the change ${id} of a wallet has no row`);
    const own = book.wallet(walletId);
    if (credit !== own && debit !== own) fault(`entry ${seq}: the change ${id} of ${walletId} moves other money`);
    const moved = credit === own ? amount : -amount;
    add(changed, id, moved);
    add(given, walletId, moved);
  }

  for (const [id, seen] of open) agree(id, seen);
  for (const [id, walletId, amount] of client
    .prepare('select id, wallet_id, amount_nanos from wallet_change')
    .raw()
    .iterate() as IterableIterator<[string, string, bigint]>)
    if ((changed.get(id) ?? 0n) !== amount)
      fault(`the change ${id} of ${walletId} is of ${amount} nanos, its entries of ${changed.get(id) ?? 0n}`);
  for (const [id, moved] of parts) {
    const [, , cents] = fundingRow.get(id) as [string, string, bigint];
    fault(`funding ${id} is of ${cents} cents, its entries of ${moved} nanos`);
    fundingCount++;
  }
  // An operation with a hold of 0 moves nothing, so it has no entries.
  const priced = client.prepare('select count(*) from operation where hold_nanos > 0').pluck().get() as bigint;
  if (priced !== BigInt(operationCount))
    fault(`${priced} operations hold money, ${operationCount} of them are in the journal`);
  const funded = client.prepare('select count(*) from funding').pluck().get() as bigint;
  if (funded !== BigInt(fundingCount)) fault(`there are ${funded} fundings, ${fundingCount} of them in the journal`);

  const reserved = new Map<string, bigint>();
  const spent = new Map<string, bigint>();
  const parents = new Set(
    client.prepare('select distinct parent_id from wallet where parent_id is not null').pluck().all() as string[],
  );
  const children = client.prepare(
    `select coalesce(sum(case when status = 'closed' then spent_nanos end), 0) as spent,
      coalesce(sum(case when status <> 'closed' then budget_nanos end), 0) as delegated
      from wallet where parent_id is not null and parent_id = ?`,
  );
  for (const wallet of client
    .prepare(
      'select id, account_id, parent_id, status, budget_nanos, held_nanos, spent_nanos, delegated_nanos, returned_cents from wallet',
    )
    .iterate() as IterableIterator<WalletRow>) {
    const { id, budget_nanos: budget, delegated_nanos: delegated } = wallet;
    const { amount: left, other } = walletBookOf(id);
    const { amount: held, sold } = other as Book;
    walletBooks.delete(id);
    const below = parents.has(id) ? (children.get(id) as { spent: bigint; delegated: bigint }) : NOTHING_BELOW;
    const charged = sold + below.spent;
    if (delegated !== below.delegated)
      fault(`wallet ${id} has delegated ${delegated} nanos, its open children have ${below.delegated}`);
    if (budget !== (given.get(id) ?? 0n))
      fault(`wallet ${id} has a budget of ${budget} nanos, the journal gave it ${given.get(id) ?? 0n}`);
    if (held !== wallet.held_nanos) fault(`wallet ${id} holds ${wallet.held_nanos} nanos, the journal ${held}`);
    if (charged !== wallet.spent_nanos)
      fault(`wallet ${id} has spent ${wallet.spent_nanos} nanos, the journal ${charged}`);
    if (wallet.status === 'closed') {
      if (left !== 0n) fault(`wallet ${id} is closed, but ${left} nanos are left in its book`);
      if (wallet.parent_id !== null) {
        if (wallet.returned_cents !== (budget - charged) / NANOS_PER_CENT)
          fault(`wallet ${id} returned ${wallet.returned_cents} cents, but had ${budget - charged} nanos left`);
        continue;
      }
      const kept = budget / NANOS_PER_CENT - (wallet.returned_cents ?? 0n);
      if (kept !== (charged + NANOS_PER_CENT - 1n) / NANOS_PER_CENT)
        fault(`wallet ${id} returned ${wallet.returned_cents} cents, but had spent ${charged} nanos`);
      add(spent, wallet.account_id, kept);
    } else {
      const free = budget - held - charged - delegated;
      if (left !== free) fault(`wallet ${id} has ${free} nanos available, the journal ${left}`);
      if (wallet.parent_id === null) add(reserved, wallet.account_id, budget / NANOS_PER_CENT);
    }
  }

  for (const account of client
    .prepare('select id, available_cents, reserved_cents, spent_cents, owed_cents from account')
    .iterate() as IterableIterator<AccountRow>) {
    const { id } = account;
    const available = bookOf(book.account(id)).amount;
    const owed = -bookOf(book.owed(id)).amount;
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
  // Whose row is gone had a name here, even if it had nothing left.
  const ofNobody = [...walletBooks.values()].flatMap((it) => [it, it.other as Book]);
  for (const { name, amount } of [...books.values(), ...ofNobody])
    if (/^(account|owed|wallet):/.test(name) || (name.startsWith('hold:') && amount !== 0n))
      fault(`the book ${name} has ${amount} nanos, but nothing has this name`);

  findMissingRows(client, fault);
  verifyCheckouts(client, fault);
  verifyResources(client, fault);
  return head;
}
