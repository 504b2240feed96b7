import { EVENT_TYPES } from '../../db/enums.ts';
import { waitingCount } from '../../ledger/outbox.ts';
import { type Html, type HtmlValue, html } from '../html.ts';
import type { Page } from '../layout.ts';
import {
  address,
  badge,
  card,
  count,
  cutPage,
  filters,
  form,
  link,
  named,
  outside,
  pager,
  state,
  table,
} from '../parts.ts';
import type { Go } from '../sign-in.ts';
import { when } from '../times.ts';
import { run, type Visit } from '../visit.ts';

const EVENT_COUNT = 100;

/** Shows the events that were sent to receivers, and the results. */
export async function eventsPage(visit: Visit): Promise<Page> {
  const { app, query, path } = visit;
  const type = EVENT_TYPES.find((it) => it === query.get('type'));
  const before = query.get('before') || undefined;
  const { events, total } = await run(visit, 'events.list', { type, before, limit: EVENT_COUNT + 1 });
  const { page, goesOnAfter } = cutPage(events, EVENT_COUNT);
  const older = goesOnAfter && address(path, query, { before: goesOnAfter.id });
  const pages = pager(page.length, total, before && address(path, query, { before: undefined }), older);
  const { receivers } = app.config.events;
  const rows = page.map((it) => [
    when(it.created_at, visit),
    it.type,
    about(it.data),
    html`${it.deliveries.map((to) => html`<div>${outside(to.receiver)} ${state(to.state)}${to.error !== null && html` <span class="weak">${outside(to.error)}</span>`}</div>`)}`,
    receivers.length > 0 ? form({ action: `/events/${it.id}/resend`, submit: 'Send again', isInline: true }) : '',
  ]);
  const receiverTable = table(
    'Receivers',
    [{ label: 'Name' }, { label: 'Events' }, { label: 'Waiting', kind: 'number' }],
    receivers.map((it) => [outside(it.name), typesOf(it), count(waitingCount(app.ledger.read, it.name))]),
    html`Nobody is told anything: configure <code>events.receivers</code> in purser.yaml.`,
  );
  const list = table(
    'Events',
    [
      { label: 'Time', kind: 'time' },
      { label: 'Type' },
      { label: 'About' },
      { label: 'Told to' },
      { label: '', kind: 'actions' },
    ],
    rows,
    type === undefined ? 'Nothing happened yet that receivers are told of.' : 'No event is of this type.',
  );
  const options = [['', 'every type'], ...EVENT_TYPES.map((it) => [it, it])] as [string, string][];
  const body = html`
    ${card('Receivers', receiverTable, receivers.length > 0 ? form({ action: '/events/test', submit: 'Send a test', isInline: true }) : '')}
    ${filters('/events', [{ name: 'type', label: 'Type', value: type ?? '', options }])}
    ${card('Events', html`${list}${total > 0 && pages}`, 'newest first; they are kept for 32 days')}`;
  return { title: 'Events', body, section: '/events' };
}

const typesOf = (it: object): HtmlValue => {
  const { types } = it as { types?: readonly string[] };
  return types ? types.map((type) => html`${badge(type)} `) : 'all';
};

function about(data: Record<string, unknown>): Html {
  const text = (name: string) => (typeof data[name] === 'string' ? (data[name] as string) : undefined);
  const walletId = text('wallet_id');
  const name = text('wallet_name') ?? text('account_name') ?? text('upstream') ?? text('scope') ?? walletId ?? '';
  return walletId ? html`${link(`/wallets/${walletId}`, named(walletId, name))}` : html`${outside(name)}`;
}

export async function testEvents(visit: Visit): Promise<Go> {
  await run(visit, 'events.test', {});
  return { to: '/events?done=tested' };
}

export async function resendEvent(visit: Visit): Promise<Go> {
  await run(visit, 'events.resend', { id: visit.params.id as string });
  return { to: '/events?done=resent' };
}
