import { randomBytes, randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { newId } from '../../src/base/id.ts';
import { centsToNanos, Nanos } from '../../src/base/money.ts';
import { type FundingOrder, fundAccount, openAccount } from '../../src/ledger/account.ts';
import { type HoldOrder, placeHold } from '../../src/ledger/hold.ts';
import { install } from '../../src/ledger/installation.ts';
import { openLedger } from '../../src/ledger/ledger.ts';
import { openWallet, type WalletOrder } from '../../src/ledger/open-wallet.ts';
import { type Operation, type Outcome, settle } from '../../src/ledger/operation.ts';
import type { Wallet } from '../../src/ledger/wallet.ts';
import { type OpenLedger, takingClosures } from '../helper/closures.ts';

type After = Pick<TestContext, 'after'>;
export const MASTER_KEY_ID = 'mk_test';

/** A directory that goes away with the test. */
export function temporaryDirectory(t: After, parent = tmpdir()): string {
  const directory = mkdtempSync(join(parent, 'purser-test-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** The ledger on a real file, without the server around it: accounts, wallets and operations, and time as an argument. */
export type Books = {
  file: string;
  ledger: OpenLedger;
  account(creditCents?: number, now?: number): Promise<string>;
  fund(order: Pick<FundingOrder, 'accountId' | 'kind' | 'amountCents'>, now?: number): Promise<unknown>;
  wallet(accountId: string, order?: Partial<WalletOrder>, now?: number): Promise<Wallet>;
  hold(walletId: string, nanos: bigint, order?: Partial<HoldOrder>, now?: number): Promise<Operation>;
  settle(id: string, outcome: Outcome<Buffer | null>, now?: number): Promise<boolean>;
};

/** An outcome that charges `nanos`, with an answer to keep. */
export const done = (nanos: bigint): Outcome<Buffer> => ({
  kind: 'done',
  charge: Nanos(nanos),
  usage: null,
  answer: Buffer.from('{}'),
});
export const refused: Outcome<never> = { kind: 'refused', code: 'gateway_unavailable', reason: 'a clear no' };
export const unknown: Outcome<never> = { kind: 'unknown', reason: 'no answer' };

export function walletOrder(accountId: string, order: Partial<WalletOrder> = {}): WalletOrder {
  return {
    id: newId('wal'),
    accountId,
    name: 'test',
    parentId: null,
    budget: centsToNanos(1000),
    expiresInSeconds: 0,
    masterKeyId: MASTER_KEY_ID,
    tokenHash: randomBytes(32),
    tokenHint: 'hint',
    idempotencyKey: randomUUID(),
    fingerprint: randomBytes(32),
    requestId: 'req_test',
    ...order,
  };
}

/** The data of the write that opens a wallet. */
export const opening = (order: WalletOrder, now: number) => ({
  order,
  now,
  blocked: undefined,
  limits: { depth: 4, openChildren: 1000 },
});

export function holdOrder(walletId: string, nanos: bigint, order: Partial<HoldOrder> = {}): HoldOrder {
  return {
    id: newId('op'),
    walletId,
    kind: 'chat',
    route: 'chat/completions',
    idempotencyKey: randomUUID(),
    fingerprint: randomBytes(32),
    requestId: 'req_test',
    hold: Nanos(nanos),
    price: '{}',
    subject: 'model',
    ...order,
  };
}

export function openBooksAt(file: string): OpenLedger {
  const ledger = openLedger(file, {
    migrate: true,
    writesHere: true,
    fatal(error) {
      throw error;
    },
  });
  return takingClosures(ledger);
}

export async function openBooks(t: After): Promise<Books> {
  const file = join(temporaryDirectory(t), 'purser.db');
  const ledger = openBooksAt(file);
  t.after(() => ledger.close());
  await ledger.write(install, { masterKeyId: MASTER_KEY_ID, now: 1 });
  const books: Books = {
    file,
    ledger,
    async account(creditCents = 100_000, now = 1) {
      const { id } = await ledger.write(openAccount, { name: randomUUID(), creditCents: 0, now });
      if (creditCents) await books.fund({ accountId: id, kind: 'credit', amountCents: creditCents }, now);
      return id;
    },
    fund: (order, now = 1) => ledger.write(fundAccount, { order: { reason: null, key: null, ...order }, now }),
    wallet: async (accountId, order, now = 1) =>
      (await ledger.write(openWallet, opening(walletOrder(accountId, order), now))).wallet,
    hold: (walletId, nanos, order, now = 1) =>
      ledger.write((tx) => placeHold(tx, holdOrder(walletId, nanos, order), now)),
    settle: (id, outcome, now = 1) => ledger.write((tx) => settle(tx, id, outcome, 'answer', now).moved),
  };
  return books;
}
