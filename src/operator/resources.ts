import * as v from 'valibot';
import { Refusal } from '../base/refusal.ts';
import { RESOURCE_STATUSES } from '../db/enums.ts';
import { abandonLease, stopLease } from '../lease/create.ts';
import { abandonSnapshot } from '../lease/snapshot.ts';
import { countResources, pageResources, type Resource } from '../ledger/resource.ts';
import { summaryOf } from '../wire/compute.ts';
import { snapshotSummary } from '../wire/snapshot.ts';
import { command, Id, type OperatorApp, PAGE, Reason } from './command.ts';
import { limitedTo, pageAfter, resourceWith } from './find.ts';
import { reconcile } from './reconcile.ts';

/** The resource summary with the details for the operator. */
function record(app: OperatorApp, it: Resource) {
  return {
    ...summaryOf(app, it),
    backend: it.backend,
    engine: it.engine,
    unreachable_since: it.unreachableSince,
    tag: it.tag,
    end_wanted: it.endWanted,
    due_at: it.dueAt,
    attempts: it.attempts,
    last_error: it.lastError,
    abandoned_reason: it.abandonedReason,
  };
}

export const resources = {
  /** Lists live resources, newest first; with `all` or a status, ended ones too. `total` counts all pages. */
  'resource.list': command(
    v.strictObject({
      all: v.optional(v.boolean(), false),
      wallet: v.optional(Id),
      account: v.optional(Id),
      status: v.optional(v.picklist(RESOURCE_STATUSES, `must be one of ${RESOURCE_STATUSES.join(', ')}`)),
      ...PAGE,
    }),
    (app, { all, wallet, account, status, since, ...cursor }) => {
      const { read } = app.ledger;
      const filter = {
        ...limitedTo(read, { wallet, account }),
        isLive: !all && status === undefined,
        status,
        since,
      };
      const { page, next } = pageResources(read, filter, pageAfter(read, cursor, resourceWith));
      return {
        resources: page.map((it) => record(app, it)),
        next_cursor: next ?? '',
        total: countResources(read, filter),
      };
    },
  ),
  'resource.show': command(v.strictObject({ id: Id }), (app, { id }) => record(app, resourceWith(app.ledger.read, id))),
  'resource.stop': command(v.strictObject({ id: Id }), async (app, { id }) =>
    record(app, await stopLease(app, resourceWith(app.ledger.read, id).id)),
  ),
  /** Lists orphaned machines and quarantined leases; with `apply`, destroys the orphans and advances the leases. */
  'resource.reconcile': command(v.strictObject({ apply: v.optional(v.boolean(), false) }), (app, { apply }) =>
    reconcile(app, apply),
  ),
  /** Gives up a resource or a snapshot whose backend is gone for good, without confirmation that it ended. */
  'resource.abandon': command(v.strictObject({ id: Id, reason: Reason }), async (app, { id, reason }) => {
    if (id.startsWith('snap_')) return snapshotSummary(await abandonSnapshot(app, id, reason));
    const resource = resourceWith(app.ledger.read, id);
    if (resource.endedAt !== null)
      throw new Refusal('conflict', `The resource ${id} has ended (${resource.endReason}).`);
    return record(app, await abandonLease(app, resource.id, reason));
  }),
};
