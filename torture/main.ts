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
import { CREDIT_CENTS, openRoom } from './open.ts';
import { openOrders } from './orders.ts';
import type { Room } from './room.ts';
import { type Struck, strike } from './strike.ts';
import { printReport } from './table.ts';
import { watch } from './watch.ts';

const flags = readFlags();
if (flags)
  process.exitCode = await attempt(flags).catch((error) => {
    console.log(`\nFAILED with seed ${flags.seed}: it did not come to its end.`);
    throw error;
  });

/** Whatever it ends with, an interrupt included, what was started is ended. */
async function attempt(flags: Flags): Promise<number> {
  await using stack = new AsyncDisposableStack();
  return await Promise.race([torture(flags, stack), interrupted()]);
}

/** Answers the exit code. */
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
  const room = await openRoom(stage, chance.apart('models'), minutes);
  const { site, journal, models, accountKey, accountId } = room;

  const orders = openOrders(journal, site.server, accountKey);
  const clients = openClients(journal, orders, chance.apart('clients'), room.machines !== undefined);
  const looking = watch(room, orders, room.machines, chance.apart('watch'));
  const load = clients.run();
  const striking = strike(room, flags, say);
  await Promise.race([striking, load]); // Clients only end by themselves with an error.
  const struck = await striking;
  clients.stop();
  await load;
  await looking.stop();

  say('faults off');
  await finish(room, orders, say);
  const machines = await machinesLeft(room);
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
  const failures = printReport({ ...room, ...struck, seed, minutes, books, verdict, looks: looking.looks });
  if (failures) keep(room, struck, seed);
  else rmSync(room.directory, { recursive: true, force: true });
  return failures ? 1 : 0;
}

/** Rejects when somebody wants the run to end. */
function interrupted(): Promise<never> {
  return new Promise((_, reject) => {
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => reject(new Error(signal)));
  });
}

/** What whoever looks for the fault needs. */
function keep({ directory, journal }: Room, { steps }: Struck, seed: number): void {
  const plain = (_: string, value: unknown) => (typeof value === 'bigint' ? String(value) : value);
  writeFileSync(join(directory, 'steps'), `${steps.join('\n')}\n`);
  writeFileSync(join(directory, 'journal.json'), JSON.stringify(journal, plain, 1));
  console.log(`\nFAILED with seed ${seed}. The steps, the clients' journal and the server's log: ${directory}`);
}
