import type { Machine } from '../compute/backend.ts';
import { whyToEnd } from '../lease/ending.ts';
import { elsewhere, lookAt } from '../lease/engine.ts';
import { findByTag } from '../lease/observe.ts';
import { describeReportOnly, endReportOnly } from '../lease/report-only.ts';
import { advance } from '../lease/step.ts';
import { newPass, sweep } from '../lease/sweep.ts';
import { findResource, quarantinedResources, type Resource } from '../ledger/resource.ts';
import type { OperatorApp } from './command.ts';

/** Time limit for a backend to list its machines. The answer names those that did not respond. */
const ASK_SECONDS = 30;

/**
 * Compares the rows with the backends. Without `apply` it changes nothing and reports the orphans that a sweep would destroy, and
 * for each quarantined lease the state of its machine and how it would end. With `apply` it ends report-only (docs/decisions/0010),
 * destroys the orphans and advances those leases; the reaper continues what takes longer than `close_wait_seconds`.
 */
export async function reconcile(app: OperatorApp, apply: boolean) {
  const reportOnly = describeReportOnly(app.ledger.read);
  const quarantined = quarantinedResources(app.ledger.read);
  const faults: { provider: string; backend: string; error: string }[] = [];
  const leases = await Promise.all(quarantined.map((it) => examine(app, it)));
  if (apply && reportOnly) {
    const now = app.clock.now();
    await app.ledger.write(endReportOnly, { now });
    app.events.trusted(leases.length);
    const steps = quarantined.map(({ id }) => advance(app, id));
    await app.inFlight.waitFor(Promise.allSettled(steps), app.config.close_wait_seconds);
    app.wakeAt(now);
  }
  const pass = newPass({ report: !apply, showAll: true });
  const orphans = await Promise.all(
    app.slots.list.map(async ({ slot, backend }) => {
      const pending = sweep(app, backend, app.clock.now(), pass).then(
        (list) => ({ list }),
        (error: Error) => ({ error: error.message }),
      );
      const answer = (await app.inFlight.waitFor(pending, ASK_SECONDS)) ?? { error: 'it has not answered yet' };
      if ('error' in answer) {
        faults.push({ provider: slot, backend: backend.name, error: answer.error });
        return [];
      }
      return answer.list.map(({ ref, tag, createdAt, destroyed }) => {
        return { provider: slot, backend: backend.name, ref, tag, created_at: createdAt, destroyed };
      });
    }),
  );
  return {
    applied: apply,
    report_only: reportOnly ? { since: reportOnly.since, reason: reportOnly.reason } : null,
    leases: leases.map((it) => ({ ...it, status: (findResource(app.ledger.read, it.id) as Resource).status })),
    orphans: orphans.flat(),
    faults,
  };
}

/** Describes one quarantined lease: the state of its machine, and how it would end. */
async function examine(app: OperatorApp, row: Resource) {
  const pending = inspect(app, row).catch((error: Error) => ({
    machine: `cannot be asked: ${error.message}`,
    deadline: null,
  }));
  const { machine, deadline } = (await app.inFlight.waitFor(pending, ASK_SECONDS)) ?? {
    machine: 'cannot be asked: it has not answered yet',
    deadline: null,
  };
  const lost = row.readyAt === null ? 'create_failed' : 'provider_ended';
  const end = whyToEnd(app, row) ?? (machine === 'absent' || machine === 'ended' ? lost : null);
  return {
    id: row.id,
    wallet_id: row.walletId,
    provider: row.slot,
    backend: row.backend,
    engine: row.engine,
    ref: row.ref,
    expires_at: row.expiresAt,
    machine,
    deadline_at: deadline,
    would_end: end,
  };
}

async function inspect(app: OperatorApp, row: Resource) {
  const backend = app.slots.backendOf(row);
  if (!backend) throw new Error(`the backend ${row.backend} is no longer configured for ${row.slot}`);
  const look = async (): Promise<Machine | undefined> =>
    row.ref === null
      ? (await findByTag(app, backend, row)).machines[0]
      : await backend.inspect(row.ref, { onlyLook: true });
  const { engine, seen } = await lookAt(backend, look);
  if (!seen && row.engine !== null && engine !== row.engine)
    return { machine: elsewhere(row, engine ?? 'one that does not tell'), deadline: null };
  return { machine: seen?.state ?? 'absent', deadline: seen?.deadline ?? null };
}
