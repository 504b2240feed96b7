import type { Clock } from '../base/clock.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { findOperation, reservedOperations } from '../ledger/operation.ts';
import { resourceOfOperation } from '../ledger/resource.ts';
import type { Events } from '../telemetry/events.ts';
import type { InFlight } from './in-flight.ts';
import { recoverOperation } from './writes.ts';

/**
 * Recovers operations after a crash: an operation that is `reserved` and not driven by this process was in flight when the process
 * died. Its outcome is unknown, so it becomes `uncertain`, keeps its hold, and waits for its policy or for evidence. A lease with a
 * known machine is an exception: it continues towards ready. Runs at the start, before the first request, and in the reaper.
 * Returns the number of operations that became uncertain.
 */
export async function recover(app: {
  ledger: Ledger;
  clock: Pick<Clock, 'now'>;
  events: Events;
  inFlight: Pick<InFlight, 'drives'>;
}): Promise<number> {
  let count = 0;
  for (let after = ''; ; ) {
    const reserved = reservedOperations(app.ledger.read, after);
    const page = reserved.filter(
      ({ id }) => !app.inFlight.drives(id) && !resourceOfOperation(app.ledger.read, id)?.ref,
    );
    const now = app.clock.now();
    await Promise.all(page.map(({ id }) => app.ledger.write(recoverOperation, { id, now })));
    for (const { id } of page) {
      const operation = findOperation(app.ledger.read, id);
      if (operation) app.events.uncertain(operation);
    }
    count += page.length;
    const last = reserved.at(-1);
    if (!last) return count;
    after = last.id;
  }
}
