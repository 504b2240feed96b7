import * as v from 'valibot';
import { formatUsd, type Nanos, parseUsd } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import { OPERATION_KINDS, OPERATION_OUTCOMES, OPERATION_STATES, SETTLED_BY } from '../db/enums.ts';
import type { Operation } from '../ledger/operation.ts';
import type { OperationFilter } from '../ledger/operation-search.ts';
import type { TimelineStep } from '../ledger/timeline.ts';
import { Time, text, Usd } from './parts.ts';

/** An operation in the operator's view. */
const OperationRecord = v.object({
  id: v.string(),
  wallet_id: v.string(),
  kind: v.picklist(OPERATION_KINDS),
  subject: v.string(),
  state: v.picklist(OPERATION_STATES),
  outcome: v.nullable(v.picklist(OPERATION_OUTCOMES)),
  settled_by: v.nullable(v.picklist(SETTLED_BY)),
  hold_usd: Usd,
  charge_usd: v.nullable(Usd),
  price: v.record(v.string(), v.unknown()),
  usage: v.nullable(v.record(v.string(), v.unknown())),
  reason: v.nullable(v.string()),
  /** Empty unless its caller set any. */
  tags: v.record(v.string(), v.string()),
  idempotency_key: v.string(),
  request_id: v.string(),
  created_at: Time,
  uncertain_at: v.nullable(Time),
  settled_at: v.nullable(Time),
});

/** The states to which a list of operations can be limited: also the outcomes of settled ones. */
export const LISTED_STATES = [...OPERATION_STATES, ...OPERATION_OUTCOMES] as const;
const Amount = v.optional(
  v.pipe(v.string(), v.regex(/^\d{1,7}(\.\d{1,9})?$/, 'must be an amount in USD, as "0.05"'), v.description('USD')),
);

/** The filters of every list of operations, of the API and of the operator, besides its times. */
export const OPERATION_FILTERS = {
  state: v.optional(v.picklist(LISTED_STATES, `must be one of ${LISTED_STATES.join(', ')}`)),
  model: v.optional(v.pipe(text(1, 200), v.description('the model or the slot'))),
  tag: v.optional(v.pipe(text(1, 200), v.description('a tag as name=value'))),
  cost_min_usd: Amount,
  cost_max_usd: Amount,
};
type Filters = v.InferOutput<ReturnType<typeof v.object<typeof OPERATION_FILTERS, undefined>>>;

/** Returns the filter of a request for a list of operations. Throws what `costsOf` throws. */
export function operationFilter({ state, model, tag, cost_min_usd: min, cost_max_usd: max }: Filters): OperationFilter {
  return { state, subject: model, tag, ...costsOf(usdIn(min), usdIn(max)) };
}

/**
 * Returns the bounds of a cost, for the filter of a list. Throws `invalid_request` where the least is above the most: nothing is in
 * between, which looks like an answer.
 */
export function costsOf(
  costMin: Nanos | undefined,
  costMax: Nanos | undefined,
): Pick<OperationFilter, 'costMin' | 'costMax'> {
  if (costMin !== undefined && costMax !== undefined && costMin > costMax)
    throw new Refusal('invalid_request', 'The least cost is above the most.');
  return { costMin, costMax };
}

const usdIn = (text: string | undefined): Nanos | undefined => (text === undefined ? undefined : parseUsd(text));

/** An operation in the view of the wallet that paid it, or of its parent. */
const RunOperation = v.omit(OperationRecord, ['price', 'reason', 'idempotency_key']);
export const RunOperations = v.object({ operations: v.array(RunOperation), next_cursor: v.string() });

export function runOperation(operation: Operation): v.InferOutput<typeof RunOperation> {
  const { price: _, reason: __, idempotency_key: ___, ...record } = operationRecord(operation);
  return record;
}

/** Builds the body of an operation. */
export function operationRecord(operation: Operation): v.InferOutput<typeof OperationRecord> {
  return {
    id: operation.id,
    wallet_id: operation.walletId,
    kind: operation.kind,
    subject: operation.subject,
    state: operation.state,
    outcome: operation.outcome,
    settled_by: operation.settledBy,
    hold_usd: formatUsd(operation.hold),
    charge_usd: operation.charge === null ? null : formatUsd(operation.charge),
    price: parseJson(operation.price) as Record<string, unknown>,
    usage: operation.usage === null ? null : (parseJson(operation.usage) as Record<string, unknown>),
    reason: operation.reason,
    tags: operation.tags === null ? {} : (parseJson(operation.tags) as Record<string, string>),
    idempotency_key: operation.idempotencyKey,
    request_id: operation.requestId,
    created_at: operation.createdAt,
    uncertain_at: operation.uncertainAt,
    settled_at: operation.settledAt,
  };
}

/** Renders one line of a wallet's timeline for the operator. */
export function timelineStep(step: TimelineStep) {
  return {
    seq: step.seq,
    at: step.at,
    what: step.what,
    amount_usd: formatUsd(step.amount),
    available_usd: formatUsd(step.available),
    operation_id: step.operationId,
    request_id: step.requestId,
    subject: step.subject,
    usage: step.usage === null ? null : (parseJson(step.usage) as Record<string, unknown>),
    settled_by: step.settledBy,
    reason: step.reason,
  };
}
