import { contained } from '../base/fault.ts';
import { Refusal } from '../base/refusal.ts';
import { createShares } from '../base/shares.ts';
import type { Slot, Spec } from '../compute/backend.ts';
import { kindOf } from '../compute/fill.ts';
import type { Tenant } from '../ledger/tenant.ts';
import { type Audience, beginWait, COME_BACK_SECONDS } from '../spend/audience.ts';
import { stopping } from '../spend/in-flight.ts';

/** Maximum number of creates that wait for one slot: those of a tree of wallets, and all of them (`createShares`). */
const WAITING_COUNT_MAX = { each: 16, all: 64 };
/** The interval at which all lines are checked: a provider, or another installation, gives back room without telling. */
const CHECK_MILLISECONDS = 20_000;
/** The least interval at which waits in vain are looked for: there may be a hundred writes a second, and each wait takes a query. */
const LOOK_MILLISECONDS = 250;

/** A create that waits until its slot has room. */
type RoomOrder = {
  slot: Slot;
  spec: Spec;
  /** Returns the names of the backends that may make it, in the order of the alphabet; undefined if that is not known. */
  places(): readonly string[] | undefined;
  walletId: string;
  /** The time by which it is answered, in milliseconds of the monotonic clock. */
  answerAt: number;
  /** Returns whether the create would be refused however much room there is: its wallet was closed or frozen. */
  isRefused(): boolean;
};

/** The end of a wait: it is the create's turn, its time is up, its clients have gone, or the server is stopping. */
type RoomWaitEnd = 'turn' | 'late' | 'left' | 'stopped';

type RoomTurn = {
  /** Resolves with `turn` once there is room for the create and for none before it, or once it would be refused anyway. */
  come(audience: Audience): Promise<RoomWaitEnd>;
  /** Leaves the line, so that the next create has its turn. Idempotent. */
  leave(): void;
};

/**
 * The lines of creates that wait for room: one for each slot. First come, first served among those for which there is room: a large
 * machine that does not fit does not delay a small one.
 */
export type RoomQueue = {
  /** Returns whether creates wait for machines of this kind. */
  hasLine(slot: Slot, spec: Spec): boolean;
  /** Enters the line of a slot. Returns undefined if too many wait. Throws `read_only` when the server is stopping. */
  join(order: RoomOrder): RoomTurn | undefined;
  /** Checks the line of a slot, as a machine of it is gone. */
  wake(slot: Slot): void;
  /** Takes the number of writes that may have changed any wallet: if it differs from the last one, ends waits that are in vain. */
  changed(count: number): void;
  /** Ends all waits. */
  stop(): void;
  count(): number;
};

type RoomWaiter = Omit<RoomOrder, 'places'> & {
  places: readonly string[] | undefined;
  /** The machine that it wants, and where, whatever for how long, as JSON. */
  machine: string;
  /** Ends the wait; undefined while the create is being tried. */
  end: ((how: RoomWaitEnd) => void) | undefined;
};
type HasRoom = (waiter: Pick<RoomWaiter, 'slot' | 'spec' | 'places'>) => Promise<boolean>;
type RoomLine = ReturnType<typeof createLine>;

/** Creates the line of one slot, which is empty. */
function createLine(hasRoom: HasRoom, treeOf: (waiter: Pick<RoomOrder, 'walletId'>) => string) {
  const waiters: RoomWaiter[] = [];
  const shares = createShares(WAITING_COUNT_MAX);
  /**
   * The attempts since the line was last woken, by wallet and machine. Equal creates of a wallet share one, as each refusal counts
   * against their wallet's limit and stays in the books.
   */
  const tried = new Set<string>();
  /** The create that has its turn: until it has ended, the room that is left is not known. */
  let inTurn: RoomWaiter | undefined;
  let isChecking = false;
  /** True if the line has changed since the last check began. */
  let isStale = false;

  /** Gives the turn to the first create for which there is room. Repeats that if the line changes in the meantime. */
  async function check(): Promise<void> {
    isStale = true;
    if (isChecking) return;
    isChecking = true;
    while (isStale && !inTurn) {
      isStale = false;
      for (const { it, room } of askForRoom(waiters.filter((it) => it.end && !tried.has(triedAs(it))))) {
        if (!(await room) || !it.end || tried.has(triedAs(it))) continue;
        tried.add(triedAs(it));
        inTurn = it;
        it.end('turn');
        break;
      }
    }
    isChecking = false;
  }

  /** Asks about all of them together: a backend that does not answer takes its whole time each time. */
  function askForRoom(some: readonly RoomWaiter[]): { it: RoomWaiter; room: Promise<boolean> }[] {
    const known = new Map<string, Promise<boolean>>();
    return some.map((it) => {
      const room = known.get(it.machine) ?? hasRoom(it).catch(() => false);
      known.set(it.machine, room);
      return { it, room };
    });
  }

  function yieldTurn(waiter: RoomWaiter): void {
    if (inTurn === waiter) inTurn = undefined;
    void check();
  }

  return {
    waiters: waiters as readonly RoomWaiter[],
    wake(): void {
      tried.clear();
      void check();
    },
    /** Adds a create at the end. Returns undefined if too many wait. */
    enter(order: RoomOrder): RoomWaiter | undefined {
      if (!shares.tryTake(treeOf(order), 1)) return undefined;
      const { max_seconds: _, ...machine } = order.spec;
      const places = order.places();
      const waiter: RoomWaiter = { ...order, places, machine: JSON.stringify([machine, places]), end: undefined };
      waiters.push(waiter);
      return waiter;
    },
    /** Ends the turn of a create, if it has it. */
    yieldTurn,
    /** Takes a create out. Returns false where it has left before. */
    leave(waiter: RoomWaiter): boolean {
      if (!waiters.includes(waiter)) return false;
      waiters.splice(waiters.indexOf(waiter), 1);
      if (inTurn === waiter) tried.delete(triedAs(waiter)); // It was not refused for want of room.
      shares.release(treeOf(waiter), 1);
      yieldTurn(waiter);
      return true;
    },
  };
}

/** Creates the lines, all empty. `hasRoom` returns whether one more machine fits, as far as is known. */
export function createRoomQueue(
  hasRoom: HasRoom,
  tenantOf: (walletId: string) => Tenant,
  checkMilliseconds = CHECK_MILLISECONDS,
): RoomQueue {
  const lines = new Map<Slot, RoomLine>();
  let isStopped = false;
  let timer: NodeJS.Timeout | undefined;
  let [seen, isLooking] = [0, false];
  const waiters = () => [...lines.values()].flatMap((it) => it.waiters);
  const wake = (slot: Slot) => lines.get(slot)?.wake();

  /** Ends the waits that are in vain. */
  const look = contained('timer', () => {
    isLooking = false;
    for (const it of waiters()) if (it.end && it.isRefused()) it.end('turn');
  });

  function lineOf(slot: Slot): RoomLine {
    const line = lines.get(slot) ?? createLine(hasRoom, ({ walletId }) => tenantOf(walletId).treeId);
    lines.set(slot, line);
    timer ??= setInterval(() => [...lines.keys()].forEach(wake), checkMilliseconds).unref();
    return line;
  }

  function leave(line: RoomLine, waiter: RoomWaiter): void {
    if (!line.leave(waiter)) return;
    if (!line.waiters.length) lines.delete(waiter.slot);
    if (lines.size) return;
    clearInterval(timer);
    timer = undefined;
  }

  return {
    hasLine: (slot, spec) => lines.get(slot)?.waiters.some((it) => kindOf(it.spec) === kindOf(spec)) ?? false,
    count: () => waiters().length,
    wake,

    join(order) {
      if (isStopped) throw stopping();
      const line = lineOf(order.slot);
      const waiter = line.enter(order);
      if (!waiter) return undefined;
      const limit = AbortSignal.timeout(Math.max(0, Math.ceil(order.answerAt - performance.now())));
      return {
        leave: () => leave(line, waiter),
        come(audience) {
          if (isStopped) return Promise.resolve('stopped');
          if (limit.aborted) return Promise.resolve('late');
          if (waiter.isRefused()) return Promise.resolve('turn');
          const { ended, end } = beginWait<'turn' | 'stopped'>(
            audience,
            limit,
            () => COME_BACK_SECONDS,
            () => {
              waiter.end = undefined;
            },
          );
          waiter.end = end;
          line.yieldTurn(waiter);
          return ended;
        },
      };
    },

    changed(now) {
      if (now === seen) return;
      seen = now;
      if (!lines.size || isLooking) return;
      isLooking = true;
      setTimeout(look, LOOK_MILLISECONDS).unref();
    },

    stop() {
      isStopped = true;
      for (const it of waiters()) it.end?.('stopped');
    },
  };
}

const triedAs = ({ walletId, machine }: RoomWaiter) => `${walletId} ${machine}`;

/**
 * Makes a create that waits for room: repeats `attempt` in the create's turn while the slot is full, until `answerAt`. `isFull`
 * returns whether an error is the refusal of a full slot, after which nothing is held. The first attempt `isBehind` those who wait
 * for such a machine. An attempt calls `created` when it has its machine, which may be long before that runs.
 */
export async function inTurn<A>(
  queue: RoomQueue,
  order: RoomOrder,
  { audience, isFull }: { audience: Audience; isFull: (error: unknown) => boolean },
  attempt: (isBehind: boolean, created: () => void) => Promise<A>,
): Promise<A> {
  let refusal: unknown;
  const attemptNow = async (isBehind: boolean, created: () => void): Promise<{ answer: A } | undefined> => {
    try {
      return { answer: await attempt(isBehind, created) };
    } catch (error) {
      if (!isFull(error)) throw error;
      refusal = error;
      return undefined;
    }
  };
  const first = await attemptNow(queue.hasLine(order.slot, order.spec), () => {});
  if (first) return first.answer;
  const turn = queue.join(order);
  if (!turn) throw refusal;
  try {
    for (;;) {
      const come = await turn.come(audience);
      if (come === 'stopped') throw stopping();
      if (come !== 'turn') throw refusal;
      const made = await attemptNow(false, turn.leave);
      if (made) return made.answer;
    }
  } finally {
    turn.leave();
  }
}

/** The refusal of a create that comes after others which wait. */
export const behindOthers = () =>
  new Refusal('capacity_unavailable', 'Others wait for a machine of this slot. Nothing was charged.', {
    retryAfterSeconds: 10,
  });
