import { newId } from '../../base/id.ts';
import { Refusal } from '../../base/refusal.ts';
import { WALLET_STATUSES } from '../../db/enums.ts';
import { createWallet } from '../../http/routes/wallets.ts';
import { findAccount, listAccounts } from '../../ledger/account.ts';
import { lastUsed } from '../../ledger/operation.ts';
import {
  countWallets,
  frozenAncestor,
  listWallets,
  SORTED_COUNT_MAX,
  shownAvailable,
  sortWallets,
  statusAt,
  WALLET_COLUMNS,
  type Wallet,
  type WalletColumn,
  type WalletFilter,
} from '../../ledger/wallet.ts';
import { type Html, html } from '../html.ts';
import { below, type Page } from '../layout.ts';
import {
  address,
  buttonLink,
  type Column,
  card,
  copyButton,
  count,
  cutPage,
  type Field,
  filters,
  form,
  link,
  money,
  named,
  pager,
  state,
  table,
  wholeCents,
} from '../parts.ts';
import type { BarPart } from '../pictures.ts';
import { ago } from '../times.ts';
import { accountIn, callEndpoint, run, type Visit, walletIn } from '../visit.ts';

export const PAGE_COUNT = 50;
const ACCOUNT_COUNT_MAX = 200;
const DAY_SECONDS = 86_400;
export const LIVES: readonly (readonly [string, string])[] = [
  [String(DAY_SECONDS), 'one day'],
  [String(7 * DAY_SECONDS), 'a week'],
  [String(30 * DAY_SECONDS), '30 days'],
  ['3600', 'one hour'],
  ['0', 'until it is closed'],
];

/** Returns the displayed state of a wallet: its status, or that it, or one above it, is frozen. */
export const stateOf = ({ app, now }: Visit, wallet: Wallet): string => {
  const status = statusAt(app.ledger.read, wallet, now);
  return status === 'active' && frozenAncestor(app.ledger.read, wallet) ? 'frozen' : status;
};

/** Parses an amount in a form, as "5" or "5.50", into whole cents. Throws `invalid_request`. */
export function centsIn(text: string | null): number {
  const [, minus, whole, fraction = ''] = /^(-?)\$?(\d{1,7})(?:\.(\d{1,2}))?$/.exec((text ?? '').trim()) ?? [];
  if (whole === undefined) throw new Refusal('invalid_request', 'Write the amount in dollars, as 5 or 5.50.');
  return Number(`${minus}${whole}${fraction.padEnd(2, '0')}`);
}

/** Draws a small bar without a legend: the shares of the budget that are spent, held and delegated. */
function miniBar({ budget, spent, held, delegated }: Wallet): Html {
  const part = (amount: bigint) => (budget === 0n ? 0 : (Number(amount) / Number(budget)) * 100);
  const [a, b, c] = [part(spent), part(held), part(delegated)];
  const label = `${a.toFixed(0)}% spent, ${b.toFixed(0)}% held`;
  return html`<svg class="time-left" role="img" aria-label="${label}" width="100%" height="8"><rect class="spent" width="${a.toFixed(2)}%" height="8"></rect><rect class="held" x="${a.toFixed(2)}%" width="${b.toFixed(2)}%" height="8"></rect><rect class="delegated" x="${(a + b).toFixed(2)}%" width="${c.toFixed(2)}%" height="8"></rect></svg>`;
}

/** The columns of wallets: their labels, the order by each, and whether that begins with the largest. */
const COLUMNS: readonly (Pick<Column, 'label' | 'kind'> & { by: WalletColumn; isLargestFirst?: true })[] = [
  { label: 'Name', by: 'name' },
  { label: 'State', by: 'state' },
  { label: 'Budget used', by: 'used', isLargestFirst: true },
  { label: 'Spent', by: 'spent', kind: 'money', isLargestFirst: true },
  { label: 'Available', by: 'available', kind: 'money', isLargestFirst: true },
  { label: 'Budget', by: 'budget', kind: 'money', isLargestFirst: true },
  { label: 'Last used', by: 'last', kind: 'time', isLargestFirst: true },
  { label: 'Expires', by: 'expires', kind: 'time' },
  { label: 'Account', by: 'account' },
];
type Sorting = { by: WalletColumn; isDescending: boolean };

/** Renders a table of wallets; `sortOf` gives the heading of a column its links. */
export function walletTable(
  visit: Visit,
  wallets: readonly Wallet[],
  caption: string,
  empty: Html,
  { withAccount = false, sortOf }: { withAccount?: boolean; sortOf?: (by: WalletColumn) => Column['sort'] } = {},
): Html {
  const { read } = visit.app.ledger;
  const rows = wallets.map((it) => [
    html`${link(`/wallets/${it.id}`, named(it.id, it.name))}${it.parentId !== null && html` <span class="weak">child</span>`}`,
    state(stateOf(visit, it)),
    miniBar(it),
    money(it.spent),
    money(shownAvailable(it)),
    wholeCents(it.budget), // Only a child's may be finer.
    ago(lastUsed(read, it), visit, 'never'),
    it.status === 'closed' ? '–' : ago(it.expiresAt, visit, 'never'),
    ...(withAccount
      ? [link(`/accounts/${it.accountId}`, named(it.accountId, findAccount(read, it.accountId)?.name))]
      : []),
  ]);
  const columns = COLUMNS.filter(({ by }) => withAccount || by !== 'account').map(({ by, label, kind }): Column => {
    const sort = sortOf?.(by);
    return { label, ...(kind && { kind }), ...(sort && { sort }) };
  });
  return table(caption, columns, rows, empty);
}

/** Returns the order in the address, as `spent` or `-spent`, which begins with the largest; undefined for newest first. */
function sortingIn(query: URLSearchParams): Sorting | undefined {
  const [, minus, name] = /^(-?)(\w+)$/.exec(query.get('sort') ?? '') ?? [];
  const by = WALLET_COLUMNS.find((it) => it === name);
  return by && { by, isDescending: minus === '-' };
}

/** Returns the filter field that limits a list to one wallet, or removes that limit. */
export const walletField = (wallet: Wallet | undefined, name = 'wallet', label = 'Wallet'): Field[] =>
  wallet
    ? [
        {
          name,
          label,
          value: wallet.id,
          options: [
            [wallet.id, named(wallet.id, wallet.name)],
            ['', 'all wallets'],
          ],
        },
      ]
    : [];

/** Shows the wallets, newest first, with filters in the address. */
export function listPage(visit: Visit): Page {
  const { app, viewer, query, now } = visit;
  const { read } = app.ledger;
  const state = query.get('state') ?? '';
  const parent = walletIn(visit, 'parent');
  const filter: WalletFilter = {
    accountId: accountIn(visit),
    parentId: parent?.id,
    now,
    named: query.get('name')?.slice(0, 80) || undefined,
    isFrozen: state === 'frozen',
    status: WALLET_STATUSES.find((it) => it === state),
  };
  const sorting = sortingIn(query);
  const { page, pages } = pageOf(visit, filter, sorting);
  const states = [['', 'any state'], ...WALLET_STATUSES.map((it) => [it, it]), ['frozen', 'frozen']] as [
    string,
    string,
  ][];
  const isFiltered = Boolean(
    state || filter.named || parent || query.has('from') || (viewer.kind === 'operator' && filter.accountId),
  );
  const empty = isFiltered
    ? html`No wallet is like that. ${link('/wallets', 'Show all')}`
    : html`There is no wallet yet. A wallet is a budget that an agent spends by its token. ${link('/wallets/new', 'Make one')}`;
  const account = viewer.kind === 'operator' && filter.accountId ? findAccount(read, filter.accountId) : undefined;
  const isOfAll = viewer.kind === 'operator' && !account;
  const body = html`
    ${filters('/wallets', [
      ...walletField(parent, 'parent', 'Children of'),
      { name: 'name', label: 'Name', value: query.get('name') ?? '', placeholder: 'part of it' },
      { name: 'state', label: 'State', options: states, value: state },
      { name: 'sort', label: 'Order', options: ordersOf(isOfAll), value: sorting ? (query.get('sort') as string) : '' },
    ])}
    ${card(
      parent
        ? `Children of ${named(parent.id, parent.name)}`
        : account
          ? `Wallets of ${named(account.id, account.name)}`
          : 'Wallets',
      html`${walletTable(visit, page, 'Wallets', empty, { withAccount: isOfAll, sortOf: (by) => sortOf(visit, by, sorting) })}${page.length > 0 && pages}`,
    )}`;
  return { title: 'Wallets', body, section: '/wallets', aside: buttonLink('/wallets/new', 'New wallet', 'primary') };
}

/** Returns one page of a list of wallets, and the links to the others. */
function pageOf({ app, query, path }: Visit, filter: WalletFilter, sorting: Sorting | undefined) {
  const { read } = app.ledger;
  const total = countWallets(read, filter);
  if (!sorting) {
    const before = query.get('before') || undefined;
    const { page, goesOnAfter } = cutPage(listWallets(read, filter, { before, limit: PAGE_COUNT + 1 }), PAGE_COUNT);
    const first = before && address(path, query, { before: undefined });
    const pages = pager(page.length, total, first, goesOnAfter && address(path, query, { before: goesOnAfter.id }));
    return { page, pages };
  }
  const from = Math.min(Number(/^\d{1,6}$/.exec(query.get('from') ?? '')?.[0] ?? 0), SORTED_COUNT_MAX);
  const { page, goesOnAfter } = cutPage(
    sortWallets(read, filter, { ...sorting, from, limit: PAGE_COUNT + 1 }),
    PAGE_COUNT,
  );
  const to = (at: number) => address(path, query, { from: at ? String(at) : undefined });
  const pages = pager(page.length, total, from > 0 ? to(0) : undefined, goesOnAfter && to(from + PAGE_COUNT), [
    'First',
    'More',
  ]);
  const note = total > SORTED_COUNT_MAX && html`<p class="weak">Of the newest ${count(SORTED_COUNT_MAX)} alone.</p>`;
  return { page, pages: html`${note}${pages}` };
}

/** Returns the link of a heading: to the list sorted by it, or the other way round where it is. */
function sortOf({ path, query }: Visit, by: WalletColumn, sorting: Sorting | undefined): Column['sort'] {
  const is = sorting?.by === by ? (sorting.isDescending ? 'descending' : 'ascending') : undefined;
  const isLargestFirst = COLUMNS.some((it) => it.by === by && it.isLargestFirst);
  const isDescending = is === undefined ? isLargestFirst : is === 'ascending';
  const to = address(path, query, { sort: `${isDescending ? '-' : ''}${by}`, from: undefined, before: undefined });
  return { to, is };
}

/** Returns the orders to choose from: also where a narrow list has no headings. */
const ordersOf = (isOfAll: boolean): [value: string, text: string][] => [
  ['', 'newest first'],
  ...COLUMNS.filter(({ by }) => isOfAll || by !== 'account').flatMap(({ by, label }): [string, string][] => [
    [`-${by}`, `${label}, descending`],
    [by, `${label}, ascending`],
  ]),
];

/** Shows the form that makes a wallet. */
export function newPage(visit: Visit): Page {
  const { app, viewer, query } = visit;
  const all = viewer.kind === 'operator' ? listAccounts(app.ledger.read) : [];
  // The page of an account links here with its id: that account is offered, however many there are.
  const chosen = all.filter((it) => it.id === query.get('account'));
  const accounts = chosen.length ? chosen : all.slice(0, ACCOUNT_COUNT_MAX);
  const body = card(
    'A budget for an agent',
    form({
      action: '/wallets/new',
      hidden: { key: newId('req') },
      fields: [
        { name: 'name', label: 'Name', required: true, placeholder: 'research agent' },
        {
          name: 'budget',
          label: 'Budget in dollars',
          required: true,
          inputmode: 'decimal',
          placeholder: '5.00',
          hint: 'At least 1.00. It is set aside from the account now.',
        },
        { name: 'life', label: 'It lives for', options: LIVES },
        ...(accounts.length
          ? [
              {
                name: 'account',
                label: 'Account',
                options: accounts.map((it) => [it.id, named(it.id, it.name)] as const),
              },
            ]
          : []),
      ],
      submit: 'Make the wallet',
      tone: 'primary',
    }),
  );
  return { title: 'New wallet', body, ...below('/wallets') };
}

export type OpenedWallet = { id: string; agent_token: string; env: { SVC_BROKER_URL: string } };

/** Returns the seconds in the field `life`. An empty field means the default: 0 would mean for ever. */
export const lifeIn = (sent: URLSearchParams): number => Number(sent.get('life')?.trim() || DAY_SECONDS);

/** Makes a wallet, and hands over its token. */
export async function create(visit: Visit): Promise<Page> {
  const { viewer, form: sent } = visit;
  const raw = {
    name: sent.get('name') ?? '',
    budget_cents: centsIn(sent.get('budget')),
    expires_in_seconds: lifeIn(sent),
  };
  const key = sent.get('key') ?? undefined;
  const opened =
    viewer.kind === 'operator'
      ? await run(visit, 'wallet.create', { account: sent.get('account') ?? '', key, ...raw })
      : await callEndpoint<OpenedWallet>(visit, createWallet, { raw, key });
  return tokenPage(opened.id, named(opened.id, raw.name), opened.agent_token, opened.env.SVC_BROKER_URL);
}

/** Shows the token of a wallet. Only this answer contains it: going back or reloading does not show it. */
export function tokenPage(id: string, name: string, token: string, url: string): Page {
  const env = `SVC_BROKER_URL=${url}\nSVC_BROKER_TOKEN=${token}`;
  const body = html`
    <p class="notice good" role="status">Hand this token to the agent. It is in this answer alone: going back does not show it again.</p>
    ${card('Token', html`<div class="token"><pre>${token}</pre>${copyButton(token, 'the token')}</div>`)}
    ${card('Environment of the agent', html`<div class="token"><pre>${env}</pre>${copyButton(env, 'the environment')}</div>`)}
    <p>${buttonLink(`/wallets/${id}`, 'Go to the wallet')}</p>`;
  return { title: name, body, ...below('/wallets') };
}

/** Returns the parts of a wallet's budget for a bar. */
export function partsOf(wallet: Wallet): BarPart[] {
  const { spent, held, delegated } = wallet;
  return [
    { name: 'spent', amount: spent, tone: 'spent', key: 'spent' },
    { name: 'held', amount: held, tone: 'held', key: 'held' },
    { name: 'delegated', amount: delegated, tone: 'delegated', key: 'delegated', isRare: true },
    { name: 'free', amount: shownAvailable(wallet), tone: 'free', key: 'free' },
  ];
}
