import { setTimeout as sleep } from 'node:timers/promises';
import type { Chance } from './chance.ts';
import type { Kind } from './engine.ts';
import type { Journal, OrderEntry, WalletEntry } from './journal.ts';
import { expiryOf, isOpen, type MoveEntry } from './move.ts';
import { Gone, type Orders } from './orders.ts';

const CHATTING = 12;
const LEASING = 3;
const OPEN_MIN = 4;
const OPEN_MAX = 16;
const LIVE_MAX = 6;
const DEPTH_MAX = 4;
const NANOS_PER_CENT = 10_000_000n;
/** The longest pause of a client between requests: the machine has other things to do too. */
const THINK_MILLISECONDS = 60;
const GONE_MILLISECONDS = 50;
/** The longest time for which a client that leaves stays. */
const LEAVE_MILLISECONDS = 1500;
const CLOSERS = ['account', 'agent', 'parent'] as const;
/** The relative frequency of what a client does next. */
const ACTS = {
  chat: 60,
  stream: 14,
  leave: 6,
  twice: 5,
  again: 5,
  wallet: 4,
  child: 5,
  close: 3,
  raise: 3,
  lower: 2,
  extend: 2,
  freeze: 2,
  refill: 4,
} as const;

/** Opens clients that order at random until they are told to stop. */
export function openClients(journal: Journal, orders: Orders, chance: Chance, kinds: readonly Kind[]) {
  let stopped = false;
  const open = () => journal.wallets.filter(isOpen);

  const hasLease = (wallet: WalletEntry) =>
    journal.orders.some(
      (it) => it.kind === 'create' && it.wallet === wallet && it.outcome !== 'refused' && !it.stoppedAt,
    );

  async function newWallet(chance: Chance): Promise<void> {
    const budget = chance.pick([100, 100, 200, 1000]); // Some are empty soon.
    const expires = chance.of(0.3) ? chance.whole(60, 150) : 0;
    await orders.createWallet(orders.wallet(BigInt(budget) * NANOS_PER_CENT, expires));
  }

  /** Hands 2 to 30 cents of a wallet, to the nano-dollar, to a child of it. */
  async function newChild(parent: WalletEntry, chance: Chance): Promise<void> {
    if (depthOf(parent) > DEPTH_MAX) return; // One deeper than allowed is tried, and refused.
    const expires = chance.of(0.3) ? chance.whole(60, 150) : 0;
    await orders.createWallet(orders.wallet(BigInt(chance.whole(20_000_001, 300_000_007)), expires, parent));
  }

  /** Sends a move, at times twice at once or again after it was acknowledged. */
  async function change(move: MoveEntry, chance: Chance): Promise<void> {
    const send = () => orders.sendMove(move).catch(patient);
    await Promise.all(chance.of(0.2) ? [send(), send()] : [send()]);
    if (move.outcome === 'unknown' || chance.of(0.1)) await send();
  }

  async function freezeAWhile(wallet: WalletEntry, chance: Chance): Promise<void> {
    await orders.freeze(wallet, true).catch(patient);
    await sleep(chance.between(100, 1500));
    for (let attempts = 5; attempts && !stopped && isOpen(wallet) && wallet.frozen.state !== 'no'; attempts--)
      await orders.freeze(wallet, false).catch(patient);
  }

  /** Sends an order, and repeats it with the same key a few times while its outcome is unknown. */
  async function insist(order: OrderEntry, chance: Chance): Promise<void> {
    for (let attempts = chance.whole(1, 4); attempts && !stopped; attempts--) {
      await orders.send(order).catch(patient);
      if (order.outcome !== 'unknown' && !(order.outcome === 'refused' && chance.of(0.2))) return;
      await sleep(chance.between(0, 500));
    }
  }

  async function chatter(chance: Chance): Promise<void> {
    const wallets = open();
    const act = wallets.length < OPEN_MIN ? 'wallet' : chance.weighed(ACTS);
    if (act === 'wallet') return wallets.length < OPEN_MAX ? newWallet(chance) : undefined;
    const wallet = chance.pick(wallets);
    if (act === 'close') {
      const hasChildren = wallets.some(({ parent }) => parent === wallet);
      const isKept = (hasChildren || hasLease(wallet)) && chance.of(0.7); // Trees could not grow, nor leases begin.
      return isKept ? undefined : orders.closeWallet(wallet, chance.pick(CLOSERS));
    }
    if (act === 'child') return wallets.length < OPEN_MAX ? newChild(wallet, chance) : undefined;
    if (act === 'raise') return change(orders.move(wallet, act, chance.whole(1, 100)), chance);
    if (act === 'lower') return change(orders.move(wallet, act, -chance.whole(1, 100)), chance);
    if (act === 'extend') {
      const expires = expiryOf(journal, wallet).earliest < Number.POSITIVE_INFINITY && wallet.expiresInSeconds > 0;
      return expires ? change(orders.move(wallet, act, chance.whole(1, 60)), chance) : undefined;
    }
    if (act === 'freeze') return freezeAWhile(wallet, chance);
    if (act === 'refill')
      return wallet.parent || wallet.refill ? undefined : orders.setRefill(wallet, chance.whole(20, 200));
    if (act === 'again') {
      const known = journal.orders.slice(-500).filter((it) => it.outcome === 'done' || it.outcome === 'lost');
      return known.length ? orders.send(chance.pick(known)) : undefined;
    }
    if (act === 'stream') {
      const order = await orders.stream(wallet, chance);
      return order && insist(order, chance);
    }
    if (act === 'leave') {
      const order = await orders.stream(wallet, chance, true);
      if (!order) return;
      await orders.leave(order, chance.whole(0, LEAVE_MILLISECONDS)).catch(patient);
      await sleep(chance.between(0, 2 * LEAVE_MILLISECONDS)); // Within the grace, or after it.
      return insist(order, chance);
    }
    const order = orders.chat(wallet, chance);
    if (act === 'twice') return void (await Promise.all([1, 2, 3].map(() => orders.send(order).catch(patient))));
    return insist(order, chance);
  }

  async function leaser(chance: Chance): Promise<void> {
    const now = Date.now() / 1000;
    const made = journal.orders.filter((it) => it.kind === 'create');
    const live = made.filter((it) => isOpen(it.wallet) && !it.stoppedAt && (it.expiresAt ?? 0) > now);
    if (live.length && chance.of(0.5)) {
      const it = chance.pick(live);
      const canExtend = kinds.find(({ provider }) => provider === it.what)?.canExtend;
      if (chance.of(0.4) || !canExtend) return orders.stop(it);
      return insist(orders.extension(it, chance.whole(10, 60)), chance);
    }
    if (live.length >= LIVE_MAX) return;
    const wallet = chance.pick<WalletEntry | undefined>(open());
    if (wallet) await insist(orders.lease(wallet, chance.pick(kinds), 60), chance);
  }

  async function untilStopped(act: () => Promise<void>, think: number): Promise<void> {
    while (!stopped) {
      await act().catch(patient);
      await sleep(chance.between(0, think));
    }
  }

  return {
    /** Resolves when every client has stopped. Rejects with an error that is not the server's. */
    async run(): Promise<void> {
      const lanes = [
        ...Array.from({ length: CHATTING }, (_, i) => ({ act: chatter, think: THINK_MILLISECONDS, name: `chat ${i}` })),
        ...Array.from({ length: kinds.length ? LEASING : 0 }, (_, i) => ({
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

const depthOf = ({ parent }: WalletEntry): number => (parent ? 1 + depthOf(parent) : 0);

/** Waits a little after a request without an answer. Rethrows any other error. */
async function patient(error: unknown): Promise<void> {
  if (!(error instanceof Gone)) throw error;
  await sleep(GONE_MILLISECONDS);
}
