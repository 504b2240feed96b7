import type { Tx } from '../db/handle.ts';
import { type Data, defineWrite, type Write } from '../db/write.ts';
import {
  type HoldOrder,
  type Operation,
  type OperationOrder,
  type Outcome,
  operationOf,
  type Placed,
  placeHold,
  type Settlement,
  settle,
  takeOverHold as takeOver,
} from '../ledger/operation.ts';
import { updateIfLive } from '../ledger/resource.ts';
import type { Wallet } from '../ledger/wallet.ts';
import type { Nanos } from '../money.ts';
import { type RefusalData, refusalOf } from '../refusal.ts';

/**
 * What kinds of paid requests add to the writes of holds and settlements. `terms` are the data that the quote of a
 * request gives them.
 */
type PaidRules<T> = {
  /** Throws a refusal for what the rules of this kind forbid. Runs after the checks of the wallet's state, before its funds. */
  limits?: (tx: Tx, wallet: Wallet, order: Pick<HoldOrder, 'hold'>, terms: T, now: number) => void;
  /** Returns a sentence of advice for a caller whose wallet has only `left`. */
  advice?: (terms: T, left: Nanos) => string;
  /** Returns a smaller order for a wallet that has only `left`, where one is possible, and what it is reduced to. */
  reduce?: (terms: T, left: Nanos) => { hold: Nanos; price: string; to: number } | undefined;
  /** Inserts rows in the same write as the hold. */
  insertRows?: (tx: Tx, operation: Operation, terms: T) => void;
  /** Adjusts an outcome to what the rows allow, in the write that settles it. */
  judge?: (tx: Tx, operation: Operation, outcome: Outcome<Buffer | null>) => Outcome<Buffer | null>;
  /** Updates rows in the same write as the settlement. Not called if the operation had been settled before. */
  settleRows?: (tx: Tx, operation: Operation, outcome: Outcome<Buffer | null>, now: number) => void;
};

type HoldData<T> = {
  order: OperationOrder;
  terms: T;
  now: number;
  /** Why nothing new may be held because of the clock. */
  blocked: string | undefined;
  /** The refusal for a wallet with too many refused requests; thrown unless the wallet's state already forbids the hold. */
  limited: RefusalData | undefined;
};
/** `reducedTo` is what `reduce` returned as `to`, if the wallet had too little for the whole order. */
export type Held = { placed: Placed; reducedTo: number | undefined };

type SettleData = { id: string; outcome: Outcome<Buffer | null>; now: number };
/** `judged` is the outcome that `judge` put in the place of the given one. */
export type Settled = Settlement & { judged: Outcome<Buffer | null> | undefined };

/** The two writes of a kind of paid request. */
export type PaidWrites<T> = { hold: Write<HoldData<T>, Held>; settle: Write<SettleData, Settled> };

const PAID = { isPaid: true };

/** Defines the writes of a kind of paid request, from what it adds to them. */
export function definePaidWrites<T extends Data>(kind: string, rules: PaidRules<T>): PaidWrites<T> {
  const { limits, advice, reduce, insertRows, judge, settleRows } = rules;
  return {
    hold: defineWrite(
      `${kind}.hold`,
      (tx, { order, terms, now, blocked, limited }: HoldData<T>): Held => {
        let reducedTo: number | undefined;
        const asked: HoldOrder = {
          ...order,
          limits(tx, wallet) {
            if (limited) throw refusalOf(limited);
            limits?.(tx, wallet, order, terms, now);
          },
        };
        if (advice) asked.advice = (left) => advice(terms, left);
        if (reduce)
          asked.reduce = (left) => {
            const reduced = reduce(terms, left);
            reducedTo = reduced?.to;
            return reduced;
          };
        const operation = placeHold(tx, asked, now, blocked);
        insertRows?.(tx, operation, terms);
        const { hold, price, seal } = operation;
        return { placed: { hold, price, seal }, reducedTo };
      },
      PAID,
    ),
    settle: defineWrite(
      `${kind}.settle`,
      (tx, { id, outcome: called, now }: SettleData): Settled => {
        const operation = judge || settleRows ? operationOf(tx, id) : undefined;
        const outcome = operation && judge ? judge(tx, operation, called) : called;
        const { moved, available } = settle(tx, id, outcome, 'answer', now);
        if (moved && operation) settleRows?.(tx, operation, outcome, now);
        return { judged: outcome === called ? undefined : outcome, moved, available };
      },
      PAID,
    ),
  };
}

type TakeOver = { id: string; now: number; blocked: string | undefined };
export const takeOverHold = defineWrite('operation.take_over', (tx, { id, now, blocked }: TakeOver) =>
  takeOver(tx, id, now, blocked),
);

/** Makes an operation uncertain that a crash left in flight, and has evidence looked for at once. */
export const recoverOperation = defineWrite('operation.recover', (tx, { id, now }: { id: string; now: number }) => {
  settle(tx, id, { kind: 'unknown', reason: 'the process ended during the call' }, 'answer', now);
  const { resourceId, kind } = operationOf(tx, id);
  if (resourceId === null) return;
  updateIfLive(tx, resourceId, { dueAt: now, ...(kind === 'compute_create' ? { status: 'unknown' } : {}) });
});
