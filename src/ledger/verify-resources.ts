import type { Database as Client } from 'better-sqlite3';

type Row = { id: string; charged: bigint; paid: bigint };

/**
 * Compares each lease's recorded charge with its operations: nothing before its machine is ready, then its creation and
 * every charged extension.
 */
export function verifyResources(client: Client, fault: (text: string) => void): void {
  const rows = client.prepare(`
    select r.id, r.charged_nanos as charged,
      iif(r.ready_at is null and r.ended_at is null, 0, coalesce(sum(o.charge_nanos), 0)) as paid
    from resource r left join operation o on o.resource_id = r.id and o.outcome = 'charged' group by r.id`);
  for (const { id, charged, paid } of rows.iterate() as IterableIterator<Row>)
    if (charged !== paid) fault(`resource ${id} says it was charged ${charged} nanos, its operations ${paid}`);
}
