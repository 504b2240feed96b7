import { Refusal } from '../base/refusal.ts';
import type { Backend, Created, MachineQuote, Spec } from '../compute/backend.ts';
import { ordered } from '../compute/fill.ts';
import type { ConfiguredBackend, Slots } from '../compute/slots.ts';
import { defineWrite } from '../db/write.ts';
import { type Operation, operationOf } from '../ledger/operation.ts';
import { findResource, type Resource, updateIfLive } from '../ledger/resource.ts';
import { findSnapshot } from '../ledger/snapshot.ts';
import { type Waiters, writeOutcome } from '../spend/spend.ts';
import type { LeaseApp } from './create.ts';
import { recentEngineOf, refusedBy } from './engine.ts';

/** The backends of a slot that can make the machine of a lease. Each is asked for a price, and then, in turn, for the machine. */

/** A backend that has the requested machine, and its quote. All candidates of a create sell it at the same price. */
type Candidate = ConfiguredBackend & { quote: MachineQuote; engine: Promise<CandidateEngine> };
/** The identity of a candidate's engine, null where it reports none; the error where it cannot be asked. */
type CandidateEngine = { identity: string | null } | { error: Error };
export type Candidates = [Candidate, ...Candidate[]];

/** Time limit for a backend's quote: nothing is held yet, and `create` has to answer. */
const QUOTE_SECONDS = 20;

/**
 * Asks all backends of a slot for a price. Leaves out those without the requested machine, or with another price than the first one
 * that has it. Returns the others in the order in which they are asked for the machine, with what all of them sell; `places` are the
 * names of those that may make it now or later, in the order of the alphabet. Throws the most telling refusal, and
 * `lease_limit_exceeded`.
 */
export async function candidatesOf(
  app: LeaseApp,
  { fill, backends }: ReturnType<Slots['find']>,
  requested: Spec,
): Promise<{ candidates: Candidates; places: string[]; spec: Spec; priceHourly: bigint }> {
  const seconds = requested.max_seconds;
  const results = await Promise.allSettled(backends.map((it) => askForQuote(app, it, requested)));
  const quoted = results.flatMap((it) => (it.status === 'fulfilled' ? [it.value] : []));
  const [first] = quoted;
  if (!first) throw mostTelling(results.flatMap((it) => (it.status === 'rejected' ? [it.reason] : [])));
  const { priceHourly, spec } = first.quote;
  const [one, ...others] = quoted.filter(
    ({ quote }) => quote.priceHourly === priceHourly && quote.maxSeconds >= seconds,
  );
  if (!one)
    throw new Refusal(
      'lease_limit_exceeded',
      `max_seconds is ${seconds}; this offer allows at most ${Math.max(...quoted.map(({ quote }) => quote.maxSeconds))}.`,
    );
  const mayMake = (it: ConfiguredBackend, result: PromiseSettledResult<Candidate> | undefined) =>
    result?.status === 'rejected'
      ? result.reason.code === 'provider_unavailable'
      : [one, ...others].some(({ backend }) => backend === it.backend);
  const places = backends.filter((it, at) => mayMake(it, results[at])).map(({ backend }) => backend.name);
  // If only a part of a backend fails, the backend itself is not in this list: another part may have room.
  const failing = app.outages.list().map(({ unit }) => unit);
  const candidates = await ordered([one, ...others], fill, requested, ({ slotPath }) => failing.includes(slotPath));
  return { candidates, places: places.sort(), spec, priceHourly };
}

/** Returns a candidate. Throws a refusal: the backend's own, or `provider_unavailable` when it cannot be asked. */
async function askForQuote(app: LeaseApp, configured: ConfiguredBackend, spec: Spec): Promise<Candidate> {
  const noQuote = (cause?: unknown) =>
    new Refusal('provider_unavailable', 'The provider cannot be asked for a price. Nothing was charged.', {
      retryAfterSeconds: 5,
      cause,
    });
  const quoting = configured.backend.quote(spec).catch((cause: unknown) => {
    throw cause instanceof Refusal ? cause : noQuote(cause);
  });
  const engine = askForEngine(app, configured.backend);
  const quote = await app.inFlight.waitFor(quoting, QUOTE_SECONDS);
  if (!quote) throw noQuote();
  return { ...configured, quote, engine };
}

/**
 * Returns the identity of a candidate's engine. A step corrects one that is out of date when it finds the machine elsewhere. Never
 * throws.
 */
async function askForEngine(app: LeaseApp, backend: Backend): Promise<CandidateEngine> {
  const asking = recentEngineOf(backend, app.clock.now()).then(
    (identity): CandidateEngine => ({ identity: identity ?? null }),
    (error: Error): CandidateEngine => ({ error }),
  );
  return (
    (await app.inFlight.waitFor(asking, QUOTE_SECONDS)) ?? { error: new Error('it does not say which engine it is') }
  );
}

/** Returns the refusal to show: that of a backend that cannot be asked now, else of one that rejects the request, else the first. */
function mostTelling(refusals: readonly Refusal[]): Refusal {
  const codes = ['provider_unavailable', 'invalid_request'];
  const telling = codes.flatMap((code) => refusals.find((it) => it.code === code) ?? []);
  return telling[0] ?? (refusals[0] as Refusal);
}

/**
 * Asks one backend after another until one does not clearly refuse. The row names each backend before it is asked: a machine whose
 * answer was lost is searched for there, and no other backend is asked in between.
 */
export async function askInTurn(
  app: LeaseApp,
  { id: operationId, resourceId }: Operation,
  candidates: Candidates,
  reject: Waiters<Resource>['reject'],
): Promise<Created> {
  const id = resourceId as string;
  const refused: RefusedCreate[] = [];
  for (const candidate of candidates) {
    const { backend } = candidate;
    const engine = await candidate.engine;
    if (refused.length) {
      if (app.inFlight.isCutOff()) break;
      const identity = 'identity' in engine ? engine.identity : null;
      const next = { id, operationId, backend: backend.name, engine: identity };
      const moved = await writeOutcome(app, moveLease, next, reject);
      if (!moved) break;
    }
    const row = findResource(app.ledger.read, id) as Resource;
    const created = 'error' in engine ? unreached(engine.error) : await ask(app, candidate, row);
    if (created.kind !== 'refused') return created;
    refused.push({ name: backend.name, refusal: created });
  }
  return allRefused(refused);
}

/** The refusal of a backend, with its name. */
type RefusedCreate = { name: string; refusal: Created & { kind: 'refused' } };

type MoveLease = { id: string; operationId: string; backend: string; engine: string | null };
/** Names the backend that is asked next. Returns false if no machine is wanted any more. */
const moveLease = defineWrite('lease.move', (tx, { id, operationId, backend, engine }: MoveLease): boolean => {
  const row = findResource(tx, id) as Resource;
  const isWanted = row.endedAt === null && row.endWanted === null;
  if (!isWanted || row.ref !== null || operationOf(tx, operationId).state === 'settled') return false;
  updateIfLive(tx, id, { backend, engine });
  return true;
});

/** Returns the refusal of a create that every backend refused: that of the first backend that is full, else the last one's. */
function allRefused(refused: readonly RefusedCreate[]): Created {
  const full = refused.find(({ refusal }) => refusal.code === 'capacity_unavailable');
  const { refusal } = full ?? (refused.at(-1) as RefusedCreate);
  if (refused.length === 1) return refusal;
  const words = refused.map(
    ({ name, refusal: { reason, words } }) => `${name}: ${reason}${words ? ` (${words})` : ''}`,
  );
  return { ...refusal, words: words.join('; ') };
}

/**
 * Asks a candidate for the machine of a lease, whose row names its engine. A warm one keeps its own deadline until the lease is paid
 * for. Without one it is made, and warm ones give way to it.
 */
async function ask(app: LeaseApp, { backend, quote }: Candidate, row: Resource): Promise<Created> {
  const { id, tag, expiresAt, walletId, engine, snapshotId } = row;
  const isFull = (it: Created) => it.kind === 'refused' && it.code === 'capacity_unavailable';
  try {
    const secrets = app.egress.secretsFor(row, backend, quote.spec);
    const snapshot = snapshotId === null ? undefined : findSnapshot(app.ledger.read, snapshotId)?.tag;
    const make = () => backend.create({ tag, quote, deadline: expiresAt, walletId, secrets, snapshot });
    // One that was made before has no secrets.
    let created = (await app.warm.lease(backend, id, secrets === undefined)) ?? (await make());
    while (isFull(created) && (await app.warm.makeRoom(backend, quote.spec))) created = await make();
    return created.kind !== 'refused' || engine === null ? created : await refusedBy(backend, engine, created);
  } catch (error) {
    return { kind: 'unknown', reason: (error as Error).message };
  }
}

/** The refusal of an engine that cannot be asked who it is: a machine of an engine that no row names could be lost. */
const unreached = ({ message }: Error): RefusedCreate['refusal'] => ({
  kind: 'refused',
  code: 'provider_unavailable',
  reason: 'The provider cannot be reached. Nothing was charged.',
  words: message,
});
