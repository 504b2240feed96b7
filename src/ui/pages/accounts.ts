import { countBrowserSessionsOf } from '../../access/browser-sessions.ts';
import { Refusal } from '../../base/refusal.ts';
import { type Account, accountOf, findAccount } from '../../ledger/account.ts';
import { type AccountMoney, moneyOf } from '../../ledger/figures.ts';
import { countWallets, listWallets } from '../../ledger/wallet.ts';
import type { StatementLine } from '../../operator/accounts.ts';
import { type Html, html } from '../html.ts';
import { below, type Page } from '../layout.ts';
import type { Figures } from '../live.ts';
import {
  badge,
  buttonLink,
  card,
  cents,
  count,
  dollars,
  facts,
  filters,
  form,
  id,
  link,
  money,
  named,
  outside,
  pagesOf,
  plural,
  table,
} from '../parts.ts';
import { type BarPart, barShapes, moneyBar } from '../pictures.ts';
import type { Go } from '../sign-in.ts';
import { ago, when } from '../times.ts';
import { run, type Visit } from '../visit.ts';
import { keysOf, keyTable, newKeyForm, newKeyPage, revokePage } from './keys.ts';
import { centsIn, walletTable } from './wallets.ts';

const PAGE_COUNT = 100;
const WALLET_COUNT = 15;
const LINE_COUNT = 50;

/** Returns the parts of an account's money. */
export function partsOf({ spent, inWallets, available }: AccountMoney): BarPart[] {
  return [
    { name: 'spent', amount: spent, tone: 'spent', key: 'account.spent' },
    { name: 'in wallets', amount: inWallets, tone: 'reserved', key: 'account.in_wallets' },
    { name: 'available', amount: available, tone: 'free', key: 'account.available' },
  ];
}

const stateOf = (it: { suspended_at: number | null; disputed_at: number | null }): Html =>
  it.suspended_at !== null
    ? badge('suspended', 'warn')
    : it.disputed_at !== null
      ? badge('disputed', 'warn')
      : badge('active', 'good');

/** Shows all accounts, with the spending of their open wallets. */
export async function listPage(visit: Visit): Promise<Page> {
  const { query } = visit;
  const { accounts } = await run(visit, 'account.list', {});
  const wanted = (query.get('name') ?? '').toLowerCase();
  const matching = accounts
    .filter((it) => it.name.toLowerCase().includes(wanted))
    .filter((it) => query.get('state') !== 'suspended' || it.suspended_at !== null);
  const { shown, pages } = pagesOf(visit, 'accounts', matching, PAGE_COUNT, ['First', 'More']);
  const rows = shown.map((it) => [
    link(`/accounts/${it.id}`, named(it.id, it.name)),
    stateOf(it),
    cents(it.available_cents),
    money(it.in_wallets_usd),
    money(it.spent_usd),
  ]);
  const list = table(
    'Accounts',
    [
      { label: 'Name' },
      { label: 'State' },
      { label: 'Available', kind: 'money' },
      { label: 'In wallets', kind: 'money' },
      { label: 'Spent', kind: 'money' },
    ],
    rows,
    html`No account is like that. ${link('/accounts', 'Show all')}`,
  );
  const body = html`
    ${filters('/accounts', [
      { name: 'name', label: 'Name', value: query.get('name') ?? '', placeholder: 'part of it' },
      {
        name: 'state',
        label: 'State',
        value: query.get('state') ?? '',
        options: [
          ['', 'any state'],
          ['suspended', 'suspended'],
        ],
      },
    ])}
    ${card('Accounts', html`${list}${pages}`, '', 'accounts')}
    ${card('New account', form({ action: '/accounts', hidden: { key: visit.parts.once.newKey() }, fields: [{ name: 'name', label: 'Name', required: true, placeholder: 'research' }], submit: 'Make the account' }))}`;
  return { title: 'Accounts', body, section: '/accounts' };
}

export async function create(visit: Visit): Promise<Go> {
  const make = () => run(visit, 'account.create', { name: visit.form.get('name') ?? '' });
  const account = await visit.parts.once.run(visit, make);
  return { to: `/accounts/${account.id}` };
}

/** Returns an account that the viewer may see. Throws `not_found`, also for another viewer's. */
export function accountSeen({ app, viewer }: Visit, accountId: string): Account {
  const isOthers = viewer.kind === 'account' && viewer.accountId !== accountId;
  const account = isOthers ? undefined : findAccount(app.ledger.read, accountId);
  if (!account) throw new Refusal('not_found', 'There is no such account.');
  return account;
}

const accountIn = (visit: Visit): Account => accountSeen(visit, visit.params.id as string);

/** Shows one account: its money as a bar, its statement, its wallets and keys. */
export async function accountPage(visit: Visit): Promise<Page> {
  const { app, now } = visit;
  const { read } = app.ledger;
  const account = accountIn(visit);
  const { lines } = await run(visit, 'account.statement', { id: account.id });
  const wallets = listWallets(read, { accountId: account.id, now }, { limit: WALLET_COUNT });
  const total = countWallets(read, { accountId: account.id, now });
  const keys = keysOf(visit, account.id, { isValid: true });
  const sessions = countBrowserSessionsOf(read, account.id, now);
  const isSuspended = account.suspendedAt !== null;
  const body = html`
    ${account.owedCents > 0 && html`<p class="notice bad">It owes ${cents(account.owedCents)}: a payment was taken back after its credit was spent.</p>`}
    ${isSuspended && html`<p class="notice warn">Suspended ${ago(account.suspendedAt, visit)}: no new wallets, holds or keys.</p>`}
    ${account.disputedAt !== null && html`<p class="notice warn">A payment is disputed since ${when(account.disputedAt, visit)}: no new wallets or raised budgets until that is decided, or you resume the account.${!isSuspended && ' Its open wallets go on spending.'}</p>`}
    ${card(
      'Money',
      html`${moneyBar('Credit', partsOf(moneyOf(app.ledger.read, account)))}${facts([
        ['Opened', when(account.createdAt, visit)],
        ['Id', id(account.id)],
      ])}`,
      link(`/spend?account=${account.id}&by=model`, 'Spending'),
    )}
    <div class="two">
      ${card('Credit or debit', creditForm(visit, account.id))}
      ${card(
        'Keys',
        html`${keyTable(visit, keys, `/accounts/${account.id}/keys`)}${newKeyForm(visit, `/accounts/${account.id}/keys`)}`,
        '',
        'keys',
      )}
    </div>
    ${card('Wallets', walletTable(visit, wallets, 'Wallets', html`It has no wallet yet. ${link(`/wallets/new?account=${account.id}`, 'Make one')}`), total > wallets.length ? link(`/wallets?account=${account.id}`, `All ${count(total)}`) : plural(total, 'wallet'))}
    ${card('Statement', statementTable(visit, lines), '', 'statement')}
    ${card(
      'Signed in on the page',
      sessions
        ? html`<p>${plural(sessions, 'session')} of this account. To keep people out, revoke their keys, or their access at the identity provider, as well: whoever may sign in can do it again.</p>${form({ action: `/accounts/${account.id}/sign-out`, submit: 'End its sessions', tone: 'danger' })}`
        : html`<p>Nobody is signed in for this account.</p>`,
    )}
    ${!isSuspended && html`<p>${buttonLink(`/accounts/${account.id}/suspend`, 'Suspend the account', 'danger')}</p>`}`;
  return {
    title: named(account.id, account.name),
    body,
    aside:
      isSuspended || account.disputedAt !== null
        ? form({ action: `/accounts/${account.id}/resume`, submit: 'Resume', tone: 'primary', isInline: true })
        : buttonLink(`/wallets/new?account=${account.id}`, 'New wallet', 'primary'),
    ...below('/accounts'),
    stream: `/live?account=${account.id}`,
  };
}

function creditForm(visit: Visit, accountId: string): Html {
  return form({
    action: `/accounts/${accountId}/credit`,
    hidden: { key: visit.requestId },
    fields: [
      {
        name: 'amount',
        label: 'Dollars',
        required: true,
        inputmode: 'decimal',
        placeholder: '20.00',
        hint: 'A minus takes credit back.',
      },
      { name: 'reason', label: 'Reason', required: true, placeholder: 'invoice 17' },
    ],
    submit: 'Book it',
  });
}

/** Shows the lines of a statement, the newest first. */
function statementTable(visit: Visit, lines: readonly StatementLine[]): Html {
  const { shown, pages } = pagesOf(visit, 'statement', lines.toReversed(), LINE_COUNT);
  const list = table(
    'Statement',
    [{ label: 'Time', kind: 'time' }, { label: 'What' }, { label: 'Reason' }, { label: 'Amount', kind: 'money' }],
    shown.map((it) => [
      when(it.at, visit),
      it.kind,
      outside(it.reason ?? ''),
      `${it.amount_cents > 0 ? '+' : ''}${cents(it.amount_cents)}`,
    ]),
    'No money came in yet.',
  );
  return html`${list}${pages}`;
}

/** Returns the figures that the stream keeps up to date. */
export function accountFigures({ app }: Pick<Visit, 'app'>, accountId: string): Figures {
  const parts = partsOf(moneyOf(app.ledger.read, accountOf(app.ledger.read, accountId)));
  return { ...Object.fromEntries(parts.map((it) => [it.key as string, dollars(it.amount)])), ...barShapes(parts) };
}

/** Credits an account, or debits it by a negative amount. */
export async function credit(visit: Visit): Promise<Go> {
  const { id: accountId } = accountIn(visit);
  const amount = centsIn(visit.form.get('amount'));
  const reason = visit.form.get('reason') ?? '';
  const order = { id: accountId, cents: Math.abs(amount), reason, key: visit.form.get('key') ?? undefined };
  await run(visit, amount < 0 ? 'account.debit' : 'account.credit', order);
  return { to: `/accounts/${accountId}?done=${amount < 0 ? 'debited' : 'credited'}` };
}

/** Asks before an account is suspended. */
export function confirmSuspend(visit: Visit): Page {
  const account = accountIn(visit);
  const body = card(
    'Suspend it?',
    html`<p>No wallet of this account takes a new hold, and no wallet or key is made. Leases run on to their deadlines. You can resume it at any time.</p>${form({ action: `/accounts/${account.id}/suspend`, submit: 'Suspend the account', tone: 'danger' })}`,
  );
  return {
    title: `Suspend ${named(account.id, account.name)}`,
    body,
    ...below('/accounts', [`/accounts/${account.id}`, named(account.id, account.name)]),
  };
}

export async function suspend(visit: Visit): Promise<Go> {
  const { id: accountId } = accountIn(visit);
  await run(visit, 'account.suspend', { id: accountId });
  return { to: `/accounts/${accountId}?done=suspended` };
}

export async function resume(visit: Visit): Promise<Go> {
  const { id: accountId } = accountIn(visit);
  await run(visit, 'account.resume', { id: accountId });
  return { to: `/accounts/${accountId}?done=resumed` };
}

/** Makes an account key and shows it once. */
export async function createKey(visit: Visit): Promise<Page> {
  const account = accountIn(visit);
  const make = () => run(visit, 'key.create', { account: account.id, name: visit.form.get('name') ?? '' });
  const made = await visit.parts.once.run(visit, make);
  return newKeyPage(made.key, [
    ['/accounts', 'Accounts'],
    [`/accounts/${account.id}`, named(account.id, account.name)],
  ]);
}

/** Asks before a key of the account is revoked. */
export function confirmRevoke(visit: Visit): Page {
  const account = accountIn(visit);
  const at = `/accounts/${account.id}`;
  return {
    ...revokePage(visit, account.id, visit.params.key as string, `${at}/keys`),
    ...below('/accounts', [at, named(account.id, account.name)]),
  };
}

export async function revokeKey(visit: Visit): Promise<Go> {
  const { id: account } = accountIn(visit);
  await run(visit, 'key.revoke', { id: visit.params.key as string, account });
  return { to: `/accounts/${account}?done=revoked` };
}

/** Ends the sessions of the account on the page. */
export async function signOut(visit: Visit): Promise<Go> {
  const { id: accountId } = accountIn(visit);
  await run(visit, 'account.sign-out', { id: accountId });
  return { to: `/accounts/${accountId}?done=sessions-ended` };
}
