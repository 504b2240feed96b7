/**
 * The values of the columns that have a list of them. This file imports nothing, because the code that reads settings needs some of
 * them, but no database.
 */

export const KEY_KINDS = ['account', 'operator'] as const;
/** `link` is a one-time link, which becomes a session of the operator. */
export const SESSION_KINDS = ['link', 'operator', 'account'] as const;
export const FUNDING_KINDS = ['credit', 'debit', 'welcome', 'checkout', 'clawback', 'reinstatement'] as const;
export const CHECKOUT_STATUSES = [
  'creating',
  'open',
  'pending',
  'paid',
  'expired',
  'failed',
  'refused',
  'mismatch',
  'abandoned',
] as const;
export const REVERSAL_KINDS = ['refund', 'dispute'] as const;
export const REVERSAL_STATES = ['inquiry', 'taken', 'lost', 'returned'] as const;
export const WALLET_STATUSES = ['active', 'closing', 'expired', 'closed'] as const;
export const CLOSE_REASONS = ['account_request', 'agent_request', 'expired', 'operator'] as const;
export const CHANGE_KINDS = ['raise', 'lower', 'extend', 'refill'] as const;
export const OPERATION_KINDS = ['chat', 'compute_create', 'compute_extend', 'snapshot'] as const;
export const OPERATION_STATES = ['reserved', 'uncertain', 'settled'] as const;
export const OPERATION_OUTCOMES = ['charged', 'released'] as const;
/**
 * The source of an outcome: the answer to the call, the cancellation of the call when its clients left, the policy, or the
 * operator.
 */
export const SETTLED_BY = ['answer', 'cancelled', 'policy', 'operator'] as const;
/** The statuses of a resource, as the API shows them. */
export const RESOURCE_STATUSES = [
  'provisioning',
  'running',
  'paused',
  'stopping',
  'stopped',
  'failed',
  'unknown',
] as const;
/** The steps of a lease to `paused` and from it, which the API shows as that. */
export const PAUSE_STEPS = ['pausing', 'resuming'] as const;
/** `deleted` and `failed` (it was never taken) are final. */
export const SNAPSHOT_STATUSES = ['taking', 'ready', 'deleting', 'deleted', 'failed'] as const;
export const END_REASONS = [
  'requested',
  'lease_expired',
  'wallet_closed',
  'provider_ended',
  'create_failed',
  'disk_exceeded',
] as const;
/**
 * The source of a machine's processor time: its control group, or its own processes one by one; `none` where neither can be
 * distinguished from the rest of the host.
 */
export const CPU_SOURCES = ['cgroup', 'processes', 'none'] as const;

/** The types of events for receivers (docs/events.md). */
export const EVENT_TYPES = [
  'wallet.threshold',
  'wallet.closed',
  'wallet.refilled',
  'account.low',
  'operation.uncertain',
  'lease.ended',
  'lease.trouble',
  'upstream.down',
  'upstream.up',
  'disk.low',
  'books.moved',
  'frozen',
  'test',
] as const;
export type EventType = (typeof EVENT_TYPES)[number];
