import { periodAt } from '../../base/calendar.ts';
import { Nanos } from '../../base/money.ts';
import { duration, type StateTone } from '../../base/shown.ts';
import { describeReplicas, hasFullCopy } from '../../files/drbd.ts';
import { describeReportOnly } from '../../lease/report-only.ts';
import { countCheckouts, listCheckouts } from '../../ledger/checkout.ts';
import { endedSince, findWallet, stuckWallets } from '../../ledger/wallet.ts';
import type { CommandOutput } from '../../operator/commands.ts';
import { type Html, type HtmlValue, html } from '../html.ts';
import type { Page } from '../layout.ts';
import type { Figures } from '../live.ts';
import {
  brief,
  buttonLink,
  card,
  cents,
  count,
  figure,
  link,
  live,
  money,
  named,
  outside,
  plural,
  table,
} from '../parts.ts';
import { spendingChart } from '../pictures.ts';
import { chargedDaily, chargedSince, PULSE_SECONDS, spendersOf } from '../pulse.ts';
import { ago } from '../times.ts';
import { run, type Visit } from '../visit.ts';
import { serverTable } from './models.ts';
import { stateOf } from './wallets.ts';

type Status = CommandOutput<'status'>;
type Attention = { tone: StateTone; what: HtmlValue; since?: number | null; to?: string; act?: string };

const SPENDER_COUNT = 8;
const STUCK_COUNT = 5;
const MINUTE = 60;
const DAY = 86_400;
/** The rate is the average of this many minutes: that of a single one jumps. */
const RATE_MINUTES = 5;
/** A backup is late when the newest is older than two intervals. */
const BACKUP_LATE_FACTOR = 2;

/** Shows the operator's first page: current activity, and items that need attention. */
export async function nowPage(visit: Visit): Promise<Page> {
  const { app, parts, now } = visit;
  const [status, cells] = await Promise.all([run(visit, 'status', {}), parts.pulse.read(now)]);
  const attention = attentionOf(visit, status);
  const spenders = spendersOf(cells);
  const starts = Array.from(
    { length: PULSE_SECONDS / MINUTE + 1 },
    (_, at) => (Math.floor((now - PULSE_SECONDS) / MINUTE) + at) * MINUTE,
  );
  const byModel = cells.map(({ at, keys, charged }) => ({ at, key: keys[1] as string, amount: charged }));
  const rows = spenders.slice(0, SPENDER_COUNT).map((it) => {
    const wallet = findWallet(app.ledger.read, it.walletId);
    const [first, ...others] = it.models;
    const on = html`${outside(first?.model ?? '')}${others.length > 0 && html` <span class="weak">and ${plural(others.length, 'other')}</span>`}`;
    const stop = wallet && stateOf(visit, wallet) === 'active';
    return [
      link(`/wallets/${it.walletId}`, named(it.walletId, wallet?.name)),
      on,
      count(it.operations),
      money(it.charged),
      stop ? buttonLink(`/wallets/${it.walletId}/freeze`, 'Stop') : '',
    ];
  });
  const shown = await nowFigures(visit);
  const spendersTable = table(
    'Who spent in the last hour',
    [
      { label: 'Wallet' },
      { label: 'Mostly on' },
      { label: 'Requests', kind: 'number' },
      { label: 'Charged', kind: 'money' },
      { label: '', kind: 'actions' },
    ],
    rows,
    html`Nobody spent anything in the last hour. ${link('/spend', 'Spending')} goes further back.`,
  );
  const body = html`
    <div class="figures">
      ${figure('Charged today', live('today', shown.today), `since midnight, ${visit.zone}`)}
      ${figure('Charged this month', live('month', shown.month), html`${live('daily', shown.daily)} on an average day`)}
      ${figure('Open budgets last', live('lasts', shown.lasts), html`${live('free', shown.free)} free, at the average of seven days`)}
    </div>
    ${attention.length ? html`<section aria-label="Needs a person"><ul class="attention">${attention.map((it) => attentionItem(it, now))}</ul></section>` : html`<p class="notice good">Nothing needs a person at the moment.</p>`}
    <div class="figures">
      ${figure('Spending per minute', live('minute', shown.minute), html`${live('hour', shown.hour)} in the last hour`)}
      ${figure('Held', live('held', shown.held), html`${live('holds', shown.holds)} open`)}
      ${figure('Running leases', live('leases', shown.leases), link('/leases', 'Leases'))}
      ${figure('Open wallets', live('wallets', shown.wallets), html`${live('budget', shown.budget)} budgets in all`)}
      ${figure('Accounts', count(status.accounts.count), html`${live('available', shown.available)} available`)}
    </div>
    ${card('Who spends, last hour', spendersTable, link('/spend?by=wallet&range=1d', 'By day'))}
    ${card(
      'Spending by model, last hour',
      byModel.length
        ? spendingChart('Spending by minute and model', byModel, {
            starts,
            every: 'minute',
            zone: visit.zone,
            what: 'Model',
          })
        : html`<div class="empty">No charge in the last hour.</div>`,
    )}
    <div class="two">${card('Model servers', serverTable(status.upstreams, visit))}${card('Backends', backends(status, visit))}</div>`;
  return { title: 'Now', body, stream: '/live?page=now', section: '/' };
}

/** Returns the figures that the stream keeps up to date. */
export async function nowFigures({ parts, now, zone }: Pick<Visit, 'parts' | 'now' | 'zone'>): Promise<Figures> {
  const { accounts, wallets, reserved, uncertain, leases } = parts.pulse.figures();
  const [cells, month] = await Promise.all([parts.pulse.read(now), parts.pulse.month(now)]);
  const lately = chargedSince(cells, Math.floor((now - RATE_MINUTES * MINUTE) / MINUTE) * MINUTE);
  const daily = chargedDaily(month, now);
  const free = Nanos(wallets.budget - wallets.spent - wallets.held - wallets.delegated);
  return {
    today: brief(chargedSince(month, periodAt('day', zone, now).start)),
    month: brief(chargedSince(month, periodAt('month', zone, now).start)),
    daily: brief(daily),
    lasts: lasting(free, daily),
    free: brief(free),
    minute: brief(Nanos(lately / BigInt(RATE_MINUTES))),
    hour: brief(chargedSince(cells, 0)),
    held: brief(Nanos(reserved.amount + uncertain.amount)),
    holds: plural(reserved.count + uncertain.count, 'hold'),
    leases: count(Object.values(leases).reduce((sum, it) => sum + it, 0)),
    wallets: count(wallets.count),
    // The budgets of children are parts of their parents’.
    budget: brief(Nanos(wallets.budget - wallets.delegated)),
    available: brief(accounts.available),
  };
}

/** Describes how long money lasts at a rate per day, in days from one day on. */
function lasting(money: Nanos, daily: Nanos): string {
  if (daily <= 0n) return 'nothing is spent';
  const seconds = (money * BigInt(DAY)) / daily;
  return seconds >= DAY ? plural(Number(seconds / BigInt(DAY)), 'day') : duration(Number(seconds), 1);
}

/** Returns the items that need a person, the most urgent first. */
function attentionOf(visit: Visit, status: Status): Attention[] {
  const list: Attention[] = [];
  const add: Add = (tone, what, rest = {}) => list.push({ tone, what, ...rest });
  addService(add, status);
  addBusiness(add, visit);
  addSettings(add, visit, status);
  return list;
}

type Add = (tone: StateTone, what: HtmlValue, rest?: Omit<Attention, 'tone' | 'what'>) => void;

/** Adds what keeps requests from being served: the books, the disk, the clock, backends and model servers. */
function addService(add: Add, status: Status): void {
  if (!status.ready) add('bad', `Not ready: ${status.reason}`, { to: '/settings', act: 'Settings' });
  const { disk } = status;
  if (disk.shortage !== null) add('bad', `Low disk: ${disk.shortage}`, { since: disk.short_since });
  if (disk.replicas && !hasFullCopy(disk.replicas))
    add('warn', html`Copies of the disk: ${outside(describeReplicas(disk.replicas))}`);
  if (status.clock.holds_blocked !== null) add('bad', `No new holds: ${status.clock.holds_blocked}`);
  const { uncertain } = status;
  if (uncertain.count)
    add('bad', `${plural(uncertain.count, 'operation')} with an unknown outcome, ${brief(uncertain.amount_usd)} held`, {
      since: uncertain.oldest_at,
      to: '/operations?state=uncertain',
      act: 'Resolve',
    });
  for (const it of status.backends.filter(({ up }) => !up))
    add('bad', `Leases fail at ${it.slot} (${it.backend}): ${plural(it.failing_leases, 'lease')}`, {
      since: it.failing_since,
      to: '/leases',
      act: 'Leases',
    });
  for (const { leases, engine, backend, slot, since } of status.leases.unreachable)
    add('warn', html`${plural(leases, 'lease')} of ${slot} (${backend}) on another engine: ${outside(engine ?? '')}`, {
      since,
      to: '/leases',
      act: 'Leases',
    });
  for (const { name, up, reason, failing_since: since, failure } of status.upstreams) {
    const way = { since, to: '/models', act: 'Models' };
    if (!up) add('bad', html`The model server ${name} cannot be reached (${reason})`, way);
    else if (since !== null)
      add('bad', html`The model server ${name} does not answer as it should: ${outside(failure ?? '')}`, way);
  }
}

/** Adds what the operator has to decide: wallets that do not close, and checkouts in trouble. */
function addBusiness(add: Add, { app }: Visit): void {
  const { read } = app.ledger;
  const { total, first } = stuckWallets(read, STUCK_COUNT + 1);
  for (const wallet of first.slice(0, STUCK_COUNT))
    add(
      'warn',
      html`${named(wallet.id, wallet.name)} does not close: ${outside(wallet.cleanupError ?? 'requests are in flight')}`,
      {
        since: endedSince(read, wallet, app.clock.now()),
        to: `/wallets/${wallet.id}`,
        act: 'Look',
      },
    );
  if (total > STUCK_COUNT)
    add('warn', `${plural(total - STUCK_COUNT, 'more wallet')} do not close`, {
      to: `/wallets?state=${first.at(-1)?.status}`,
      act: 'Wallets',
    });
  const troubled = countCheckouts(read, { trouble: true });
  for (const it of listCheckouts(read, { trouble: true }, { limit: STUCK_COUNT }))
    add('warn', html`A checkout of ${cents(it.amountCents)} is ${it.status}: ${outside(it.lastError ?? '')}`, {
      since: it.createdAt,
      to: `/accounts/${it.accountId}`,
      act: 'Account',
    });
  if (troubled > STUCK_COUNT)
    add(
      'warn',
      html`${plural(troubled - STUCK_COUNT, 'more checkout')} in trouble: <code>purser checkout list --trouble</code>`,
    );
}

/** Adds what is not as the settings want it, or was stopped on purpose. */
function addSettings(add: Add, { app, now }: Visit, status: Status): void {
  const { frozen } = status;
  if (frozen.installation)
    add('warn', 'The installation is frozen: no new holds', {
      since: frozen.since.installation,
      to: '/settings',
      act: 'Settings',
    });
  if (frozen.accounts)
    add('warn', `${plural(frozen.accounts, 'account')} suspended`, {
      since: frozen.since.accounts,
      to: '/accounts?state=suspended',
      act: 'Accounts',
    });
  if (frozen.wallets)
    add('warn', `${plural(frozen.wallets, 'wallet')} frozen`, {
      since: frozen.since.wallets,
      to: '/wallets?state=frozen',
      act: 'Wallets',
    });
  const reportOnly = describeReportOnly(app.ledger.read);
  if (reportOnly)
    add('warn', `Report only: ${outside(reportOnly.reason)}. End it with \`purser resource reconcile --apply\``, {
      since: reportOnly.since,
    });
  if (status.events.waiting)
    add('info', `${plural(status.events.waiting, 'event')} wait to be delivered`, {
      since: status.events.oldest_at,
      to: '/events',
      act: 'Events',
    });
  const { backup } = app.config;
  const newest = status.backup?.at ?? null;
  if (backup && (newest === null || now - newest > BACKUP_LATE_FACTOR * backup.every))
    add('warn', newest === null ? 'There is no backup yet' : 'The newest backup is late', {
      since: newest,
      to: '/settings',
      act: 'Backups',
    });
}

function attentionItem({ tone, what, since, to, act }: Attention, now: number): Html {
  return html`<li class="${tone}"><span class="what">${what}</span><span class="since">${since != null && html`for ${duration(now - since)} `}${to && link(to, act ?? 'Look')}</span></li>`;
}

function backends(status: Status, visit: Visit): Html {
  const rows = status.backends.map((it) => [
    it.slot,
    it.backend,
    html`<span class="badge ${it.up ? 'good' : 'bad'}">${it.up ? 'up' : 'failing'}</span>`,
    it.failing_since === null ? '' : ago(it.failing_since, visit),
  ]);
  return table(
    'Backends',
    [{ label: 'Slot' }, { label: 'Backend' }, { label: 'State' }, { label: 'Since' }],
    rows,
    'No backend is configured: compute in purser.yaml.',
  );
}
