import * as v from 'valibot';
import { CLOSE_REASONS, WALLET_STATUSES } from '../db/schema.ts';
import { available, statusAt, type Wallet } from '../ledger/wallet.ts';
import { formatUsd, nanosToCentsDown, nanosToCentsUp, ZERO } from '../money.ts';
import { Cents, name, Time, Usd, wholeNumber } from './parts.ts';

const DAY_SECONDS = 86_400;
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

const sensitive = v.pipe(v.string(), v.description('sensitive wallet credential; never log it'));

/** Allocation (interface, section 2). */
export const Allocation = v.object({
  id: v.string(),
  status: v.picklist(WALLET_STATUSES),
  agent_token: sensitive,
  env: v.strictObject({ SVC_BROKER_URL: v.pipe(v.string(), v.url()), SVC_BROKER_TOKEN: sensitive }),
});

export const WalletToken = v.object({ agent_token: sensitive });

/** Wallet record (design, section 3). */
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
  available_usd: Usd,
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

export function walletRecord(wallet: Wallet, now: number): v.InferOutput<typeof WalletRecord> {
  const status = statusAt(wallet, now);
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
    available_usd: formatUsd(status === 'closed' ? ZERO : available(wallet)),
    created_at: wallet.createdAt,
    expires_at: wallet.expiresAt,
    closed_at: wallet.closedAt,
    close_reason: wallet.closeReason ?? (status === 'expired' ? 'expired' : null),
    cleanup: {
      pending: status === 'closing' || status === 'expired',
      attempts: wallet.cleanupAttempts,
      last_error: wallet.cleanupError,
    },
    token_hint: wallet.tokenHint,
  };
}

export function allocation(
  wallet: Wallet,
  token: string,
  baseUrl: string,
  now: number,
): v.InferOutput<typeof Allocation> {
  return {
    id: wallet.id,
    status: statusAt(wallet, now),
    agent_token: token,
    env: { SVC_BROKER_URL: baseUrl, SVC_BROKER_TOKEN: token },
  };
}
