import { countKeys, findKey, type Key, sliceKeys } from '../../access/keys.ts';
import { Refusal } from '../../base/refusal.ts';
import { createAccountKey, deleteKey } from '../../http/routes/keys.ts';
import { type Html, html } from '../html.ts';
import type { Page } from '../layout.ts';
import { badge, buttonLink, card, copyButton, form, named, pagesOf, type Rows, table } from '../parts.ts';
import type { Go } from '../sign-in.ts';
import { ago, when } from '../times.ts';
import { callEndpoint, isPerson, type Visit } from '../visit.ts';

const PATH = [['/keys', 'Keys']] as const;
const KEY_COUNT = 25;

/** Returns the account of the viewer. The operator's keys are on the pages of their accounts. */
function ownAccount({ viewer }: Visit): string {
  if (viewer.kind === 'account') return viewer.accountId;
  throw new Refusal('not_found', 'The operator has no keys of an account: they are on the pages of the accounts.');
}

/**
 * Returns the account keys of an account, newest first, those that were not revoked alone with `isValid`. Only the part that is
 * shown is read: whoever signs in may have made any number.
 */
export const keysOf = ({ app }: Visit, accountId: string, { isValid = false } = {}): Rows<Key> => ({
  length: countKeys(app.ledger.read, accountId, isValid),
  slice: (from, to) => sliceKeys(app.ledger.read, accountId, { isValid, from, limit: to - from }),
});

/** Renders a table of account keys, in pages. Keys below `at` can be revoked; undefined if the viewer may not revoke them. */
export function keyTable(visit: Visit, keys: Rows<Key>, at: string | undefined): Html {
  const { shown, pages } = pagesOf(visit, 'keys', keys, KEY_COUNT);
  const rows = shown.map((it) => [
    named(it.id, it.name),
    html`<code>cnv_live_&hellip;${it.last4}</code>`,
    when(it.createdAt, visit),
    ago(it.lastUsedAt, visit, 'never'),
    it.revokedAt !== null
      ? badge('revoked')
      : at === undefined
        ? badge('valid', 'good')
        : buttonLink(`${at}/${it.id}/revoke`, 'Revoke'),
  ]);
  const list = table(
    'Account keys',
    [
      { label: 'Name' },
      { label: 'Key' },
      { label: 'Made', kind: 'time' },
      { label: 'Last used', kind: 'time' },
      { label: 'State', kind: 'actions' },
    ],
    rows,
    'There is no key yet. Programs that open wallets need one.',
  );
  return html`${list}${pages}`;
}

/** Renders the form that makes a key. */
export const newKeyForm = (visit: Visit, action: string, tone: 'primary' | '' = ''): Html =>
  form({
    action,
    hidden: { key: visit.parts.once.newKey() },
    fields: [{ name: 'name', label: 'Name of a new key', required: true, placeholder: 'ci' }],
    submit: 'Make a key',
    tone,
  });

/** Shows the keys of the account. Only a signed-in person makes and revokes them, as over HTTP. */
export function listPage(visit: Visit): Page {
  const keys = keysOf(visit, ownAccount(visit));
  const canChange = isPerson(visit);
  const body = html`${card('Keys of the account', keyTable(visit, keys, canChange ? '/keys' : undefined), '', 'keys')}${canChange ? card('New key', newKeyForm(visit, '/keys', 'primary')) : html`<p class="notice info">You signed in with a key, and a key makes no keys. Sign in with your identity provider, or ask the operator.</p>`}`;
  return { title: 'Keys', body, section: '/keys' };
}

/** Makes a key and shows it once. */
export async function create(visit: Visit): Promise<Page> {
  ownAccount(visit);
  const raw = { name: visit.form.get('name') ?? '' };
  const made = await visit.parts.once.run(visit, () => callEndpoint<{ key: string }>(visit, createAccountKey, { raw }));
  return { ...newKeyPage(made.key, PATH), section: '/keys' };
}

/** Shows a newly made key. */
export function newKeyPage(key: string, path: Page['path']): Page {
  const body = html`
    <p class="notice good" role="status">Keep this key now: it is in this answer and nowhere else.</p>
    ${card('Account key', html`<div class="token"><pre>${key}</pre>${copyButton(key, 'the key')}</div>`)}`;
  return { title: 'New key', body, ...(path ? { path } : {}) };
}

/** Asks before a key is revoked. Throws `wrong_token_scope` where the revocation would. */
export function confirmRevoke(visit: Visit): Page {
  const accountId = ownAccount(visit);
  if (!isPerson(visit))
    throw new Refusal(
      'wrong_token_scope',
      'You signed in with a key, and a key revokes no keys. Sign in with your identity provider, or ask the operator.',
    );
  return { ...revokePage(visit, accountId, visit.params.id as string, '/keys'), section: '/keys', path: PATH };
}

/** Asks before a key of an account is revoked. Throws `not_found` for a key of another account. */
export function revokePage(visit: Visit, accountId: string, keyId: string, at: string): Page {
  const key = findKey(visit.app.ledger.read, keyId);
  if (key?.kind !== 'account' || key.accountId !== accountId) throw new Refusal('not_found', 'There is no such key.');
  const body = card(
    'Revoke it for good?',
    html`<p>Every program that uses this key is refused at once, and sessions that it opened end. This cannot be undone.</p>${form({ action: `${at}/${keyId}/revoke`, submit: 'Revoke the key', tone: 'danger' })}`,
  );
  return { title: `Revoke ${named(key.id, key.name)}`, body };
}

export async function revoke(visit: Visit): Promise<Go> {
  ownAccount(visit);
  await callEndpoint(visit, deleteKey, { params: { id: visit.params.id as string } });
  return { to: '/keys?done=revoked' };
}
