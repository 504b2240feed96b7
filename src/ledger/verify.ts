import type { Database as Client } from 'better-sqlite3';
import { findBadChecksums } from '../db/checksum.ts';
import { book, GENESIS, hashEntryHex } from './journal.ts';
import { verifyCheckouts } from './verify-checkouts.ts';
import { verifyResources } from './verify-resources.ts';

/** Cap of listed faults; the rest are only counted. */
const PROBLEM_COUNT_MAX = 1000;

export type Verdict = { ok: boolean; entries: number; head: { seq: number; hash: string }; problems: string[] };

type EntryRow = [
  seq: bigint,
  at: bigint,
  causeId: string,
  debit: string,
  credit: string,
  amount: bigint,
  prev: string,
  hash: string,
];
type OperationRow = [walletId: string, state: string, outcome: string | null, hold: bigint, charge: bigint | null];
type WalletRow = {
  id: string;
  account_id: string;
  status: string;
  budget_nanos: bigint;
  held_nanos: bigint;
  spent_nanos: bigint;
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

/**
 * Rebuilds every balance from the journal and lists every fault: the chain, the numbering, the timestamps, and each
 * operation, wallet, funding, checkout and account against its entries. Reads one snapshot and writes nothing.
 */
export function verifyLedger(client: Client): Verdict {
  return client.transaction(() => verifySnapshot(client)).deferred();
}

function verifySnapshot(client: Client): Verdict {
  const problems: string[] = [];
  let unlisted = 0;
  const fault = (text: string) => {
    if (problems.length < PROBLEM_COUNT_MAX) problems.push(text);
    else unlisted++;
  };

  const balance = new Map<string, bigint>();
  const sold = new Map<string, bigint>(); // by the hold book it came from
  const add = (map: Map<string, bigint>, name: string, amount: bigint) => map.set(name, (map.get(name) ?? 0n) + amount);
  /** What the entries of each unsettled operation add up to; dropped once its row agrees. */
  const open = new Map<string, { walletId: string; hold: bigint; charge: bigint; released: bigint }>();
  const operationRow = client
    .prepare('select wallet_id, state, outcome, hold_nanos, charge_nanos from operation where id = ?')
    .raw();
  const fundingRow = client.prepare('select account_id, kind, amount_cents from funding where id = ?').raw();
  let operationCount = 0;
  /** What the entries of each funding add up to. One part may pay off debt or be taken as debt. */
  const parts = new Map<string, bigint>();
  let fundingCount = 0;

  let prev = GENESIS.hash.toString('hex');
  let expected = 1n;
  let lastAt = 0n;
  const rows = client
    .prepare(
      'select seq, at, cause_id, debit, credit, amount_nanos, lower(hex(prev_hash)), lower(hex(hash)) from entry order by seq',
    )
    .raw();
  for (const row of rows.iterate() as IterableIterator<EntryRow>) {
    const [seq, at, causeId, debit, credit, amount, prevHash, hash] = row;
    if (seq !== expected) fault(`entries ${expected} to ${seq - 1n} are missing`);
    if (prevHash !== prev) fault(`entry ${seq} does not follow the one before it: its previous hash differs`);
    if (hashEntryHex(prevHash, seq, { at, causeId, debit, credit, amount: amount as never }) !== hash)
      fault(`entry ${seq} was changed: its hash does not match its fields`);
    if (at < lastAt) fault(`entry ${seq} is earlier than the one before it`);
    expected = seq + 1n;
    prev = hash;
    lastAt = at;

    add(balance, debit, -amount);
    add(balance, credit, amount);
    if (causeId.startsWith('op_')) follow(seq, causeId, debit, credit, amount);
    else if (causeId.startsWith('evt_')) checkFunding(seq, causeId, debit, credit, amount);
  }
  const head = { seq: Number(expected - 1n), hash: prev };

  function follow(seq: bigint, id: string, debit: string, credit: string, amount: bigint) {
    let seen = open.get(id);
    if (credit.startsWith('hold:')) {
      if (seen) fault(`entry ${seq}: operation ${id} holds twice`);
      seen = { walletId: credit.slice('hold:'.length), hold: amount, charge: 0n, released: 0n };
      if (debit !== book.wallet(seen.walletId)) fault(`entry ${seq}: the hold of ${id} comes from ${debit}`);
      open.set(id, seen);
      return;
    }
    if (!seen || debit !== book.hold(seen.walletId)) {
      fault(`entry ${seq}: operation ${id} settles from ${debit}, where it holds nothing`);
      return;
    }
    if (credit.startsWith('sales:')) {
      seen.charge += amount;
      add(sold, debit, amount);
    } else if (credit === book.wallet(seen.walletId)) seen.released += amount;
    else fault(`entry ${seq}: operation ${id} pays into ${credit}`);
    if (seen.charge + seen.released >= seen.hold) {
      agree(id, seen);
      open.delete(id);
    }
  }

  function agree(id: string, seen: { walletId: string; hold: bigint; charge: bigint; released: bigint }) {
    const row = operationRow.get(id) as OperationRow | undefined;
    operationCount++;
    if (!row) return fault(`operation ${id} has entries but no row`);
    const [walletId, state, outcome, hold, charge] = row;
    if (walletId !== seen.walletId) fault(`operation ${id} is of wallet ${walletId}, its entries of ${seen.walletId}`);
    if (hold !== seen.hold) fault(`operation ${id} holds ${hold} nanos, its entries ${seen.hold}`);
    const settled = seen.charge + seen.released === seen.hold;
    if (settled !== (state === 'settled'))
      fault(`operation ${id} is ${state}, its entries say ${settled ? 'settled' : 'open'}`);
    if (settled && charge !== seen.charge) fault(`operation ${id} charged ${charge} nanos, its entries ${seen.charge}`);
    // A key freed by mistake would allow a second effect (design 2.7).
    if (settled && seen.charge > 0n && outcome !== 'charged')
      fault(`operation ${id} is ${outcome}, its entries say charged`);
  }

  function checkFunding(seq: bigint, id: string, debit: string, credit: string, amount: bigint) {
    const row = fundingRow.get(id) as [string, string, bigint] | undefined;
    if (!row) return fault(`entry ${seq}: funding ${id} has no row`);
    const [accountId, kind, cents] = row;
    const isTaken = kind === 'debit' || kind === 'clawback';
    const [own, outside] = isTaken ? [debit, credit] : [credit, debit];
    const mayOwe = kind !== 'debit' && own === book.owed(accountId);
    if (outside !== book.funding || (own !== book.account(accountId) && !mayOwe))
      fault(`entry ${seq}: funding ${id} moves from ${debit} to ${credit}`);
    const moved = (parts.get(id) ?? 0n) + amount;
    parts.set(id, moved);
    if (moved < cents * NANOS_PER_CENT) return;
    parts.delete(id);
    fundingCount++;
    if (moved > cents * NANOS_PER_CENT) fault(`funding ${id} is of ${cents} cents, its entries of ${moved} nanos`);
  }

  for (const [id, seen] of open) agree(id, seen);
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
  for (const wallet of client
    .prepare('select id, account_id, status, budget_nanos, held_nanos, spent_nanos, returned_cents from wallet')
    .iterate() as IterableIterator<WalletRow>) {
    const { id, budget_nanos: budget } = wallet;
    const held = balance.get(book.hold(id)) ?? 0n;
    const charged = sold.get(book.hold(id)) ?? 0n;
    const left = balance.get(book.wallet(id)) ?? 0n;
    balance.delete(book.hold(id));
    balance.delete(book.wallet(id));
    if (held !== wallet.held_nanos) fault(`wallet ${id} holds ${wallet.held_nanos} nanos, the journal ${held}`);
    if (charged !== wallet.spent_nanos)
      fault(`wallet ${id} has spent ${wallet.spent_nanos} nanos, the journal ${charged}`);
    if (wallet.status === 'closed') {
      if (left !== 0n) fault(`wallet ${id} is closed, but ${left} nanos are left in its book`);
      const kept = budget / NANOS_PER_CENT - (wallet.returned_cents ?? 0n);
      if (kept !== (charged + NANOS_PER_CENT - 1n) / NANOS_PER_CENT)
        fault(`wallet ${id} returned ${wallet.returned_cents} cents, but had spent ${charged} nanos`);
      add(spent, wallet.account_id, kept);
    } else {
      if (left !== budget - held - charged)
        fault(`wallet ${id} has ${budget - held - charged} nanos available, the journal ${left}`);
      add(reserved, wallet.account_id, budget / NANOS_PER_CENT);
    }
  }

  for (const account of client
    .prepare('select id, available_cents, reserved_cents, spent_cents, owed_cents from account')
    .iterate() as IterableIterator<AccountRow>) {
    const { id } = account;
    const available = balance.get(book.account(id)) ?? 0n;
    const owed = -(balance.get(book.owed(id)) ?? 0n);
    balance.delete(book.account(id));
    balance.delete(book.owed(id));
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
  for (const [name, amount] of balance)
    if (/^(account|owed|wallet|hold):/.test(name) && amount !== 0n)
      fault(`the book ${name} has ${amount} nanos, but nothing has this name`);

  verifyCheckouts(client, fault);
  verifyResources(client, fault);
  findBadChecksums(client, fault);
  if (unlisted) problems.push(`and ${unlisted} more`);
  return { ok: problems.length === 0, entries: head.seq, head, problems };
}
