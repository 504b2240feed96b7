import * as v from 'valibot';
import { formatUsd } from '../base/money.ts';
import { OPERATION_KINDS, WALLET_STATUSES } from '../db/enums.ts';
import type { Reader } from '../db/handle.ts';
import type { Operation } from '../ledger/operation.ts';
import type { Wallet } from '../ledger/wallet.ts';
import { Time, Usd } from './parts.ts';
import { WalletRecord, walletRecord } from './wallet.ts';

/** Budget (design, section 3). */
export const Budget = v.object({
  wallet_id: v.string(),
  status: v.picklist(WALLET_STATUSES),
  budget_usd: Usd,
  used_usd: Usd,
  held_usd: Usd,
  delegated_usd: v.pipe(Usd, v.description('the budgets of its open child wallets')),
  available_usd: Usd,
  frozen_at: WalletRecord.entries.frozen_at,
  expires_at: v.nullable(Time),
  holds: v.array(
    v.object({
      id: v.string(),
      kind: v.picklist(OPERATION_KINDS),
      amount_usd: Usd,
      state: v.picklist(['reserved', 'uncertain']),
      resource_id: v.nullable(v.string()),
      created_at: Time,
    }),
  ),
});

/** Builds the body of the budget of a wallet with its `open` operations, at `now` (Unix seconds). */
export function budget(
  read: Reader,
  wallet: Wallet,
  open: readonly Operation[],
  now: number,
): v.InferOutput<typeof Budget> {
  const { id, status, budget_usd, used_usd, held_usd, delegated_usd, available_usd, frozen_at, expires_at } =
    walletRecord(read, wallet, now);
  return {
    wallet_id: id,
    status,
    budget_usd,
    used_usd,
    held_usd,
    delegated_usd,
    available_usd,
    frozen_at,
    expires_at,
    holds: open.map((operation) => ({
      id: operation.id,
      kind: operation.kind,
      amount_usd: formatUsd(operation.hold),
      state: operation.state === 'uncertain' ? 'uncertain' : 'reserved',
      resource_id: operation.resourceId,
      created_at: operation.createdAt,
    })),
  };
}
