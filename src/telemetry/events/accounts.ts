import type { Passkey } from '../../access/passkeys.ts';
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
  operatorSignedIn(by: 'issuer' | 'passkey', subject: string | null, passkey?: string) {
    log.info({ event: 'operator.signed_in', by, subject, passkey }, 'an operator signed in to the page');
  },
  passkeyAdded({ id, name, origin }: Passkey) {
    log.info({ event: 'passkey.added', passkey: id, name, origin }, 'an operator made a passkey');
  },
  passkeyRemoved({ id, name, origin }: Passkey) {
    log.info({ event: 'passkey.removed', passkey: id, name, origin }, 'a passkey was removed');
  },
  passkeyCopied({ id, name, useCount }: Passkey, shown: number) {
    log.warn(
      { event: 'passkey.copied', passkey: id, name, counted: useCount, shown },
      'a passkey has counted fewer uses than it had before: it may have been copied, and was refused; remove it if it was',
    );
  },
  funded(account: Account, kind: FundingOrder['kind'], cents: number) {
    log.info(
      { event: 'account.funded', account: account.id, kind, cents, available_cents: account.availableCents },
      'account funded',
    );
  },
});
