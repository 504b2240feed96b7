import { setTimeout as sleep } from 'node:timers/promises';
import { newId } from '../base/id.ts';
import { openLine } from '../egress/line.ts';
import { inTime } from '../net/deadline.ts';
import {
  type Backend,
  type CheckFinding,
  type Created,
  type MachineQuote,
  type Offer,
  type Ref,
  type Spec,
  tagOf,
} from './backend.ts';
import type { ConfiguredBackend } from './slots.ts';

/** Time limits, together well below the grace period of the orphan sweep, so that a running trial is not taken for an orphan. */
const RUN_MILLISECONDS = 60_000;
const REMOVE_MILLISECONDS = 75_000; // Slurm kills what does not end by itself after 30 s (KillWait).
const POLL_MILLISECONDS = 250;
/** The deadline of the trial machine: long enough to try it, and short in case nothing else ends it. */
const TRIAL_SECONDS = 120;
const EXEC_SECONDS = 20;
/** A busy engine gets as long to report its free capacity as to describe itself: a slow engine is not a full one. */
const OFFERS_MILLISECONDS = 20_000;

/**
 * Makes one machine of the cheapest free offer, of those that `only` names if it is given. Waits until it runs, finds it by its
 * tag, runs `true` in it, moves its deadline, destroys it, and checks that it is gone. Its tag names this installation and no
 * resource, so that the orphan sweep removes it if this process dies half-way. Leased machines are not touched. Never throws.
 */
export async function selfTest(
  { backend, provisionSeconds }: Pick<ConfiguredBackend, 'backend' | 'provisionSeconds'>,
  installationId: string,
  now: () => number,
  only?: TrialOf,
): Promise<CheckFinding> {
  const name = trialName(only);
  const tag = tagOf(installationId, newId('trial'));
  try {
    const offered = await backend.offers(OFFERS_MILLISECONDS);
    const offers = offered.filter((it) => !only || it.runtime === only.runtime);
    const offer = cheapest(offers);
    if (!offer) return { name, ok: true, detail: `${nothingFree(offers.length)}: no machine was made` };
    const seconds = Math.min(offer.maxSeconds, Math.max(offer.minSeconds, TRIAL_SECONDS));
    const quote = await backend.quote({ ...offer.spec, max_seconds: seconds } as Spec);
    const deadline = now() + provisionSeconds + seconds;
    const created = await backend
      .create({ tag, quote, deadline, isTrial: true })
      .catch((error: Error) => ({ kind: 'unknown' as const, reason: error.message }));
    const madeAt = performance.now();
    if (created.kind === 'refused') {
      const ok = created.code === 'capacity_unavailable';
      const words = created.words ? ` (${created.words})` : '';
      return { name, ok, detail: `No machine of the offer "${offer.description}" was made: ${created.reason}${words}` };
    }
    const ref = created.kind === 'created' ? created.ref : undefined;
    const used = await use(backend, { tag, quote, provisionSeconds, now }, created).catch(
      async ({ message }: Error) => ({
        ok: false,
        detail: (await endOf(backend, ref, madeAt)) ?? message,
      }),
    );
    const remaining = await remove(backend, tag, ref);
    const what = `A machine of the offer "${offer.description}": ${used.detail}`;
    if (remaining === undefined)
      return {
        name,
        ok: used.ok,
        detail: `${what}; ${ref ? 'it was destroyed and is gone' : 'nothing carries its tag now'}`,
      };
    const end = new Date(deadline * 1000).toISOString().replace('.000Z', 'Z');
    return {
      name,
      ok: false,
      detail: `${what}; it could not be destroyed (${remaining}). A running server takes ${tag} away within minutes, and it ends by itself at ${end}`,
    };
  } catch (error) {
    return { name, ok: false, detail: `No machine was made: ${(error as Error).message}` };
  }
}

/** The offers that a trial is for: those with this runtime, or all. */
type TrialOf = Pick<Offer, 'runtime'> | undefined;
/** Returns the name of a trial's finding. */
export const trialName = (only: TrialOf) => (only?.runtime === undefined ? 'trial' : `trial ${only.runtime}`);

function cheapest(offers: readonly Offer[]): Offer | undefined {
  const free = offers.filter((it) => it.available);
  return free.sort((a, b) => (a.priceHourly < b.priceHourly ? -1 : a.priceHourly > b.priceHourly ? 1 : 0))[0];
}

const nothingFree = (count: number) =>
  count === 0
    ? 'Nothing is on offer'
    : 'Nothing that is on offer is free at the moment, and what is leased is not touched';

type TrialMachine = { tag: string; quote: MachineQuote; provisionSeconds: number; now: () => number };

/** Waits until the machine runs, finds it by its tag, runs a command in it and moves its deadline. Throws when one of these fails. */
async function use(
  backend: Backend,
  { tag, quote, provisionSeconds, now }: TrialMachine,
  created: Exclude<Created, { kind: 'refused' }>,
): Promise<{ ok: boolean; detail: string }> {
  if (created.kind === 'unknown') throw new Error(`nobody knows whether it was made: ${created.reason}`);
  const { ref } = created;
  const started = performance.now();
  const waited = () => Math.ceil((performance.now() - started) / 1000);
  for (;;) {
    const machine = await backend.inspect(ref);
    const fault = machine?.state === 'running' ? await backend.guest.prove(ref) : machine?.note;
    const why = fault === undefined ? '' : `: ${fault}`;
    if (!machine || machine.state === 'ended')
      throw new Error(`it was made, and ended by itself after ${waited()} s${why}`);
    if (machine.state === 'running' && fault === undefined) break;
    if (performance.now() - started > Math.min(RUN_MILLISECONDS, provisionSeconds * 1000)) {
      // Being slow is not yet a fault: a cluster may be full.
      if (provisionSeconds * 1000 > RUN_MILLISECONDS)
        return {
          ok: true,
          detail: `it was made, and did not run yet after ${waited()} s (it may take ${provisionSeconds} s), so nothing was run in it${why}`,
        };
      throw new Error(`it was made, and did not run within ${provisionSeconds} s (provision_seconds)${why}`);
    }
    await sleep(POLL_MILLISECONDS);
  }
  const ran = waited();
  if (!(await backend.find(tag)).some((it) => it.ref === ref))
    throw new Error(`it runs, but its tag ${tag} does not find it`);
  const { exitCode, stderr } = await backend.guest.exec(ref, {
    command: 'true',
    timeoutSeconds: EXEC_SECONDS,
    streamBytesMax: 1000,
  });
  if (exitCode !== 0)
    throw new Error(`it runs, but the command \`true\` ended with ${exitCode} in it: ${stderr.toString().trim()}`);
  // As at the start of a lease's paid time.
  const moved = await backend.extend(ref, now() + quote.spec.max_seconds);
  if (moved.kind !== 'done') throw new Error(`it runs, but its deadline could not be moved: ${moved.reason}`);
  const wayOut = await tryWayOut(backend, ref, quote.spec);
  const disk = await backend.doctor.tryDisk?.(ref, quote).catch(({ message }: Error) => {
    throw new Error(`it runs, but ${message}`);
  });
  // Last, since the machine may end of it.
  const unlimited = await backend.doctor.unlimited?.(ref, quote);
  if (unlimited !== undefined) throw new Error(`it runs, but ${unlimited}`);
  return {
    ok: true,
    detail: `it ran ${ran} s after it was made, took a deadline, was found by its tag and ran a command${wayOut}${disk ? `; its disk: ${disk}` : ''}`,
  };
}

/** Opens the way out of a machine that has one, and closes it. Returns the words for it. Throws if it does not open. */
async function tryWayOut({ guest: { egress } }: Backend, ref: Ref, spec: Spec): Promise<string> {
  if (!egress?.listOf(spec).length) return '';
  try {
    const line = openLine(await egress.begin(ref), (stream) => stream.destroy());
    await inTime(line.ready, RUN_MILLISECONDS, 'the start of the way out').finally(line.close);
    return ', and its way out opened';
  } catch (error) {
    throw new Error(`it runs, but its way out (egress) did not open: ${(error as Error).message}`);
  }
}

/** Returns why the machine no longer runs, whatever failed first because of that; undefined if it runs. */
async function endOf(backend: Backend, ref: Ref | undefined, madeAt: number): Promise<string | undefined> {
  const machine = ref === undefined ? undefined : await backend.inspect(ref).catch(() => undefined);
  if (machine?.state !== 'ended') return undefined;
  const seconds = Math.ceil((performance.now() - madeAt) / 1000);
  return `it was made, and ended by itself after ${seconds} s${machine.note === undefined ? '' : `: ${machine.note}`}`;
}

/** Destroys every machine with the tag until none is left. Returns why that failed, or undefined. */
async function remove(backend: Backend, tag: string, ref: Ref | undefined): Promise<string | undefined> {
  const started = performance.now();
  for (let fault = 'it is still there'; ; ) {
    try {
      const refs = new Set([...(ref === undefined ? [] : [ref]), ...(await backend.find(tag)).map((it) => it.ref)]);
      for (const it of refs) await backend.destroy(it);
      const left = await Promise.all([...refs].map((it) => backend.inspect(it)));
      if (left.every((it) => it === undefined) && (await backend.find(tag)).length === 0) return undefined;
      fault = 'it is still there';
    } catch (error) {
      fault = (error as Error).message;
    }
    if (performance.now() - started > REMOVE_MILLISECONDS) return fault;
    await sleep(POLL_MILLISECONDS);
  }
}
