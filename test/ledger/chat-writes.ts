import { randomBytes, randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { MockTracker, TestContext } from 'node:test';
import type { Database as Client } from 'better-sqlite3';
import { newId } from '../../src/base/id.ts';
import { centsToNanos, Nanos } from '../../src/base/money.ts';
import { chatWrites } from '../../src/chat/terms.ts';
import { openDatabase } from '../../src/db/open.ts';
import { openAccount } from '../../src/ledger/account.ts';
import { openWriter } from '../../src/ledger/batches.ts';
import type { OperationOrder } from '../../src/ledger/hold.ts';
import { install } from '../../src/ledger/installation.ts';
import { openWallet } from '../../src/ledger/open-wallet.ts';
import { MASTER_KEY_ID, opening, temporaryDirectory, walletOrder } from './books.ts';

const NOW = 1_790_000_000;
const PRICE = '{"model":"mock-1","upstream":"mock","prompt":"100","completion":"400","request":"0"';
const HOLD = Nanos(31_600n);
const CHARGE = Nanos(3_200n);
const ANSWER = Buffer.from(
  JSON.stringify({
    id: 'chatcmpl-mock',
    object: 'chat.completion',
    created: 1,
    model: 'mock-1',
    choices: [{ index: 0, message: { role: 'assistant', content: 'Hello from the mock.' }, finish_reason: 'stop' }],
    usage: { prompt_tokens: 12, completion_tokens: 5, total_tokens: 17 },
  }),
);

/** The counts of some chats: statements by their text, commits, bytes that the log grew by, and its pages by table and index. */
export type Counts = {
  statements: Map<string, number>;
  commits: number;
  logBytes: number;
  pages: Map<string, number>;
};

/** The real writer in this thread, with wallets in it, and chats in commits of a fixed size: the counts depend on no clock. */
export async function openChatWriter(
  t: Pick<TestContext, 'after'> & { mock: Pick<MockTracker, 'method'> },
  walletCount: number,
) {
  t.mock.method(performance, 'now', () => 0); // A commit ends after some milliseconds otherwise.
  const file = join(temporaryDirectory(t), 'purser.db');
  const database = openDatabase(file, { migrate: true });
  const { client } = database;
  const statements = countStatements(client);
  const writer = openWriter(database, {
    outbox: { receivers: [], account_low_cents: undefined, recorded() {} },
    diskReserve: { shortage: () => undefined, release: () => false },
    fatal(error) {
      throw error;
    },
  });
  t.after(async () => {
    await writer.close();
    client.close();
  });
  await writer.write((tx) => void install.run(tx, { masterKeyId: MASTER_KEY_ID, now: NOW }));
  const account = await writer.write((tx) =>
    openAccount.run(tx, { name: 'counted', creditCents: walletCount * 1000, now: NOW }),
  );
  const wallets: string[] = [];
  for (let i = 0; i < walletCount; i++) {
    const order = walletOrder(account.id, { budget: centsToNanos(1000) });
    void writer.write((tx) => void openWallet.run(tx, opening(order, NOW)));
    wallets.push(order.id);
  }
  await writer.write(() => undefined);

  let begun = 0;
  const hold = (): [id: string, write: Promise<unknown>] => {
    const order: OperationOrder = {
      id: newId('op'),
      // Every wallet in turn, in an order that is not that of their ids.
      walletId: wallets[(begun++ * 379) % wallets.length] as string,
      kind: 'chat',
      route: 'chat/completions',
      idempotencyKey: randomUUID(),
      fingerprint: randomBytes(32),
      requestId: newId('req'),
      hold: HOLD,
      price: `${PRICE},"bound_prompt_tokens":60,"bound_completion_tokens":64}`,
      subject: 'mock-1',
      tags: null,
    };
    const data = { order, terms: undefined, now: NOW, blocked: undefined, limited: undefined };
    return [order.id, writer.write((tx) => chatWrites.hold.run(tx, data) as never)];
  };
  const settle = (id: string): Promise<unknown> => {
    const usage = '{"prompt_tokens":12,"completion_tokens":5}';
    const outcome = { kind: 'done', charge: CHARGE, usage, answer: ANSWER, keptSeconds: 259_200 } as const;
    return writer.write((tx) => chatWrites.settle.run(tx, { id, outcome, now: NOW }) as never);
  };

  /** Returns the counts of what `run` writes, in an empty log. */
  async function counting(run: () => Promise<void>): Promise<Counts> {
    client.pragma('wal_autocheckpoint = 0');
    client.pragma('wal_checkpoint(TRUNCATE)');
    statements.clear();
    const before = writer.commitCount();
    await run();
    const [counted, commits] = [new Map(statements), writer.commitCount() - before];
    const log = readFileSync(`${file}-wal`);
    return { statements: counted, commits, logBytes: log.length, pages: pagesOf(client, log) };
  }

  return {
    client,
    writer,
    wallets,
    /**
     * Makes chats in groups: the holds of a group are in one commit with the settlements of the group before it. The counts
     * include as many holds as settlements.
     */
    async chats(groups: number, groupSize: number): Promise<Counts> {
      let open: string[] = [];
      const commit = async () => {
        const settled = open.map(settle);
        const held = Array.from({ length: groupSize }, hold);
        open = held.map(([id]) => id);
        await Promise.all([...settled, ...held.map(([, write]) => write)]);
      };
      await commit();
      return counting(async () => {
        for (let i = 0; i < groups; i++) await commit();
      });
    },
    /** Makes chats one at a time: each has a commit of its hold and one of its settlement. */
    chatsOneByOne: (count: number): Promise<Counts> =>
      counting(async () => {
        for (let i = 0; i < count; i++) {
          const [id, held] = hold();
          await held;
          await settle(id);
        }
      }),
  };
}

/** Counts the pages in a log by the table or index that they belong to. */
function pagesOf(client: Client, log: Buffer): Map<string, number> {
  const [HEADER, FRAME] = [32, 24];
  const pageBytes = log.readUInt32BE(8);
  const names = new Map(
    client.prepare<[], [bigint, string]>('select pageno, name from dbstat').raw().all() as [bigint, string][],
  );
  const counts = new Map<string, number>();
  for (let at = HEADER; at < log.length; at += FRAME + pageBytes) {
    const name = names.get(BigInt(log.readUInt32BE(at))) ?? 'free';
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return counts;
}

type Run = (...values: unknown[]) => unknown;

/** Counts by its text every statement of this connection that is run from here on and touches a table. */
function countStatements(client: Client): Map<string, number> {
  const counts = new Map<string, number>();
  const prepare = client.prepare.bind(client) as unknown as (sql: string) => Record<string, Run>;
  client.prepare = ((sql: string) => {
    const statement = prepare(sql);
    if (!/\b(from|into|update) /i.test(sql)) return statement;
    for (const method of ['run', 'get', 'all']) {
      const run = statement[method]?.bind(statement);
      statement[method] = (...values) => {
        counts.set(sql, (counts.get(sql) ?? 0) + 1);
        return run?.(...values);
      };
    }
    return statement;
  }) as unknown as typeof client.prepare;
  return counts;
}
