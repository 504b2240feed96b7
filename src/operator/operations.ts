import * as v from 'valibot';
import { OPERATION_STATES } from '../db/enums.ts';
import { decideOperation } from '../lease/extension.ts';
import { countOperations, listOperations } from '../ledger/operation.ts';
import { operationRecord } from '../wire/operation.ts';
import { command, Id, PAGE, Reason } from './command.ts';
import { limitedTo, operationWith, pageAfter } from './find.ts';

export const operations = {
  /** Lists operations, newest first; with `uncertain`, those of unknown outcome, oldest first. `total` counts all pages. */
  'operation.list': command(
    v.strictObject({
      uncertain: v.optional(v.boolean(), false),
      wallet: v.optional(Id),
      account: v.optional(Id),
      state: v.optional(v.picklist(OPERATION_STATES, `must be one of ${OPERATION_STATES.join(', ')}`)),
      ...PAGE,
    }),
    ({ ledger: { read } }, { uncertain, wallet, account, state, since, ...page }) => {
      const filter = {
        ...limitedTo(read, { wallet, account }),
        state: uncertain ? ('uncertain' as const) : state,
        since,
      };
      const first = uncertain ? 'oldest' : 'newest';
      const list = listOperations(read, filter, pageAfter(read, page, operationWith), first);
      return { operations: list.map(operationRecord), total: countOperations(read, filter) };
    },
  ),
  'operation.show': command(v.strictObject({ id: Id }), (app, { id }) =>
    operationRecord(operationWith(app.ledger.read, id)),
  ),
  /** Resolves an uncertain operation as the operator decides; never one that is in flight here (design, section 6). */
  'operation.resolve': command(
    v.strictObject({ id: Id, decision: v.picklist(['charge', 'release']), reason: Reason }),
    async (app, { id: text, decision, reason }) => {
      const { id } = operationWith(app.ledger.read, text);
      const now = app.clock.now();
      // A later takeover of its hold registers first, and then sees the decision.
      const isDriven = app.inFlight.drives(id);
      const decided = await app.ledger.write(decideOperation, { id, decision, reason, isDriven, now });
      app.events.decided(decided);
      app.wakeAt(now);
      return operationRecord(decided);
    },
  ),
};
