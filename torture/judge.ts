import { nanos } from '../test/executable/books.ts';
import type { Books, Entry, Operation } from './books.ts';
import type { Machine } from './engine.ts';
import { FAILURES, type Failure, type Finding, type Journal, type OrderEntry } from './journal.ts';
import type { Call } from './models.ts';
import { chargeOf, isExpected } from './prices.ts';

/** All records: those of the clients, the model server, the engine, and Purser's own books. */
export type Evidence = {
  journal: Pick<Journal, 'wallets' | 'orders' | 'credits' | 'backups' | 'findings'>;
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
function judgeCalls({ calls, books }: Evidence, find: Find): void {
  for (const [id, call] of calls)
    if (call.seen > 1) find('charged twice', `the model server saw ${id} ${call.seen} times`);
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
    if (it.settledBy !== 'answer' || !call) {
      if (it.outcome === 'charged' && it.settledBy === 'answer')
        find('charged wrongly', `${it.id}: the model server never saw it`);
      continue;
    }
    if (it.outcome === 'released' && call.answered === 'whole')
      find('charged wrongly', `${it.id} was answered and given back for nothing`);
    // The count of an answer that broke off was never sent.
    const cost = call.answered === 'part' ? 'estimate' : chargeOf(call.model, call.usage as never);
    if (it.outcome === 'charged' && !isExpected(cost, it.charge, it.hold, call.model))
      find('charged wrongly', `${it.id}: the model server counted ${cost}, the books have ${it.charge} of ${it.hold}`);
  }
}

/** Checks, to the nano-dollar, that a closed wallet used exactly what its orders were charged. */
function judgeWallets({ journal, books }: Evidence, charged: Map<OrderEntry, bigint>, find: Find): void {
  const byKey = group(books.wallets, ({ key }) => key);
  const orders = group(journal.orders, ({ wallet }) => wallet.key);
  for (const wallet of journal.wallets) {
    const rows = byKey.get(wallet.key) ?? [];
    byKey.delete(wallet.key);
    const row = rows.find(({ id }) => id === wallet.id);
    if (rows.length > 1) find('charged twice', `the wallet ${wallet.key} is there ${rows.length} times`);
    if (wallet.outcome === 'unknown') find('unresolved', `nobody knows of the wallet ${wallet.key}`);
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
    if (row.spent + row.held > row.budget) find('over budget', `${wallet.id}: ${row.spent} of ${row.budget}`);
    if (!wallet.closed) continue;
    const used = sum((orders.get(wallet.key) ?? []).map((it) => charged.get(it) ?? 0n));
    const [said, returned] = [nanos(wallet.closed.used_usd), BigInt(wallet.closed.returned_cents)];
    const back = (BigInt(wallet.budgetCents) * NANOS_PER_CENT - said) / NANOS_PER_CENT;
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
  const closed = books.wallets.filter(({ status }) => status === 'closed');
  const spent = sum(closed.map((it) => (it.spent + NANOS_PER_CENT - 1n) / NANOS_PER_CENT));
  const { available, reserved, spent: said } = books.account;
  const open = closed.length !== books.wallets.length;
  if (!open && (available + said !== credited || said !== spent || reserved !== 0n))
    find(
      'money not conserved',
      `${credited} cents came in, ${spent} were spent; the account has ${available} and ${reserved}, and says ${said}`,
    );
}

/** Checks the journal line by line: one hold and one outcome per operation, and no balance below zero at any line. */
function judgeEntries({ books }: Evidence, find: Find): void {
  const balances = new Map<string, bigint>();
  const lines = new Map<string, Entry[]>();
  for (const entry of books.entries) {
    const { seq, cause, debit, credit, amount } = entry;
    balances.set(debit, (balances.get(debit) ?? 0n) - amount);
    balances.set(credit, (balances.get(credit) ?? 0n) + amount);
    if (/^(wallet|hold|account):/.test(debit) && (balances.get(debit) as bigint) < 0n)
      find('over budget', `line ${seq} leaves ${debit} with ${balances.get(debit)}`);
    if (!cause.startsWith('op_')) continue;
    const own = lines.get(cause);
    if (own) own.push(entry);
    else lines.set(cause, [entry]);
  }
  if (sum(balances.values()) !== 0n) find('money not conserved', 'the books do not add up to zero');
  const operations = new Map(books.operations.map((it) => [it.id, it]));
  for (const [id, own] of lines) judgeLines(id, own, operations.get(id), find);
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
