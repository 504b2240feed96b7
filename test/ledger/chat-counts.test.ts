import assert from 'node:assert/strict';
import test from 'node:test';
import Database, { type Statement } from 'better-sqlite3';
import { openTestServer } from '../helper/server.ts';
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

test('a chat reads its wallet once before its hold', async (t) => {
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
  const server = await openTestServer(t);
  const { token } = await server.openWallet({ budget_cents: 1000 });
  await server.chat(token); // The writer remembers the wallet from here on.
  reads.length = 0;
  assert.equal((await server.chat(token)).status, 200);
  assert.equal(reads.filter((it) => /from wallet .* where wallet\.id = \?$/.test(it)).length, 1, reads.join('\n'));
});
