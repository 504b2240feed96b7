import { crc32 } from 'node:zlib';
import type { Database as Client } from 'better-sqlite3';
import { getTableColumns, getTableName } from 'drizzle-orm';
import {
  accounts,
  answers,
  checkouts,
  epochs,
  fundings,
  identities,
  installation,
  keys,
  learnedBounds,
  masterKeys,
  operations,
  paymentEvents,
  paymentFeed,
  resources,
  reversals,
  routerKeys,
  wallets,
} from './schema.ts';

/**
 * Every row outside the journal carries a seal: a checksum over its table's name and its columns, so that a bit that a
 * disk or memory turned is seen (docs/decisions/0012). It is no signature: whoever can write the file can seal anew.
 * Entries have their chain instead.
 */
const SEALED = [
  installation,
  masterKeys,
  epochs,
  accounts,
  identities,
  keys,
  fundings,
  wallets,
  routerKeys,
  operations,
  answers,
  learnedBounds,
  resources,
  checkouts,
  reversals,
  paymentEvents,
  paymentFeed,
] as const;
type SealedTable = (typeof SEALED)[number];

/** Not under the seal: figures that `verify` rebuilds from the journal, written often; and notes that promise nothing. */
const UNSEALED: ReadonlyMap<SealedTable, readonly string[]> = new Map<SealedTable, readonly string[]>([
  [accounts, ['available_cents', 'reserved_cents', 'spent_cents']],
  [wallets, ['held_nanos', 'spent_nanos', 'cleanup_attempts', 'cleanup_error']],
  [keys, ['last_used_at']],
]);

type Shape = { table: string; properties: string[]; columns: string[] };
const SHAPES = new Map<SealedTable, Shape>(
  SEALED.map((table) => {
    const covered = Object.entries(getTableColumns(table))
      .map(([property, column]) => ({ property, name: column.name }))
      .filter(({ name }) => name !== 'seal' && !UNSEALED.get(table)?.includes(name));
    return [
      table,
      {
        table: getTableName(table),
        properties: covered.map(({ property }) => property),
        columns: covered.map(({ name }) => name),
      },
    ];
  }),
);

/**
 * One column's part of what is sealed. What is null is left out, so that a column which a later Purser adds changes no
 * seal; the length keeps one column's end from being the next one's beginning.
 */
function part(column: string, value: unknown): string {
  if (value === null || value === undefined) return '';
  const text = Buffer.isBuffer(value) ? value.toString('latin1') : String(value as string | number | bigint);
  return `\n${column} ${text.length} ${text}`;
}

function sealOf(table: SealedTable, row: object): number {
  const shape = SHAPES.get(table) as Shape;
  let text = shape.table;
  for (let i = 0; i < shape.columns.length; i++)
    text += part(shape.columns[i] as string, (row as Record<string, unknown>)[shape.properties[i] as string]);
  return crc32(text);
}

/** A new row with its seal: what goes into `insert`. */
export function withChecksum<T extends SealedTable, R extends Omit<T['$inferInsert'], 'seal'>>(
  table: T,
  row: R,
): R & { seal: number } {
  return { ...row, seal: sealOf(table, row) };
}

/** A change of a row, with the seal that the row has afterwards: what goes into `set`. */
export function withNewChecksum<T extends SealedTable, C extends object>(
  table: T,
  before: T['$inferSelect'],
  change: C & Partial<T['$inferInsert']>,
): C & { seal: number } {
  const after: Record<string, unknown> = { ...before };
  for (const [property, value] of Object.entries(change)) if (value !== undefined) after[property] = value; // as `set` does
  return { ...change, seal: sealOf(table, after) };
}

/** How many rows are read at a time: a statement that is being stepped keeps the connection from doing anything else. */
const PAGE_COUNT = 1000;

/**
 * Every sealed row of the open file whose seal does not fit it, as `told(table, the row's first column)`. Reads the
 * columns that the file has: a file that is being migrated may lack the newest, and the newest tables.
 */
function misfits(client: Client, found: (shape: Shape, rowid: bigint, row: unknown[], seal: number) => void): void {
  for (const shape of SHAPES.values()) {
    const there = new Set(client.prepare('select name from pragma_table_info(?)').pluck().all(shape.table));
    if (there.size === 0) continue;
    const columns = shape.columns.filter((name) => there.has(name));
    const page = client
      .prepare(`select rowid, seal, ${columns.join(', ')} from ${shape.table} where rowid > ? order by rowid limit ?`)
      .raw()
      .safeIntegers();
    for (let after = -1n; ; ) {
      const rows = page.all(after, PAGE_COUNT) as [bigint, bigint, ...unknown[]][];
      for (const [rowid, is, ...row] of rows) {
        let text = shape.table;
        for (let i = 0; i < columns.length; i++) text += part(columns[i] as string, row[i]);
        const seal = crc32(text);
        if (BigInt(seal) !== is) found(shape, rowid, row, seal);
      }
      const last = rows.at(-1);
      if (!last || rows.length < PAGE_COUNT) break;
      after = last[0];
    }
  }
}

/** Names every row whose seal does not fit it. Reads everything; writes nothing. */
export function findBadChecksums(client: Client, fault: (text: string) => void): void {
  misfits(client, ({ table }, _, [id]) => fault(`${table} ${id} was changed: its seal does not fit it`));
}

/** Seals every row of a file that was written before there were seals. Inside a migration: its triggers are set aside. */
export function addEveryChecksum(client: Client): void {
  const triggers = client.prepare("select name, sql from sqlite_schema where type = 'trigger'").all() as {
    name: string;
    sql: string;
  }[];
  for (const { name } of triggers) client.exec(`drop trigger ${name}`);
  misfits(client, ({ table }, rowid, _, seal) =>
    client.prepare(`update ${table} set seal = ? where rowid = ?`).run(seal, rowid),
  );
  for (const { sql } of triggers) client.exec(sql);
}
