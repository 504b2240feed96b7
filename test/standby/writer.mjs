// A plain SQLite writer in Purser's place: writes rows for ever, and prints each number once its commit has returned.
import { writeSync } from 'node:fs';
import Database from 'better-sqlite3';

const database = new Database(process.argv[2]);
database.pragma('journal_mode = WAL');
database.pragma('synchronous = FULL');
database.exec('create table if not exists row (number integer primary key, text text)');
const insert = database.prepare('insert into row (text) values (?)');
const text = 'x'.repeat(500);
for (;;) writeSync(1, `${insert.run(text).lastInsertRowid}\n`);
