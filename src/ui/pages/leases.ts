import { parseJson } from '../../base/parse-json.ts';
import { Refusal } from '../../base/refusal.ts';
import { duration } from '../../base/shown.ts';
import type { Usage } from '../../compute/backend.ts';
import { RESOURCE_STATUSES } from '../../db/enums.ts';
import type { Reached } from '../../egress/tally.ts';
import { isPaused, shownStatus } from '../../lease/pausing.ts';
import { usageOf } from '../../lease/usage.ts';
import { keepOf } from '../../ledger/keep.ts';
import { countResources, findResource, liveByDeadline, pageResources, type Resource } from '../../ledger/resource.ts';
import { findSandbox, sandboxLabel } from '../../ledger/sandbox.ts';
import { findWallet } from '../../ledger/wallet.ts';
import { summaryOf } from '../../wire/compute.ts';
import { type Html, html } from '../html.ts';
import { below, type Page } from '../layout.ts';
import type { Figures } from '../live.ts';
import {
  address,
  buttonLink,
  card,
  count,
  dollars,
  facts,
  figure,
  filters,
  form,
  id,
  link,
  live,
  money,
  named,
  outside,
  pager,
  plural,
  state,
  table,
} from '../parts.ts';
import { ganttOf, type Lease } from '../pictures.ts';
import type { Go } from '../sign-in.ts';
import { ago, when } from '../times.ts';
import { accountIn, run, type Visit, walletIn, walletSeen } from '../visit.ts';
import { PAGE_COUNT, walletField } from './wallets.ts';

const STRIP_COUNT = 30;
const MIB = 1024 ** 2;

type ShownKeep = NonNullable<ReturnType<typeof summaryOf>['keep']>;

/** Describes the rented machine in a few words. */
function whatIs({ slot, spec }: Resource): string {
  const { chip, offer_id: offer, gpu, gpus, cpus } = parseJson(spec) as Record<string, unknown>;
  const what = chip ?? offer ?? (gpu ? `${gpus} × ${gpu}` : cpus === undefined ? undefined : `${cpus} CPU`);
  return what === undefined ? slot : `${what} at ${slot}`;
}

/** Names the sandbox that a lease is for E2B's SDKs: its template, and the id that they know it by. */
function sandboxOf({ app }: Pick<Visit, 'app'>, it: Resource): Html | undefined {
  const sandbox = findSandbox(app.ledger.read, it.id);
  return sandbox && html`${outside(sandbox.template)} <code class="id">${sandboxLabel(it)}</code>`;
}

/** Returns whether an attempt to end the machine of a lease has failed. */
const isStuck = (it: Resource): boolean => it.endWanted !== null && it.attempts > 0;

/** Returns the elapsed share of a lease's time, in percent, and the rest of it in words. */
function timeOf(it: Resource, now: number): { percent: string; text: string } {
  if (it.endedAt !== null) return { percent: '100', text: 'ended' };
  const begun = it.readyAt ?? it.createdAt;
  const part = Math.min(100, Math.max(0, ((now - begun) / Math.max(1, it.expiresAt - begun)) * 100));
  const left = isPaused(it) ? `paused, ${duration(it.secondsLeft ?? 0)} left` : `${duration(it.expiresAt - now)} left`;
  return { percent: part.toFixed(1), text: isStuck(it) ? 'does not stop' : left };
}

/** Draws the elapsed share of a lease's time as a bar, with the rest of it in words. */
function remainingTime(visit: Visit, it: Resource): Html {
  if (it.endedAt !== null) return html`ended ${ago(it.endedAt, visit)}`;
  const { percent, text } = timeOf(it, visit.now);
  if (isStuck(it))
    return html`<span class="bad">${live(`${it.id}.left`, text)}; tried ${plural(it.attempts, 'time')}</span>`;
  return html`<svg class="time-left" role="img" aria-label="${percent}% of the time is over" width="100%" height="8"><rect class="past" x="0" width="${percent}%" height="8" data-live-bar="${it.id}.bar"></rect></svg>${live(`${it.id}.left`, text)}`;
}

/**
 * Returns the part of a stream's address that names the running leases of a table: the stream must report exactly these,
 * including that one of them has ended, even before the stream was opened.
 */
export const streamOf = (leases: readonly Resource[]): string =>
  `leases=${leases
    .filter((it) => it.endedAt === null)
    .map((it) => it.id)
    .join()}`;

/**
 * Returns the ids of the leases that a stream was opened for; by default the newest running ones, for the stream of their
 * list. Throws `not_found`, also for leases of another account.
 */
export function leasesShown(visit: Visit): string[] {
  const { app, viewer, query } = visit;
  const requested = query.get('leases');
  if (requested !== null)
    return requested
      .split(',')
      .filter(Boolean)
      .slice(0, PAGE_COUNT + 2) // Those of the list, and the first and the last to end.
      .map((leaseId) => leaseSeen(visit, leaseId).id);
  if (query.get('page') !== 'leases') return [];
  const accountId = viewer.kind === 'account' ? viewer.accountId : undefined;
  return pageResources(app.ledger.read, { isLive: true, accountId }).page.map((it) => it.id);
}

/** Returns the figures of these leases that a stream keeps up to date. */
export function leaseFigures({ app, now }: Pick<Visit, 'app' | 'now'>, leaseIds: readonly string[]): Figures {
  const list: Figures = {};
  for (const leaseId of leaseIds) {
    const { percent, text } = timeOf(findResource(app.ledger.read, leaseId) as Resource, now);
    list[`${leaseId}.left`] = text;
    list[`${leaseId}.bar`] = `0 ${percent}%`;
  }
  return list;
}

/** Renders the state of a lease, also where it is out of reach. */
const shownState = (it: Resource): Html => state(it.unreachableSince === null ? shownStatus(it) : 'unreachable');

/** Renders a table of leases. */
export function leaseTable(visit: Visit, leases: readonly Resource[], empty: Html): Html {
  const { app, viewer } = visit;
  const rows = leases.map((it) => {
    const wallet = findWallet(app.ledger.read, it.walletId);
    const canStop = viewer.kind === 'operator' && it.endedAt === null && it.endWanted === null;
    const sandbox = sandboxOf(visit, it);
    const isKept = it.endedAt === null && keepOf(app.ledger.read, it.id)?.endedAt === null;
    return [
      html`${link(`/leases/${it.id}`, outside(whatIs(it)))}${sandbox && html` <span class="weak">sandbox ${sandbox}</span>`}`,
      html`${shownState(it)}${isKept && html` <span class="weak">kept while busy</span>`}`,
      link(`/wallets/${it.walletId}`, named(it.walletId, wallet?.name)),
      remainingTime(visit, it),
      money(it.charged),
      canStop ? buttonLink(`/leases/${it.id}/stop`, 'Stop') : '',
    ];
  });
  return table(
    'Leases',
    [
      { label: 'Machine' },
      { label: 'State' },
      { label: 'Wallet' },
      { label: 'Time' },
      { label: 'Charged', kind: 'money' },
      { label: '', kind: 'actions' },
    ],
    rows,
    empty,
  );
}

/** Shows the leases: the live ones as a strip, and all of them as a list. */
export function listPage(visit: Visit): Page {
  const { app, query, now, path } = visit;
  const { read } = app.ledger;
  const state = query.get('state') ?? 'live';
  const accountId = accountIn(visit);
  const wallet = walletIn(visit);
  const filter = {
    accountId,
    walletId: wallet?.id,
    isLive: state === 'live',
    status: RESOURCE_STATUSES.find((it) => it === state),
  };
  const { page, next } = pageResources(read, filter, { before: query.get('before') || undefined, limit: PAGE_COUNT });
  const total = countResources(read, filter);
  const live = { isLive: true, accountId, walletId: wallet?.id };
  const running = pageResources(read, live, { limit: STRIP_COUNT }).page;
  const liveCount = countResources(read, live);
  const strip: Lease[] = running.map((it) => ({
    id: it.id,
    label: named(it.walletId, findWallet(read, it.walletId)?.name),
    from: it.createdAt,
    readyAt: it.readyAt,
    until: it.expiresAt,
    isLive: true,
    remainingTime: timeOf(it, now).text,
    href: `/leases/${it.id}`,
  }));
  const empty = app.slots.list.length
    ? html`No lease is like that. Agents rent machines with their wallet&rsquo;s token: <code>POST /v1/compute/create</code>.`
    : html`No machines are on offer here: configure a slot under <code>compute</code> in purser.yaml.`;
  const [first, last] = (['first', 'last'] as const).map((it) => liveByDeadline(read, live, it));
  const body = html`
    ${first && last && html`<div class="figures">${deadline(visit, 'Next deadline', first)}${deadline(visit, 'Latest deadline', last)}</div>`}
    ${strip.length > 0 && card('Running now', ganttOf(strip, visit), `${liveCount > strip.length ? `the newest ${strip.length} of ${count(liveCount)}, ` : ''}from the order to the deadline`)}
    ${filters('/leases', [...walletField(wallet), { name: 'state', label: 'State', value: state, options: [['live', 'running'], ['all', 'all'], ...RESOURCE_STATUSES.map((it) => [it, it] as const)] }])}
    ${card(wallet ? `Leases of ${named(wallet.id, wallet.name)}` : 'Leases', html`${leaseTable(visit, page, empty)}${page.length > 0 && pager(page.length, total, query.get('before') ? address(path, query, { before: undefined }) : undefined, next && address(path, query, { before: next }))}`)}`;
  const shown = [...new Map([...page, first, last].flatMap((it) => (it ? [[it.id, it] as const] : []))).values()];
  return { title: 'Leases', body, section: '/leases', stream: `/live?page=leases&${streamOf(shown)}` };
}

/** Renders the rest of a lease's time as a figure, with its deadline and its wallet. */
function deadline(visit: Visit, name: string, it: Resource): Html {
  const { app, now } = visit;
  const wallet = named(it.walletId, findWallet(app.ledger.read, it.walletId)?.name);
  const note = html`${link(`/leases/${it.id}`, outside(whatIs(it)))} of ${link(`/wallets/${it.walletId}`, wallet)}, ${when(it.expiresAt, visit)}`;
  return figure(name, live(`${it.id}.left`, timeOf(it, now).text), note);
}

/** Returns a lease that the viewer may see. Throws `not_found`, also for another account's. */
function leaseSeen(visit: Visit, leaseId: string): Resource {
  const lease = findResource(visit.app.ledger.read, leaseId);
  if (!lease) throw new Refusal('not_found', 'There is no such lease.');
  walletSeen(visit, lease.walletId);
  return lease;
}

const leaseIn = (visit: Visit): Resource => leaseSeen(visit, visit.params.id as string);

/** Describes the time that a keep has bought and may buy, and why it has ended or waits. */
function keepSentence({ state: is, bought_seconds: bought, max_seconds: max, ...keep }: ShownKeep): Html {
  const why = keep.message ?? keep.reason?.replaceAll('_', ' ');
  return html`${state(is)} ${duration(bought)} of ${duration(max)} bought, by ${duration(keep.extend_seconds)}${why !== undefined && html` <span class="weak">${outside(why)}</span>`}`;
}

const inMib = (bytes: number) => `${(bytes / MIB).toFixed(1)} MiB`;

/** Describes what a machine uses; undefined where nothing is known. */
function usageSentence(usage: Usage | undefined): string | undefined {
  const { cpuSeconds, memoryBytes, diskBytes, networkBytes, gpus = [] } = usage ?? {};
  const sizes = Object.entries({ memory: memoryBytes, disk: diskBytes, network: networkBytes });
  const known = [
    ...(cpuSeconds === undefined ? [] : [`CPU ${cpuSeconds.toFixed(1)} s`]),
    ...sizes.flatMap(([name, bytes]) => (bytes === undefined ? [] : [`${name} ${inMib(bytes)}`])),
    ...gpus.map(({ utilizationPercent: percent, memoryBytes: bytes }) =>
      ['GPU', percent === undefined ? '–' : `${percent} %`, bytes !== undefined && `with ${inMib(bytes)}`]
        .filter(Boolean)
        .join(' '),
    ),
  ];
  return known.length ? known.join(', ') : undefined;
}

/** Shows what a lease reached, and was refused; nothing where it has no way out. */
function egressCard(reached: Reached[] | undefined, allow: string | null): Html | undefined {
  if (reached === undefined) return undefined;
  const columns = [
    { label: 'Host' },
    { label: 'Bytes', kind: 'number' },
    { label: 'Refused', kind: 'number' },
  ] as const;
  const rows = reached.map((it) => [outside(it.host), count(it.bytes), count(it.refused)]);
  const list = allow === null ? [] : (parseJson(allow) as string[]);
  const narrowed = allow !== null && facts([['Narrowed to', list.length ? outside(list.join(', ')) : 'nothing']]);
  return card(
    'Egress',
    html`${narrowed}${table('Hosts since the server started', columns, rows, 'Nothing was reached or refused since the server started.')}`,
  );
}

/** Shows one lease. */
export async function leasePage(visit: Visit): Promise<Page> {
  const { app, viewer, now } = visit;
  const usage = usageSentence(await usageOf(visit.app, leaseIn(visit)));
  const it = leaseIn(visit);
  const summary = summaryOf(app, it);
  const sandbox = sandboxOf(visit, it);
  const wallet = findWallet(app.ledger.read, it.walletId);
  const isOperator = viewer.kind === 'operator';
  const body = html`
    ${it.endedAt === null && it.lastError !== null && isOperator && html`<p class="notice bad">Attempt ${it.attempts}: ${outside(it.lastError)}</p>`}
    ${summary.status_reason !== undefined && html`<p class="notice info">${outside(summary.status_reason)}</p>`}
    ${card(
      'Time',
      html`${ganttOf([{ id: it.id, label: whatIs(it), from: it.createdAt, readyAt: it.readyAt, until: it.endedAt ?? it.expiresAt, isLive: it.endedAt === null, remainingTime: timeOf(it, now).text, href: `/leases/${it.id}` }], visit)}${facts(
        [
          ['Ordered', when(it.createdAt, visit)],
          ['Ready', when(it.readyAt, visit)],
          ['Deadline', when(it.expiresAt, visit)],
          isPaused(it) && [
            'Paused',
            html`${when(it.pausedAt, visit)} <span class="weak">${duration(it.secondsLeft ?? 0)} left</span>`,
          ],
          it.endedAt !== null && [
            'Ended',
            html`${when(it.endedAt, visit)} <span class="weak">${(it.endReason ?? '').replaceAll('_', ' ')}</span>`,
          ],
          ['Bought', duration(it.purchasedSeconds)],
          summary.keep !== undefined && ['Kept while busy', keepSentence(summary.keep)],
          ['Price per hour', dollars(it.priceHourly)],
          ['Charged', dollars(it.charged)],
          ['Reserved', dollars(summary.reserved_usd)],
        ],
      )}`,
    )}
    ${card(
      'Machine',
      facts([
        ['Wallet', link(`/wallets/${it.walletId}`, named(it.walletId, wallet?.name))],
        ['Slot', it.slot],
        isOperator && ['Backend', it.backend],
        isOperator && it.engine !== null && ['Engine', outside(it.engine)],
        ['Reference', it.ref === null ? '–' : outside(it.ref)],
        isOperator && ['Tag', id(it.tag)],
        ['Specification', html`<code>${outside(it.spec)}</code>`],
        usage !== undefined && ['Uses', usage],
        ['Id', id(it.id)],
        sandbox !== undefined && ['Sandbox', sandbox],
      ]),
    )}
    ${egressCard(app.egress.reached(it.id), it.egressAllow)}`;
  const canStop = isOperator && it.endedAt === null && it.endWanted === null;
  return {
    title: outside(whatIs(it)),
    body,
    aside: html`<span class="row">${shownState(it)}${canStop && buttonLink(`/leases/${it.id}/stop`, 'Stop', 'danger')}</span>`,
    ...below('/leases'),
  };
}

/** Asks before a lease is ended. */
export function confirmStop(visit: Visit): Page {
  const it = leaseIn(visit);
  const name = named(it.walletId, findWallet(visit.app.ledger.read, it.walletId)?.name);
  const body = card(
    'End this machine now?',
    html`<p>It was rented by ${link(`/wallets/${it.walletId}`, name)} and has ${duration(isPaused(it) ? (it.secondsLeft ?? 0) : it.expiresAt - visit.now)} left. What is on it is lost, and paid time is not given back. This cannot be undone.</p>${form({ action: `/leases/${it.id}/stop`, submit: 'Stop the lease', tone: 'danger' })}<p class="actions">${buttonLink(`/leases/${it.id}`, 'Leave it running')}</p>`,
  );
  return {
    title: `Stop ${outside(whatIs(it))}`,
    body,
    ...below('/leases', [`/leases/${it.id}`, outside(whatIs(it))]),
  };
}

export async function stop(visit: Visit): Promise<Go> {
  const it = leaseIn(visit);
  await run(visit, 'resource.stop', { id: it.id });
  return { to: `/leases/${it.id}?done=stopped` };
}
