import { randomUUID } from 'node:crypto';
import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import type { Said } from '../test/helper/executable.ts';
import type { CreditEntry } from './journal.ts';
import { count } from './journal.ts';
import type { Step } from './plan.ts';
import type { Room } from './room.ts';

/** The operator at his desk: commands beside the running server. A command may also fall into a fault of the world. */
type Command = (room: Room, step: Step) => Promise<Said | undefined>;

const plain =
  (...args: string[]): Command =>
  ({ site }) =>
    site.purser.cli('--json', ...args);

const AGAIN_MILLISECONDS = 500;

/** A credit with its key: what was acknowledged is there once. */
export async function credit({ site, accountId }: Room, entry: CreditEntry): Promise<Said> {
  const said = await site.purser.cli('--json', 'account', 'credit', accountId, String(entry.cents), '--key', entry.key);
  if (said.code === 0) entry.outcome = 'done';
  return said;
}

const COMMANDS: Record<string, Command> = {
  'ledger verify': async (room, step) => {
    const said = await plain('ledger', 'verify')(room, step);
    if (said?.code === 1 && /"ok":false/.test(said.stdout))
      room.journal.findings.push({ failure: 'books wrong', what: said.stdout.slice(0, 1000) });
    return said;
  },
  'account show': (room, step) => plain('account', 'show', room.accountId)(room, step),
  'account credit': async (room, { chance }) => {
    const entry: CreditEntry = {
      kind: 'credit',
      key: randomUUID(),
      cents: chance.whole(100, 1000),
      outcome: 'unknown',
    };
    room.journal.credits.push(entry);
    return credit(room, entry);
  },
  'wallet list': plain('wallet', 'list'),
  'wallet timeline': (room, step) => {
    const wallets = room.journal.wallets.filter(({ id }) => id);
    return wallets.length
      ? plain('wallet', 'timeline', step.chance.pick(wallets).id)(room, step)
      : Promise.resolve(undefined);
  },
  'resource list': plain('resource', 'list', '--all'),
  'resource reconcile': plain('resource', 'reconcile'),
  'operation list': plain('operation', 'list', '--uncertain'),
  'operation resolve': async (room, step) => {
    const listed = await plain('operation', 'list', '--uncertain')(room, step);
    if (listed?.code !== 0) return listed;
    const { operations } = JSON.parse(listed.stdout) as { operations: { id: string; kind: string }[] };
    const chat = operations.find(({ kind }) => kind === 'chat');
    return chat && plain('operation', 'resolve', chat.id, '--charge', '--reason', 'torture')(room, step);
  },
  'ledger head': plain('ledger', 'head'),
  'master-key rotate': plain('master-key', 'rotate'),
  freeze: async (room, step) => {
    const frozen = await plain('freeze')(room, step);
    while ((await plain('unfreeze')(room, step))?.code !== 0) await pause(AGAIN_MILLISECONDS);
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

/** What a command may end with beside a fault: refused, unavailable. */
const EXPECTED = [0, 4, 5];
/** There was no server, and no room to open the house. */
const EXPECTED_WORDS = /ENOSPC|disk is full/;

/** One command, drawn at random. */
export async function runCommand(room: Room, step: Step): Promise<void> {
  const name = step.chance.pick(Object.keys(COMMANDS));
  await room.site.server();
  const said = await (COMMANDS[name] as Command)(room, step);
  if (!said) return;
  count(room.journal.answers, `${name} ${said.code === 0 ? 'ok' : `exit ${said.code}`}`);
  if (!EXPECTED.includes(said.code ?? -1) && !EXPECTED_WORDS.test(said.stdout))
    room.journal.findings.push({
      failure: 'unexpected answers',
      what: `${name} ended with ${said.code ?? said.signal}: ${said.stdout.slice(0, 500)} ${said.stderr.slice(0, 500)}`,
    });
}
