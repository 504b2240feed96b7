import type { EventEmitter } from 'node:events';

/**
 * Keeps what goes wrong on one connection to that connection: an exception of a listener, on any event of `emitter`, is
 * handed to `broken` instead of ending the process. For sockets and channels on which a protocol library listens: what it
 * cannot cope with came from its peer, and says nothing about the books. Listeners that were added after the one that
 * threw do not hear of the event, so what has to hear of a `close` is added before the library is let in.
 */
export function contain(emitter: EventEmitter, broken: (error: Error) => void): void {
  const emit = emitter.emit;
  emitter.emit = function contained(this: EventEmitter, ...event) {
    try {
      return Reflect.apply(emit, this, event);
    } catch (error) {
      broken(error as Error);
      return true;
    }
  };
}

/** The same for a single call of such a library. */
export function containCall(call: () => void, broken: (error: Error) => void): void {
  try {
    call();
  } catch (error) {
    broken(error as Error);
  }
}
