import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import Database, { type Statement } from 'better-sqlite3';
import { centsToNanos } from '../../src/base/money.ts';
import { refillOwed, refillWallet, setRefill } from '../../src/ledger/refill.ts';
import { available, findWallet } from '../../src/ledger/wallet.ts';
import { openTestServer } from '../helper/server.ts';
import { done, openBooks } from './books.ts';
import { type Counts, openChatWriter } from './chat-writes.ts';

// What a chat costs the writer, as counts: no time is measured, so a busy machine changes nothing.

/** The chats of one commit under load: 64 connections make 15 holds and 15 settlements a commit (docs/performance.md). */
const CHATS_PER_COMMIT = 15;

const most = (counts: Map<string, number>): string =>
  [...counts]
    .sort(([, a], [, b]) => b - a)
    .map(([name, count]) => `${count} × ${name}`)
    .join('\n');

function assertCosts(counts: Counts, chats: number, limits: { statements: number; logBytes: number }): void {
  const statements = [...counts.statements.values()].reduce((sum, it) => sum + it) / chats;
  assert(statements <= limits.statements, `${statements} statements a chat:\n${most(counts.statements)}`);
  const logBytes = counts.logBytes / chats;
  assert(logBytes <= limits.logBytes, `${logBytes} bytes of log a chat, in ${chats} chats:\n${most(counts.pages)}`);
}

for (const { wallets, logBytes } of [
  { wallets: 1, logBytes: 7700 },
  { wallets: 1000, logBytes: 9200 },
])
  test(`64 connections, ${wallets} wallets: statements and bytes of log a chat`, async (t) => {
    const writer = await openChatWriter(t, wallets);
    await writer.chats(40, 100);
    const counts = await writer.chats(40, CHATS_PER_COMMIT);
    assert.equal(counts.commits, 40);
    assertCosts(counts, 40 * CHATS_PER_COMMIT, { statements: 8, logBytes });
  });

test('one connection: statements and bytes of log a chat', async (t) => {
  const writer = await openChatWriter(t, 1000);
  await writer.chats(40, 100);
  const counts = await writer.chatsOneByOne(300);
  assert.equal(counts.commits, 600);
  assertCosts(counts, 300, { statements: 9, logBytes: 36_000 });
});

/** Returns the list of the statements that read one row in this process from now on. */
function readsHere(t: TestContext): string[] {
  const reads: string[] = [];
  const sample = new Database(':memory:');
  const statements: { get: (this: Statement, ...values: unknown[]) => unknown } = Object.getPrototypeOf(
    sample.prepare('select 1'),
  );
  sample.close();
  const { get } = statements;
  t.after(() => Object.assign(statements, { get }));
  statements.get = function (...values) {
    reads.push(this.source);
    return get.apply(this, values);
  };
  return reads;
}

for (const { what, budget, chat, count } of [
  { what: 'that has the money is not read', budget: 1000, chat: {}, count: 0 },
  {
    what: 'that lacked the money is read once',
    budget: 300,
    chat: { model: 'dear', max_tokens: undefined },
    count: 1,
  },
])
  test(`the wallet of a chat ${what} before its hold`, async (t) => {
    const reads = readsHere(t);
    const server = await openTestServer(t);
    const { token } = await server.openWallet({ budget_cents: budget });
    await server.chat(token, chat); // The writer remembers the wallet from here on.
    reads.length = 0;
    assert.equal((await server.chat(token, chat)).status, 200);
    assert.equal(
      reads.filter((it) => /from wallet .* where wallet\.id = \?$/.test(it)).length,
      count,
      reads.join('\n'),
    );
  });

for (const { carry, creditCents, walks } of [
  { carry: 'none', creditCents: 500, walks: 0 }, // Less than is missing even if the children had spent nothing.
  { carry: 'none', creditCents: 1500, walks: 1 },
  { carry: 100, creditCents: 1500, walks: 1 },
  { carry: 'all', creditCents: 1500, walks: 0 },
] as const)
  test(`of the holds that wait for a refill which carries ${carry}, with ${creditCents} cents of credit, ${walks} walks the wallets below`, async (t) => {
    const reads = readsHere(t);
    const { ledger, ...books } = await openBooks(t);
    const accountId = await books.account(1000 + creditCents);
    const { id } = await books.wallet(accountId, { budget: centsToNanos(1000) });
    const refill = { cents: 2000, every: 'day', zone: 'UTC', carry } as const;
    await ledger.write(setRefill, { id, refill, now: 1, blocked: undefined });
    const child = await books.wallet(accountId, { parentId: id, budget: centsToNanos(999) });
    await books.settle((await books.hold(child.id, child.budget)).id, done(child.budget));

    const now = 86_400;
    const needed = centsToNanos(500);
    const walked = () => reads.splice(0).filter((it) => it.includes('with recursive below')).length;
    walked();
    for (let count = 0; count < 10; count++) {
      await assert.rejects(books.hold(id, needed, {}, now), { code: 'insufficient_funds' });
      await ledger.write(refillOwed, { id, now, blocked: undefined }); // As a request that is cut to its money does.
    }
    assert.equal(walked(), walks);

    const missingCents = carry === 'none' ? 1999 : 2000;
    const tried = await ledger.write(refillWallet, { id, now: now + 60 });
    assert(tried?.kind === 'short');
    assert.match(
      tried.reason,
      new RegExp(`^The budget needs ${missingCents / 100}`),
      'the reaper tells the whole amount',
    );
    walked();
    await books.fund({ accountId, kind: 'credit', amountCents: missingCents - creditCents });
    await books.hold(id, needed, {}, now + 60);
    assert.equal(walked(), carry === 'all' ? 0 : 1);
    const after = findWallet(ledger.read, id);
    assert(after);
    assert.equal(available(after) + after.held, centsToNanos(carry === 'none' ? 2000 : 2001));
  });
