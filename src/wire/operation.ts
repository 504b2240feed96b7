import * as v from 'valibot';
import { formatUsd } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { OPERATION_KINDS, OPERATION_OUTCOMES, OPERATION_STATES, SETTLED_BY } from '../db/enums.ts';
import type { Operation } from '../ledger/operation.ts';
import type { TimelineStep } from '../ledger/timeline.ts';
import { Time, Usd } from './parts.ts';

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
