// Prints what a chat costs the writer as counts, as JSON: statements that touch a table, and bytes of log. In a process of its own,
// because the clock stands still in it.
import type { TestContext } from 'node:test';
import { type Counts, openChatWriter } from '../test/ledger/chat-writes.ts';

/** Of one chat. */
export type ChatCounts = { statements: number; logBytes: number; chatsPerCommit: number };

const COMMITS = 40;
const CHATS_PER_COMMIT = 15; // Of 64 connections: 15 holds and 15 settlements.
const WARM = 100;

await using open = new AsyncDisposableStack();
const t = {
  after: (end: () => unknown) => open.defer(async () => void (await end())),
  mock: { method: (of: object, name: string, by: unknown) => Object.assign(of, { [name]: by }) },
} as unknown as TestContext;
const of = ({ statements, logBytes, commits }: Counts, chats: number): ChatCounts => ({
  statements: statements.values().reduce((sum, it) => sum + it, 0) / chats,
  logBytes: logBytes / chats,
  chatsPerCommit: chats / commits,
});
const counts: Record<string, ChatCounts> = {};
for (const wallets of [1000, 1]) {
  const writer = await openChatWriter(t, wallets);
  await writer.chats(COMMITS, WARM);
  counts[`64 connections, ${wallets}`] = of(await writer.chats(COMMITS, CHATS_PER_COMMIT), COMMITS * CHATS_PER_COMMIT);
  const alone = COMMITS * 10;
  counts[`one connection, ${wallets}`] = of(await writer.chatsOneByOne(alone), alone);
}
console.log(JSON.stringify(counts));
