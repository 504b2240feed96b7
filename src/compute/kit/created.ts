import type { Created } from '../backend.ts';

/**
 * Returns the outcome of a create that certainly made nothing. `reason` is a sentence without its full stop, for the caller;
 * `words` are the provider's, for the operator and the log.
 */
export const refused = (
  reason: string,
  words?: string,
  code: 'provider_unavailable' | 'capacity_unavailable' | 'lease_limit_exceeded' = 'provider_unavailable',
): Created & { kind: 'refused' } => ({
  kind: 'refused',
  code,
  reason: `${reason}. Nothing was charged.`,
  ...(words === undefined ? {} : { words }),
});
