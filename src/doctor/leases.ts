import { warning } from '../compute/finding.ts';
import type { Resource } from '../ledger/resource.ts';

/** Seconds that ending a lease may take before it is late: a backend's slowest call, tried again. */
const END_LATE_SECONDS = 300;
/** The number of failed attempts from which a step counts as being in trouble. */
const TROUBLE_COUNT = 3;

type Judged = Pick<
  Resource,
  | 'id'
  | 'backend'
  | 'slot'
  | 'readyBy'
  | 'readyAt'
  | 'expiresAt'
  | 'attempts'
  | 'lastError'
  | 'quarantinedAt'
  | 'engine'
  | 'unreachableSince'
>;

/**
 * Checks that live leases end when their time is over, at `now` in Unix seconds. Returns the finding, which warns of leases
 * whose backend does not comply; throws an Error for leases that should have ended.
 */
export function judgeLeases(live: readonly Judged[], now: number): string {
  const away = live.filter((it) => it.quarantinedAt === null && it.unreachableSince !== null);
  const ours = live.filter((it) => it.quarantinedAt === null && it.unreachableSince === null);
  const endOf = (it: Judged) => (it.readyAt === null ? it.readyBy : it.expiresAt);
  const late = ours.filter((it) => now > endOf(it) + END_LATE_SECONDS).sort((a, b) => endOf(a) - endOf(b));
  const describe = ({ id, slot, backend, lastError }: Judged) =>
    `${id} of ${slot} (${backend})${lastError === null ? '' : `: ${lastError.replace(/\.$/, '')}`}`;
  const [oldest] = late;
  if (oldest) {
    const others = late.length === 1 ? '' : ` In all ${late.length} are late.`;
    throw new Error(
      `A lease should have ended ${Math.round((now - endOf(oldest)) / 60)} minutes ago, and its machine may still cost money: ${describe(oldest)}.${others} Make sure that the server is running and its backend answers; \`purser resource list\` and \`resource show\` tell more`,
    );
  }
  const inTrouble = ours.filter((it) => it.attempts >= TROUBLE_COUNT);
  if (inTrouble[0])
    return warning(
      `${inTrouble.length} of ${ours.length} live leases have a backend that does not do what it is asked: ${describe(inTrouble[0])}. It is asked again.`,
    );
  const [first] = away;
  if (first) {
    const engines = [...new Set(away.map((it) => it.engine))].join(', ');
    return warning(
      `${away.length} of ${live.length} live leases are unreachable: their machines are on ${engines}, and another engine answers. They end at their own deadlines, and what is held for them stays held. When that engine answers again, Purser goes on; if it is gone for good, give each up: purser resource abandon ${first.id} --reason "…"`,
    );
  }
  return ours.length === 0 ? 'none is live' : `${ours.length} live, none of them past its end`;
}
