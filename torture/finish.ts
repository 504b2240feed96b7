import { setTimeout as pause } from 'node:timers/promises';
import { credit } from './commands.ts';
import type { Machine } from './engine.ts';
import type { OrderEntry } from './journal.ts';
import { Gone, type Orders } from './orders.ts';
import type { Room } from './room.ts';

/** Longer than the policy, the proofs of absence and a frozen clock together. */
const KNOWN_MILLISECONDS = 240_000;
/** Longer than two sweeps and the grace of a young machine. */
const SWEPT_MILLISECONDS = 420_000;
const AGAIN_MILLISECONDS = 500;
const LANES = 6;
/** So many of the acknowledged orders are asked for once more. */
const AGAIN_COUNT = 2000;

/** Everything that is still open is brought to its end, as clients and operators would: by asking again. */
export async function finish(room: Room, orders: Orders, say: (text: string) => void): Promise<void> {
  const { journal, site, models } = room;
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
    for (const it of journal.credits.filter(({ outcome }) => outcome === 'unknown')) await credit(room, it);
    const open = [...journal.wallets, ...journal.credits].filter((it) => it.outcome === 'unknown');
    return !open.length && !unknown().length;
  }, KNOWN_MILLISECONDS);

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

/** The machines that are left when everybody has had the time to remove them. */
export async function machinesLeft({ machines }: Room): Promise<Machine[]> {
  if (!machines) return [];
  let left: Machine[] = [];
  await until(async () => {
    left = await machines.list();
    return !left.length;
  }, SWEPT_MILLISECONDS);
  return left;
}

async function until(isSo: () => Promise<boolean>, milliseconds: number): Promise<void> {
  const deadline = performance.now() + milliseconds;
  while (!(await isSo()) && performance.now() < deadline) await pause(AGAIN_MILLISECONDS);
}

/** A few at a time; who gets no answer is left for the next round. */
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
