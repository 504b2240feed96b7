import type { Database as Client, Statement } from 'better-sqlite3';

/**
 * Makes all reads of one turn of the event loop see the same rows, though another thread writes at the same time: the first read of
 * a turn begins a transaction, which ends with the turn. Returns a function that ends it early: called when a write is known to be
 * on disk, so that its callers read it.
 */
export function holdSnapshots(client: Client): () => void {
  const begin = client.prepare('begin');
  const commit = client.prepare('commit');
  const prepare = client.prepare.bind(client) as (sql: string) => Statement;
  const end = () => {
    if (client.open && client.inTransaction) commit.run();
  };
  const hold = () => {
    if (client.inTransaction) return;
    begin.run();
    setImmediate(end);
  };
  client.prepare = ((sql: string) => {
    const statement = prepare(sql);
    for (const name of ['get', 'all', 'iterate'] as const) {
      const read = statement[name].bind(statement) as (...values: unknown[]) => unknown;
      Object.assign(statement, {
        [name](...values: unknown[]) {
          hold();
          return read(...values);
        },
      });
    }
    return statement;
  }) as Client['prepare'];
  return end;
}
