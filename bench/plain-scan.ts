// Reads every row of every table of a book and does nothing with it: `node bench/plain-scan.ts <database file>`.
import Database from 'better-sqlite3';

const database = new Database(process.argv[2] as string, { readonly: true });
const tables = database.prepare("select name from sqlite_schema where type = 'table'").pluck().all() as string[];
for (const table of tables)
  for (const _ of database.prepare(`select * from "${table}"`).raw().safeIntegers().iterate());
