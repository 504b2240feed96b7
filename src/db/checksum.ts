import { crc32 } from 'node:zlib';
import type { Database as Client } from 'better-sqlite3';
import { getTableColumns, getTableName } from 'drizzle-orm';
import {
  accounts,
  answers,
  browserSessions,
  checkouts,
  deliveries,
  epochs,
  events,
  fundings,
  identities,
  installation,
  keeps,
  keys,
  learnedBounds,
  masterKeys,
  operations,
  passkeys,
  paymentEvents,
  paymentFeed,
  resources,
  reversals,
  routerKeys,
  sandboxes,
  snapshots,
  walletChanges,
  wallets,
} from './schema.ts';

/**
 * The tables whose rows carry a checksum (column `seal`) over the table's name and columns, to detect bits flipped by disk or
 * memory (docs/decisions/0013). It is no signature: any program can compute it. Journal entries have their hash chain.
 */
export const CHECKED_TABLES = [
  installation,
  masterKeys,
  epochs,
  accounts,
  identities,
  keys,
  passkeys,
  browserSessions,
  fundings,
  wallets,
  walletChanges,
  routerKeys,
  operations,
  answers,
  learnedBounds,
  resources,
  keeps,
  sandboxes,
  snapshots,
  checkouts,
  reversals,
  paymentEvents,
  paymentFeed,
  events,
  deliveries,
] as const;
export type CheckedTable = (typeof CHECKED_TABLES)[number];

/**
 * Columns outside the checksum: figures that are written often and that `verify` rebuilds from the journal and from the rows,
 * and notes without guarantees.
 */
const UNCHECKED_COLUMNS: ReadonlyMap<CheckedTable, readonly string[]> = new Map<CheckedTable, readonly string[]>([
  [accounts, ['available_cents', 'reserved_cents', 'spent_cents']],
  [
    wallets,
    [
      'number',
      'delegated_nanos',
      'cleanup_attempts',
      'cleanup_error',
      'period_spent_nanos',
      'next_threshold_nanos',
      'first_operation',
    ],
  ],
  [operations, ['number', 'freed', 'key_digest', 'hold_entry', 'settle_entry']],
  [answers, ['number']],
  [deliveries, ['due_at', 'attempts', 'last_error']],
  [keys, ['last_used_at']],
  [passkeys, ['last_used_at']],
  [browserSessions, ['last_used_at']],
]);

type Shape = { table: string; properties: string[]; columns: string[]; labels: string[] };
const SHAPES = new Map<CheckedTable, Shape>(
  CHECKED_TABLES.map((table) => {
    const covered = Object.entries(getTableColumns(table))
      .map(([property, column]) => ({ property, name: column.name }))
      .filter(({ name }) => name !== 'seal' && !UNCHECKED_COLUMNS.get(table)?.includes(name));
    return [
      table,
      {
        table: getTableName(table),
        properties: covered.map(({ property }) => property),
        columns: covered.map(({ name }) => name),
        labels: covered.map(({ name }) => labelOf(name)),
      },
    ];
  }),
);

/** Returns the text before a column's value. It is a declaration, since the shapes above use it while the module loads. */
function labelOf(column: string): string {
  return `\n${column} `;
}

/**
 * Encodes one column for the checksum. Nulls are left out, so that a column added by a later version changes no
 * checksum. The length keeps adjacent columns apart.
 */
function encode(label: string, value: unknown): string {
  if (value === null || value === undefined) return '';
  const text = Buffer.isBuffer(value) ? value.toString('latin1') : String(value as string | number | bigint);
  return `${label}${text.length} ${text}`;
}

function checksumOf(table: CheckedTable, row: object): number {
  const shape = SHAPES.get(table) as Shape;
  let text = shape.table;
  for (let i = 0; i < shape.labels.length; i++)
    text += encode(shape.labels[i] as string, (row as Record<string, unknown>)[shape.properties[i] as string]);
  return crc32(text);
}

/** Returns a new row with its checksum, for `insert`. */
export function withChecksum<T extends CheckedTable, R extends Omit<T['$inferInsert'], 'seal'>>(
  table: T,
  row: R,
): R & { seal: number } {
  return { ...row, seal: checksumOf(table, row) };
}

/** Returns a change of a row with the checksum of the row after it, for `set`. */
export function withNewChecksum<T extends CheckedTable, C extends object>(
  table: T,
  before: T['$inferSelect'],
  change: C & Partial<T['$inferInsert']>,
): C & { seal: number } {
  const after: Record<string, unknown> = { ...before };
  for (const [property, value] of Object.entries(change)) if (value !== undefined) after[property] = value; // as `set` does
  return { ...change, seal: checksumOf(table, after) };
}

/** Rows read per query: a statement that is being stepped blocks the connection. */
const PAGE_COUNT = 1000;

/**
 * Calls `report` for every row of the open file whose checksum does not match. Reads only the columns and tables that
 * exist: a file being migrated may lack the newest.
 */
function forEachBadChecksum(
  client: Client,
  report: (shape: Shape, rowid: bigint, row: unknown[], seal: number) => void,
): void {
  const tables = new Set(client.prepare("select name from sqlite_schema where type = 'table'").pluck().all());
  for (const shape of SHAPES.values()) {
    // Most tables of small books are empty, and what is prepared for one takes longer than to read a few rows.
    if (!tables.has(shape.table) || !client.prepare(`select 1 from ${shape.table} not indexed`).get()) continue;
    const there = new Set(client.prepare('select name from pragma_table_info(?)').pluck().all(shape.table));
    const columns = shape.columns.filter((name) => there.has(name));
    const labels = columns.map(labelOf);
    const page = client
      .prepare(`select rowid, seal, ${columns.join(', ')} from ${shape.table} where rowid > ? order by rowid limit ?`)
      .raw()
      .safeIntegers();
    for (let after = -1n; ; ) {
      const rows = page.all(after, PAGE_COUNT) as [bigint, bigint, ...unknown[]][];
      for (const [rowid, is, ...row] of rows) {
        let text = shape.table;
        for (let i = 0; i < labels.length; i++) text += encode(labels[i] as string, row[i]);
        const seal = crc32(text);
        if (BigInt(seal) !== is) report(shape, rowid, row, seal);
      }
      const last = rows.at(-1);
      if (!last || rows.length < PAGE_COUNT) break;
      after = last[0];
    }
  }
}

/** Reports every row whose checksum does not match. Reads all rows and writes nothing. */
export function findBadChecksums(client: Client, fault: (text: string) => void): void {
  forEachBadChecksum(client, ({ table }, _, [id]) => fault(`${table} ${id} was changed: its checksum does not match`));
}

/**
 * Adds checksums to all rows of a file written before there were any. For use inside a migration: its triggers are
 * dropped and restored.
 */
export function addEveryChecksum(client: Client): void {
  const triggers = client.prepare("select name, sql from sqlite_schema where type = 'trigger'").all() as {
    name: string;
    sql: string;
  }[];
  for (const { name } of triggers) client.exec(`drop trigger ${name}`);
  forEachBadChecksum(client, ({ table }, rowid, _, seal) =>
    client.prepare(`update ${table} set seal = ? where rowid = ?`).run(seal, rowid),
  );
  for (const { sql } of triggers) client.exec(sql);
}
