import { setTimeout as sleep } from 'node:timers/promises';
import { credit } from './commands.ts';
import type { Machine } from './engine.ts';
import type { OrderEntry } from './journal.ts';
import { Gone, type Orders } from './orders.ts';
import type { Rig } from './rig.ts';

/** How long outcomes may stay unknown: longer than the policy, the proofs of absence and a frozen clock together. */
const KNOWN_MILLISECONDS = 240_000;
/** How long a refill may be overdue: one that met a full disk is tried again a minute later. */
const REFILLED_MILLISECONDS = 75_000;
/** How long machines may remain: longer than two sweeps and the grace period of a young machine. */
const SWEPT_MILLISECONDS = 420_000;
const AGAIN_MILLISECONDS = 500;
const LANES = 6;
/** About how many of the acknowledged orders are repeated. */
const AGAIN_COUNT = 2000;

/** Completes everything that is still open as clients and operators would: by repeating requests. */
export async function finish(rig: Rig, orders: Orders, say: (text: string) => void): Promise<void> {
  const { journal, site, models } = rig;
  models.weather = 'calm';
  await site.server();
  await site.end('SIGTERM');
  await site.server();
  await site.purser.json('unfreeze');

  const unknown = () => journal.orders.filter((it) => it.outcome === 'unknown');
  say(`asking again for ${unknown().length} orders`);
  await until(async () => {
    await each(journal.wallets, (it) => it.outcome === 'unknown', orders.createWallet);
    await each(journal.orders, (it) => it.outcome === 'unknown' && it.wallet.token !== '', orders.send);
    await each(journal.moves, ({ outcome }) => outcome === 'unknown', orders.sendMove);
    for (const it of journal.credits.filter(({ outcome }) => outcome === 'unknown')) await credit(rig, it);
    const open = [...journal.wallets, ...journal.moves, ...journal.credits].filter((it) => it.outcome === 'unknown');
    return !open.length && !unknown().length;
  }, KNOWN_MILLISECONDS);

  const overdue = () =>
    journal.wallets.filter(
      ({ id, closed, refill }) => id && !closed && refill?.dueAt && !refill.isPast && refill.dueAt < Date.now() - 1000,
    );
  say(`looking for ${overdue().length} refills`);
  await until(async () => {
    await each(overdue(), () => true, orders.lookForRefill);
    return !overdue().length;
  }, REFILLED_MILLISECONDS);
  for (const { id, refill } of overdue())
    journal.findings.push({ failure: 'unresolved', what: `the refill of ${id} was due at ${refill?.dueAt}` });

  say('closing the wallets');
  await until(async () => {
    await each(
      journal.wallets,
      (it) => it.id !== '' && it.closed === undefined,
      (it) => orders.closeWallet(it),
    );
    await each(journal.orders, (it) => it.outcome === 'unknown' && it.wallet.token !== '', orders.send);
    return !journal.wallets.some((it) => it.id && it.closed === undefined) && !unknown().length;
  }, KNOWN_MILLISECONDS);

  await each(journal.moves, (it) => it.outcome === 'done', orders.sendMove);
  const known = journal.orders.filter((it) => it.outcome === 'done' || it.outcome === 'lost');
  const step = Math.max(1, Math.floor(known.length / AGAIN_COUNT));
  const again = new Set<OrderEntry>(known.filter((it, i) => i % step === 0 && it.wallet.token));
  say(`asking again for ${again.size} of ${known.length} that were acknowledged`);
  await each([...again], () => true, orders.send);
  await each(
    journal.wallets,
    (it) => it.closed !== undefined,
    (it) => orders.closeWallet(it),
  );
}

/** Returns the machines that are left after the server has had time to remove them. */
export async function machinesLeft({ engines }: Rig): Promise<Machine[]> {
  let left: Machine[] = [];
  await until(async () => {
    left = (await Promise.all(engines.all.map((it) => it.list()))).flat();
    return !left.length;
  }, SWEPT_MILLISECONDS);
  return left;
}

async function until(isSo: () => Promise<boolean>, milliseconds: number): Promise<void> {
  const deadline = performance.now() + milliseconds;
  while (!(await isSo()) && performance.now() < deadline) await sleep(AGAIN_MILLISECONDS);
}

/** Acts on the items, a few at a time. An item without an answer is left for the next round. */
async function each<T>(items: readonly T[], isMeant: (item: T) => boolean, act: (item: T) => Promise<unknown>) {
  const queue = items.filter(isMeant);
  const lane = async () => {
    for (let item = queue.shift(); item !== undefined; item = queue.shift())
      await act(item).catch((error) => {
        if (!(error instanceof Gone)) throw error;
      });
  };
  await Promise.all(Array.from({ length: LANES }, lane));
}
