import { Refusal } from '../base/refusal.ts';

/** The bounds of a period in a request, Unix seconds. */
type Period = { since?: number | undefined; until?: number | undefined };

/**
 * Returns the bounds of a period, for the filter of a list or a sum. Throws `invalid_request` where it ends before it begins: nothing is in
 * that, which looks like an answer.
 */
export function periodOf({ since, until }: Period): Period {
  if (since !== undefined && until !== undefined && since >= until)
    throw new Refusal('invalid_request', 'since must be before until.');
  return { since, until };
}
