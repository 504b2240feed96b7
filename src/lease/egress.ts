import { contained } from '../base/fault.ts';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import type { Backend, Ref, SecretsOrder, Spec } from '../compute/backend.ts';
import { CONNECTION_BYTES_MAX } from '../compute/port.ts';
import { createEgress, type Egress } from '../egress/egress.ts';
import { covers, type List, parseList } from '../egress/list.ts';
import type { Outside } from '../egress/outside.ts';
import { allLiveResources, changeResource, findResource, type Resource } from '../ledger/resource.ts';
import type { LeaseApp } from './create.ts';
import { isPaused } from './pausing.ts';
import { accessible } from './ports.ts';
import { createLeaseSecrets, type SecretsApp } from './secrets.ts';

/** Interval at which ways out of leases that are over are closed. What passes is checked piece by piece. */
const CHECK_MILLISECONDS = 1000;

type EgressApp = Omit<LeaseApp, 'egress' | 'config'> &
  SecretsApp & {
    memory: { open(walletId: string): { take(bytes: number): void; close(): void } };
  };

/** The ways out of leases. `open` does nothing for a lease whose backend gives it none. */
export type LeaseEgress = Pick<Egress, 'open' | 'reached'> & {
  /**
   * Replaces the agent's list of a lease, which narrows the operator's, and cuts the connections that it does not admit. Throws
   * `invalid_request` where an entry is not in the operator's list or there is none, and `resource_not_active`.
   */
  narrow(resource: Resource, allow: readonly string[]): Promise<void>;
  /** Returns the secrets that a new machine of a lease is given; none without egress, or where its account has none. */
  secretsFor(row: Resource, backend: Backend, spec: Spec): SecretsOrder | undefined;
  /** Returns whether a new machine of a wallet would be given secrets. */
  hasSecrets(walletId: string, backend: Backend, spec: Spec): boolean;
  /** Opens those of all running leases, as a server does at its start. */
  start(): void;
  close(): void;
};

/** The operator's list for a lease, and its machine. */
type OperatorsList = { backend: Backend; ref: Ref; list: List };
/** The lists of a lease, and what they were made from. */
type Lists = { list: List | undefined; allow: string | null | undefined; lists: readonly List[] | undefined };

const NO_EGRESS =
  'The operator has given this lease no egress, so a list has nothing to narrow. Ask for an offer that has egress.';

/** Makes the lists of a lease: the operator's, and the agent's beside it. Returns the last ones where those are the same. */
function makeLists(list: List | undefined, allow: string | null | undefined, last: Lists | undefined): Lists {
  if (last && last.list === list && last.allow === allow) return last;
  if (!list) return { list, allow, lists: undefined };
  return { list, allow, lists: allow == null ? [list] : [list, parseList(parseJson(allow) as string[])] };
}

/** Creates the lists that leases reach now. */
function createCurrentLists(app: EgressApp) {
  /** The lists of each lease that was asked for, while neither the books nor the time have changed. */
  const known = new Map<string, Lists & { changes: number; now: number }>();

  function wayOf(row: Resource | undefined): OperatorsList | undefined {
    const backend = row && app.slots.backendOf(row);
    const egress = backend?.guest.egress;
    if (!row || row.ref === null || !egress) return undefined;
    try {
      const list = egress.listOf(parseJson(row.spec) as Spec);
      return list.length ? { backend, ref: row.ref, list } : undefined;
    } catch (error) {
      if (error instanceof Refusal) return undefined; // Its offer is no longer in the settings.
      throw error;
    }
  }

  function listsOf(id: string): readonly List[] | undefined {
    const [changes, now] = [app.ledger.changeCount(), app.clock.now()];
    const last = known.get(id);
    if (last?.changes === changes && last.now === now) return last.lists;
    const row = accessible(app, id)?.resource;
    const made = makeLists(wayOf(row)?.list, row?.egressAllow, last);
    known.set(id, { ...made, changes, now });
    return made.lists;
  }

  return {
    wayOf,
    listsOf,
    /** Forgets the leases that reach nothing any more. Returns their ids. */
    forgetEnded: () => [...known.keys()].filter((id) => listsOf(id) === undefined && known.delete(id)),
  };
}

/** Creates the ways out of a server's leases. */
export function createLeaseEgress(app: EgressApp, outside: Outside): LeaseEgress {
  const secrets = createLeaseSecrets(app);
  const { wayOf, listsOf, forgetEnded } = createCurrentLists(app);

  const egress = createEgress({
    outside,
    listsOf,
    secretsOf: secrets.of,
    isLive(id) {
      const row = findResource(app.ledger.read, id);
      return row?.endedAt === null && row.endWanted === null && wayOf(row) !== undefined;
    },
    isPaused(id) {
      const row = findResource(app.ledger.read, id);
      return row !== undefined && isPaused(row);
    },
    async begin(id) {
      const way = wayOf(findResource(app.ledger.read, id));
      if (!way?.backend.guest.egress) throw new Error('the lease has no way out');
      return way.backend.guest.egress.begin(way.ref);
    },
    enter(id) {
      const { walletId } = findResource(app.ledger.read, id) as Resource;
      const memory = app.memory.open(app.tenantOf(walletId).treeId);
      memory.take(CONNECTION_BYTES_MAX);
      return () => memory.close();
    },
    passed: app.events.egressPassed,
    refused: app.events.egressRefused,
    failed: (id, error) => app.events.failed('egress', error, { resource: id }),
  });

  async function narrow(row: Resource, allow: readonly string[]): Promise<void> {
    const way = wayOf(row);
    if (!way) throw new Refusal('invalid_request', NO_EGRESS);
    const outside = parseList(allow).findIndex((it) => !covers(way.list, it));
    if (outside !== -1)
      throw new Refusal(
        'invalid_request',
        `allow.${outside}: ${JSON.stringify(allow[outside])} is not in what the operator lets this lease reach. Nothing was changed: leave it out, or ask the operator.`,
        { param: `allow.${outside}` },
      );
    const values = { egressAllow: JSON.stringify(allow) };
    const changed = await app.ledger.write(changeResource, { id: row.id, values });
    if (changed.endedAt !== null || changed.endWanted !== null) throw new Refusal('resource_not_active');
    egress.recheck(row.id);
    app.events.egressNarrowed(changed, allow.length);
  }

  const check = contained('timer', () => {
    egress.check();
    forgetEnded().forEach(secrets.forget);
  });
  const timer = setInterval(check, CHECK_MILLISECONDS).unref();
  const open: Egress['open'] = async (id) => {
    if (wayOf(findResource(app.ledger.read, id))) await egress.open(id);
  };

  return {
    open,
    narrow,
    reached: egress.reached,
    hasSecrets: (walletId, { guest }, spec) =>
      (guest.egress?.listOf(spec).length ?? 0) > 0 && secrets.areGiven(walletId),
    secretsFor: (row, backend, spec) => (backend.guest.egress?.listOf(spec).length ? secrets.orderOf(row) : undefined),
    start() {
      for (const { id, status } of allLiveResources(app.ledger.read))
        if (status === 'running') open(id).catch(() => {}); // It was reported, and is tried again.
    },
    close() {
      clearInterval(timer);
      egress.close();
    },
  };
}
