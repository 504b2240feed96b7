import { setTimeout as sleep } from 'node:timers/promises';
import * as v from 'valibot';
import { whenStopping } from '../../base/health.ts';
import { readLog } from '../../compute/machine/process.ts';
import { type Resource, resourceOf } from '../../ledger/resource.ts';
import { ResourceSummary, summaryOf } from '../../wire/compute.ts';
import { ProcessRecord, ProcessRequest, processOf } from '../../wire/guest.ts';
import { Id, wholeNumber } from '../../wire/parts.ts';
import { endpoint, type HttpApp } from '../endpoint.ts';
import { ID } from '../routes/compute.ts';
import { GUEST_REFUSALS } from '../routes/guest-call.ts';
import { callRunning } from '../routes/process.ts';

/** Shorter than the 60 seconds after which many clients give a call up. */
const SECONDS_MAX = 50;
const LOOK_MILLISECONDS = 250;
/** Beyond every log, so that none of it is read. */
const AFTER_LOG_BYTES = 2 ** 40;

/** Waits for a machine, or for a command in its background. Only the tools have it: clients of the API follow a log. */
export const waitCompute = endpoint({
  summary: 'Wait until a resource runs, is paused or has ended, or until a background command of it has ended',
  scope: 'wallet',
  body: v.object({
    id: Id,
    process_id: v.optional(ProcessRequest.entries.process_id),
    seconds: v.optional(wholeNumber(1, SECONDS_MAX), 30),
  }),
  answer: v.object({
    done: v.pipe(v.boolean(), v.description('false: it is not over yet, so wait again')),
    resource: v.optional(ResourceSummary),
    process: v.optional(ProcessRecord),
  }),
  refusals: GUEST_REFUSALS,
  example: { body: { id: ID }, answer: { done: true } },
  async run(app, { principal, body: { id, process_id: processId, seconds }, whenGone }) {
    const unwanted = new AbortController();
    whenGone(() => unwanted.abort());
    using _ = whenStopping(app.health, () => unwanted.abort()); // A stopping server does not wait: its caller can continue afterwards.
    const { signal } = unwanted;
    if (processId === undefined) {
      const resource = await untilReady(app, principal.wallet.id, { id, seconds, signal });
      return { body: { done: isReady(resource), resource: summaryOf(app, resource) } };
    }
    const order = { id: processId, offset: AFTER_LOG_BYTES, bytesMax: 0 };
    const follow = { timeoutSeconds: seconds, signal };
    const read = (more: { follow?: typeof follow }) =>
      callRunning(app, principal, id, seconds, (backend, ref) => readLog(backend, ref, { ...order, ...more }));
    const { process } = await read({ follow });
    const now = process ?? (await read({})).process;
    if (!now) throw new Error('a log that is not followed has a process');
    return { body: { done: !now.isRunning, process: processOf(id, now) } };
  },
});

/** A paused resource is not waited for, as nobody may resume it; one on the way there or back is. */
const isReady = ({ readyAt, endedAt, status }: Resource) =>
  endedAt !== null || (readyAt !== null && (status === 'running' || status === 'paused'));

/** Looks at the row of a resource until it runs, is paused or has ended. Takes no step of it: its driver and the reaper do. */
async function untilReady(
  app: HttpApp,
  walletId: string,
  { id, seconds, signal }: { id: string; seconds: number; signal: AbortSignal },
): Promise<Resource> {
  const until = performance.now() + seconds * 1000;
  for (;;) {
    const resource = resourceOf(app.ledger.read, walletId, id);
    if (isReady(resource) || signal.aborted || performance.now() >= until) return resource;
    await sleep(LOOK_MILLISECONDS);
  }
}
