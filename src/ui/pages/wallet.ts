import { startsBetween } from '../../base/calendar.ts';
import { newId } from '../../base/id.ts';
import { Nanos, nanosToCentsDown, ZERO } from '../../base/money.ts';
import { parseJson } from '../../base/parse-json.ts';
import { Refusal } from '../../base/refusal.ts';
import {
  changeBudget as changeBudgetEndpoint,
  closeWallet,
  extendWallet,
  freezeWallet,
  readWalletToken,
  unfreezeWallet,
} from '../../http/routes/wallets.ts';
import { findAccount } from '../../ledger/account.ts';
import { type Operation, openOperations } from '../../ledger/operation.ts';
import { countOperations, searchOperations } from '../../ledger/operation-search.ts';
import { countResources, liveResourcesBelow, pageResources } from '../../ledger/resource.ts';
import { spendingByPeriod, sumSpending } from '../../ledger/spending.ts';
import { isTimelineWithin, type TimelineStep, timeline } from '../../ledger/timeline.ts';
import {
  available,
  countWallets,
  endedSince,
  findWallet,
  frozenAncestor,
  listWallets,
  refuseInactive,
  statusAt,
  type Wallet,
} from '../../ledger/wallet.ts';
import { movedBy } from '../../ledger/wallet-change.ts';
import { EMPTY, type Html, type HtmlValue, html } from '../html.ts';
import { below, type Page } from '../layout.ts';
import type { Figures } from '../live.ts';
import {
  address,
  buttonLink,
  card,
  cents,
  count,
  dollars,
  facts,
  form,
  id,
  link,
  live,
  money,
  named,
  outside,
  pager,
  pagesOf,
  plural,
  shortId,
  state,
  table,
} from '../parts.ts';
import { barShapes, type Moment, moneyBar, spendingChart, walletLife } from '../pictures.ts';
import type { Go } from '../sign-in.ts';
import { ago, when } from '../times.ts';
import { callEndpoint, run, type Visit, walletSeen } from '../visit.ts';
import { clientCard } from './client-settings.ts';
import { leaseTable, streamOf } from './leases.ts';
import { childForm, gatewayKeyCard, refillForms, refillSentence } from './wallet-forms.ts';
import { centsIn, partsOf, stateOf, tokenPage, walletTable } from './wallets.ts';

/**
 * Beyond this many operations, changes and children, a page does not read the whole life of a wallet: it shows the latest
 * operations instead.
 */
const WHOLE_LIFE_COUNT_MAX = 2000;
const STEP_COUNT = 50;
const CHILD_COUNT = 20;
const LEASE_COUNT = 20;
const DAY_SECONDS = 86_400;
const SPEND_DAYS = 30;

const EXTENSIONS: readonly (readonly [string, string])[] = [
  ['3600', 'by one hour'],
  [String(DAY_SECONDS), 'by one day'],
  [String(7 * DAY_SECONDS), 'by a week'],
];

/** Returns the wallet that the address names. Throws `not_found`, also for another account's. */
const walletIn = (visit: Visit): Wallet => walletSeen(visit, visit.params.id as string);

/** Shows one wallet: where its money is, where it went, and the actions on it. */
export async function walletPage(visit: Visit): Promise<Page> {
  const { app, viewer, now, zone } = visit;
  const { read } = app.ledger;
  const wallet = walletIn(visit);
  const isActive = statusAt(read, wallet, now) === 'active';
  const order = { scope: { wallet: wallet.id } };
  const isWhole = isTimelineWithin(read, wallet.id, WHOLE_LIFE_COUNT_MAX);
  const since = Math.max(wallet.createdAt, now - SPEND_DAYS * DAY_SECONDS);
  const starts = startsBetween('day', zone, Math.min(since, now), now + 1);
  const [byModel, byDay] = await Promise.all([
    sumSpending(read, { ...order, by: 'model' }),
    spendingByPeriod(read, { ...order, by: ['model'], cells: starts, since: starts[0] }),
  ]);
  const children = listWallets(read, { parentId: wallet.id, now }, { limit: CHILD_COUNT });
  const childCount = countWallets(read, { parentId: wallet.id, now });
  const { page: leases } = pageResources(read, { walletId: wallet.id }, { limit: LEASE_COUNT });
  const leaseCount = countResources(read, { walletId: wallet.id });
  const held = pagesOf(visit, 'held', openOperations(read, wallet.id), STEP_COUNT, ['Oldest', 'More']);
  const steps = isWhole ? await Array.fromAsync(timeline(read, wallet)) : [];
  const isFull = visit.query.get('steps') === 'all';
  const moved = pagesOf(visit, 'movements', (isFull ? steps : outcomes(steps)).toReversed(), STEP_COUNT);
  const account = viewer.kind === 'operator' ? findAccount(read, wallet.accountId) : undefined;
  const parent = wallet.parentId === null ? undefined : findWallet(read, wallet.parentId);
  const cells = byDay.map(({ at, keys, charged }) => ({ at, key: keys[0] as string, amount: charged }));

  const body = html`
    ${stateNotice(visit, wallet)}
    ${card(
      'Money',
      html`${moneyBar('Budget', partsOf(wallet))}${facts([
        ['Budget', live('budget', dollars(wallet.budget))],
        ['Opened', when(wallet.createdAt, visit)],
        [
          'Expires',
          wallet.expiresAt === null
            ? 'never'
            : html`${when(wallet.expiresAt, visit)} <span class="weak">(${ago(wallet.expiresAt, visit)})</span>`,
        ],
        wallet.closedAt !== null && ['Closed', when(wallet.closedAt, visit)],
        wallet.refill !== null && ['Refill', refillSentence(visit, wallet)],
        account !== undefined && ['Account', link(`/accounts/${wallet.accountId}`, named(account.id, account.name))],
        parent !== undefined && ['Child of', link(`/wallets/${parent.id}`, named(parent.id, parent.name))],
        ['Id', id(wallet.id)],
      ])}${isActive && wallet.parentId === null && budgetForm(wallet)}`,
    )}
    ${isActive && html`<details class="card"><summary>Change it: refill, expiry, child wallets, token, close</summary>${changes(wallet)}</details>${gatewayKeyCard(visit, wallet)}${clientCard(visit, wallet.id)}`}
    ${steps.length > 0 && card('Its life', walletLife(momentsOf(wallet, steps), wallet.closedAt ?? now, zone), 'what it could spend, and what was held')}
    <div class="two">
      ${card('Spent by model', spendByModel(byModel.rows, byModel.total), `${dollars(byModel.total)} in all`)}
      ${card('Spent by day', cells.length ? spendingChart('Spending by day and model', cells, { starts, every: 'day', zone, what: 'Model' }) : html`<div class="empty">Nothing was charged in the last ${SPEND_DAYS} days.</div>`)}
    </div>
    ${held.shown.length > 0 && card('On hold now', html`${holdTable(visit, held.shown)}${held.pages}`, 'the most that requests in flight may cost', 'held')}
    ${isWhole ? card('Where the money went', html`${movements(visit, moved.shown)}${moved.pages}`, movementNote(wallet, isFull), 'movements') : card('Operations', await latestOperations(visit, wallet), 'newest first', 'movements')}
    ${(leases.length > 0 || app.slots.list.length > 0) && card('Leases', leaseTable(visit, leases, html`This wallet has leased nothing.`), leaseCount > leases.length && link(`/leases?wallet=${wallet.id}&state=all`, `All ${count(leaseCount)}`))}
    ${children.length > 0 && card('Child wallets', walletTable(visit, children, 'Child wallets', html`None.`), childCount > children.length && link(`/wallets?parent=${wallet.id}`, `All ${count(childCount)}`))}`;
  return {
    title: named(wallet.id, wallet.name),
    body,
    aside: html`<span class="row">${state(stateOf(visit, wallet))}${isActive && (wallet.frozenAt === null ? buttonLink(`/wallets/${wallet.id}/freeze`, 'Freeze', 'danger') : form({ action: `/wallets/${wallet.id}/unfreeze`, submit: 'Unfreeze', tone: 'primary', isInline: true }))}</span>`,
    ...below('/wallets'),
    ...(wallet.status === 'closed' ? {} : { stream: `/live?wallet=${wallet.id}&${streamOf(leases)}` }),
  };
}

/** Returns the figures that the stream keeps up to date. */
export function walletFigures({ app }: Pick<Visit, 'app'>, walletId: string): Figures {
  const wallet = findWallet(app.ledger.read, walletId) as Wallet;
  const parts = partsOf(wallet);
  return {
    budget: dollars(wallet.budget),
    ...Object.fromEntries(parts.map((it) => [it.key as string, dollars(it.amount)])),
    ...barShapes(parts),
  };
}

function stateNotice(visit: Visit, wallet: Wallet): Html {
  const { app, now } = visit;
  const { read } = app.ledger;
  const status = statusAt(read, wallet, now);
  const frozen = frozenAncestor(read, wallet);
  if (frozen && status === 'active')
    return html`<p class="notice warn">Frozen ${ago(frozen.frozenAt, visit)}${frozen.id !== wallet.id && html` with ${link(`/wallets/${frozen.id}`, named(frozen.id, frozen.name))}`}${frozen.freezeReason !== null && html`: ${outside(frozen.freezeReason)}`}. It spends nothing; what was running goes on and is settled.</p>`;
  if (status === 'active' || status === 'closed') return EMPTY;
  const since = endedSince(read, wallet, now);
  return html`<p class="notice warn">It spends nothing any more${since !== null && html` since ${when(since, visit)} (${ago(since, visit)})`}, and closes as soon as everything is settled. ${wallet.cleanupAttempts > 0 && html`Attempt ${wallet.cleanupAttempts}: ${outside(wallet.cleanupError ?? 'requests are in flight')}.`}</p>`;
}

/** Renders the form that raises or lowers the budget, at hand without unfolding anything. */
const budgetForm = (wallet: Wallet): Html =>
  form({
    action: `/wallets/${wallet.id}/budget`,
    hidden: { key: newId('req') },
    fields: [
      {
        name: 'amount',
        label: 'Raise the budget by',
        required: true,
        inputmode: 'decimal',
        placeholder: '5.00',
        hint: 'Dollars; a minus lowers it.',
      },
    ],
    submit: 'Change the budget',
  });

function changes(wallet: Wallet): Html {
  const at = `/wallets/${wallet.id}`;
  const extend = form({
    action: `${at}/extend`,
    hidden: { key: newId('req') },
    fields: [{ name: 'seconds', label: 'Let it live longer', options: EXTENSIONS }],
    submit: 'Move the expiry',
  });
  const token = form({ action: `${at}/token`, submit: 'Show its token' });
  const end = html`<div class="stack"><p class="hint">Ends its leases, settles, and returns what is left. This cannot be undone.</p>${buttonLink(`${at}/close`, 'Close the wallet', 'danger')}</div>`;
  return html`<div class="forms">${wallet.parentId === null && refillForms(wallet)}${wallet.expiresAt !== null && extend}${childForm(wallet)}<div class="stack"><p class="hint">The agent spends with its token.</p>${token}</div>${end}</div>`;
}

/** Returns the available and held amounts after each step. */
function momentsOf(wallet: Wallet, steps: readonly TimelineStep[]): Moment[] {
  let held = ZERO;
  const moments: Moment[] = steps.map((step) => {
    if (step.what === 'held') held = Nanos(held + step.amount);
    else if (step.operationId !== null) held = Nanos(held > step.amount ? held - step.amount : 0n);
    return { at: step.at, available: step.available, held };
  });
  if (wallet.status !== 'closed')
    moments.push({ at: steps.at(-1)?.at ?? wallet.createdAt, available: available(wallet), held: wallet.held });
  return moments;
}

const OUTWARD = new Set<TimelineStep['what']>(['held', 'charged', 'lowered', 'delegated', 'returned', 'rounded']);

/**
 * Returns the steps in the form that the page shows: one row for each operation, with its final cost and the amount
 * available then.
 */
function outcomes(steps: readonly TimelineStep[]): TimelineStep[] {
  const rows: TimelineStep[] = [];
  const rowOf = new Map<string, TimelineStep>();
  for (const step of steps) {
    const row = step.operationId === null ? undefined : rowOf.get(step.operationId);
    if (row && step.what === 'released' && row.what === 'charged') {
      row.available = step.available; // The rest of its hold was released at the same time.
      continue;
    }
    if (row) rows.splice(rows.lastIndexOf(row), 1); // The hold is over: its outcome replaces it.
    const shown = { ...step };
    rows.push(shown);
    if (step.operationId !== null) rowOf.set(step.operationId, shown);
  }
  return rows;
}

/** Renders the subject of a movement: a model, a slot, or the wallet on its other side. */
function subjectOf({ app }: Visit, subject: string | null): HtmlValue {
  if (!subject?.startsWith('wal_')) return subject === null ? '' : outside(subject);
  return link(`/wallets/${subject}`, named(subject, findWallet(app.ledger.read, subject)?.name));
}

/** Renders the link to the other view of the movements. */
const movementNote = ({ id: walletId }: Wallet, isFull: boolean): Html =>
  isFull
    ? link(`/wallets/${walletId}#movements`, 'One line for each request')
    : link(`/wallets/${walletId}?steps=all#movements`, 'With every hold and release');

/**
 * Renders the reason of a step. Texts of an engine or a model server may name sockets and addresses: they are for the
 * operator only.
 */
function reasonOf({ viewer }: Visit, { reason, settledBy }: TimelineStep): Html {
  if (reason === null || (viewer.kind !== 'operator' && settledBy !== 'policy' && settledBy !== 'cancelled'))
    return EMPTY;
  return html`<span class="weak">${outside(reason)}</span>`;
}

function movements(visit: Visit, steps: readonly TimelineStep[]): Html {
  const rows = steps.map((step) => [
    when(step.at, visit),
    step.what,
    html`${subjectOf(visit, step.subject)} ${usageOf(step.usage)} ${step.settledBy !== null && step.settledBy !== 'answer' && html`<span class="weak">${endOf(step.settledBy)}</span>`} ${reasonOf(visit, step)}`,
    money(step.amount, OUTWARD.has(step.what) ? '−' : '+'),
    money(step.available),
    operationLink(visit, step.operationId),
  ]);
  return table(
    'Movements of money, newest first',
    [
      { label: 'Time', kind: 'time' },
      { label: 'What' },
      { label: 'For' },
      { label: 'Amount', kind: 'money' },
      { label: 'Available after', kind: 'money' },
      { label: 'Operation' },
    ],
    rows,
    'Nothing moved yet.',
  );
}

const operationLink = ({ viewer }: Visit, operationId: string | null): HtmlValue => {
  if (operationId === null) return '';
  return viewer.kind === 'operator' ? link(`/operations/${operationId}`, shortId(operationId)) : shortId(operationId);
};

/** Describes the end of an operation. */
export const endOf = (settledBy: string): string => (settledBy === 'cancelled' ? 'cancelled' : `by ${settledBy}`);

/** Writes the tokens of an operation, as "812 + 240"; nothing where none were counted. */
export function tokensOf(usage: string | null): string {
  if (usage === null) return '';
  const { prompt_tokens: prompt, completion_tokens: completion } = parseJson(usage) as Record<string, unknown>;
  if (typeof prompt !== 'number') return '';
  return `${count(prompt)}${typeof completion === 'number' ? ` + ${count(completion)}` : ''}`;
}

/** Renders the tokens of an operation, as "812 + 240 tokens". */
export function usageOf(usage: string | null): HtmlValue {
  const tokens = tokensOf(usage);
  return tokens && html`<span class="weak">${tokens} tokens</span>`;
}

function holdTable(visit: Visit, held: readonly Operation[]): Html {
  const rows = held.map((it) => [
    ago(it.createdAt, visit),
    outside(it.subject),
    state(it.state),
    money(it.hold),
    operationLink(visit, it.id),
  ]);
  return table(
    'Holds',
    [
      { label: 'Since', kind: 'time' },
      { label: 'For' },
      { label: 'State' },
      { label: 'Held', kind: 'money' },
      { label: 'Operation' },
    ],
    rows,
  );
}

async function latestOperations(visit: Visit, wallet: Wallet): Promise<Html> {
  const { app, path, query } = visit;
  const { read } = app.ledger;
  const before = query.get('before') || undefined;
  const filter = { walletId: wallet.id };
  const { operations, goesOnAfter } = await searchOperations(read, filter, { after: before, limit: STEP_COUNT });
  const rows = operations.map((it) => [
    when(it.createdAt, visit),
    html`${outside(it.subject)} ${usageOf(it.usage)}`,
    state(it.outcome ?? it.state),
    money(it.charge ?? it.hold),
    operationLink(visit, it.id),
  ]);
  const shown = table(
    'Operations',
    [
      { label: 'Time', kind: 'time' },
      { label: 'For' },
      { label: 'State' },
      { label: 'Charged or held', kind: 'money' },
      { label: 'Operation' },
    ],
    rows,
  );
  const to = (id: string | undefined) => `${address(path, query, { before: id })}#movements`;
  const older = goesOnAfter && to(goesOnAfter);
  return html`${shown}${pager(operations.length, countOperations(read, filter), before && to(undefined), older)}`;
}

/** Formats a share; a non-zero share is never "0 %". */
function percentOf(part: Nanos, whole: Nanos): string {
  const percent = (Number(part) / Number(whole)) * 100;
  if (whole <= 0n) return '';
  return part > 0n && percent < 0.5 ? '<1%' : `${percent.toFixed(0)}%`;
}

function spendByModel(rows: Awaited<ReturnType<typeof sumSpending>>['rows'], total: Nanos): Html {
  return table(
    'Spent by model',
    [
      { label: 'Model or slot' },
      { label: 'Requests', kind: 'number' },
      { label: 'Tokens', kind: 'number' },
      { label: 'Charged', kind: 'money' },
      { label: 'Share', kind: 'number' },
    ],
    rows.map((it) => [
      outside(it.key),
      count(it.operations),
      count(it.promptTokens + it.completionTokens),
      money(it.charged),
      percentOf(it.charged, total),
    ]),
    'Nothing was charged yet.',
  );
}

/**
 * Asks for confirmation and a reason before a wallet is frozen. Throws `wallet_closed` and `wallet_expired`, as the freeze
 * would.
 */
export function confirmFreeze(visit: Visit): Page {
  const wallet = walletIn(visit);
  refuseInactive(visit.app.ledger.read, wallet, visit.now);
  const body = card(
    'Stop its spending now?',
    html`<p>From now on every new request of this wallet and of the wallets below it is refused. Requests that are in flight are settled, and leases run on to their deadlines. You can unfreeze it at any time.</p>${form(
      {
        action: `/wallets/${wallet.id}/freeze`,
        fields: [{ name: 'reason', label: 'Why', placeholder: 'optional, shown to the agent' }],
        submit: 'Freeze the wallet',
        tone: 'danger',
      },
    )}`,
  );
  return sub(wallet, `Freeze ${named(wallet.id, wallet.name)}`, body);
}

const sub = (wallet: Wallet, title: string, body: Html): Page => ({
  title,
  body,
  ...below('/wallets', [`/wallets/${wallet.id}`, named(wallet.id, wallet.name)]),
});

export async function freeze(visit: Visit): Promise<Go> {
  const { id: walletId } = walletIn(visit);
  const reason = visit.form.get('reason')?.trim() || undefined;
  if (visit.viewer.kind === 'operator') await run(visit, 'wallet.freeze', { id: walletId, reason });
  else
    await callEndpoint(visit, freezeWallet, { raw: reason === undefined ? {} : { reason }, params: { id: walletId } });
  return { to: `/wallets/${walletId}?done=frozen` };
}

export async function unfreeze(visit: Visit): Promise<Go> {
  const { read } = visit.app.ledger;
  const { id: walletId } = walletIn(visit);
  if (visit.viewer.kind === 'operator') await run(visit, 'wallet.unfreeze', { id: walletId });
  else await callEndpoint(visit, unfreezeWallet, { params: { id: walletId } });
  return { to: `/wallets/${walletId}?done=${frozenAncestor(read, walletIn(visit)) ? 'unfrozen-itself' : 'unfrozen'}` };
}

export async function changeBudget(visit: Visit): Promise<Go> {
  const { id: walletId } = walletIn(visit);
  const cents = centsIn(visit.form.get('amount'));
  const key = visit.form.get('key') || newId('req');
  if (visit.viewer.kind === 'operator') await run(visit, 'wallet.budget', { id: walletId, add_cents: cents, key });
  else await callEndpoint(visit, changeBudgetEndpoint, { raw: { add_cents: cents }, params: { id: walletId }, key });
  const moved = nanosToCentsDown(Nanos(-(movedBy(visit.app.ledger.read, walletId, key) ?? 0n)));
  const isCut = cents < 0 && moved < -cents;
  return { to: `/wallets/${walletId}?done=${isCut ? `lowered-${moved}-of-${-cents}` : 'raised'}` };
}

export async function extend(visit: Visit): Promise<Go> {
  const { id: walletId } = walletIn(visit);
  const seconds = Number(visit.form.get('seconds'));
  const key = visit.form.get('key') ?? undefined;
  if (visit.viewer.kind === 'operator') await run(visit, 'wallet.extend', { id: walletId, seconds, key });
  else await callEndpoint(visit, extendWallet, { raw: { seconds }, params: { id: walletId }, key });
  return { to: `/wallets/${walletId}?done=extended` };
}

/** Shows the token of a wallet that may spend. */
export async function token(visit: Visit): Promise<Page> {
  const wallet = walletIn(visit);
  const answer =
    visit.viewer.kind === 'operator'
      ? await run(visit, 'wallet.token', { id: wallet.id })
      : await callEndpoint<{ agent_token: string }>(visit, readWalletToken, { params: { id: wallet.id } });
  return tokenPage(wallet.id, named(wallet.id, wallet.name), answer.agent_token, visit.app.state.baseUrl);
}

/** Asks before a wallet is closed, and states what that ends. Throws `conflict` if it is closed already. */
export function confirmClose(visit: Visit): Page {
  const wallet = walletIn(visit);
  if (wallet.status === 'closed') throw new Refusal('conflict', 'This wallet is closed. That is final.');
  const { length } = liveResourcesBelow(visit.app.ledger.read, wallet.id);
  const unspent = available(wallet);
  const back = wallet.parentId === null ? cents(nanosToCentsDown(unspent)) : dollars(unspent); // An account gets whole cents.
  const body = card(
    'Close it for good?',
    html`<p>${length > 0 && html`${plural(length, 'running lease')} ${length === 1 ? 'ends' : 'end'}. `}What is in flight is settled, its children close first, and ${back}${wallet.delegated > 0n && ', with what the children return,'} goes back to where it came from. This cannot be undone.</p>${form({ action: `/wallets/${wallet.id}/close`, submit: 'Close the wallet', tone: 'danger' })}<p class="actions">${buttonLink(`/wallets/${wallet.id}`, 'Leave it open')}</p>`,
  );
  return sub(wallet, `Close ${named(wallet.id, wallet.name)}`, body);
}

export async function close(visit: Visit): Promise<Go> {
  const { id: walletId } = walletIn(visit);
  try {
    if (visit.viewer.kind === 'operator') await run(visit, 'wallet.close', { id: walletId });
    else await callEndpoint(visit, closeWallet, { params: { id: walletId } });
  } catch (error) {
    if (error instanceof Refusal && error.code === 'cleanup_pending')
      return { to: `/wallets/${walletId}?done=closing` };
    throw error;
  }
  return { to: `/wallets/${walletId}?done=closed` };
}
