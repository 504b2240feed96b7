// Fills a stopped, new installation with wallets and settled chats, fast: `node bench/fill.ts <directory> <wallets>
// <entries> <tokens>`. The rows are what Purser itself would have written (`purser ledger verify` says so): real ids,
// tokens and hashes. Only the stored answers are missing, as if their 72 hours were over. Prints <tokens> wallet tokens,
// chosen evenly, as JSON.
import { randomBytes } from 'node:crypto';
import { createKeyring, walletCredential } from '../src/access/keyring.ts';
import { readMasterKey } from '../src/access/master-key.ts';
import { newId } from '../src/base/id.ts';
import { centsToNanos, Nanos } from '../src/base/money.ts';
import { readConfig } from '../src/config/config.ts';
import { withChecksum } from '../src/db/checksum.ts';
import { keyDigest } from '../src/db/key-digest.ts';
import { takeLock } from '../src/db/lock.ts';
import { openDatabase } from '../src/db/open.ts';
import { operations, wallets } from '../src/db/schema.ts';
import { files } from '../src/files/data-directory.ts';
import { listAccounts } from '../src/ledger/account.ts';
import { headOf, writeHeadFile } from '../src/ledger/head.ts';
import { book, hashEntry, journalHead } from '../src/ledger/journal.ts';

const BUDGET_CENTS = 1000;
const HOLD = Nanos(80_000n);
const CHARGE = Nanos(3_200n);
const PRICE =
  '{"prompt_nanos_per_million":"100000000","completion_nanos_per_million":"400000000","request_nanos":"0","bound_prompt_tokens":400,"bound_completion_tokens":100}';
const ENTRIES_PER_OPERATION = 3;
const SPREAD = 2_654_435_761; // Knuth's multiplier: consecutive operations go to wallets far apart in the index.
const CACHE_KIB = 1024 * 1024;

const [directory = '', walletCount, entryCount, tokenCount] = process.argv
  .slice(2)
  .map((it, i) => (i ? Number(it) : it)) as [string, number, number, number];
const at = files(directory);
const config = readConfig({ data: directory }, {});
const keyring = createKeyring(readMasterKey(config.masterKey, { create: false }));
const lock = await takeLock(at.lock, 'the bench');
const { client, read } = openDatabase(at.database, { migrate: false });

// No journal and no fsync: when this is interrupted, the file is thrown away.
client.pragma('journal_mode = OFF');
client.pragma('synchronous = OFF');
client.pragma(`cache_size = ${-CACHE_KIB}`);

const account = listAccounts(read)[0]?.id as string;
let head = journalHead(read);
const now = head.at; // The journal's time never goes back, and nothing may be later than now.

const insertEntry = client.prepare('insert into entry values (?, ?, ?, ?, ?, ?, ?, ?)');
const insertWallet = client.prepare(
  `insert into wallet (id, account_id, name, status, budget_nanos, master_key_id, token_hash, token_hint,
     idempotency_key, fingerprint, request_id, created_at, cleanup_attempts, seal)
   values (:id, :accountId, :name, :status, :budget, :masterKeyId, :tokenHash, :tokenHint,
     :idempotencyKey, :fingerprint, :requestId, :createdAt, 0, :seal)`,
);
const insertOperation = client.prepare(
  `insert into operation (id, wallet_id, kind, route, idempotency_key, fingerprint, request_id, state, outcome, settled_by, hold_nanos,
     charge_nanos, price, usage, subject, created_at, settled_at, key_digest, hold_entry, settle_entry, seal)
   values (:id, :walletId, :kind, :route, :idempotencyKey, :fingerprint, :requestId, :state, :outcome, :settledBy, :hold,
     :charge, :price, :usage, :subject, :createdAt, :settledAt, :keyDigest,
     :holdEntry, :settleEntry, :seal)`,
);

function post(causeId: string, debit: string, credit: string, amount: Nanos): void {
  const seq = head.seq + 1;
  const hash = hashEntry(head.hash, seq, { at: now, causeId, debit, credit, amount });
  insertEntry.run(seq, now, causeId, debit, credit, amount, head.hash, hash);
  head = { ...head, seq, hash };
}

const ids: string[] = [];
const tokens: string[] = [];
const spentCount = new Uint32Array(walletCount);
const [first, last] = [new Uint32Array(walletCount), new Uint32Array(walletCount)]; // The numbers of operations.
const tokenEvery = Math.max(1, Math.floor(walletCount / tokenCount));

function openWallets(): void {
  const budget = centsToNanos(BUDGET_CENTS);
  for (let i = 0; i < walletCount; i++) {
    const id = newId('wal');
    const { token, row } = walletCredential(keyring, id);
    const requestId = newId('req');
    const wallet = { id, accountId: account, name: 'filled', status: 'active' as const, budget, ...row };
    const once = { idempotencyKey: requestId, fingerprint: randomBytes(32), requestId, createdAt: now };
    insertWallet.run(withChecksum(wallets, { ...wallet, ...once, cleanupAttempts: 0 }));
    post(id, book.account(account), book.wallet(id), budget);
    ids.push(id);
    if (i % tokenEvery === 0 && tokens.length < tokenCount) tokens.push(token);
  }
  client
    .prepare('update account set available_cents = available_cents - :cents, reserved_cents = reserved_cents + :cents')
    .run({ cents: walletCount * BUDGET_CENTS });
}

function settleChats(): void {
  const usage = '{"prompt_tokens":12,"completion_tokens":5}';
  const left = Nanos(HOLD - CHARGE);
  while (head.seq + ENTRIES_PER_OPERATION <= entryCount) {
    const id = newId('op');
    const index = (head.seq * SPREAD) % walletCount;
    const wallet = ids[index] as string;
    const requestId = newId('req');
    const once = { idempotencyKey: requestId, fingerprint: randomBytes(32), requestId, createdAt: now };
    const what = { kind: 'chat', route: 'chat/completions', subject: 'mock-1', price: PRICE, hold: HOLD } as const;
    const end = { state: 'settled', outcome: 'charged', settledBy: 'answer', charge: CHARGE, usage } as const;
    const entries = { holdEntry: head.seq + 1, settleEntry: head.seq + 2 };
    const places = { number: 0, keyDigest: keyDigest(wallet, what.route, requestId), ...entries };
    const row = { id, walletId: wallet, ...once, ...what, ...end, settledAt: now, ...places };
    const number = Number(insertOperation.run(withChecksum(operations, row)).lastInsertRowid);
    first[index] ||= number;
    last[index] = number;
    post(id, book.wallet(wallet), book.hold(wallet), HOLD);
    post(id, book.hold(wallet), book.sales('chat'), CHARGE);
    post(id, book.hold(wallet), book.wallet(wallet), left);
    spentCount[index] = (spentCount[index] as number) + 1;
  }
  const spend = client.prepare(
    `update balance set spent_nanos = ?, operation_count = ?, last_operation = ? where number = (select number from wallet where id = ?)`,
  );
  const begin = client.prepare('update wallet set first_operation = ? where id = ?');
  ids.forEach((id, i) => {
    const count = spentCount[i] as number;
    if (!count) return;
    spend.run(BigInt(count) * CHARGE, count, last[i], id);
    begin.run(first[i], id);
  });
}

client.transaction(() => {
  openWallets();
  settleChats();
})();
client.pragma('journal_mode = WAL');
await writeHeadFile(at.head, headOf(read));
client.close();
lock.release();
console.log(JSON.stringify(tokens));
