import type { TestContext } from 'node:test';
import Client from 'better-sqlite3';

/** What all statements of SQLite inherit from: a method that is replaced here is replaced for every database. */
export const STATEMENTS = Object.getPrototypeOf(new Client(':memory:').prepare('select 1'));

/** Lets every write fail from now on, as on a disk that is gone. */
export function loseDisk(t: TestContext): void {
  t.mock.method(STATEMENTS, 'run', () => {
    throw new Client.SqliteError('disk I/O error', 'SQLITE_IOERR_WRITE');
  });
}
