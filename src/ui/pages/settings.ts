import { listOperatorSessions } from '../../access/browser-sessions.ts';
import { listPasskeys } from '../../access/passkeys.ts';
import { duration } from '../../base/shown.ts';
import { describeReplicas } from '../../files/drbd.ts';
import { installationOf } from '../../ledger/installation.ts';
import { type Html, type HtmlValue, html } from '../html.ts';
import { below, type Page } from '../layout.ts';
import { badge, buttonLink, card, facts, form, id, named, outside, table } from '../parts.ts';
import { passkeyCard } from '../passkeys.ts';
import type { Go } from '../sign-in.ts';
import { ago, when } from '../times.ts';
import { run, type Visit } from '../visit.ts';
import { doctorCard } from './doctor.ts';
import { operatorKeyCard } from './operator-keys.ts';

const GIB = 1024 ** 3;

/** Shows the server, its backups and its settings in force, without secrets. */
export async function settingsPage(visit: Visit): Promise<Page> {
  const { app, parts } = visit;
  const status = await run(visit, 'status', {});
  const installation = installationOf(app.ledger.read);
  const { backup } = app.config;
  const isFrozen = installation.frozenAt !== null;
  const freezing = isFrozen
    ? html`<p>Frozen ${ago(installation.frozenAt, visit)}${installation.freezeReason !== null && html`: ${outside(installation.freezeReason)}`}.</p>${form({ action: '/settings/unfreeze', submit: 'Take new holds again', tone: 'primary' })}`
    : html`<p>Stops every new hold of every wallet at once. Settlements, stops and reads go on.</p><p class="actions">${buttonLink('/settings/freeze', 'Freeze everything', 'danger')}</p>`;
  const body = html`
    ${card(
      'Server',
      facts([
        ['Version', status.version],
        ['Up for', status.uptime_seconds === null ? '–' : duration(status.uptime_seconds)],
        ['State', status.ready ? 'ready' : outside(status.reason ?? '')],
        ['Free on disk', `${(status.disk.free_bytes / GIB).toFixed(1)} GiB`],
        status.disk.replicas !== null && ['Copies of the disk', outside(describeReplicas(status.disk.replicas))],
        ['Address', app.state.baseUrl],
        ['Installation', id(installation.installationId)],
      ]),
    )}
    <div class="two">
      ${card('Backups', html`${backupFacts(visit, status.backup)}${backup && form({ action: '/settings/backup', hidden: { key: parts.once.newKey() }, submit: 'Back up now' })}`)}
      ${card(isFrozen ? 'Everything is frozen' : 'Emergency', freezing)}
    </div>
    ${doctorCard()}
    ${passkeyCard(visit)}
    ${await operatorKeyCard(visit)}
    ${card('Sessions of operators', html`${sessionTable(visit)}<p>${ownSessions(visit)}</p>${form({ action: '/sign-out/everywhere', submit: 'Sign out everywhere' })}<p>Ends the sessions of all operators, this one included, and unused links.</p>${form({ action: '/sign-out/operators', submit: 'Sign out all operators', tone: 'danger' })}`)}
    ${card('Settings in force', html`<pre>${outside(parts.settings())}</pre>${app.reload !== undefined && form({ action: '/settings/reload', submit: 'Read purser.yaml again' })}`, 'without secrets')}`;
  return { title: 'Settings', body, section: '/settings' };
}

/** Describes which sessions *Sign out everywhere* ends. */
function ownSessions({ viewer }: Visit): HtmlValue {
  if (viewer.kind !== 'operator') throw new Error('the page is the operator’s');
  if (viewer.subject !== null)
    return html`Ends the sessions of ${outside(viewer.subject)} by the identity provider, this one included.`;
  if (viewer.passkeyId !== null) return 'Ends the sessions that this passkey opened, this one included.';
  return 'Ends the sessions that links opened, this one included, and unused links.';
}

/** Shows which browsers are signed in as an operator, and how they came in: this one first. */
function sessionTable(visit: Visit): Html {
  const { app, now, viewer } = visit;
  const { read } = app.ledger;
  const names = new Map(listPasskeys(read).map((it) => [it.id, named(it.id, it.name)]));
  const isOwn = (it: { id: string }) => it.id === viewer.sessionId;
  const sessions = listOperatorSessions(read, now).toSorted((a, b) => Number(isOwn(b)) - Number(isOwn(a)));
  const rows = sessions.map((it) => [
    it.passkeyId !== null
      ? html`passkey ${names.get(it.passkeyId)}`
      : it.subject !== null
        ? html`identity provider, ${outside(it.subject)}`
        : 'link',
    when(it.createdAt, visit),
    ago(it.lastUsedAt, visit),
    isOwn(it) ? badge('this one') : '',
  ]);
  const columns = [
    { label: 'Signed in by' },
    { label: 'Since', kind: 'time' as const },
    { label: 'Last used', kind: 'time' as const },
    { label: 'Which' },
  ];
  return table('Sessions of operators', columns, rows);
}

function backupFacts(visit: Visit, newest: { at: number; file: string } | null): HtmlValue {
  const { backup: planned } = visit.app.config;
  const latest =
    newest === null ? 'none yet' : html`${when(newest.at, visit)} <span class="weak">(${ago(newest.at, visit)})</span>`;
  const every = planned
    ? html`every ${duration(planned.every)}, ${planned.keep} kept in <code>${planned.directory}</code>`
    : html`none: set <code>backup</code> in purser.yaml, or run <code>purser backup FILE</code>`;
  return facts([['Newest', latest], newest !== null && ['File', html`<code>${newest.file}</code>`], ['Plan', every]]);
}

/** Asks before everything is frozen. */
export function confirmFreeze(): Page {
  const body = card(
    'Stop all new spending?',
    html`<p>Every wallet of every account is refused new holds until you undo this. What is in flight is settled, and leases run on to their deadlines.</p>${form(
      {
        action: '/settings/freeze',
        fields: [{ name: 'reason', label: 'Why', placeholder: 'optional, shown in the status' }],
        submit: 'Freeze everything',
        tone: 'danger',
      },
    )}`,
  );
  return { title: 'Freeze everything', body, ...below('/settings') };
}

export async function freeze(visit: Visit): Promise<Go> {
  await run(visit, 'freeze', { reason: visit.form.get('reason')?.trim() || undefined });
  return { to: '/settings?done=all-frozen' };
}

export async function unfreeze(visit: Visit): Promise<Go> {
  await run(visit, 'unfreeze', {});
  return { to: '/settings?done=all-unfrozen' };
}

/** Makes a backup, and comes back when it is verified. */
export async function backUp(visit: Visit): Promise<Go> {
  await visit.parts.once.run(visit, () => run(visit, 'backup.now', {}));
  return { to: '/settings?done=backed-up' };
}

export async function reload(visit: Visit): Promise<Go> {
  await run(visit, 'reload', {});
  return { to: '/settings?done=reloaded' };
}
