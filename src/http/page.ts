import * as v from 'valibot';
import type { IdPrefix } from '../base/id.ts';
import { Refusal } from '../base/refusal.ts';
import { LIST_COUNT_MAX, type ListPage } from '../ledger/wallet.ts';
import { numberInQuery, text } from '../wire/parts.ts';

/** The query of a list: rows before an id, newest first, at most `limit`. A parameter that a list does not have is a 400. */
export const PAGE_QUERY = {
  before: v.optional(text(0, 200)),
  limit: v.optional(numberInQuery(1, LIST_COUNT_MAX)),
};

/** Returns the schema of a status to filter a list by. */
export function statusQuery<const S extends readonly string[]>(statuses: S) {
  return v.optional(v.picklist(statuses, `must be one of ${statuses.join(', ')}`));
}

/** Returns the page that a query selects. Throws `invalid_cursor` for a `before` that is not an id of this kind. */
export function pageOf({ before, limit }: { before?: unknown; limit?: unknown }, prefix: IdPrefix): ListPage {
  if (before && !new RegExp(`^${prefix}_[0-9a-z]{26}$`).test(String(before))) throw new Refusal('invalid_cursor');
  return { before: (before as string) || undefined, limit: limit as number | undefined };
}
