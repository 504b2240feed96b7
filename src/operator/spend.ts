import * as v from 'valibot';
import { Refusal } from '../base/refusal.ts';
import { findAccount } from '../ledger/account.ts';
import { SPEND_BY, type SpendScope, sumSpending } from '../ledger/spending.ts';
import { findWallet } from '../ledger/wallet.ts';
import { periodOf } from '../wire/period.ts';
import { spendBody } from '../wire/spend.ts';
import { command, Id, type OperatorApp } from './command.ts';
import { accountWith, walletWith } from './find.ts';

const Time = v.optional(v.pipe(v.number(), v.safeInteger(), v.minValue(0)));

export const spend = {
  /** Sums the charges. `names` are the names of the wallets or accounts that the rows belong to. */
  spend: command(
    v.strictObject({
      by: v.optional(v.picklist(SPEND_BY, `must be one of ${SPEND_BY.join(', ')}`), 'model'),
      since: Time,
      until: Time,
      wallet: v.optional(Id),
      account: v.optional(Id),
    }),
    async (app, { wallet, account, ...order }) => {
      const scope = scopeOf(app, wallet, account);
      const body = spendBody(await sumSpending(app.ledger.read, { ...order, ...periodOf(order), scope }));
      const nameOf = (id: string) => {
        if (order.by === 'wallet') return findWallet(app.ledger.read, id)?.name;
        return order.by === 'account' ? findAccount(app.ledger.read, id)?.name : undefined;
      };
      const names = Object.fromEntries(body.rows.map(({ key }) => [key, nameOf(key) ?? null]));
      return { ...body, names };
    },
  ),
};

function scopeOf({ ledger }: OperatorApp, wallet: string | undefined, account: string | undefined): SpendScope {
  if (wallet !== undefined && account !== undefined)
    throw new Refusal('invalid_request', 'Name a wallet or an account, not both.');
  if (wallet !== undefined) return { wallet: walletWith(ledger.read, wallet).id };
  return account === undefined ? undefined : { account: accountWith(ledger.read, account).id };
}
