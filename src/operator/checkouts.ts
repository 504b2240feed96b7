import * as v from 'valibot';
import { CHECKOUT_STATUSES } from '../db/enums.ts';
import { type Checkout, countCheckouts, listCheckouts } from '../ledger/checkout.ts';
import { command, Id, PAGE } from './command.ts';
import { accountWith, checkoutWith, pageAfter } from './find.ts';

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
  'checkout.list': command(
    v.strictObject({
      trouble: v.optional(v.boolean(), false),
      account: v.optional(Id),
      status: v.optional(v.picklist(CHECKOUT_STATUSES, `must be one of ${CHECKOUT_STATUSES.join(', ')}`)),
      ...PAGE,
    }),
    ({ ledger: { read } }, { account, before, limit, ...rest }) => {
      const filter = { ...rest, accountId: account === undefined ? undefined : accountWith(read, account).id };
      return {
        checkouts: listCheckouts(read, filter, pageAfter(read, { before, limit }, checkoutWith)).map(record),
        total: countCheckouts(read, filter),
      };
    },
  ),
  'checkout.show': command(v.strictObject({ id: Id }), (app, { id }) => record(checkoutWith(app.ledger.read, id))),
};
