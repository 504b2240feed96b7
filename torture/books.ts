import { join } from 'node:path';
import Database from 'better-sqlite3';
import type { Installation } from '../test/helper/executable.ts';

export type Operation = {
  id: string;
  wallet: string;
  kind: string;
  route: string;
  key: string;
  state: string;
  outcome: string | null;
  settledBy: string | null;
  hold: bigint;
  charge: bigint | null;
  resourceId: string | null;
};
export type Entry = { seq: number; cause: string; debit: string; credit: string; amount: bigint; hash: string };
/** Purser's own books at the end, read without its code. Amounts are nano-dollars. */
export type Books = {
  operations: Operation[];
  wallets: {
    id: string;
    key: string;
    parent: string | null;
    status: string;
    budget: bigint;
    spent: bigint;
    held: bigint;
    delegated: bigint;
  }[];
  changes: {
    id: string;
    wallet: string;
    kind: string;
    key: string | null;
    amount: bigint;
    period: string | null;
  }[];
  resources: {
    id: string;
    wallet: string;
    slot: string;
    backend: string;
    tag: string;
    status: string;
    ended: bigint | null;
  }[];
  fundings: { key: string | null; cents: bigint }[];
  account: { available: bigint; reserved: bigint; spent: bigint };
  entries: Entry[];
  /** The faults that `ledger verify` finds. */
  problems: string[];
};

/** Reads the books of a server that has stopped. */
export async function readBooks(purser: Installation, accountId: string): Promise<Books> {
  const verified = await purser.cli('--json', 'ledger', 'verify');
  const problems: string[] = verified.code === 0 ? [] : [`exit ${verified.code}: ${verified.stdout}${verified.stderr}`];
  const file = new Database(join(purser.directory, 'purser.db'), { readonly: true });
  try {
    file.defaultSafeIntegers(true);
    const all = <T>(sql: string, ...values: unknown[]) => file.prepare(sql).all(...values) as T[];
    return {
      problems,
      operations:
        all(`select id, wallet_id wallet, kind, route, idempotency_key key, state, outcome, settled_by settledBy,
        hold_nanos hold, charge_nanos charge, resource_id resourceId from operation`),
      wallets: all<Books['wallets'][number]>(
        `select id, idempotency_key key, parent_id parent, status, budget_nanos budget, spent_nanos spent,
        held_nanos held, delegated_nanos delegated from wallet join balance using (number)`,
      ).map((it) => ({ ...it, key: it.key.replace(/^.*\n/, '') })), // A child's begins with its parent.
      changes: all<Books['changes'][number]>(
        `select id, wallet_id wallet, kind, idempotency_key key, amount_nanos amount, period from wallet_change`,
      ).map((it) => ({ ...it, key: it.key?.replace(/^extend\n/, '') ?? null })), // Those of extensions are kept apart.
      resources: all('select id, wallet_id wallet, slot, backend, tag, status, ended_at ended from resource'),
      fundings: all('select key, amount_cents cents from funding where account_id = ?', accountId),
      account: all<Books['account']>(
        'select available_cents available, reserved_cents reserved, spent_cents spent from account where id = ?',
        accountId,
      )[0] as Books['account'],
      entries: all<Entry & { seq: bigint }>(
        'select seq, cause_id cause, debit, credit, amount_nanos amount, lower(hex(hash)) hash from entry order by seq',
      ).map((it) => ({ ...it, seq: Number(it.seq) })),
    };
  } finally {
    file.close();
  }
}
