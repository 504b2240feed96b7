import { randomUUID } from 'node:crypto';
import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Said } from '../test/helper/executable.ts';
import type { CreditEntry } from './journal.ts';
import { count } from './journal.ts';
import type { Step } from './plan.ts';
import type { Rig } from './rig.ts';

/** An operator's command beside the running server. It may coincide with a fault of the surroundings. */
type Command = (rig: Rig, step: Step) => Promise<Said | undefined>;

const plain =
  (...args: string[]): Command =>
  ({ site }) =>
    site.purser.cli('--json', ...args);

const AGAIN_MILLISECONDS = 500;

/** Credits the account with the entry's key, so that an acknowledged credit is there once. */
export async function credit({ site, accountId }: Rig, entry: CreditEntry): Promise<Said> {
  const said = await site.purser.cli('--json', 'account', 'credit', accountId, `${entry.cents}c`, '--key', entry.key);
  if (said.code === 0) entry.outcome = 'done';
  return said;
}

const COMMANDS: Record<string, Command> = {
  'ledger verify': async (rig, step) => {
    const said = await plain('ledger', 'verify')(rig, step);
    if (said?.code === 1 && /"ok":false/.test(said.stdout))
      rig.journal.findings.push({ failure: 'books wrong', what: said.stdout.slice(0, 1000) });
    return said;
  },
  'account show': (rig, step) => plain('account', 'show', rig.accountId)(rig, step),
  'account credit': async (rig, { chance }) => {
    const entry: CreditEntry = {
      kind: 'credit',
      key: randomUUID(),
      cents: chance.whole(100, 1000),
      outcome: 'unknown',
    };
    rig.journal.credits.push(entry);
    return credit(rig, entry);
  },
  'wallet list': plain('wallet', 'list'),
  'wallet timeline': (rig, step) => {
    const wallets = rig.journal.wallets.filter(({ id }) => id);
    return wallets.length
      ? plain('wallet', 'timeline', step.chance.pick(wallets).id)(rig, step)
      : Promise.resolve(undefined);
  },
  'resource list': plain('resource', 'list', '--all'),
  'resource reconcile': plain('resource', 'reconcile'),
  'operation list': plain('operation', 'list', '--uncertain'),
  'operation resolve': async (rig, step) => {
    const listed = await plain('operation', 'list', '--uncertain')(rig, step);
    if (listed?.code !== 0) return listed;
    const { operations } = JSON.parse(listed.stdout) as { operations: { id: string; kind: string }[] };
    const chat = operations.find(({ kind }) => kind === 'chat');
    return chat && plain('operation', 'resolve', chat.id, '--charge', '--reason', 'torture')(rig, step);
  },
  'ledger head': plain('ledger', 'head'),
  'master-key rotate': plain('master-key', 'rotate'),
  freeze: async (rig, step) => {
    const frozen = await plain('freeze')(rig, step);
    while ((await plain('unfreeze')(rig, step))?.code !== 0) await sleep(AGAIN_MILLISECONDS);
    return frozen;
  },
  backup: async ({ site, directory, journal }, { number }) => {
    const file = join(directory, `backup-${number}.db`);
    const said = await site.purser.cli('--json', 'backup', file);
    if (said.code === 0) {
      const { head } = JSON.parse(said.stdout) as { head: { seq: number; hash: string } };
      journal.backups.push({ file, ...head });
    } else if (existsSync(file))
      journal.findings.push({ failure: 'books wrong', what: `a backup that failed has left ${file}` });
    rmSync(file, { force: true });
    rmSync(`${file}.json`, { force: true });
    return said;
  },
};

/** Exit codes that are no failure: success, refused, unavailable. */
const EXPECTED = [0, 4, 5];
/** Output of a command without a server, when the disk has no space to open the database. */
const EXPECTED_WORDS = /ENOSPC|disk is full/;

/** Runs one command, drawn at random. */
export async function runCommand(rig: Rig, step: Step): Promise<void> {
  const name = step.chance.pick(Object.keys(COMMANDS));
  await rig.site.server();
  const said = await (COMMANDS[name] as Command)(rig, step);
  if (!said) return;
  count(rig.journal.answers, `${name} ${said.code === 0 ? 'ok' : `exit ${said.code}`}`);
  if (!EXPECTED.includes(said.code ?? -1) && !EXPECTED_WORDS.test(said.stdout))
    rig.journal.findings.push({
      failure: 'unexpected answers',
      what: `${name} ended with ${said.code ?? said.signal}: ${said.stdout.slice(0, 500)} ${said.stderr.slice(0, 500)}`,
    });
}
