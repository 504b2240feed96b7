import { parseJson } from '../base/parse-json.ts';
import type { Config } from '../config/config.ts';
import type { UncertainPolicy } from '../config/router.ts';
import type { Operation } from '../ledger/operation.ts';

/**
 * Returns the policy for a chat with an unknown outcome, and the seconds after which it applies: that of the upstream that was
 * asked, else `router.uncertain`. If the process died during the call, that of the model's first upstream decides.
 */
export function uncertainPolicyOf(
  { upstreams, models, uncertain }: Config['router'],
  { subject, usage }: Pick<Operation, 'subject' | 'usage'>,
): UncertainPolicy {
  const asked = (usage === null ? {} : parseJson(usage)) as { upstream?: string };
  const model = models.find(({ id }) => id === subject);
  const first = model?.upstream ?? model?.upstreams?.[0]; // Not by routesOf: the thread that writes loads this file.
  const name = asked.upstream ?? (typeof first === 'string' ? first : first?.upstream);
  return { ...uncertain, ...upstreams.find((it) => it.name === name)?.uncertain };
}

/** Returns the shortest time in seconds after which any uncertain chat may be resolved. */
export function shortestUncertain({ upstreams, uncertain }: Pick<Config['router'], 'upstreams' | 'uncertain'>): number {
  return Math.min(uncertain.after_seconds, ...upstreams.map((it) => it.uncertain?.after_seconds ?? Infinity));
}
