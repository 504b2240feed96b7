import { accountOf } from '../../ledger/account.ts';
import { AccountBody, accountBody } from '../../wire/account.ts';
import { endpoint } from '../endpoint.ts';

export const readAccount = endpoint({
  summary: 'Read the account’s credit',
  scope: 'account',
  answer: AccountBody,
  example: { answer: { available_cents: 4500, reserved_cents: 500, spent_cents: 0, welcome_credit_cents: 0 } },
  run: (app, { principal }) => ({ body: accountBody(accountOf(app.ledger.read, principal.accountId)) }),
});
