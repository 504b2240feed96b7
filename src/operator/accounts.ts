import * as v from 'valibot';
import { endBrowserSessionsOf, linkIdentity } from '../access/writes.ts';
import { formatUsd } from '../base/money.ts';
import {
  type Account,
  type Funding,
  type FundingOrder,
  fundAccount,
  listAccounts,
  listFundings,
  openAccount,
  suspendAccount,
} from '../ledger/account.ts';
import { type AccountMoney, moneyOf, moneyOfEach } from '../ledger/figures.ts';
import { accountBody } from '../wire/account.ts';
import { command, Id, NOTHING, type OperatorApp } from './command.ts';
import { accountWith } from './find.ts';

const cents = v.pipe(v.number(), v.safeInteger());

/**
 * The account body `{id, name, available_cents, reserved_cents, spent_cents, welcome_credit_cents}` (design, section 4), and
 * its state. `spent_cents` is that of the interface, of closed wallets; `spent_usd` is that of all.
 */
function record(account: Account, money: AccountMoney) {
  return {
    id: account.id,
    name: account.name,
    ...accountBody(account),
    spent_usd: formatUsd(money.spent),
    in_wallets_usd: formatUsd(money.inWallets),
    owed_cents: account.owedCents,
    created_at: account.createdAt,
    suspended_at: account.suspendedAt,
    disputed_at: account.disputedAt,
  };
}

const recordOf = ({ ledger }: OperatorApp, account: Account) => record(account, moneyOf(ledger.read, account));

const OUT: ReadonlySet<Funding['kind']> = new Set(['debit', 'clawback']);

const fundingLine = (it: Funding) => ({
  id: it.id,
  at: it.createdAt,
  kind: it.kind,
  amount_cents: OUT.has(it.kind) ? -it.amountCents : it.amountCents,
  reason: it.reason,
  key: it.key,
  session_id: it.sessionId,
});
/** A line of an account's statement. */
export type StatementLine = ReturnType<typeof fundingLine>;

async function fund(app: OperatorApp, order: FundingOrder): Promise<Account> {
  const now = app.clock.now();
  const { account, isNew } = await app.ledger.write(fundAccount, { order, now });
  if (isNew) app.events.funded(account, order.kind, order.amountCents);
  return account;
}

export const accounts = {
  'account.create': command(
    v.strictObject({ name: v.string(), creditCents: v.optional(cents) }),
    async (app, { name, creditCents = 0 }) => {
      const account = await app.ledger.write(openAccount, { name, creditCents, now: app.clock.now() });
      if (creditCents > 0) app.events.funded(account, 'credit', creditCents);
      return recordOf(app, account);
    },
  ),
  'account.list': command(NOTHING, (app) => {
    const moneyOfAccount = moneyOfEach(app.ledger.read);
    return { accounts: listAccounts(app.ledger.read).map((it) => record(it, moneyOfAccount(it))) };
  }),
  /** Lists every credit, debit, checkout and payment taken back, oldest first, with its reason. */
  'account.statement': command(v.strictObject({ id: Id }), (app, { id }) => {
    const account = accountWith(app.ledger.read, id);
    return { account: recordOf(app, account), lines: listFundings(app.ledger.read, account.id).map(fundingLine) };
  }),
  'account.show': command(v.strictObject({ id: Id }), (app, { id }) => recordOf(app, accountWith(app.ledger.read, id))),
  'account.credit': command(
    v.strictObject({ id: Id, cents, reason: v.optional(v.string()), key: v.optional(Id) }),
    async (app, { id, cents: amountCents, reason = null, key = null }) =>
      recordOf(
        app,
        await fund(app, { accountId: accountWith(app.ledger.read, id).id, kind: 'credit', amountCents, reason, key }),
      ),
  ),
  'account.debit': command(
    v.strictObject({ id: Id, cents, reason: Id, key: v.optional(Id) }),
    async (app, { id, cents: amountCents, reason, key = null }) =>
      recordOf(
        app,
        await fund(app, { accountId: accountWith(app.ledger.read, id).id, kind: 'debit', amountCents, reason, key }),
      ),
  ),
  'account.link': command(v.strictObject({ id: Id, issuer: Id, subject: Id }), async (app, { id, issuer, subject }) => {
    const now = app.clock.now();
    const accountId = accountWith(app.ledger.read, id).id;
    const identity = { issuer, subject };
    const account = await app.ledger.write(linkIdentity, { accountId, identity, now });
    return { ...recordOf(app, account), identity };
  }),
  'account.suspend': command(v.strictObject({ id: Id }), async (app, { id }) => {
    const at = app.clock.now();
    return recordOf(app, await app.ledger.write(suspendAccount, { id: accountWith(app.ledger.read, id).id, at }));
  }),
  /** Ends every session of the account on the page. Its keys stay valid, and a new sign-in gets a new session. */
  'account.sign-out': command(v.strictObject({ id: Id }), async (app, { id }) => {
    const { id: accountId } = accountWith(app.ledger.read, id);
    return { id: accountId, sessions_ended: await app.ledger.write(endBrowserSessionsOf, { accountId }) };
  }),
  'account.resume': command(v.strictObject({ id: Id }), async (app, { id }) =>
    recordOf(app, await app.ledger.write(suspendAccount, { id: accountWith(app.ledger.read, id).id, at: null })),
  ),
};
