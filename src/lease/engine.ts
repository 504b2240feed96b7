import type { Backend } from '../compute/backend.ts';
import type { Resource } from '../ledger/resource.ts';

/**
 * The engine of a machine (docs/decisions/0080). Another engine may answer at an address than before: on another machine, or behind
 * an address that moved. A machine missing there may still exist at the engine that was asked for it.
 */

/** Seconds for which an answer will do where a wrong one is corrected later. */
const KEPT_SECONDS = 60;

type KnownIdentity = { identity: string | undefined; at: number };
const lastKnown = new WeakMap<Backend, KnownIdentity>();

/** Returns the identity of the engine that answers now; undefined where there is only one, or it reports none. */
export async function engineOf(backend: Backend): Promise<string | undefined> {
  const identity = await backend.identity?.();
  if (lastKnown.get(backend)?.identity !== identity) lastKnown.delete(backend);
  return identity;
}

/** Returns the identity of the engine that answers, or that answered up to a minute ago. `now` is in Unix seconds. */
export async function recentEngineOf(backend: Backend, now: number): Promise<string | undefined> {
  const last = lastKnown.get(backend);
  if (last && now >= last.at && now - last.at < KEPT_SECONDS) return last.identity;
  const identity = await engineOf(backend);
  lastKnown.set(backend, { identity, at: now });
  return identity;
}

/**
 * Takes a look at an engine. Returns what was seen, and the identity of the engine. Throws when another one answers afterwards than
 * before: the look may have been at either.
 */
export async function lookAt<T>(
  backend: Backend,
  look: (engine: string | undefined) => Promise<T>,
): Promise<{ engine: string | undefined; seen: T }> {
  const engine = await engineOf(backend);
  const seen = await look(engine);
  const after = await engineOf(backend);
  if (after !== engine) throw new Error(changedEngine(engine, after));
  return { engine, seen };
}

/**
 * Returns a refusal of this engine, or an unknown outcome where another one answers after it: a backend refuses where it finds no
 * machine afterwards, and at another engine that proves nothing.
 */
export async function refusedBy<R extends { kind: 'refused' }>(
  backend: Backend,
  engine: string,
  refused: R,
): Promise<R | { kind: 'unknown'; reason: string }> {
  const after = await engineOf(backend).catch(() => engine);
  return after === engine ? refused : { kind: 'unknown', reason: changedEngine(engine, after) };
}

/** Describes, for the operator, that an answer may be that of either engine. */
const changedEngine = (before: string | undefined, after: string | undefined) =>
  `the engine changed while it was asked, from ${before} to ${after}`;

/** Describes, for the operator, that the machine of a lease is out of reach. */
export const elsewhere = ({ engine }: Pick<Resource, 'engine'>, other: string) =>
  `unreachable: its machine was ordered from another engine (${engine}) than the one that answers now (${other}), and goes on to its own deadline there`;
