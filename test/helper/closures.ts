import type { Tx } from '../../src/db/handle.ts';
import { defineWrite, type Write } from '../../src/db/write.ts';
import { pack, unpack } from '../../src/ledger/crossing.ts';
import type { Ledger } from '../../src/ledger/ledger.ts';

/** A write of an arbitrary closure. A function cannot cross to another thread, so the ledger must write in this one. */
const CLOSURE = defineWrite<never, undefined>('test.closure', (tx, change) =>
  (change as unknown as (tx: Tx) => undefined)(tx),
);

/** Writes the changes of `change`, in one transaction with its neighbours, like every write. */
export function writeWith<T>(ledger: Pick<Ledger, 'write'>, change: (tx: Tx) => T): Promise<T> {
  return ledger.write(CLOSURE as unknown as Write<typeof change, T>, change);
}

/** A ledger whose `write` also takes a closure. */
export type OpenLedger = Ledger & { write<T>(change: (tx: Tx) => T): Promise<T> };

export function takingClosures(ledger: Ledger): OpenLedger {
  const write = (it: Write<never, unknown> | ((tx: Tx) => unknown), data?: never) =>
    typeof it === 'function' ? writeWith(ledger, it) : ledger.write(it, data as never);
  return { ...ledger, write: write as OpenLedger['write'] };
}

/** Returns a value as it arrives in a message to another thread. */
const crossed = <T>(value: T): T => unpack<T>(pack(value));

/** Makes the data and the result of every write of this ledger cross, so that they can be nothing but data. */
export function crossing(ledger: Ledger): void {
  const { write } = ledger;
  const isClosure = (it: object) => it === CLOSURE;
  ledger.write = async (it, data) =>
    isClosure(it) ? write(it, data) : crossed(await write(it, crossed(data) as typeof data));
}
