import type { Database as Client } from 'better-sqlite3';

type ResourceRow = { id: string; charged: bigint; paid: bigint; waits: bigint };

/**
 * Compares each lease's recorded charge with its operations: its creation and every charged extension. Before its machine is ready
 * only the operator charges a creation, and older books record no charge then.
 */
export function verifyResources(client: Client, fault: (text: string) => void): void {
  const rows = client.prepare(`
    select r.id, r.charged_nanos as charged,
      coalesce(sum(o.charge_nanos), 0) as paid, r.ready_at is null and r.ended_at is null as waits
    from resource r left join operation o on o.resource_id = r.id and o.outcome = 'charged' group by r.id`);
  for (const { id, charged, paid, waits } of rows.iterate() as IterableIterator<ResourceRow>)
    if (charged !== paid && !(waits && charged === 0n))
      fault(`resource ${id} says it was charged ${charged} nanos, its operations ${paid}`);
}
