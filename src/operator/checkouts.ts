import * as v from 'valibot';
import { type Checkout, findCheckout, listCheckouts, troubledCheckouts } from '../ledger/checkout.ts';
import { Refusal } from '../refusal.ts';
import { command, Id } from './command.ts';

/** A checkout in the operator's view, without the URL of its payment page. */
const record = (it: Checkout) => ({
  id: it.id,
  account_id: it.accountId,
  amount_cents: it.amountCents,
  status: it.status,
  taken_cents: it.takenCents,
  session_id: it.sessionId,
  payment_intent: it.paymentIntent,
  created_at: it.createdAt,
  expires_at: it.expiresAt,
  paid_at: it.paidAt,
  due_at: it.dueAt,
  last_error: it.lastError,
});

export const checkouts = {
  'checkout.list': command(v.strictObject({ trouble: v.optional(v.boolean(), false) }), (app, { trouble }) => ({
    checkouts: (trouble ? troubledCheckouts(app.ledger.read) : listCheckouts(app.ledger.read)).map(record),
  })),
  'checkout.show': command(v.strictObject({ id: Id }), (app, { id }) => {
    const checkout = findCheckout(app.ledger.read, id);
    if (!checkout) throw new Refusal('not_found', `There is no checkout ${id}.`);
    return record(checkout);
  }),
};
