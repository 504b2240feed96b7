import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { centsToNanos } from '../../src/base/money.ts';
import { openDatabase } from '../../src/db/open.ts';
import { audit, auditInThreads } from '../../src/ledger/audit.ts';
import { beginClosing, closeWallet } from '../../src/ledger/closing.ts';
import { hashEntry } from '../../src/ledger/journal.ts';
import { printVerdict, readVerdict, type Verification, verifyLedger } from '../../src/ledger/verify.ts';
import { type Books, done, openBooks, refused, unknown } from './books.ts';

/** Books in which everything has happened once, and the ids of what happened. */
async function openStory(t: TestContext) {
  const books = await openBooks(t);
  const { ledger } = books;
  const account = await books.account(100_000, 10);
  const other = await books.account(700, 11);
  await books.fund({ accountId: account, kind: 'debit', amountCents: 500 }, 12);
  const open = (await books.wallet(account, { budget: centsToNanos(1000) }, 20)).id;
  const ended = (await books.wallet(account, { budget: centsToNanos(300) }, 21)).id;
  const charged = (await books.hold(open, 50_000_000n, {}, 30)).id;
  await books.settle(charged, done(12_345_678n), 31);
  const released = (await books.hold(open, 20_000_000n, {}, 32)).id;
  await books.settle(released, refused, 33);
  const reserved = (await books.hold(open, 70_000_000n, {}, 34)).id;
  const uncertain = (await books.hold(open, 80_000_000n, {}, 35)).id;
  await books.settle(uncertain, unknown, 36);
  const free = (await books.hold(open, 0n, {}, 37)).id;
  await books.settle(free, done(0n), 37);
  const last = (await books.hold(ended, 900_000_000n, {}, 38)).id;
  await books.settle(last, done(123_456_789n), 39);
  await ledger.write((tx) => {
    beginClosing(tx, ended, 'operator', 40);
    closeWallet(tx, ended, 41);
  });
  return { books, account, other, open, ended, charged, released, reserved, uncertain, free, last };
}
type Story = Awaited<ReturnType<typeof openStory>>;

/** Does what no Purser can: changes the file behind its back, with every defence of the database switched off. */
async function damage(books: Books, change: (client: Client.Database) => void): Promise<void> {
  await books.ledger.close();
  const client = new Client(books.file);
  client.defaultSafeIntegers(true);
  client.pragma('foreign_keys = OFF');
  client.pragma('ignore_check_constraints = ON');
  const triggers = client.prepare(`select name from sqlite_schema where type = 'trigger'`).pluck().all();
  for (const name of triggers) client.exec(`drop trigger ${name}`);
  change(client);
  client.close();
}

function verify(t: TestContext, books: Books): Verification {
  const { client } = openDatabase(books.file, { migrate: false, readonly: true });
  t.after(() => client.close());
  return verifyLedger(client);
}

/** The number of the first entry of an operation. */
const first = (id: string) => `(select min(seq) from entry where cause_id = '${id}')`;

/** What is done to the file, and what has to be said of it. */
const DAMAGE: [what: string, sql: (it: Story) => string, said: (it: Story) => RegExp[]][] = [
  [
    'the amount of an entry',
    () => 'update entry set amount_nanos = amount_nanos + 1 where seq = 5',
    () => [/^entry 5 was changed/],
  ],
  [
    'the number of the first entry',
    () => 'update entry set seq = -1 where seq = 1',
    () => [/^entries 1 to -2 are missing/, /^entry -1 was changed/],
  ],
  ['the time of an entry', () => 'update entry set at = at + 1 where seq = 5', () => [/^entry 5 was changed/]],
  [
    'the cause of an entry',
    () => `update entry set cause_id = 'op_x' where seq = 7`,
    () => [/^entry 7 was changed/, /op_x/],
  ],
  [
    'the debit of an entry',
    () => `update entry set debit = 'account:acct_x' where seq = 5`,
    () => [/^entry 5 was changed/, /account:acct_x/],
  ],
  [
    'the credit of an entry',
    () => `update entry set credit = 'wallet:wal_x' where seq = 5`,
    () => [/^entry 5 was changed/, /wallet:wal_x/],
  ],
  [
    'the hash of an entry',
    () => 'update entry set hash = zeroblob(32) where seq = 5',
    () => [/^entry 5 was changed/, /^entry 6 does not follow/],
  ],
  [
    'the previous hash of an entry',
    () => 'update entry set prev_hash = zeroblob(32) where seq = 5',
    () => [/^entry 5 does not follow/, /^entry 5 was changed/],
  ],
  [
    'a hash that is far too long',
    () => 'update entry set prev_hash = zeroblob(5000) where seq = 5',
    () => [/^entry 5 does not follow/, /^entry 5 was changed/],
  ],
  [
    'a cause that is far too long',
    () => `update entry set cause_id = hex(zeroblob(5000)) where seq = 5`,
    () => [/^entry 5 was changed/],
  ],
  [
    'one bit of a name',
    () => `update entry set debit = replace(debit, 'account', 'accounu') where seq = 5`,
    () => [/^entry 5 was changed/],
  ],
  [
    'the first entry, deleted',
    () => 'delete from entry where seq = 1',
    () => [/^entries 1 to 1 are missing/, /^entry 2 does not follow/],
  ],
  [
    'an entry in the middle, deleted',
    () => 'delete from entry where seq = 5',
    () => [/^entries 5 to 5 are missing/, /^entry 6 does not follow/],
  ],
  [
    'three entries in the middle, deleted',
    () => 'delete from entry where seq between 5 and 7',
    () => [/^entries 5 to 7 are missing/],
  ],
  [
    'the last entry, deleted',
    () => 'delete from entry where seq = (select max(seq) from entry)',
    ({ ended }) => [RegExp(`^wallet ${ended} is closed, but \\d+ nanos are left`)],
  ],
  [
    'the last two entries, deleted',
    () => 'delete from entry where seq > (select max(seq) from entry) - 2',
    ({ account }) => [RegExp(`^account ${account} has \\d+ cents available, the journal`)],
  ],
  [
    'every entry, deleted',
    () => 'delete from entry',
    ({ account, other, open }) => [
      RegExp(account),
      RegExp(other),
      RegExp(`^wallet ${open}`),
      /operations hold money, 0 of them/,
    ],
  ],
  [
    'two entries, swapped',
    () =>
      'update entry set seq = -5 where seq = 5; update entry set seq = 5 where seq = 6; update entry set seq = 6 where seq = -5',
    () => [/^entry 5 does not follow/, /^entry 5 was changed/, /^entry 6 was changed/],
  ],
  [
    'what a wallet holds',
    ({ open }) =>
      `update balance set held_nanos = held_nanos - 1 where number = (select number from wallet where id = '${open}')`,
    ({ open }) => [RegExp(`^wallet ${open} holds 149999999 nanos, the journal 150000000`)],
  ],
  [
    'what a wallet has spent',
    ({ open }) => `update balance set spent_nanos = 0 where number = (select number from wallet where id = '${open}')`,
    ({ open }) => [RegExp(`^wallet ${open} has spent 0 nanos, the journal 12345678`)],
  ],
  [
    'what a closed wallet has spent',
    ({ ended }) =>
      `update balance set spent_nanos = 0 where number = (select number from wallet where id = '${ended}')`,
    ({ ended }) => [RegExp(`^wallet ${ended} has spent 0 nanos`)],
  ],
  [
    'the budget of a wallet',
    ({ open }) => `update wallet set budget_nanos = budget_nanos * 2 where id = '${open}'`,
    ({ open }) => [RegExp(`^wallet ${open} has \\d+ nanos available`)],
  ],
  [
    'what a closed wallet returned',
    ({ ended }) => `update wallet set returned_cents = returned_cents + 1 where id = '${ended}'`,
    ({ ended }) => [RegExp(`^wallet ${ended} returned 288 cents`)],
  ],
  [
    'a closed wallet, opened again',
    ({ ended }) => `update wallet set status = 'active' where id = '${ended}'`,
    ({ ended }) => [RegExp(`^wallet ${ended} has \\d+ nanos available, the journal 0`)],
  ],
  [
    'an open wallet, closed',
    ({ open }) => `update wallet set status = 'closed' where id = '${open}'`,
    ({ open }) => [RegExp(`^wallet ${open} is closed, but`)],
  ],
  [
    'a wallet, given to another account',
    ({ open, other }) => `update wallet set account_id = '${other}' where id = '${open}'`,
    ({ other }) => [RegExp(`^account ${other} has 0 cents reserved, its open wallets 1000`)],
  ],
  [
    'a wallet, deleted',
    ({ open }) => `delete from wallet where id = '${open}'`,
    ({ open }) => [RegExp(`^the book wallet:${open} has`), RegExp(`^the book hold:${open} has`)],
  ],
  [
    'a closed wallet, deleted',
    ({ ended }) => `delete from wallet where id = '${ended}'`,
    ({ account }) => [RegExp(`^account ${account} has spent 13 cents, its closed wallets 0`)],
  ],
  [
    'what an account has available',
    ({ account }) => `update account set available_cents = available_cents + 1 where id = '${account}'`,
    ({ account }) => [RegExp(`^account ${account} has \\d+ cents available`)],
  ],
  [
    'what an account has reserved',
    ({ account }) => `update account set reserved_cents = 0 where id = '${account}'`,
    ({ account }) => [RegExp(`^account ${account} has 0 cents reserved, its open wallets 1000`)],
  ],
  [
    'what an account has spent',
    ({ account }) => `update account set spent_cents = 0 where id = '${account}'`,
    ({ account }) => [RegExp(`^account ${account} has spent 0 cents, its closed wallets 13`)],
  ],
  [
    'an account, deleted',
    ({ other }) => `delete from account where id = '${other}'`,
    ({ other }) => [RegExp(`^the book account:${other} has 7000000000 nanos`)],
  ],
  [
    'the charge of an operation',
    ({ charged }) => `update operation set charge_nanos = 1 where id = '${charged}'`,
    ({ charged }) => [RegExp(`^operation ${charged} charged 1 nanos, its entries 12345678`)],
  ],
  [
    'the hold of an operation',
    ({ reserved }) => `update operation set hold_nanos = 1 where id = '${reserved}'`,
    ({ reserved }) => [RegExp(`^operation ${reserved} holds 1 nanos, its entries 70000000`)],
  ],
  [
    'a reserved operation, settled',
    ({ reserved }) =>
      `update operation set state = 'settled', outcome = 'charged', charge_nanos = 0 where id = '${reserved}'`,
    ({ reserved }) => [RegExp(`^operation ${reserved} is settled, its entries say open`)],
  ],
  [
    'an uncertain operation, settled',
    ({ uncertain }) => `update operation set state = 'settled' where id = '${uncertain}'`,
    ({ uncertain }) => [RegExp(`^operation ${uncertain} is settled, its entries say open`)],
  ],
  [
    'a settled operation, reserved again',
    ({ charged }) => `update operation set state = 'reserved', charge_nanos = null where id = '${charged}'`,
    ({ charged }) => [RegExp(`^operation ${charged} is reserved, its entries say settled`)],
  ],
  [
    'a charged operation, called released',
    ({ charged }) => `update operation set outcome = 'released' where id = '${charged}'`,
    ({ charged }) => [RegExp(`^operation ${charged} is released, its entries say charged`)],
  ],
  [
    'a key, freed by mistake',
    ({ charged }) => `update operation set freed = 1 where id = '${charged}'`,
    ({ charged }) => [RegExp(`^operation ${charged} does not own its key as its outcome says`)],
  ],
  [
    'an operation, given to another wallet',
    ({ charged, ended }) => `update operation set wallet_id = '${ended}' where id = '${charged}'`,
    ({ charged, ended, open }) => [RegExp(`^operation ${charged} is of wallet ${ended}, its entries of ${open}`)],
  ],
  [
    'an operation without a price, given a hold',
    ({ free }) => `update operation set hold_nanos = 5 where id = '${free}'`,
    () => [/^6 operations hold money, 5 of them are in the journal/],
  ],
  [
    'an open operation, deleted',
    ({ reserved }) => `delete from operation where id = '${reserved}'`,
    ({ reserved }) => [RegExp(`^operation ${reserved} has entries but no row`)],
  ],
  [
    'a settled operation, deleted',
    ({ charged }) => `delete from operation where id = '${charged}'`,
    ({ charged }) => [RegExp(`^operation ${charged} has entries but no row`)],
  ],
  [
    'the entry that held, deleted',
    ({ charged }) => `delete from entry where seq = ${first(charged)}`,
    ({ charged }) => [RegExp(`operation ${charged} settles from hold:\\w+, where it holds nothing`)],
  ],
  [
    'the amount of a funding',
    ({ other }) => `update funding set amount_cents = 701 where account_id = '${other}'`,
    () => [/^funding evt_\w+ is of 701 cents, its entries of 7000000000 nanos/],
  ],
  [
    'the kind of a funding',
    () => `update funding set kind = 'credit' where kind = 'debit'`,
    () => [/^entry \d+: funding evt_\w+ moves from account:\w+ to funding/],
  ],
  [
    'the account of a funding',
    ({ account, other }) => `update funding set account_id = '${account}' where account_id = '${other}'`,
    ({ other }) => [RegExp(`^entry \\d+: funding evt_\\w+ moves from funding to account:${other}`)],
  ],
  [
    'a funding, deleted',
    ({ other }) => `delete from funding where account_id = '${other}'`,
    () => [/^entry \d+: funding evt_\w+ has no row/],
  ],
  [
    'a funding that never was',
    ({ other }) =>
      `insert into funding select 'evt_x', account_id, kind, amount_cents, reason, key, session_id, created_at, seal from funding where account_id = '${other}'`,
    () => [/^there are 4 fundings, 3 of them in the journal/],
  ],
];

test('books in which nothing was touched are in order', async (t) => {
  const { books } = await openStory(t);
  const { ok, entries, head, problems } = verifyLedger(books.ledger.client);
  assert.deepEqual(problems, []);
  assert.equal(ok, true);
  const last = books.ledger.client.prepare('select seq, hash from entry order by seq desc limit 1').get() as {
    seq: bigint;
    hash: Buffer;
  };
  assert.equal(entries, Number(last.seq));
  assert.deepEqual(head, { seq: Number(last.seq), hash: last.hash.toString('hex') });
});

test('books that were opened and switched to raw hands, but not changed, are in order', async (t) => {
  const { books } = await openStory(t);
  await damage(books, () => {});
  assert.deepEqual(verify(t, books).problems, []);
});

test('empty books are in order', async (t) => {
  const { ledger } = await openBooks(t);
  assert.deepEqual(verifyLedger(ledger.client), {
    ok: true,
    entries: 0,
    head: { seq: 0, hash: '0'.repeat(64) },
    problems: [],
    faults: 0,
  });
});

for (const [what, sql, said] of DAMAGE)
  test(`named as a fault: ${what}`, async (t) => {
    const story = await openStory(t);
    await damage(story.books, (client) => client.exec(sql(story)));
    const { ok, problems } = verify(t, story.books);
    assert.equal(ok, false);
    for (const pattern of said(story))
      assert(
        problems.some((it) => pattern.test(it)),
        `${pattern} in ${problems.join('\n')}`,
      );
  });

/** Chains every entry anew after a change: what somebody would do who knows how. */
function forge(client: Client.Database): void {
  let prev: Buffer = Buffer.alloc(32);
  const entries = client.prepare('select seq, at, cause_id, debit, credit, amount_nanos from entry order by seq').all();
  for (const it of entries as Record<string, never>[]) {
    const { seq = 0n, at = 0n, cause_id: causeId = '', debit = '', credit = '', amount_nanos: amount } = it;
    const hash = hashEntry(prev, Number(seq), { at: Number(at), causeId, debit, credit, amount: amount as never });
    client.prepare('update entry set prev_hash = ?, hash = ? where seq = ?').run(prev, hash, seq);
    prev = hash;
  }
}

test('a chain that was forged anew around a changed amount does not agree with the rows', async (t) => {
  const { books, charged } = await openStory(t);
  await damage(books, (client) => {
    client.exec(
      `update entry set amount_nanos = amount_nanos - 5 where cause_id = '${charged}' and credit like 'sales:%'`,
    );
    forge(client);
  });
  const { problems } = verify(t, books);
  assert(
    problems.some((it) => it.startsWith(`operation ${charged} `)),
    problems.join('\n'),
  );
});

test('a chain that was forged anew around a missing charge does not agree with the rows', async (t) => {
  const { books, charged, open } = await openStory(t);
  await damage(books, (client) => {
    client.exec(`delete from entry where cause_id = '${charged}'; delete from operation where id = '${charged}'`);
    const seqs = client.prepare('select seq from entry order by seq').pluck().all();
    for (const [i, seq] of seqs.entries()) client.prepare('update entry set seq = ? where seq = ?').run(i + 1, seq);
    forge(client);
  });
  const { problems } = verify(t, books);
  assert.deepEqual(
    problems.filter((it) => it.startsWith('entry')),
    [],
    'the chain is whole',
  );
  assert(problems.includes(`wallet ${open} has spent 12345678 nanos, the journal 0`), problems.join('\n'));
});

test('time that goes back is named, however well the chain is forged', async (t) => {
  const { books } = await openStory(t);
  await damage(books, (client) => {
    client.exec('update entry set at = 1 where seq = 9');
    forge(client);
  });
  assert.deepEqual(verify(t, books).problems, ['entry 9 is earlier than the one before it']);
});

test('money that goes into a book that belongs to nothing is named, however well the chain is forged', async (t) => {
  const { books, ended } = await openStory(t);
  await damage(books, (client) => {
    client.exec(
      `update entry set credit = 'account:acct_thief' where debit = 'wallet:${ended}' and credit like 'account:%'`,
    );
    forge(client);
  });
  const { problems } = verify(t, books);
  assert(
    problems.some((it) => it.startsWith('the book account:acct_thief has 2870000000 nanos')),
    problems.join('\n'),
  );
});

test('a field of two lines is named, however well the chain is forged', async (t) => {
  const { books } = await openStory(t);
  await damage(books, (client) => {
    client.exec(`update entry set debit = debit || char(10) || 'x' where seq = 5`);
    forge(client);
  });
  assert.equal(verify(t, books).problems[0], 'entry 5 was changed: its hash does not match its fields');
});

test('an audit in threads says what an audit in one thread says', async (t) => {
  const { books } = await openStory(t);
  const both = async () => {
    const { client } = openDatabase(books.file, { migrate: false, readonly: true });
    t.after(() => client.close());
    const verdict = audit(client);
    assert.deepEqual(await auditInThreads(books.file, client), verdict);
    return verdict;
  };
  assert.deepEqual((await both()).problems, []);

  await damage(books, (client) => {
    client.exec('drop index operation_open'); // The structure.
    client.exec('update entry set amount_nanos = amount_nanos + 1 where seq = 5'); // The books.
    client.exec(`update operation set subject = 'another'`); // The rows.
  });
  const { problems } = await both();
  for (const said of [/^the index operation_open is missing/, /^entry 5 was changed/, /^operation op_\w+ was changed/])
    assert(
      problems.some((it) => said.test(it)),
      `${said}: ${problems.join('\n')}`,
    );
});

test('beyond a thousand faults the rest is counted', async (t) => {
  const books = await openBooks(t);
  const account = await books.account(0);
  const fundings = Array.from({ length: 1200 }, () =>
    books.fund({ accountId: account, kind: 'credit', amountCents: 1 }),
  );
  await Promise.all(fundings);
  await damage(books, (client) => client.exec('update entry set at = at + 1'));
  const verdict = verify(t, books);
  const { problems } = verdict;
  assert.equal(problems.length, 1001);
  assert.equal(problems.at(-1), 'and 200 more');
  assert.equal(verdict.faults, 1200);
  // What is not listed counts, too; a list that is whole says how many they are.
  assert.equal(readVerdict(printVerdict(verdict)).faults, 1200);
  const few = { ...verdict, problems: problems.slice(0, 2), faults: 2 };
  assert.deepEqual(Object.keys(JSON.parse(printVerdict(few))), ['ok', 'entries', 'head', 'problems']);
  assert.equal(readVerdict(printVerdict(few)).faults, 2);
});

test('verifying writes nothing', async (t) => {
  const { books } = await openStory(t);
  const { client } = books.ledger;
  const before = client.prepare('select total_changes()').pluck().get();
  verifyLedger(client);
  assert.equal(client.prepare('select total_changes()').pluck().get(), before);
  assert.equal(client.inTransaction, false);
});
