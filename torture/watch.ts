import { setTimeout as sleep } from 'node:timers/promises';
import { nanos } from '../test/executable/books.ts';
import type { Chance } from './chance.ts';
import type { Engine, Engines } from './engine.ts';
import type { Failure, Journal, WalletEntry } from './journal.ts';
import { budgetOf } from './move.ts';
import { Gone, type Orders } from './orders.ts';

const POLL_MILLISECONDS = 200;
const MACHINES_MILLISECONDS = 1000;

export type Watch = { stop(): Promise<void>; polls: { budgets: number; accounts: number; machines: number } };

/** Polls budgets, the account and the machines throughout: checks what must hold at every moment. */
export function watch(
  { journal, accountKey, engines }: { journal: Journal; accountKey: string; engines: Engines },
  orders: Orders,
  chance: Chance,
): Watch {
  const polls = { budgets: 0, accounts: 0, machines: 0 };
  const find = (failure: Failure, what: string) => void journal.findings.push({ failure, what });

  async function checkBudget(): Promise<void> {
    const wallets = journal.wallets.filter(({ token }) => token);
    if (!wallets.length) return;
    const wallet = chance.pick(wallets.slice(-40));
    const { known } = wallet;
    const [least] = budgetOf(journal, wallet) ?? [];
    const answer = await orders.ask('GET', '/v1/budget', { token: wallet.token });
    if (answer.body?.error?.code === 'read_only') return;
    if (answer.status !== 200) return orders.unexpected(`budget of ${wallet.id}`, answer);
    polls.budgets++;
    const { used_usd, held_usd, delegated_usd, budget_usd } = answer.body;
    const [used, held, delegated, budget] = [used_usd, held_usd, delegated_usd, budget_usd].map(nanos) as [
      bigint,
      bigint,
      bigint,
      bigint,
    ];
    const [, most] = budgetOf(journal, wallet) ?? [];
    if (used + held + delegated > budget || (most !== undefined && budget > most))
      find('over budget', `${wallet.id} of at most ${most}: ${answer.text.slice(0, 300)}`);
    if (most !== undefined && least !== undefined && budget < least)
      find(
        'acknowledged and lost',
        `${wallet.id} has a budget of ${budget} nanos, and ${least} were acknowledged before`,
      );
    if (used < known)
      find(
        'acknowledged and lost',
        `${wallet.id} has used ${used} nanos, and answers of ${known} were acknowledged before`,
      );
  }

  async function checkAccount(): Promise<void> {
    const answer = await orders.ask('GET', '/v1/account', { token: accountKey });
    if (answer.body?.error?.code === 'read_only') return;
    if (answer.status !== 200) return orders.unexpected('account', answer);
    polls.accounts++;
    const { available_cents: available, reserved_cents: reserved } = answer.body;
    if (available < 0 || reserved < 0) find('over budget', `the account: ${answer.text}`);
  }

  async function checkMachines(from: Engine): Promise<void> {
    const asked = Date.now();
    const found = await from.list().catch(() => []); // An engine that is down shows nothing.
    polls.machines++;
    for (const machine of found.filter(({ running }) => running)) {
      const made = journal.orders.find((it) => it.kind === 'create' && it.resourceId === machine.resourceId);
      if (!made) continue;
      const ended = Math.min(made.stoppedAt ?? Number.POSITIVE_INFINITY, closedAt(made.wallet));
      if (ended < asked) find('orphans', `${machine.tag} runs, and its end was acknowledged`);
      const own = journal.orders.filter((it) => it.kind === 'extend' && it.body.id === made.resourceId);
      const isOpen = [made, ...own].some((it) => it.outcome === 'unknown');
      const until = Math.max(...[made, ...own].map((it) => it.expiresAt ?? 0));
      if (!isOpen && asked / 1000 > until + from.graceSeconds)
        find('orphans', `${machine.tag} runs past its end at ${until}`);
    }
  }

  let stopped = false;
  const forever = async (check: () => Promise<void>, milliseconds: number) => {
    while (!stopped) {
      await check().catch((error) => {
        if (!(error instanceof Gone)) throw error;
      });
      await sleep(milliseconds);
    }
  };
  const running = Promise.all([
    forever(checkBudget, POLL_MILLISECONDS),
    forever(checkAccount, POLL_MILLISECONDS),
    ...engines.all.map((it) => forever(() => checkMachines(it), MACHINES_MILLISECONDS)),
  ]);
  running.catch(() => {}); // `stop` throws it.
  return {
    polls,
    async stop() {
      stopped = true;
      await running;
    },
  };
}

/** When the end of a wallet, or of one above it, was first acknowledged, in Unix milliseconds. */
const closedAt = ({ closedAt: at = Number.POSITIVE_INFINITY, parent }: WalletEntry): number =>
  Math.min(at, parent ? closedAt(parent) : Number.POSITIVE_INFINITY);
