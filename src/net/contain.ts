import type { EventEmitter } from 'node:events';
import type { Duplex } from 'node:stream';
import { type FaultSite, reportFault } from '../base/fault.ts';

/**
 * Confines a failure on one connection to that connection: an exception thrown by a listener, on any event of `emitter`, is passed
 * to `broken` with the arguments of the event, instead of ending the process. For sockets and channels that a protocol library
 * listens on: input that it cannot handle came from its peer, and does not affect the ledger. Listeners added after the failing one
 * do not get the event, so a listener that must see `close` is added before the library's.
 */
export function contain(emitter: EventEmitter, broken: (error: Error, args: readonly unknown[]) => void): void {
  const emit = emitter.emit;
  emitter.emit = function contained(this: EventEmitter, ...event) {
    try {
      return Reflect.apply(emit, this, event);
    } catch (error) {
      broken(error as Error, event.slice(1));
      return true;
    }
  };
}

/** Confines a failure on a connection to it: an exception is reported as a fault, and destroys the connection. */
export function containConnection(connection: Duplex, where: FaultSite): void {
  contain(connection, (error) => {
    reportFault(where, error);
    connection.destroy(error);
  });
}

/** Calls such a library once; an exception is passed to `broken`. */
export function containCall(call: () => void, broken: (error: Error) => void): void {
  try {
    call();
  } catch (error) {
    broken(error as Error);
  }
}
