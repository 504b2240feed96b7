import { setTimeout as pause } from 'node:timers/promises';
import type { Chance } from './chance.ts';
import type { Journal, OrderEntry, WalletEntry } from './journal.ts';
import { Gone, type Orders } from './orders.ts';

const CHATTING = 12;
const LEASING = 2;
const OPEN_MIN = 4;
const OPEN_MAX = 12;
const LIVE_MAX = 3;
/** The longest pause of a client between requests: the machine has other things to do too. */
const THINK_MILLISECONDS = 60;
const GONE_MILLISECONDS = 50;
/** The relative frequency of what a client does next. */
const ACTS = { chat: 66, stream: 14, twice: 5, again: 5, wallet: 5, close: 3 } as const;

/** Opens clients that order at random until they are told to stop. */
export function openClients(journal: Journal, orders: Orders, chance: Chance, hasLeases: boolean) {
  let stopped = false;
  const open = () => journal.wallets.filter((it) => it.outcome === 'open' && it.token);

  async function newWallet(chance: Chance): Promise<void> {
    const budget = chance.pick([100, 100, 200, 1000]); // Some are empty soon.
    const expires = chance.of(0.3) ? chance.whole(60, 150) : 0;
    await orders.createWallet(orders.wallet(budget, expires));
  }

  /** Sends an order, and repeats it with the same key a few times while its outcome is unknown. */
  async function insist(order: OrderEntry, chance: Chance): Promise<void> {
    for (let attempts = chance.whole(1, 4); attempts && !stopped; attempts--) {
      await orders.send(order).catch(patient);
      if (order.outcome !== 'unknown' && !(order.outcome === 'refused' && chance.of(0.2))) return;
      await pause(chance.between(0, 500));
    }
  }

  async function chatter(chance: Chance): Promise<void> {
    const wallets = open();
    const act = wallets.length < OPEN_MIN ? 'wallet' : chance.weighed(ACTS);
    if (act === 'wallet') return wallets.length < OPEN_MAX ? newWallet(chance) : undefined;
    const wallet = chance.pick(wallets);
    if (act === 'close') return orders.closeWallet(wallet, chance.pick(['account', 'agent']));
    if (act === 'again') {
      const known = journal.orders.slice(-500).filter((it) => it.outcome === 'done' || it.outcome === 'lost');
      return known.length ? orders.send(chance.pick(known)) : undefined;
    }
    if (act === 'stream') {
      const order = await orders.stream(wallet, chance);
      return order && insist(order, chance);
    }
    const order = orders.chat(wallet, chance);
    if (act === 'twice') return void (await Promise.all([1, 2, 3].map(() => orders.send(order).catch(patient))));
    return insist(order, chance);
  }

  async function leaser(chance: Chance): Promise<void> {
    const now = Date.now() / 1000;
    const made = journal.orders.filter((it) => it.kind === 'create');
    const live = made.filter((it) => it.wallet.outcome === 'open' && !it.stoppedAt && (it.expiresAt ?? 0) > now);
    if (live.length && chance.of(0.5)) {
      const it = chance.pick(live);
      if (chance.of(0.4)) return orders.stop(it);
      return insist(orders.extension(it, chance.whole(10, 60)), chance);
    }
    if (live.length >= LIVE_MAX) return;
    const wallet = chance.pick<WalletEntry | undefined>(open());
    if (wallet) await insist(orders.lease(wallet, 'small', 60), chance);
  }

  async function untilStopped(act: () => Promise<void>, think: number): Promise<void> {
    while (!stopped) {
      await act().catch(patient);
      await pause(chance.between(0, think));
    }
  }

  return {
    /** Resolves when every client has stopped. Rejects with an error that is not the server's. */
    async run(): Promise<void> {
      const lanes = [
        ...Array.from({ length: CHATTING }, (_, i) => ({ act: chatter, think: THINK_MILLISECONDS, name: `chat ${i}` })),
        ...Array.from({ length: hasLeases ? LEASING : 0 }, (_, i) => ({
          act: leaser,
          think: 2000,
          name: `lease ${i}`,
        })),
      ];
      await Promise.all(
        lanes.map(({ act, think, name }) => {
          const own = chance.apart(name);
          return untilStopped(() => act(own), think);
        }),
      );
    },
    stop() {
      stopped = true;
    },
  };
}

/** Waits a little after a request without an answer. Rethrows any other error. */
async function patient(error: unknown): Promise<void> {
  if (!(error instanceof Gone)) throw error;
  await pause(GONE_MILLISECONDS);
}
