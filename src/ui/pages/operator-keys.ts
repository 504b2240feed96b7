import { Refusal } from '../../base/refusal.ts';
import { type Html, html } from '../html.ts';
import { below, type Page } from '../layout.ts';
import { badge, buttonLink, card, copyButton, form, link, named, pagesOf, table } from '../parts.ts';
import type { Go } from '../sign-in.ts';
import { ago, when } from '../times.ts';
import { run, type Visit } from '../visit.ts';

const KEY_COUNT = 25;
const AT = '/settings/operator-keys';

/** Shows the operator keys, and the form that makes one. */
export async function operatorKeyCard(visit: Visit): Promise<Html> {
  const { keys } = await run(visit, 'operator-key.list', {});
  const { shown, pages } = pagesOf(visit, 'operator-keys', keys.toReversed(), KEY_COUNT);
  const list = table(
    'Operator keys',
    [
      { label: 'Name' },
      { label: 'Key' },
      { label: 'Acts for' },
      { label: 'Made', kind: 'time' },
      { label: 'Last used', kind: 'time' },
      { label: 'State', kind: 'actions' },
    ],
    shown.map((it) => [
      named(it.id, it.name),
      html`<code>${it.prefix}&hellip;${it.last4}</code>`,
      link(`/accounts/${it.account_id}`, 'its account'),
      when(it.created_at, visit),
      ago(it.last_used_at, visit, 'never'),
      it.revoked_at !== null ? badge('revoked') : buttonLink(`${AT}/${it.id}/revoke`, 'Revoke'),
    ]),
    'There is none. Programs of the operator use one over HTTP.',
  );
  const making = form({
    action: AT,
    hidden: { key: visit.parts.once.newKey() },
    fields: [
      { name: 'name', label: 'Name of a new operator key', required: true, placeholder: 'laptop' },
      { name: 'account', label: 'It acts for the account', value: 'default', required: true, hint: 'Name or id.' },
    ],
    submit: 'Make an operator key',
  });
  return card('Operator keys', html`${list}${pages}${making}`, '', 'operator-keys');
}

/** Makes an operator key and shows it once. */
export async function create(visit: Visit): Promise<Page> {
  const { form: sent, parts } = visit;
  const order = { name: sent.get('name') ?? '', account: sent.get('account')?.trim() ?? '' };
  const { key } = await parts.once.run(visit, () => run(visit, 'operator-key.mint', order));
  const body = html`
    <p class="notice good" role="status">Keep this key now: it is in this answer and nowhere else.</p>
    ${card('Operator key', html`<div class="token"><pre>${key}</pre>${copyButton(key, 'the key')}</div>`)}`;
  return { title: 'New operator key', body, ...below('/settings') };
}

/** Asks before an operator key is revoked. */
export async function confirmRevoke(visit: Visit): Promise<Page> {
  const { keys } = await run(visit, 'operator-key.list', {});
  const key = keys.find((it) => it.id === visit.params.key);
  if (!key) throw new Refusal('not_found', 'There is no such key.');
  const body = card(
    'Revoke it for good?',
    html`<p>Every program that uses this key is refused at once, and sessions that it opened end. This cannot be undone.</p>${form({ action: `${AT}/${key.id}/revoke`, submit: 'Revoke the key', tone: 'danger' })}`,
  );
  return { title: `Revoke ${named(key.id, key.name)}`, body, ...below('/settings') };
}

export async function revoke(visit: Visit): Promise<Go> {
  await run(visit, 'operator-key.revoke', { id: visit.params.key as string });
  return { to: '/settings?done=revoked#operator-keys' };
}
