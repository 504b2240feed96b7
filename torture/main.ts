// `npm run torture`: the real executable under load, with faults drawn at random. Ends with a table; exit 0 only when
// nothing that was acknowledged is lost, charged twice, over budget, orphaned or unresolved.
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readBooks } from './books.ts';
import { chanceFrom } from './chance.ts';
import { openClients } from './clients.ts';
import { finish, machinesLeft } from './finish.ts';
import { type Flags, readFlags } from './flags.ts';
import { judge } from './judge.ts';
import { CREDIT_CENTS, openRig } from './open.ts';
import { openOrders } from './orders.ts';
import type { Rig } from './rig.ts';
import { type Struck, strike } from './strike.ts';
import { printReport } from './table.ts';
import { watch } from './watch.ts';

const flags = readFlags();
if (flags)
  process.exitCode = await attempt(flags).catch((error) => {
    console.log(`\nFAILED with seed ${flags.seed}: the run did not complete.`);
    throw error;
  });

/** Runs the torture. Whatever it ends with, an interrupt included, everything it started is stopped. */
async function attempt(flags: Flags): Promise<number> {
  await using stack = new AsyncDisposableStack();
  return await Promise.race([torture(flags, stack), interrupted()]);
}

/** Returns the exit code. */
async function torture(flags: Flags, stack: AsyncDisposableStack): Promise<number> {
  const { seed, minutes } = flags;
  const began = performance.now();
  const say = (text: string) => {
    const line = `${((performance.now() - began) / 1000).toFixed(1).padStart(7)} s  ${text}`;
    process.stderr.write(`${line}\n`);
    return line;
  };
  const stage = {
    after: (undo: () => unknown) => stack.defer(async () => void (await undo())),
    skip: (message?: string) => void say(`${message}: its faults are left out`),
  };
  console.log(`seed ${seed}, ${minutes} minutes`);
  const chance = chanceFrom(seed);
  const rig = await openRig(stage, chance, minutes, flags.second);
  const { site, journal, models, accountKey, accountId } = rig;

  const orders = openOrders(journal, site.server, accountKey);
  const clients = openClients(
    journal,
    orders,
    chance.apart('clients'),
    rig.engines.all.flatMap((it) => it.kinds),
  );
  const watching = watch(rig, orders, chance.apart('watch'));
  const load = clients.run();
  const striking = strike(rig, flags, say);
  await Promise.race([striking, load]); // Clients only end by themselves with an error.
  const struck = await striking;
  clients.stop();
  await load;
  await watching.stop();

  say('faults off');
  await finish(rig, orders, say);
  const machines = await machinesLeft(rig);
  const { code, signal } = await site.close();
  if (code !== 0) site.findings.push({ failure: 'unexpected ends', what: `the last SIGTERM: ${code ?? signal}` });
  const books = await readBooks(site.purser, accountId);
  const findings = [...journal.findings, ...site.findings];
  const verdict = judge({
    journal: { ...journal, findings },
    calls: models.calls,
    machines,
    books,
    creditCents: CREDIT_CENTS,
  });
  const failures = printReport({ ...rig, ...struck, seed, minutes, books, verdict, polls: watching.polls });
  if (failures) keep(rig, struck, seed);
  else rmSync(rig.directory, { recursive: true, force: true });
  return failures ? 1 : 0;
}

/** Rejects on SIGINT and SIGTERM. */
function interrupted(): Promise<never> {
  return new Promise((_, reject) => {
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => reject(new Error(signal)));
  });
}

/** Writes what is needed to find the fault. */
function keep({ directory, journal }: Rig, { steps }: Struck, seed: number): void {
  const plain = (_: string, value: unknown) => (typeof value === 'bigint' ? String(value) : value);
  writeFileSync(join(directory, 'steps'), `${steps.join('\n')}\n`);
  writeFileSync(join(directory, 'journal.json'), JSON.stringify(journal, plain, 1));
  console.log(`\nFAILED with seed ${seed}. The steps, the clients' journal and the server's log: ${directory}`);
}
