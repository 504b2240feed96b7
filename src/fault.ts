/**
 * Faults: errors that nobody foresaw, each of which ended one request, connection or turn of a timer, and nothing else
 * (docs/decisions/0069). They are told from where they are caught, at every layer, to whoever follows them: a server, which
 * logs and counts them.
 */

/** The places at which faults are caught. `process` is the last of them: where nothing else has caught one. */
export const FAULT_PLACES = [
  'request',
  'connection',
  'port',
  'ssh_connection',
  'backend',
  'operator',
  'timer',
  'process',
] as const;
export type FaultPlace = (typeof FAULT_PLACES)[number];

type Follower = (where: FaultPlace, error: unknown, facts: Record<string, unknown>) => void;
const followers = new Set<Follower>();

/** Tells `follower` of every fault of this process from now on. */
export function followFaults(follower: Follower): Disposable {
  followers.add(follower);
  return { [Symbol.dispose]: () => void followers.delete(follower) };
}

/** Reports a fault. Never throws: it is called where an exception would end the process. */
export function reportFault(where: FaultPlace, error: unknown, facts: Record<string, unknown> = {}): void {
  for (const follower of followers) {
    try {
      follower(where, error, facts);
    } catch {} // There is nobody left to tell.
  }
}

/**
 * Returns a function that calls `call` and never throws: an exception, or the rejection of a promise that it returns, is
 * reported. For listeners and timers. `over` then ends what the call was for.
 */
export function contained<A extends unknown[]>(
  where: FaultPlace,
  call: (...args: A) => unknown,
  over: (...args: A) => void = () => {},
): (...args: A) => void {
  return (...args) => {
    const broken = (error: unknown) => {
      reportFault(where, error);
      over(...args);
    };
    try {
      const called = call(...args);
      if (called instanceof Promise) called.catch(broken);
    } catch (error) {
      broken(error);
    }
  };
}

/**
 * Keeps the process going after an exception or a rejection that nothing has caught: it is reported, and what it belonged to
 * runs into its time limit. Whatever must end the process says so itself (`fatal` of the ledger).
 */
export function containProcess(): Disposable {
  const net = (error: unknown) => reportFault('process', error);
  process.on('uncaughtException', net); // Unhandled rejections come here, too.
  return { [Symbol.dispose]: () => void process.off('uncaughtException', net) };
}
