import { nanos } from '../test/executable/books.ts';
import type { Books, Entry, Operation } from './books.ts';
import type { Machine } from './engine.ts';
import { FAILURES, type Failure, type Finding, type Journal, type OrderEntry, type WalletEntry } from './journal.ts';
import type { Call } from './models.ts';
import { chargeOf, isExpected, POOLED } from './prices.ts';

/** All records: those of the clients, the model server, the engine, and Purser's own books. */
export type Evidence = {
  journal: Pick<Journal, 'wallets' | 'orders' | 'moves' | 'credits' | 'backups' | 'findings'>;
  calls: ReadonlyMap<string, Call>;
  machines: readonly Pick<Machine, 'tag'>[];
  books: Books;
  /** The account's initial credit. */
  creditCents: number;
};
export type Verdict = Record<Failure, string[]>;

const NANOS_PER_CENT = 10_000_000n;
const sum = (amounts: Iterable<bigint>) => [...amounts].reduce((total, it) => total + it, 0n);
const isChat = ({ kind }: { kind: string }) => kind === 'chat' || kind === 'stream';

/**
 * Compares the clients' answers, the model server's counts and the engine's machines with the books. It knows what Purser
 * promises, and nothing of the implementation.
 */
export function judge(evidence: Evidence): Verdict {
  const found: Finding[] = [...evidence.journal.findings];
  const find: Find = (failure, what) => void found.push({ failure, what });
  for (const problem of evidence.books.problems) find('books wrong', problem);
  const charged = judgeOrders(evidence, find);
  judgeCalls(evidence, find);
  judgeMoves(evidence, find);
  judgeWallets(evidence, charged, find);
  judgeAccount(evidence, find);
  judgeEntries(evidence, find);
  judgeBackups(evidence, find);
  judgeMachines(evidence, find);
  return Object.fromEntries(
    FAILURES.map((name) => [name, found.filter(({ failure }) => failure === name).map(({ what }) => what)]),
  ) as Verdict;
}
type Find = (failure: Failure, what: string) => void;

function group<T>(items: readonly T[], by: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const name = by(item);
    const found = groups.get(name);
    if (found) found.push(item);
    else groups.set(name, [item]);
  }
  return groups;
}

/** Compares every order with the attempts in the books under its key. Returns what each order was charged. */
function judgeOrders({ journal, books }: Evidence, find: Find): Map<OrderEntry, bigint> {
  const attempts = group(books.operations, ({ wallet, key }) => `${wallet} ${key}`);
  const charges = new Map<OrderEntry, bigint>();
  for (const order of journal.orders) {
    const name = `${order.kind} ${order.key} of ${order.wallet.id}`;
    const own = attempts.get(`${order.wallet.id} ${order.key}`) ?? [];
    attempts.delete(`${order.wallet.id} ${order.key}`);
    const effective = own.filter(({ outcome }) => outcome === 'charged');
    const [one] = effective;
    const told = `${order.outcome} ${order.charged ?? ''} ${order.operationId}`;
    const booked = effective.map((it) => `${it.id} ${it.charge} by ${it.settledBy}`).join(', ') || 'no charge';

    if (effective.length > 1) find('charged twice', `${name}: ${booked}`);
    if (order.outcome === 'unknown') find('unresolved', `${name}: nobody knows; the books have ${booked}`);
    if (order.outcome === 'refused' && one && one.charge !== 0n)
      find('charged wrongly', `${name} was refused: ${booked}`);
    if (order.outcome !== 'done' && order.outcome !== 'lost') continue;
    if (!one) {
      find('acknowledged and lost', `${name} was ${told}; the books have ${booked}`);
      continue;
    }
    charges.set(order, one.charge ?? 0n);
    if (order.operationId && one.id !== order.operationId)
      find('charged wrongly', `${name} was answered by ${order.operationId}; the books have ${booked}`);
    if (!isExpected(order.charged, one.charge, one.hold))
      find('charged wrongly', `${name} was ${told}; the books have ${booked}`);
  }
  for (const [name, [one]] of attempts)
    find('charged wrongly', `${name}: ${one?.id} (${one?.outcome} ${one?.charge}), and nobody ordered it`);
  for (const it of books.operations) {
    if (it.state !== 'settled') find('unresolved', `${it.id} (${it.kind} ${it.key}) is ${it.state}`);
    if ((it.charge ?? 0n) > it.hold) find('over budget', `${it.id} was charged ${it.charge} and held ${it.hold}`);
  }
  return charges;
}

/** Compares the model server's count with the books: no call made twice, none answered without a charge. */
function judgeCalls({ calls, books, journal }: Evidence, find: Find): void {
  // A stream that the model server wrote to its end is cut all the same if Purser is stopped for longer than its time-out.
  const lost = new Set(
    journal.orders.filter(({ outcome }) => outcome === 'lost').map(({ wallet, key }) => `${wallet.id} ${key}`),
  );
  for (const [id, call] of calls)
    if (call.seen > 1 + (call.model === POOLED ? Math.min(call.refused, 1) : 0))
      find('charged twice', `the model server saw ${id} ${call.seen} times`);
  const answered = group(
    [...calls].filter(([, { answered }]) => answered !== 'no'),
    ([, { key }]) => key,
  );
  const byHand = new Set(books.operations.filter((it) => it.settledBy === 'operator').map(({ id }) => id));
  for (const [key, own] of answered)
    if (own.filter(([id]) => !byHand.has(id)).length > 1)
      find(
        'charged twice',
        `the model server worked ${own.length} times for ${key}: ${own.map(([id, it]) => `${id} (${it.fault})`).join(', ')}`,
      );
  for (const it of books.operations.filter(isChat)) {
    const call = calls.get(it.id);
    if (it.settledBy === 'cancelled') {
      // How much had come by then is not known here; its client was told what is in the books.
      if (it.route === 'chat/completions') find('charged wrongly', `${it.id} was no stream, and was cancelled`);
      continue;
    }
    if (it.settledBy !== 'answer' || !call) {
      if (it.outcome === 'charged' && it.settledBy === 'answer')
        find('charged wrongly', `${it.id}: the model server never saw it`);
      continue;
    }
    if (it.outcome === 'released' && call.answered === 'whole')
      find('charged wrongly', `${it.id} was answered and given back for nothing`);
    // The count of an answer that broke off was never sent.
    const isBroken = call.answered === 'part' || lost.has(`${it.wallet} ${it.key}`);
    const cost = isBroken ? 'estimate' : chargeOf(call.model, call.usage as never);
    if (it.outcome === 'charged' && !isExpected(cost, it.charge, it.hold, call.model))
      find('charged wrongly', `${it.id}: the model server counted ${cost}, the books have ${it.charge} of ${it.hold}`);
  }
}

/** Compares every move with the changes in the books under its key, and every refill with its wallet's. */
function judgeMoves({ journal, books }: Evidence, find: Find): void {
  const keyed = group(
    books.changes.filter(({ key }) => key !== null),
    ({ wallet, key }) => `${wallet} ${key}`,
  );
  for (const { kind, key, wallet, by, outcome } of journal.moves) {
    const name = `${kind} ${key} of ${wallet.id} by ${by}`;
    const own = keyed.get(`${wallet.id} ${key}`) ?? [];
    keyed.delete(`${wallet.id} ${key}`);
    const [one] = own;
    const booked = own.map((it) => `${it.id} ${it.kind} ${it.amount}`).join(', ') || 'nothing';
    if (own.length > 1) find('charged twice', `${name}: ${booked}`);
    if (outcome === 'unknown') find('unresolved', `${name}: nobody knows; the books have ${booked}`);
    if (outcome === 'refused' && one) find('charged wrongly', `${name} was refused: ${booked}`);
    if (outcome === 'done' && !one) find('acknowledged and lost', `${name}: the books have ${booked}`);
    if (one && (one.kind !== kind || !isMoved(kind, by, one.amount)))
      find('charged wrongly', `${name}: the books have ${booked}`);
  }
  for (const [name, [one]] of keyed)
    find('charged wrongly', `${name}: ${one?.id} ${one?.amount}, and nobody ordered it`);
  const wallets = new Map(journal.wallets.map((it) => [it.id, it]));
  const refills = group(
    books.changes.filter(({ key }) => key === null),
    ({ wallet, kind, period }) => `${wallet} ${kind} ${period}`,
  );
  for (const [name, own] of refills) {
    if (own.length > 1) find('charged twice', `${name}: ${own.map(({ id }) => id).join(', ')}`);
    const [{ wallet, kind }] = own as [Books['changes'][number]];
    if (kind !== 'refill' || !wallets.get(wallet)?.refill) find('charged wrongly', `${name}, and nobody ordered it`);
  }
  const refilled = new Set(books.changes.filter(({ kind }) => kind === 'refill').map(({ wallet }) => wallet));
  for (const { id, refill } of journal.wallets)
    if (refill?.isPast && !refilled.has(id)) find('acknowledged and lost', `the refill of ${id}`);
}

/** Returns whether a move may have changed a budget by this: a lower stops at what is spent and held. */
function isMoved(kind: string, by: number, amount: bigint): boolean {
  const ordered = BigInt(by) * NANOS_PER_CENT;
  return kind === 'raise' ? amount === ordered : kind === 'lower' ? amount <= 0n && amount >= ordered : amount === 0n;
}

/** Checks, to the nano-dollar, that a closed wallet used exactly what its orders and those of its children were charged. */
function judgeWallets({ journal, books }: Evidence, charged: Map<OrderEntry, bigint>, find: Find): void {
  const byKey = group(books.wallets, ({ key }) => key);
  const orders = group(journal.orders, ({ wallet }) => wallet.key);
  const changes = group(books.changes, ({ wallet }) => wallet);
  const children = group(
    journal.wallets.filter(({ parent }) => parent),
    ({ parent }) => parent?.key as string,
  );
  const usedBy = ({ key }: WalletEntry): bigint =>
    sum((orders.get(key) ?? []).map((it) => charged.get(it) ?? 0n)) + sum((children.get(key) ?? []).map(usedBy));
  const returns = group(
    books.entries.filter(({ cause, debit, credit }) => debit === `wallet:${cause}` && credit.startsWith('wallet:')),
    ({ cause }) => cause,
  );
  for (const wallet of journal.wallets) {
    const rows = byKey.get(wallet.key) ?? [];
    byKey.delete(wallet.key);
    const row = rows.find(({ id }) => id === wallet.id);
    if (rows.length > 1) find('charged twice', `the wallet ${wallet.key} is there ${rows.length} times`);
    if (wallet.outcome === 'unknown') find('unresolved', `nobody knows of the wallet ${wallet.key}`);
    if (wallet.outcome === 'refused' && rows.length)
      find('charged wrongly', `the wallet ${wallet.key} was refused, and is ${rows[0]?.id}`);
    if (wallet.outcome === 'unknown' || wallet.outcome === 'refused') continue;
    if (!row) {
      find('acknowledged and lost', `the wallet ${wallet.id} (${wallet.key})`);
      continue;
    }
    if (row.status !== 'closed') {
      find(
        wallet.outcome === 'closed' ? 'acknowledged and lost' : 'unresolved',
        `the wallet ${wallet.id} is ${row.status}`,
      );
      continue;
    }
    if (row.spent + row.held + row.delegated > row.budget)
      find('over budget', `${wallet.id}: ${row.spent} and ${row.delegated} of ${row.budget}`);
    const used = usedBy(wallet);
    const budget = wallet.budget + sum((changes.get(wallet.id) ?? []).map(({ amount }) => amount));
    if (row.budget !== budget || row.delegated !== 0n)
      find(
        'money not conserved',
        `${wallet.id} was given ${budget}; its row has ${row.budget}, and ${row.delegated} with children`,
      );
    if (row.parent !== (wallet.parent?.id ?? null))
      find('charged wrongly', `${wallet.id} belongs to ${wallet.parent?.id}; its row has ${row.parent}`);
    const rest = sum((returns.get(wallet.id) ?? []).map(({ amount }) => amount));
    if (wallet.parent && rest !== budget - used)
      find('money not conserved', `${wallet.id} gave ${rest} back to its parent of ${budget}, and used ${used}`);
    if (!wallet.closed) continue;
    const [said, returned] = [nanos(wallet.closed.used_usd), BigInt(wallet.closed.returned_cents)];
    const back = (budget - said) / NANOS_PER_CENT;
    if (said !== used || row.spent !== used || returned !== back)
      find(
        'money not conserved',
        `${wallet.id} says ${said} (${returned} cents back), its orders cost ${used}, its row has ${row.spent}`,
      );
  }
  for (const [key, rows] of byKey) find('charged wrongly', `the wallet ${rows[0]?.id} (${key}), and nobody ordered it`);
}

/** Checks, to the cent, that what came in is still there or was spent by wallets that closed. */
function judgeAccount({ journal, books, creditCents }: Evidence, find: Find): void {
  const fundings = group(books.fundings, ({ key }) => key ?? '');
  let credited = BigInt(creditCents);
  for (const { key, cents, outcome } of journal.credits) {
    const rows = fundings.get(key) ?? [];
    if (rows.length > 1) find('charged twice', `the credit ${key} is there ${rows.length} times`);
    if (outcome === 'unknown') find('unresolved', `the credit ${key}`);
    else if (!rows.length) find('acknowledged and lost', `the credit ${key} of ${cents} cents`);
    credited += BigInt(cents) * BigInt(rows.length ? 1 : 0);
  }
  const own = books.wallets.filter(({ parent }) => parent === null);
  const closed = own.filter(({ status }) => status === 'closed');
  const spent = sum(closed.map((it) => (it.spent + NANOS_PER_CENT - 1n) / NANOS_PER_CENT));
  const { available, reserved, spent: said } = books.account;
  const open = closed.length !== own.length;
  if (!open && (available + said !== credited || said !== spent || reserved !== 0n))
    find(
      'money not conserved',
      `${credited} cents came in, ${spent} were spent; the account has ${available} and ${reserved}, and says ${said}`,
    );
}

/**
 * Checks the journal line by line: one hold and one outcome per operation, one movement per change of a wallet, no balance
 * below zero at any line, and nothing left of a wallet that is closed.
 */
function judgeEntries({ journal, books }: Evidence, find: Find): void {
  const changes = new Map(books.changes.map((it) => [it.id, it]));
  const refills = new Map(journal.wallets.map(({ id, refill }) => [id, refill]));
  const balances = new Map<string, bigint>();
  const children = group(books.wallets, ({ parent }) => parent ?? '');
  const below = (id: string): string[] => (children.get(id) ?? []).flatMap((it) => [it.id, ...below(it.id)]);
  const lines = new Map<string, Entry[]>();
  for (const entry of books.entries) {
    const { seq, cause, debit, credit, amount } = entry;
    balances.set(debit, (balances.get(debit) ?? 0n) - amount);
    balances.set(credit, (balances.get(credit) ?? 0n) + amount);
    if (/^(wallet|hold|account):/.test(debit) && (balances.get(debit) as bigint) < 0n)
      find('over budget', `line ${seq} leaves ${debit} with ${balances.get(debit)}`);
    const change = changes.get(cause);
    const refill = change?.kind === 'refill' ? refills.get(change.wallet) : undefined;
    if (refill) {
      const wallet = change?.wallet as string;
      const [own, wanted] = [balances.get(`wallet:${wallet}`) ?? 0n, BigInt(refill.cents) * NANOS_PER_CENT];
      // What is held, or lies with its children, is left over as well; where that is more than the amount, nothing else is.
      const accounts = [wallet, ...below(wallet)].flatMap((id) => [`wallet:${id}`, `hold:${id}`]);
      const left = sum(accounts.map((it) => balances.get(it) ?? 0n));
      if (left < wanted || (left >= wanted + NANOS_PER_CENT && own >= NANOS_PER_CENT))
        find('money not conserved', `line ${seq} refills ${wallet} to ${left}, and not to ${wanted}`);
    }
    if (!/^(op|chg)_/.test(cause)) continue;
    const own = lines.get(cause);
    if (own) own.push(entry);
    else lines.set(cause, [entry]);
  }
  if (sum(balances.values()) !== 0n) find('money not conserved', 'the books do not add up to zero');
  const operations = new Map(books.operations.map((it) => [it.id, it]));
  for (const [id, own] of lines)
    if (id.startsWith('op_')) judgeLines(id, own, operations.get(id), find);
    else if (!changes.has(id)) find('acknowledged and lost', `${id} has lines in the journal, and no row`);
  for (const change of books.changes) judgeChange(change, lines.get(change.id) ?? [], find);
  for (const { id, status } of books.wallets)
    for (const book of [`wallet:${id}`, `hold:${id}`])
      if (status === 'closed' && (balances.get(book) ?? 0n) !== 0n)
        find('money not conserved', `${id} is closed, and ${book} has ${balances.get(book)}`);
}

/** Checks that a change of a budget moved exactly its amount, once, into its wallet or out of it. */
function judgeChange({ id, wallet, amount }: Books['changes'][number], own: Entry[], find: Find): void {
  const book = `wallet:${wallet}`;
  const moved = sum(own.map((it) => (it.credit === book ? it.amount : it.debit === book ? -it.amount : 0n)));
  const said = `${id} of ${wallet} is ${amount}; ${own.length} lines move ${moved}`;
  if (new Set(own.map(({ debit, credit }) => `${debit} ${credit}`)).size !== own.length) find('charged twice', said);
  else if (moved !== amount || own.some(({ debit, credit }) => (debit === book) === (credit === book)))
    find('money not conserved', said);
}

function judgeLines(id: string, own: Entry[], operation: Operation | undefined, find: Find): void {
  const of = (is: (entry: Entry) => boolean) => own.filter(is).map(({ amount }) => amount);
  const holds = of(({ credit }) => credit.startsWith('hold:'));
  const charges = of(({ credit }) => credit.startsWith('sales:'));
  const releases = of(({ credit }) => credit.startsWith('wallet:'));
  if (!operation) {
    find('acknowledged and lost', `${id} has lines in the journal, and no row`);
    return;
  }
  if (holds.length > 1 || charges.length > 1 || releases.length > 1)
    find('charged twice', `${id}: ${holds.length} holds, ${charges.length} charges, ${releases.length} releases`);
  if (operation.state !== 'settled') return;
  if (
    sum(holds) !== operation.hold ||
    sum(charges) !== operation.charge ||
    sum(releases) !== operation.hold - sum(charges)
  )
    find(
      'money not conserved',
      `${id} held ${sum(holds)}, was charged ${sum(charges)} and gave back ${sum(releases)}; its row has ${operation.hold} and ${operation.charge}`,
    );
}

/** Checks that a backup holds the journal up to its head. */
function judgeBackups({ journal, books }: Evidence, find: Find): void {
  const hashes = new Map(books.entries.map(({ seq, hash }) => [seq, hash]));
  for (const { file, seq, hash } of journal.backups)
    if (seq > 0 && hashes.get(seq) !== hash)
      find('acknowledged and lost', `${file} ends with ${seq} ${hash}, the journal has ${hashes.get(seq)}`);
}

/** Checks that no machine is left at the end, and that every row says so. */
function judgeMachines({ machines, books }: Evidence, find: Find): void {
  const rows = new Map(books.resources.map((it) => [it.tag, it]));
  for (const { tag } of machines) find('orphans', `${tag} is left; its row: ${rows.get(tag)?.status ?? 'none'}`);
  for (const it of books.resources) if (it.ended === null) find('unresolved', `the lease ${it.id} is ${it.status}`);
}
