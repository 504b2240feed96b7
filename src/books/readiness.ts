import type { Books } from './service.ts';

/** Returns why the server takes no new holds at the moment, or undefined: the reason in `/readyz` and `purser status`. */
export function unreadyReason({
  health,
  diskReserve,
  ledger,
  clock,
}: Pick<Books, 'health' | 'ledger' | 'clock'> & { diskReserve: Pick<Books['diskReserve'], 'shortage'> }):
  | string
  | undefined {
  const stopping = health.stopping ? 'the server is stopping' : undefined;
  return health.fault ?? stopping ?? diskReserve.shortage() ?? ledger.failure() ?? clock.holdsBlocked();
}
