import type { Books } from './books.ts';
import { FAILURES, type Journal } from './journal.ts';
import type { Verdict } from './judge.ts';
import type { Models } from './models.ts';
import type { Site } from './site.ts';

export type Report = {
  seed: number;
  minutes: number;
  journal: Journal;
  books: Books;
  models: Models;
  faults: ReadonlyMap<string, number>;
  verdict: Verdict;
  site: Site;
  polls: Record<string, number>;
};

const SHOWN = 10;

/** Prints the tables, and returns the number of failures. */
export function printReport({ seed, minutes, journal, books, models, faults, verdict, site, polls }: Report): number {
  const { orders, wallets, moves, credits, backups } = journal;
  console.log('\noperations');
  for (const kind of ['chat', 'stream', 'create', 'extend'] as const) {
    const own = orders.filter((it) => it.kind === kind);
    const of = (outcome: string) => own.filter((it) => it.outcome === outcome).length;
    row(
      kind,
      `${own.length}: ${of('done')} done, ${of('lost')} charged by policy, ${of('refused')} refused, ${of('unknown')} unknown`,
    );
  }
  row('wallets', `${wallets.length}: ${wallets.filter(({ closed }) => closed).length} closed`);
  row('children', `${wallets.filter(({ id, parent }) => id && parent).length}`);
  for (const kind of ['raise', 'lower', 'extend'] as const) {
    const own = moves.filter((it) => it.kind === kind);
    row(`${kind}s of wallets`, `${own.length}: ${own.filter((it) => it.outcome === 'done').length} done`);
  }
  row(
    'refills',
    `${wallets.filter(({ refill }) => refill).length} set, ${books.changes.filter((it) => it.kind === 'refill').length} made`,
  );
  const made = new Set(orders.filter((it) => it.kind === 'create' && it.outcome === 'done').map((it) => it.resourceId));
  for (const name of [...new Set(books.resources.map(whereOf))].sort()) {
    const own = books.resources.filter((it) => whereOf(it) === name);
    const paid = own.filter(({ id }) => made.has(id)).length;
    row(`leases of ${name}`, `${own.length}: ${paid} paid, ${own.filter(({ ended }) => ended !== null).length} ended`);
  }
  row('credits, backups', `${credits.length}, ${backups.length}`);
  row('journal lines', `${books.entries.length}`);
  row('acknowledged', `${acknowledged(journal)} orders, wallets, closes, moves and credits`);
  const unseen = books.operations.filter((it) => it.settledBy === 'policy' && !models.calls.has(it.id));
  row(
    'charged by policy, never seen',
    `${unseen.length} (the server died before it called, or the model server was gone)`,
  );
  list('answers', journal.answers);
  list('faults', faults);
  list('faults of model calls', models.faults);
  list('polls', new Map(Object.entries(polls)));
  list('errors in the log', site.errors);
  const ready = site.ready.toSorted((a, b) => a - b);
  console.log(
    `\n${ready.length} starts; ready after ${Math.round(ready[ready.length >> 1] ?? 0)} ms, at worst ${Math.round(ready.at(-1) ?? 0)} ms`,
  );

  console.log(`\nfailures (seed ${seed}, ${minutes} minutes)`);
  let failures = 0;
  for (const name of FAILURES) {
    const found = verdict[name];
    failures += found.length;
    row(name, String(found.length));
    for (const what of found.slice(0, SHOWN)) console.log(`      ${what}`);
    if (found.length > SHOWN) console.log(`      and ${found.length - SHOWN} more`);
  }
  return failures;
}

/** Counts everything that was acknowledged to a client. */
function acknowledged({ orders, wallets, moves, credits }: Journal): number {
  return (
    orders.filter(({ outcome }) => outcome === 'done' || outcome === 'lost').length +
    wallets.filter(({ id }) => id).length +
    wallets.filter(({ closedAt }) => closedAt !== undefined).length +
    [...moves, ...credits].filter(({ outcome }) => outcome === 'done').length
  );
}

function list(title: string, tally: ReadonlyMap<string, number>): void {
  console.log(`\n${title}`);
  for (const [name, count] of [...tally].sort(([a], [b]) => a.localeCompare(b))) row(name, String(count));
}

const whereOf = ({ slot, backend }: Books['resources'][number]) => `${slot}, ${backend}`;
const row = (name: string, value: string) => console.log(`  ${name.padEnd(36)} ${value}`);
