import type { Database as Client } from 'better-sqlite3';
import { knownSchema, schemaOf } from './known-schema.ts';

/** Limit of the faults that SQLite reports for one file. */
const FAULT_COUNT_MAX = 100;

/**
 * Reports what SQLite's integrity check finds (pages, indexes against their tables, CHECKs), and any of our tables,
 * indexes or triggers that is missing or changed. Foreign objects, such as Litestream's tables, are no fault, except a
 * trigger on one of our tables: it would write what no command of ours wrote.
 */
export function findDamage(client: Client, fault: (text: string) => void): void {
  for (const found of client.prepare(`pragma integrity_check(${FAULT_COUNT_MAX})`).pluck().iterate())
    if (found !== 'ok') fault(`the file is damaged: ${found}`);
  const there = schemaOf(client);
  const known = knownSchema();
  const triggers = client.prepare('select name, tbl_name as "table" from sqlite_schema where type = \'trigger\'').all();
  for (const { name, table } of triggers as { name: string; table: string }[])
    if (!known.has(`trigger ${name}`) && known.has(`table ${table}`))
      fault(`the trigger ${name} on ${table} is not ours`);
  for (const [name, sql] of known)
    if (there.get(name) !== sql) fault(`the ${name} ${there.has(name) ? 'was changed' : 'is missing'}`);
}
