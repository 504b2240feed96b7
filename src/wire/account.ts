import * as v from 'valibot';
import type { Account } from '../ledger/account.ts';
import { Cents } from './parts.ts';

/** Account (interface, section 2). */
export const AccountBody = v.object({
  available_cents: Cents,
  reserved_cents: Cents,
  spent_cents: Cents,
  welcome_credit_cents: Cents,
});

/** Builds the body of an account. */
export function accountBody(account: Account): v.InferOutput<typeof AccountBody> {
  return {
    available_cents: account.availableCents,
    reserved_cents: account.reservedCents,
    spent_cents: account.spentCents,
    welcome_credit_cents: account.welcomeCreditCents,
  };
}
