import type { Account, FundingOrder } from '../../ledger/account.ts';
import type { Sinks } from '../sinks.ts';

/** The events of accounts. */
export const accountEvents = ({ log }: Sinks) => ({
  signedUp(account: Account, identity: { issuer: string; subject: string }) {
    log.info(
      {
        event: 'account.signed_up',
        account: account.id,
        ...identity,
        welcome_credit_cents: account.welcomeCreditCents,
      },
      'a first sign-in opened an account',
    );
  },
  operatorSignedIn(by: 'issuer', subject: string) {
    log.info({ event: 'operator.signed_in', by, subject }, 'an operator signed in to the page');
  },
  funded(account: Account, kind: FundingOrder['kind'], cents: number) {
    log.info(
      { event: 'account.funded', account: account.id, kind, cents, available_cents: account.availableCents },
      'account funded',
    );
  },
});
