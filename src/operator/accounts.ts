import * as v from 'valibot';
import { linkIdentity } from '../access/sessions.ts';
import {
  type Account,
  accountOf,
  type FundingOrder,
  fundAccount,
  listAccounts,
  openAccount,
  setSuspended,
} from '../ledger/account.ts';
import { accountBody } from '../wire/account.ts';
import { command, Id, NOTHING, type OperatorApp } from './command.ts';

const cents = v.pipe(v.number(), v.safeInteger());

/** The account body `{id, name, available_cents, reserved_cents, spent_cents, welcome_credit_cents}` (design, section 4), and its state. */
function record(account: Account) {
  return {
    id: account.id,
    name: account.name,
    ...accountBody(account),
    owed_cents: account.owedCents,
    created_at: account.createdAt,
    suspended_at: account.suspendedAt,
    disputed_at: account.disputedAt,
  };
}

async function fund(app: OperatorApp, order: FundingOrder): Promise<Account> {
  const now = app.clock.now();
  const account = await app.ledger.write((tx) => fundAccount(tx, order, now));
  app.events.funded(account, order.kind, order.amountCents);
  return account;
}

export const accounts = {
  'account.create': command(
    v.strictObject({ name: v.string(), creditCents: v.optional(cents) }),
    async (app, { name, creditCents }) => {
      const now = app.clock.now();
      const account = await app.ledger.write((tx) => {
        const { id } = openAccount(tx, name, now);
        if (!creditCents) return accountOf(tx, id);
        return fundAccount(
          tx,
          { accountId: id, kind: 'credit', amountCents: creditCents, reason: 'opening credit', key: null },
          now,
        );
      });
      return record(account);
    },
  ),
  'account.list': command(NOTHING, (app) => ({ accounts: listAccounts(app.ledger.read).map(record) })),
  'account.show': command(v.strictObject({ id: Id }), (app, { id }) => record(accountOf(app.ledger.read, id))),
  'account.credit': command(
    v.strictObject({ id: Id, cents, reason: v.optional(v.string()), key: v.optional(Id) }),
    async (app, { id, cents: amountCents, reason = null, key = null }) =>
      record(await fund(app, { accountId: id, kind: 'credit', amountCents, reason, key })),
  ),
  'account.debit': command(
    v.strictObject({ id: Id, cents, reason: Id }),
    async (app, { id, cents: amountCents, reason }) =>
      record(await fund(app, { accountId: id, kind: 'debit', amountCents, reason, key: null })),
  ),
  'account.link': command(v.strictObject({ id: Id, issuer: Id, subject: Id }), async (app, { id, issuer, subject }) => {
    const now = app.clock.now();
    const account = await app.ledger.write((tx) => linkIdentity(tx, id, { issuer, subject }, now));
    return { ...record(account), identity: { issuer, subject } };
  }),
  'account.suspend': command(v.strictObject({ id: Id }), async (app, { id }) => {
    const now = app.clock.now();
    return record(await app.ledger.write((tx) => setSuspended(tx, id, now)));
  }),
  'account.resume': command(v.strictObject({ id: Id }), async (app, { id }) =>
    record(await app.ledger.write((tx) => setSuspended(tx, id, null))),
  ),
};
