// `npm run torture`: the real executable under load, with faults drawn at random. Ends with a table; exit 0 only when
// nothing that was acknowledged is lost, charged twice, over budget, orphaned or unresolved.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { hasComponent, hasProgram } from '../test/helper/component.ts';
import { MODELS } from '../test/helper/house.ts';
import { openSmallDisk } from '../test/helper/small-disk.ts';
import { readBooks } from './books.ts';
import { chanceFrom } from './chance.ts';
import { openClients } from './clients.ts';
import { openMachines } from './engine.ts';
import { FAULTS } from './faults.ts';
import { finish, machinesLeft } from './finish.ts';
import { readFlags } from './flags.ts';
import { count, newJournal } from './journal.ts';
import { judge } from './judge.ts';
import { openModels } from './models.ts';
import { openOrders } from './orders.ts';
import { LANES, type Lane, nameOf, stepsOf } from './plan.ts';
import type { Room } from './room.ts';
import { openSite, openWallClock, type Stage } from './site.ts';
import { printReport } from './table.ts';
import { watch } from './watch.ts';

const CREDIT_CENTS = 100_000_000;
/** In memory: all of it is taken whenever it is full. */
const [DISK_MEBIBYTES, MEBIBYTES_PER_MINUTE] = [128, 16];
const flags = readFlags();
if (flags)
  process.exitCode = await torture(flags).catch((error) => {
    console.log(`\nFAILED with seed ${flags.seed}: it did not come to its end.`);
    throw error;
  });

async function torture({ minutes, seed, only }: NonNullable<typeof flags>): Promise<number> {
  await using stack = new AsyncDisposableStack();
  const began = performance.now();
  const say = (text: string) =>
    process.stderr.write(`${((performance.now() - began) / 1000).toFixed(1).padStart(7)} s  ${text}\n`);
  const stage: Stage = {
    after: (undo) => stack.defer(async () => void (await undo())),
    skip: (message) => say(`${message}: its faults are left out`),
  };
  const chance = chanceFrom(seed);
  const directory = mkdtempSync(join(tmpdir(), 'purser-torture-kept-'));
  console.log(`seed ${seed}, ${minutes} minutes`);

  const models = await openModels(stage, chance.apart('models'));
  const machines = await openMachines(stage);
  const disk = openSmallDisk(stage as TestContext, DISK_MEBIBYTES + Math.ceil(minutes) * MEBIBYTES_PER_MINUTE);
  const clock = openWallClock(stage, directory);
  hasComponent(stage as TestContext, 'strace', () => hasProgram('strace'));
  const data = join(disk?.directory ?? directory, 'data');
  mkdirSync(data, { mode: 0o700 });
  const house = { name: 'house', base_url: models.url, timeout_seconds: 3 };
  const site = openSite(
    stage,
    {
      directory: data,
      ...(clock ? { env: clock.env } : {}),
      settings: {
        close_wait_seconds: 2,
        drain_seconds: 2,
        router: { upstreams: [house], models: MODELS, uncertain: { after_seconds: 4, policy: 'charge' } },
        ...(machines ? { compute: machines.settings, ssh: { listen: '127.0.0.1:0' } } : {}),
      },
    },
    join(directory, 'server.log'),
  );
  await site.server();
  const { accounts } = await site.purser.json('account', 'list');
  const accountId: string = accounts[0].id;
  await site.purser.json('account', 'credit', accountId, String(CREDIT_CENTS));
  const { key: accountKey } = await site.purser.json('key', 'create', '--account', accountId, '--name', 'clients');

  const journal = newJournal();
  const room: Room = { site, journal, models, machines, disk, clock, accountId, accountKey, directory };
  const orders = openOrders(journal, site.server, accountKey);
  const clients = openClients(journal, orders, chance.apart('clients'), machines !== undefined);
  const looking = watch(room, orders, machines, chance.apart('watch'));
  const faults = new Map<string, number>();
  const done: string[] = [];

  const until = performance.now() + minutes * 60_000;
  async function strike(lane: Lane): Promise<void> {
    for (const step of stepsOf(lane, seed, only)) {
      const left = until - performance.now();
      await pause(Math.min(Math.max(0, left), step.after * 1000));
      if (performance.now() >= until) return;
      say(nameOf(step));
      done.push(`${((performance.now() - began) / 1000).toFixed(1)} s ${nameOf(step)}`);
      const before = journal.findings.length + site.findings.length;
      if ((await FAULTS[step.name](room, step)) !== 'left out') count(faults, step.name);
      const found = [...journal.findings, ...site.findings].slice(before);
      for (const it of found) say(`!! ${it.failure}: ${it.what}`);
    }
  }
  const load = clients.run();
  const lanes = Object.keys(LANES) as Lane[];
  await Promise.race([Promise.all(lanes.map(strike)), load]);
  clients.stop();
  await load;
  await looking.stop();
  say('faults off');

  await finish(room, orders, say);
  const left = await machinesLeft(room);
  const { code, signal } = await site.close();
  if (code !== 0) site.findings.push({ failure: 'unexpected ends', what: `the last SIGTERM: ${code ?? signal}` });
  const books = await readBooks(site.purser, accountId);
  const verdict = judge({
    journal: { ...journal, findings: [...journal.findings, ...site.findings] },
    calls: models.calls,
    machines: left,
    books,
    creditCents: CREDIT_CENTS,
  });
  const failures = printReport({ seed, minutes, journal, books, models, faults, verdict, site, looks: looking.looks });
  if (failures) {
    writeFileSync(join(directory, 'steps'), `${done.join('\n')}\n`);
    writeFileSync(
      join(directory, 'journal.json'),
      JSON.stringify(journal, (_, it) => (typeof it === 'bigint' ? String(it) : it), 1),
    );
    console.log(`\nFAILED with seed ${seed}. Steps, the clients' journal and the server's log: ${directory}`);
  } else rmSync(directory, { recursive: true, force: true });
  return failures ? 1 : 0;
}
