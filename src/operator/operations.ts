import * as v from 'valibot';
import { decideOperation } from '../lease/extension.ts';
import { countOperations, searchOperations } from '../ledger/operation-search.ts';
import { OPERATION_FILTERS, operationFilter, operationRecord } from '../wire/operation.ts';
import { periodOf } from '../wire/period.ts';
import { command, Id, PAGE, Reason } from './command.ts';
import { limitedTo, operationWith } from './find.ts';

export const operations = {
  /**
   * Lists operations, newest first; with `uncertain`, those of unknown outcome, oldest first. `next` is the id that `before`
   * continues with, null at the end. `total` counts all pages; null where it would take reading every operation.
   */
  'operation.list': command(
    v.strictObject({
      uncertain: v.optional(v.boolean(), false),
      wallet: v.optional(Id),
      account: v.optional(Id),
      ...OPERATION_FILTERS,
      until: PAGE.since,
      ...PAGE,
    }),
    async ({ ledger: { read } }, { uncertain, wallet, account, since, until, before, limit, ...filters }) => {
      const filter = {
        ...operationFilter(filters),
        ...limitedTo(read, { wallet, account }),
        ...(uncertain && { state: 'uncertain' as const }),
        ...periodOf({ since, until }),
      };
      const first = uncertain ? 'oldest' : 'newest';
      const after = before === undefined ? undefined : operationWith(read, before).id;
      const { operations, goesOnAfter } = await searchOperations(read, filter, { after, limit, first });
      return {
        operations: operations.map(operationRecord),
        total: countOperations(read, filter) ?? null,
        next: goesOnAfter ?? null,
      };
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
