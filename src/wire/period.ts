import { Refusal } from '../base/refusal.ts';
import type { OperationFilter } from '../ledger/operation-search.ts';

/** Unix seconds. */
type Bounds = Pick<OperationFilter, 'since' | 'until'>;

/**
 * Returns the bounds of a period, for the filter of a list or a sum. Throws `invalid_request` where it ends before it begins: nothing is in
 * that, which looks like an answer.
 */
export function periodOf({ since, until }: Bounds): Bounds {
  if (since !== undefined && until !== undefined && since >= until)
    throw new Refusal('invalid_request', 'since must be before until.');
  return { since, until };
}
