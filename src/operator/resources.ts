import * as v from 'valibot';
import { abandonLease, stopLease } from '../lease/create.ts';
import { allLiveResources, findResource, latestResources, type Resource } from '../ledger/resource.ts';
import { Refusal } from '../refusal.ts';
import { summaryOf } from '../wire/compute.ts';
import { command, Id, type OperatorApp, Reason } from './command.ts';
import { reconcile } from './reconcile.ts';

/** The resource summary with the details for the operator. */
function record(app: OperatorApp, it: Resource) {
  return {
    ...summaryOf(app.ledger.read, it),
    backend: it.backend,
    tag: it.tag,
    end_wanted: it.endWanted,
    due_at: it.dueAt,
    attempts: it.attempts,
    last_error: it.lastError,
    abandoned_reason: it.abandonedReason,
  };
}

function resourceWith(app: OperatorApp, id: string): Resource {
  const resource = findResource(app.ledger.read, id);
  if (!resource) throw new Refusal('not_found', `There is no resource ${id}.`);
  return resource;
}

export const resources = {
  /** Lists live resources; with `all`, the latest 100, ended ones included. */
  'resource.list': command(v.strictObject({ all: v.optional(v.boolean(), false) }), (app, { all }) => {
    const list = all ? latestResources(app.ledger.read) : allLiveResources(app.ledger.read);
    return { resources: list.map((it) => record(app, it)), next_cursor: '' };
  }),
  'resource.stop': command(v.strictObject({ id: Id }), async (app, { id }) =>
    record(app, await stopLease(app, resourceWith(app, id).id)),
  ),
  /** Lists orphaned machines and quarantined leases; with `apply`, destroys the orphans and advances the leases. */
  'resource.reconcile': command(v.strictObject({ apply: v.optional(v.boolean(), false) }), (app, { apply }) =>
    reconcile(app, apply),
  ),
  /** Gives up a resource whose backend is gone for good, without confirmation that its machine ended. */
  'resource.abandon': command(v.strictObject({ id: Id, reason: Reason }), async (app, { id, reason }) => {
    const resource = resourceWith(app, id);
    if (resource.endedAt !== null)
      throw new Refusal('conflict', `The resource ${id} has ended (${resource.endReason}).`);
    return record(app, await abandonLease(app, id, reason));
  }),
};
