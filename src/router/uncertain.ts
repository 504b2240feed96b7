import type { Config } from '../config/config.ts';
import type { UncertainPolicy } from '../config/router.ts';
import type { Operation } from '../ledger/operation.ts';

/**
 * What is done with a chat whose outcome nobody knows, and after how many seconds: as the upstream that was asked says, or
 * else as `router.uncertain` does. Where a model has several and the process died during the call, its first one counts.
 */
export function uncertainPolicyOf(
  { upstreams, models, uncertain }: Config['router'],
  { subject, usage }: Pick<Operation, 'subject' | 'usage'>,
): UncertainPolicy {
  const asked = (usage === null ? {} : JSON.parse(usage)) as { upstream?: string };
  const name = asked.upstream ?? models.find(({ id }) => id === subject)?.upstream;
  return { ...uncertain, ...upstreams.find((it) => it.name === name)?.uncertain };
}

/** The shortest time after which an uncertain chat may be decided, in seconds. */
export function shortestUncertain({ upstreams, uncertain }: Pick<Config['router'], 'upstreams' | 'uncertain'>): number {
  return Math.min(uncertain.after_seconds, ...upstreams.map((it) => it.uncertain?.after_seconds ?? Infinity));
}
