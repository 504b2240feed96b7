import * as v from 'valibot';
import { applyResolution } from '../lease/extension.ts';
import { decide, listOperations, operationOf, uncertainOperations } from '../ledger/operation.ts';
import { Refusal } from '../refusal.ts';
import { operationRecord } from '../wire/operation.ts';
import { command, Id, Reason } from './command.ts';

export const operations = {
  'operation.list': command(v.strictObject({ uncertain: v.optional(v.boolean(), false) }), (app, { uncertain }) => {
    const list = uncertain
      ? uncertainOperations(app.ledger.read, Number.MAX_SAFE_INTEGER)
      : listOperations(app.ledger.read);
    return { operations: list.map(operationRecord) };
  }),
  'operation.show': command(v.strictObject({ id: Id }), (app, { id }) =>
    operationRecord(operationOf(app.ledger.read, id)),
  ),
  /** Resolves an uncertain operation as the operator decides; never one that is in flight here (design, section 6). */
  'operation.resolve': command(
    v.strictObject({ id: Id, decision: v.picklist(['charge', 'release']), reason: Reason }),
    async (app, { id, decision, reason }) => {
      const now = app.clock.now();
      const decided = await app.ledger.write((tx) => {
        const before = operationOf(tx, id);
        if (before.state === 'settled')
          throw new Refusal('conflict', `The operation ${id} is settled (${before.outcome}). That is final.`);
        if (app.inFlight.drives(id))
          throw new Refusal('conflict', `The operation ${id} is still running. Its answer will decide it.`);
        const decided = decide(tx, id, decision, 'operator', reason, now);
        applyResolution(tx, decided.operation, now);
        return decided;
      });
      app.events.decided(decided.operation);
      app.wakeAt(now);
      return operationRecord(decided.operation);
    },
  ),
};
