import assert from 'node:assert/strict';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { Nanos } from '../../src/base/money.ts';
import { type CommitMark, findBreak, findGap, headOf, readHeadFile, writeHeadFile } from '../../src/ledger/head.ts';
import { beginEpoch } from '../../src/ledger/installation.ts';
import { post } from '../../src/ledger/journal.ts';
import { openBooks, temporaryDirectory } from './books.ts';

const HASH = 'ab'.repeat(32);

/** A journal of `count` entries, and nothing beside it. */
async function openJournal(t: TestContext, count: number) {
  const { ledger } = await openBooks(t);
  const movement = { at: 1, causeId: 'evt_1', debit: 'funding', credit: 'account:acct_1', amount: Nanos(10n) };
  const add = (more: number) => ledger.write((tx) => post(tx, Array(more).fill(movement)));
  await add(count);
  const alter = (sql: string) => {
    for (const name of ['entry_is_never_changed', 'entry_is_never_deleted'])
      ledger.client.exec(`drop trigger if exists ${name}`);
    ledger.client.exec(sql);
  };
  return { ledger, read: ledger.read, add, alter };
}

test('a head file says again what was written', async (t) => {
  const file = join(temporaryDirectory(t), 'ledger.head');
  const head: CommitMark = { seq: 12, hash: HASH, epoch: 3, quietCommits: 5 };
  await writeHeadFile(file, head);
  assert.deepEqual(await readHeadFile(file), head);
  await writeHeadFile(file, { ...head, seq: 13 });
  assert.equal((await readHeadFile(file))?.seq, 13);
  assert.equal(readFileSync(file, 'utf8'), `13 ${HASH} 3 5\n`);
  assert.equal(statSync(file).mode & 0o777, 0o600);
  assert.deepEqual(readdirSync(dirname(file)), ['ledger.head'], 'nothing is left beside it');
});

test('a head file that a crash left half-written is replaced, and the whole one before it is read', async (t) => {
  const file = join(temporaryDirectory(t), 'ledger.head');
  await writeHeadFile(file, { seq: 1, hash: HASH, epoch: 1, quietCommits: 0 });
  writeFileSync(`${file}.new`, '2 abab');
  assert.equal((await readHeadFile(file))?.seq, 1);
  await writeHeadFile(file, { seq: 2, hash: HASH, epoch: 1, quietCommits: 0 });
  assert.equal((await readHeadFile(file))?.seq, 2);
});

test('no head file is no head', async (t) => {
  assert.equal(await readHeadFile(join(temporaryDirectory(t), 'ledger.head')), undefined);
});

for (const text of [
  '',
  '\n',
  '1',
  `1 ${HASH}`,
  `1 ${HASH} 1`,
  `1 ${HASH} 1\n1 ${HASH} 1\n`,
  `-1 ${HASH} 1\n`,
  `1 ${HASH.slice(1)} 1\n`,
  `1 ${HASH.toUpperCase()} 1\n`,
  `x ${HASH} 1\n`,
  '\0'.repeat(70),
])
  test(`${JSON.stringify(text.slice(0, 80))} is a damaged head file`, async (t) => {
    const file = join(temporaryDirectory(t), 'ledger.head');
    writeFileSync(file, text);
    await assert.rejects(readHeadFile(file), /ledger\.head is damaged/);
  });

test('a journal at its head file, or ahead of it, has no gap', async (t) => {
  const { read, add } = await openJournal(t, 3);
  const head = headOf(read);
  assert.equal(head.seq, 3);
  assert.equal(findGap(read, head), undefined);
  await add(1);
  assert.equal(findGap(read, head), undefined);
});

test('an empty journal needs no head file, a journal with entries does', async (t) => {
  const { read, add } = await openJournal(t, 0);
  assert.equal(findGap(read, undefined), undefined);
  await add(1);
  assert.equal(findGap(read, undefined), 'ledger.head is missing beside a journal of 1 entries');
});

test('a journal behind its head file names the entries that are lost', async (t) => {
  const { read } = await openJournal(t, 3);
  const head = { ...headOf(read), seq: 7 };
  const gap = 'the journal ends at entry 3, but entry 7 was on disk: entries 4 to 7 are lost';
  assert.equal(findGap(read, head), gap);
});

test('a journal whose entry at the head is another one is not the one that was on disk', async (t) => {
  const { read, add } = await openJournal(t, 3);
  const head = { ...headOf(read), hash: HASH };
  assert.match(findGap(read, head) ?? '', /^entry 3 is not the one that was on disk/);
  await add(1);
  assert.match(findGap(read, head) ?? '', /^entry 3 is not the one that was on disk/, 'also further on');
});

test('a head file of a later epoch than the database is a gap, one of an earlier epoch is past', async (t) => {
  const { ledger, read, add } = await openJournal(t, 3);
  const lost = { seq: 9, hash: HASH, epoch: 1, quietCommits: 0 };
  assert.match(findGap(read, lost) ?? '', /entries 4 to 9 are lost/);
  await ledger.write((tx) => beginEpoch(tx, { afterSeq: 3, reason: 'accepted', acceptedFaults: 0 }, 2));
  assert.equal(findGap(read, lost), undefined, 'its loss was accepted');
  assert.equal(findGap(read, undefined), undefined, 'the new epoch has no entries yet');
  await add(1);
  assert.match(findGap(read, undefined) ?? '', /missing/);
  assert.equal(headOf(read).epoch, 2);
  assert.equal(findGap(read, { ...headOf(read), epoch: 3 }), 'ledger.head is of epoch 3, the database of epoch 2');
});

test('a broken chain is a gap, whatever the head file says', async (t) => {
  const { read, alter } = await openJournal(t, 5);
  const head = headOf(read);
  alter('update entry set amount_nanos = 2 where seq = 3');
  assert.equal(findGap(read, head), 'the chain of the journal is broken at entry 3');
});

test('a missing entry breaks the chain', async (t) => {
  const { read, alter } = await openJournal(t, 5);
  const head = headOf(read);
  alter('delete from entry where seq = 1');
  assert.equal(findGap(read, head), 'the chain of the journal is broken at entry 1');
});

test('what was broken before an accepted loss is no gap any more, what breaks after it is', async (t) => {
  const { ledger, read, add, alter } = await openJournal(t, 5);
  alter('update entry set amount_nanos = 2 where seq = 3');
  await ledger.write((tx) => beginEpoch(tx, { afterSeq: 5, reason: 'accepted', acceptedFaults: 1 }, 2));
  await add(2);
  assert.equal(findGap(read, headOf(read)), undefined);
  alter('update entry set amount_nanos = 2 where seq = 6');
  assert.equal(findGap(read, headOf(read)), 'the chain of the journal is broken at entry 6');
});

test('the chain can be followed in slices, each beginning where the one before it ended', async (t) => {
  const { read, alter } = await openJournal(t, 2500);
  assert.deepEqual(findBreak(read, 1, 1000), { next: 1001, done: false });
  assert.deepEqual(findBreak(read, 1001, 1000), { next: 2001, done: false });
  assert.deepEqual(findBreak(read, 2001, 1000), { next: 2501, done: true });
  alter(`update entry set prev_hash = zeroblob(32) where seq = 2001`);
  assert.equal(findBreak(read, 2001, 1000).fault, 'the chain of the journal is broken at entry 2001');
});

test('a head file is read within the limit of a start: only the newest ten thousand entries are followed', async (t) => {
  const { read, alter } = await openJournal(t, 10_010);
  const head = headOf(read);
  alter('update entry set amount_nanos = 2 where seq = 11');
  assert.equal(findGap(read, head), 'the chain of the journal is broken at entry 11');
  alter('update entry set amount_nanos = 10 where seq = 11; update entry set amount_nanos = 2 where seq = 10');
  assert.equal(findGap(read, head), undefined, 'the rest is followed in the background');
});
