import type { Database as Client } from 'better-sqlite3';

type CheckoutRow = { id: string; amount: bigint; credited: bigint; credits: bigint; taken: bigint; clawed: bigint };

/** Compares each checkout with the fundings of its session: credited exactly once if paid, otherwise never. */
export function verifyCheckouts(client: Client, fault: (text: string) => void): void {
  const sumOf = (kinds: string) =>
    `coalesce(sum(f.amount_cents) filter (where f.kind in (${kinds}) and f.account_id = c.account_id), 0)`;
  const rows = client.prepare(`
    select c.id, iif(c.status = 'paid', c.amount_cents, 0) as amount, c.taken_cents as taken,
      ${sumOf("'checkout'")} as credited, count(f.id) filter (where f.kind = 'checkout') as credits,
      ${sumOf("'clawback'")} - ${sumOf("'reinstatement'")} as clawed
    from checkout c left join funding f on f.session_id = c.session_id group by c.id`);
  for (const it of rows.iterate() as IterableIterator<CheckoutRow>) {
    const { id, amount, credited, credits, taken, clawed } = it;
    if (credited !== amount || credits > 1n)
      fault(`checkout ${id} brought ${amount} cents, its ${credits} fundings ${credited}`);
    if (clawed !== taken) fault(`of checkout ${id} ${taken} cents were taken back, its fundings say ${clawed}`);
  }
  const stray = client.prepare(`
    select id from funding where session_id is not null
      and not exists (select 1 from checkout c where c.session_id = funding.session_id)`);
  for (const id of stray.pluck().iterate() as IterableIterator<string>) fault(`funding ${id} is of no checkout`);
}
