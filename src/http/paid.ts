import { formatUsd } from '../base/money.ts';
import { reducedToOf } from '../chat/terms.ts';
import type { Reader } from '../db/handle.ts';
import { findOperationByKey, findPaid } from '../ledger/operation.ts';
import type { Wallet } from '../ledger/wallet.ts';
import type { Bounded } from '../router/bound.ts';
import { DONE_EVENT } from '../router/sse.ts';
import type { Paid, PaidRequest } from '../spend/spend.ts';
import type { HttpApp } from './endpoint.ts';
import type { EventStream } from './event-stream.ts';

type LedgerReader = Pick<HttpApp, 'ledger'>;
/** The identity of a request's operation. */
export type OperationKey = Pick<PaidRequest, 'walletId' | 'route' | 'idempotencyKey'>;

/** The headers of an answer that was charged, for the API document. */
export const PAID_HEADERS = {
  'x-purser-cost-usd': 'What it cost; left out while nothing is charged',
  'x-purser-available-usd': 'What the wallet may still spend; left out while nothing is charged',
};
export const CHAT_HEADERS = {
  ...PAID_HEADERS,
  'x-purser-max-tokens': 'How long the answer could be at most, where its limit was cut to what the wallet can hold',
};

/**
 * Returns the headers of a paid answer: its charge, and the amount that its wallet may still spend. Looks them up unless
 * they are known. Empty if nothing was charged.
 */
export function paidHeaders(
  { ledger }: LedgerReader,
  { walletId, route, idempotencyKey }: OperationKey,
  known?: Paid | undefined,
): Record<string, string> {
  const paid = known ?? findPaid(ledger.read, walletId, route, idempotencyKey);
  if (!paid || paid.charge === null) return {};
  return {
    'x-purser-cost-usd': formatUsd(paid.charge),
    'x-purser-available-usd': formatUsd(paid.available),
  };
}

/**
 * Returns the header of the output limit if it was cut to fit. A replay is not bounded again: its limit is read from its
 * operation.
 */
export function limitHeaders(
  { ledger }: LedgerReader,
  operation: OperationKey,
  bounded: Pick<Bounded, 'reducedTo'> | undefined,
) {
  const tokens = bounded ? bounded.reducedTo() : reducedToBefore(ledger.read, operation);
  return tokens === undefined ? {} : { 'x-purser-max-tokens': String(tokens) };
}

function reducedToBefore(read: Reader, { walletId, route, idempotencyKey }: OperationKey): number | undefined {
  const operation = findOperationByKey(read, walletId, route, idempotencyKey);
  return operation && reducedToOf(operation);
}

/** Returns the charge as a comment for a stream, whose headers were sent before the charge was known. */
export function paidComment(app: LedgerReader, operation: OperationKey): Buffer {
  const fields = Object.entries(paidHeaders(app, operation)).map(([name, value]) => `${name}=${value}`);
  return Buffer.from(fields.length ? `: ${fields.join(' ')}\n\n` : '');
}

/** Returns a stream of chat completion chunks that writes `comment` before the end marker, which must come in one piece. */
export function withComment(events: EventStream, comment: () => Buffer): EventStream {
  return {
    ...events,
    write: (bytes) =>
      endsWithMarker(bytes)
        ? events.write(Buffer.concat([bytes.subarray(0, -DONE_EVENT.length), comment(), DONE_EVENT]))
        : events.write(bytes),
  };
}

/** Returns whether the last event is the end marker, and not another event that ends with the same bytes. */
export function endsWithMarker(bytes: Buffer): boolean {
  if (!bytes.subarray(-DONE_EVENT.length).equals(DONE_EVENT)) return false;
  const before = bytes.subarray(0, -DONE_EVENT.length);
  return before.length === 0 || /\n\r?\n$/.test(before.toString('latin1', before.length - 3));
}

/** The shares of a budget at which Claude Code warns its user. */
const THRESHOLDS = [0.95, 0.75];

/**
 * Returns the used share of a wallet's budget, or of the current period's if it is refilled, in the headers that Anthropic
 * uses for the limits of a plan. Claude Code warns its user by them.
 */
export function planHeaders(wallet: Wallet): Record<string, string> {
  const { budget, spent, periodSpent, delegated, expiresAt, refillAt } = wallet;
  const whole = budget - periodSpent;
  const used = whole > 0n ? Number(((spent - periodSpent + delegated) * 10_000n) / whole) / 10_000 : 1;
  const reset = refillAt ?? expiresAt;
  const threshold = THRESHOLDS.find((it) => used >= it);
  const name = 'anthropic-ratelimit-unified';
  return {
    [`${name}-status`]: threshold === undefined ? 'allowed' : 'allowed_warning',
    [`${name}-7d-utilization`]: String(used),
    ...(reset === null ? {} : { [`${name}-reset`]: String(reset), [`${name}-7d-reset`]: String(reset) }),
    ...(threshold === undefined
      ? {}
      : { [`${name}-representative-claim`]: 'seven_day', [`${name}-7d-surpassed-threshold`]: String(threshold) }),
  };
}
