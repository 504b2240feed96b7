import { findOperationByKey } from '../ledger/operation.ts';
import { available, findWallet, type Wallet } from '../ledger/wallet.ts';
import { formatUsd } from '../money.ts';
import { DONE_EVENT } from '../router/sse.ts';
import type { PaidRequest } from '../spend/spend.ts';
import type { HttpApp } from './endpoint.ts';
import type { EventStream } from './event-stream.ts';

type Asked = Pick<PaidRequest, 'walletId' | 'route' | 'idempotencyKey'>;

/** Returns the headers of a paid answer: its charge, and what its wallet may still spend. Empty if nothing was charged. */
export function paidHeaders(app: Pick<HttpApp, 'ledger'>, asked: Asked): Record<string, string> {
  const { read } = app.ledger;
  const operation = findOperationByKey(read, asked.walletId, asked.route, asked.idempotencyKey);
  if (operation?.charge === null || operation?.charge === undefined) return {};
  const wallet = findWallet(read, asked.walletId) as Wallet;
  return { 'x-purser-cost-usd': formatUsd(operation.charge), 'x-purser-available-usd': formatUsd(available(wallet)) };
}

/** Returns the same as a comment in a stream, whose headers were sent before the charge was known. */
export function paidComment(app: Pick<HttpApp, 'ledger'>, asked: Asked): Buffer {
  const fields = Object.entries(paidHeaders(app, asked)).map(([name, value]) => `${name}=${value}`);
  return Buffer.from(fields.length ? `: ${fields.join(' ')}\n\n` : '');
}

/** Returns a stream of chat completion chunks with `comment` before its end marker, which comes in one piece. */
export function withComment(events: EventStream, comment: () => Buffer): EventStream {
  return {
    ...events,
    write: (bytes) =>
      endsWithMarker(bytes)
        ? events.write(Buffer.concat([bytes.subarray(0, -DONE_EVENT.length), comment(), DONE_EVENT]))
        : events.write(bytes),
  };
}

/** Returns whether the last event is the end marker, and not another one that ends with the same bytes. */
function endsWithMarker(bytes: Buffer): boolean {
  if (!bytes.subarray(-DONE_EVENT.length).equals(DONE_EVENT)) return false;
  const before = bytes.subarray(0, -DONE_EVENT.length);
  return before.length === 0 || /\n\r?\n$/.test(before.toString('latin1', before.length - 3));
}

/** The shares of a budget at which Claude Code warns its user. */
const THRESHOLDS = [0.95, 0.75];

/**
 * Returns how much of its budget a wallet has used, of what it has for the current period where it is refilled, in the headers in which Anthropic tells of a plan's limits. Claude
 * Code warns its user by them.
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
