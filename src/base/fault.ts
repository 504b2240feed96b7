/**
 * Faults: unexpected errors, each of which ended one request, connection or timer callback, and nothing else
 * (docs/decisions/0069). Every layer reports them where it catches them; a server follows them, to log and count them.
 */

/** The places at which faults are caught. `process` gets those that no other place has caught. */
export const FAULT_SITES = [
  'request',
  'connection',
  'port',
  'ssh_connection',
  'backend',
  'operator',
  'timer',
  'process',
] as const;
export type FaultSite = (typeof FAULT_SITES)[number];

type Follower = (where: FaultSite, error: unknown, facts: Record<string, unknown>) => void;
const followers = new Set<Follower>();

/** Calls `follower` for every fault of this process from now on. */
export function followFaults(follower: Follower): Disposable {
  followers.add(follower);
  return { [Symbol.dispose]: () => void followers.delete(follower) };
}

/** Reports a fault. Never throws: it is called where an exception would end the process. */
export function reportFault(where: FaultSite, error: unknown, facts: Record<string, unknown> = {}): void {
  for (const follower of followers) {
    try {
      follower(where, error, facts);
    } catch {} // A follower's own error has nowhere to go.
  }
}

/**
 * Returns a function that calls `call` and never throws: it reports an exception, or the rejection of a promise that `call`
 * returns, and then calls `over`, which ends what the call was for. For listeners and timers.
 */
export function contained<A extends unknown[]>(
  where: FaultSite,
  call: (...args: A) => unknown,
  end: (...args: A) => void = () => {},
): (...args: A) => void {
  return (...args) => {
    const broken = (error: unknown) => {
      reportFault(where, error);
      end(...args);
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
 * Keeps the process running after an uncaught exception or rejection: it is reported, and the interrupted work runs into its time
 * limit. An error that must end the process does so on its own (`fatal` of the ledger).
 */
export function containProcess(): Disposable {
  const net = (error: unknown) => reportFault('process', error);
  process.on('uncaughtException', net); // Unhandled rejections arrive here, too.
  return { [Symbol.dispose]: () => void process.off('uncaughtException', net) };
}
