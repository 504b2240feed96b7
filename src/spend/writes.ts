import type { RefusalData } from '../base/refusal.ts';
import type { Reader, Tx } from '../db/handle.ts';
import { type Data, defineWrite, type Write } from '../db/write.ts';
import {
  type HoldOrder,
  type OperationOrder,
  type Placed,
  placeHold,
  type Standing,
  standingOf,
  takeOverHold as takeOver,
} from '../ledger/hold.ts';
import {
  type Operation,
  type Outcome,
  operationOf,
  type SettledBy,
  type Settlement,
  settle,
} from '../ledger/operation.ts';
import { updateIfLive } from '../ledger/resource.ts';
import { wakeSnapshotOf } from '../ledger/snapshot.ts';
import type { Wallet } from '../ledger/wallet.ts';

/**
 * The additions of a kind of paid requests to the writes of holds and settlements. `terms` are the data that the quote of a
 * request passes to them.
 */
type PaidRules<T> = {
  /** Throws the refusals of this kind. Runs after the checks of the wallet's state, before those of its funds. */
  limits?: (read: Reader, wallet: Wallet, order: Pick<HoldOrder, 'hold'>, terms: T, now: number) => void;
  /** Inserts rows in the same write as the hold. */
  insertRows?: (tx: Tx, operation: Operation, terms: T) => void;
  /** Adjusts an outcome to what the rows allow, in the write that settles it. */
  judge?: (tx: Tx, operation: Operation, outcome: Outcome<Buffer | null>) => Outcome<Buffer | null>;
  /** Updates rows in the same write as the settlement. Not called if the operation had been settled before. */
  settleRows?: (tx: Tx, operation: Operation, outcome: Outcome<Buffer | null>, now: number) => void;
};

type HoldData<T> = {
  order: OperationOrder & Pick<HoldOrder, 'holdMin'>;
  terms: T;
  now: number;
  /** The reason why nothing new may be held because of the clock. */
  blocked: string | undefined;
  /** The reason why nothing may be held at the moment; thrown unless the wallet's state already forbids the hold. */
  limited: RefusalData | undefined;
};
type SettleData = { id: string; outcome: Outcome<Buffer | null>; now: number };
/** `judged` is the outcome with which `judge` replaced the given one. */
type SettledCall = Settlement & { judged: Outcome<Buffer | null> | undefined };

/** The two writes of a kind of paid request, and a check of its wallet before a hold is written. */
export type PaidWrites<T> = {
  hold: Write<HoldData<T>, Placed>;
  settle: Write<SettleData, SettledCall>;
  standing: (read: Reader, data: HoldData<T>) => Standing;
};

const PAID = { isPaid: true };

/** Defines the writes of a kind of paid request, with its additions. */
export function definePaidWrites<T extends Data>(kind: string, rules: PaidRules<T>): PaidWrites<T> {
  const { limits, insertRows, judge, settleRows } = rules;
  const orderOf = ({ order, terms, now, limited }: HoldData<T>): HoldOrder => ({
    ...order,
    limited,
    ...(limits ? { limits: (read, wallet) => limits(read, wallet, order, terms, now) } : {}),
  });
  return {
    standing: (read, data) => standingOf(read, orderOf(data), data.now, data.blocked),
    hold: defineWrite(
      `${kind}.hold`,
      (tx, data: HoldData<T>): Placed => {
        const operation = placeHold(tx, orderOf(data), data.now, data.blocked);
        insertRows?.(tx, operation, data.terms);
        const { number, holdEntry, seal } = operation;
        return { number, holdEntry, seal };
      },
      PAID,
    ),
    settle: defineWrite(
      `${kind}.settle`,
      (tx, { id, outcome: called, now }: SettleData): SettledCall => {
        const operation = judge || settleRows ? operationOf(tx, id) : undefined;
        const outcome = operation && judge ? judge(tx, operation, called) : called;
        const { moved, available } = settle(tx, id, outcome, endedBy(outcome), now);
        if (moved && operation) settleRows?.(tx, operation, outcome, now);
        return { judged: outcome === called ? undefined : outcome, moved, available };
      },
      PAID,
    ),
  };
}

/** Returns how an outcome of a call ended it. */
const endedBy = (outcome: Outcome<unknown>): SettledBy =>
  outcome.kind !== 'unknown' && outcome.isCancelled ? 'cancelled' : 'answer';

type TakeOver = { id: string; now: number; blocked: string | undefined };
export const takeOverHold = defineWrite('operation.take_over', (tx, { id, now, blocked }: TakeOver) =>
  takeOver(tx, id, now, blocked),
);

/** Makes an operation uncertain that a crash left in flight, and schedules the search for evidence at once. */
export const recoverOperation = defineWrite('operation.recover', (tx, { id, now }: { id: string; now: number }) => {
  settle(tx, id, { kind: 'unknown', reason: 'the process ended during the call' }, 'answer', now);
  const { resourceId, kind } = operationOf(tx, id);
  if (kind === 'snapshot') wakeSnapshotOf(tx, id, now);
  if (resourceId === null) return;
  updateIfLive(tx, resourceId, { dueAt: now, ...(kind === 'compute_create' ? { status: 'unknown' } : {}) });
});
