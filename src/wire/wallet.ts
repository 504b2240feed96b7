import * as v from 'valibot';
import { isZone, PERIODS } from '../base/calendar.ts';
import { centsToNanos, formatUsd, type Nanos, nanosToCentsDown, nanosToCentsUp, parseUsd } from '../base/money.ts';
import { CLOSE_REASONS, WALLET_STATUSES } from '../db/enums.ts';
import type { Reader } from '../db/handle.ts';
import { type Refill, refillOf } from '../ledger/refill.ts';
import { endOf, frozenAncestor, shownAvailable, statusAt, type Wallet } from '../ledger/wallet.ts';
import { Cents, checked, name, Time, text, Usd, wholeNumber } from './parts.ts';

const DAY_SECONDS = 86_400;
/** Maximum budget of a wallet: USD 10,000, the same as for the account's. */
const BUDGET_MAX = centsToNanos(1_000_000);
const EXPIRES_RULE = 'must be 0 (never) or a whole number of seconds from 60 to 2592000';

/** Wallet request (interface, section 2). 1 to 59 seconds are refused (design 2.4). */
export const WalletRequest = v.strictObject({
  name: name(),
  budget_cents: wholeNumber(100, 1_000_000),
  expires_in_seconds: v.optional(
    v.pipe(
      v.number(EXPIRES_RULE),
      v.safeInteger(EXPIRES_RULE),
      v.minValue(0, EXPIRES_RULE),
      v.maxValue(2_592_000, EXPIRES_RULE),
      v.check((seconds) => seconds === 0 || seconds >= 60, EXPIRES_RULE),
      v.description('seconds until the wallet closes by itself, 60 to 2592000; 0 means never'),
    ),
    DAY_SECONDS,
  ),
});

/** A change of a budget, in cents; below 0 lowers it. */
export const BudgetRequest = v.strictObject({
  add_cents: v.pipe(
    wholeNumber(-1_000_000, 1_000_000),
    checked((cents: number) => cents !== 0, 'must not be 0', { not: { const: 0 } }),
  ),
});

/** Seconds by which an expiry moves. */
export const ExtendRequest = v.strictObject({ seconds: wholeNumber(1, 31_536_000) });

export const FreezeRequest = v.strictObject({ reason: v.optional(text(1, 500)) });

const CARRY_RULE = 'must be "none", "all" or a whole number of cents from 0 to 1000000';
const zone = checked(isZone, 'must be the name of a time zone, as "Europe/Berlin"', { description: 'IANA time zone' });

/** A refill (design, section 13). */
export const RefillRequest = v.strictObject({
  cents: wholeNumber(1, 1_000_000),
  every: v.picklist(PERIODS),
  zone: v.optional(v.pipe(text(1, 64), zone), 'UTC'),
  carry: v.optional(v.union([v.picklist(['none', 'all']), wholeNumber(0, 1_000_000)], CARRY_RULE), 'none'),
});

const USD_RULE = 'must be an amount in USD, as "1.50", above 0 and with at most nine decimals';

/** Request for a child wallet: its budget is an exact decimal, as a string or a number. */
export const ChildRequest = v.strictObject({
  name: name(),
  budget_usd: v.pipe(
    v.union([v.string(), v.pipe(v.number(), v.transform(String))], USD_RULE),
    v.rawTransform(({ dataset, addIssue, NEVER }): Nanos => {
      const amount = tryParseUsd(dataset.value);
      if (amount !== undefined && amount > 0n && amount <= BUDGET_MAX) return amount;
      addIssue({ message: USD_RULE });
      return NEVER;
    }),
  ),
  expires_in_seconds: WalletRequest.entries.expires_in_seconds,
});

function tryParseUsd(text: string): Nanos | undefined {
  try {
    return parseUsd(text);
  } catch {
    return undefined;
  }
}

const sensitive = v.pipe(v.string(), v.description('sensitive wallet credential; never log it'));

/** Allocation (interface, section 2). */
export const Allocation = v.object({
  id: v.string(),
  status: v.picklist(WALLET_STATUSES),
  agent_token: sensitive,
  env: v.strictObject({ SVC_BROKER_URL: v.pipe(v.string(), v.url()), SVC_BROKER_TOKEN: sensitive }),
});

export const WalletToken = v.object({ agent_token: sensitive });

const RefillRecord = v.object({
  cents: Cents,
  every: v.picklist(PERIODS),
  zone: v.string(),
  carry: v.union([v.picklist(['none', 'all']), Cents]),
  next_at: Time,
});

/** Wallet record (design, sections 3 and 13). */
export const WalletRecord = v.object({
  id: v.string(),
  name: v.string(),
  status: v.picklist(WALLET_STATUSES),
  budget_cents: Cents,
  used_cents: v.pipe(Cents, v.description('US cents, rounded up')),
  returned_cents: v.nullable(Cents),
  budget_usd: Usd,
  used_usd: Usd,
  held_usd: Usd,
  delegated_usd: v.pipe(Usd, v.description('the budgets of its open children')),
  available_usd: Usd,
  parent_id: v.nullable(v.string()),
  frozen_at: v.nullable(v.pipe(Time, v.description('since when it, or the nearest frozen wallet above it, is frozen'))),
  freeze_reason: v.nullable(v.string()),
  refill: v.nullable(RefillRecord),
  created_at: Time,
  expires_at: v.nullable(Time),
  closed_at: v.nullable(Time),
  close_reason: v.nullable(v.picklist(CLOSE_REASONS)),
  cleanup: v.object({
    pending: v.boolean(),
    attempts: v.pipe(v.number(), v.integer()),
    last_error: v.nullable(v.string()),
  }),
  token_hint: v.string(),
});
export const WalletList = v.object({ wallets: v.array(WalletRecord) });

/** Answer of POST /v1/run/close. */
export const RunClosed = v.object({
  wallet_id: v.string(),
  status: v.picklist(WALLET_STATUSES),
  cleanup: WalletRecord.entries.cleanup,
});

/** Builds the body of a wallet at `now` (Unix seconds), without its token. */
export function walletRecord(read: Reader, wallet: Wallet, now: number): v.InferOutput<typeof WalletRecord> {
  const frozen = frozenAncestor(read, wallet);
  const status = statusAt(read, wallet, now);
  return {
    id: wallet.id,
    name: wallet.name,
    status,
    budget_cents: nanosToCentsDown(wallet.budget),
    used_cents: nanosToCentsUp(wallet.spent),
    returned_cents: wallet.returnedCents,
    budget_usd: formatUsd(wallet.budget),
    used_usd: formatUsd(wallet.spent),
    held_usd: formatUsd(wallet.held),
    delegated_usd: formatUsd(wallet.delegated),
    available_usd: formatUsd(shownAvailable(wallet)),
    parent_id: wallet.parentId,
    frozen_at: frozen?.frozenAt ?? null,
    freeze_reason: frozen?.freezeReason ?? null,
    refill: refillRecord(refillOf(wallet), wallet.refillAt),
    created_at: wallet.createdAt,
    expires_at: wallet.expiresAt,
    closed_at: wallet.closedAt,
    close_reason: (wallet.status === 'active' ? endOf(read, wallet, now)?.closeReason : wallet.closeReason) ?? null,
    cleanup: {
      pending: status === 'closing' || status === 'expired',
      attempts: wallet.cleanupAttempts,
      last_error: wallet.cleanupError,
    },
    token_hint: wallet.tokenHint,
  };
}

function refillRecord(refill: Refill | null, at: number | null): v.InferOutput<typeof RefillRecord> | null {
  return refill && at !== null ? { ...refill, next_at: at } : null;
}

/** Builds the body of the answer to an opening: the token, and the environment that an agent needs. */
export function allocation(wallet: Wallet, token: string, baseUrl: string): v.InferOutput<typeof Allocation> {
  return {
    id: wallet.id,
    status: wallet.status,
    agent_token: token,
    env: { SVC_BROKER_URL: baseUrl, SVC_BROKER_TOKEN: token },
  };
}
