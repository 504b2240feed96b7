import { CHALLENGE_SECONDS } from '../access/challenges.ts';
import { handleOf, isUsable, listPasskeys, passkeysAt } from '../access/passkeys.ts';
import { relyingPartyOf } from '../access/relying-party.ts';
import type { Ceremony } from '../access/webauthn.ts';
import * as writes from '../access/writes.ts';
import { Refusal } from '../base/refusal.ts';
import { installationOf } from '../ledger/installation.ts';
import { cookie, cookieOf, type PageAddress } from './guard.ts';
import { type Html, html } from './html.ts';
import { below, type Page } from './layout.ts';
import { badge, buttonLink, card, form, named, table } from './parts.ts';
import type { Go, ScriptData } from './sign-in.ts';
import { ago, when } from './times.ts';
import { run, type UiApp, type Visit } from './visit.ts';

/** The cookie with which a browser keeps the challenge that its passkey answers. */
const CHALLENGE = 'purser-passkey';
const NO_CHALLENGE =
  'This passkey was not accepted: it was asked for in another browser, too long ago, or was answered already. Try again.';

const ISSUERS =
  'Your identity provider signs you in, and is asked each time whether you are an operator. Passkeys are for operators who came by a link of `purser ui` or by a passkey.';

type Asking = Pick<Visit, 'app' | 'incoming' | 'address' | 'challenges'>;

/** Returns a new challenge for this browser, and the cookie that keeps it. Throws `conflict` where browsers make no passkeys. */
export function askFor(
  { app, address, challenges }: Asking,
  purpose: string,
): { expected: Ceremony; cookies: string[] } {
  const { origin } = address;
  const reason = whyNone(app, address);
  if (reason) throw new Refusal('conflict', reason);
  const { challenge, kept } = challenges.make(`${purpose} ${origin}`, app.clock.now());
  return { expected: { challenge, origin }, cookies: [cookie(address, CHALLENGE, kept, CHALLENGE_SECONDS)] };
}

/** Returns what the answer of this browser must be for, once. Throws `invalid_request` when it was asked for nothing. */
export function ceremonyOf({ app, incoming, address, challenges }: Asking, purpose: string): Ceremony {
  const { origin } = address;
  const kept = cookieOf(incoming, address, CHALLENGE) ?? '';
  const challenge = challenges.take(kept, `${purpose} ${origin}`, app.clock.now());
  if (challenge === undefined) throw new Refusal('invalid_request', NO_CHALLENGE);
  return { challenge, origin };
}

/** The cookie that ends the challenge of a browser. */
export const clearedChallenge = (address: PageAddress): string => cookie(address, CHALLENGE, '', 0);

/** Returns why there are no passkeys at this address; undefined where there are. */
export function whyNone({ state }: Pick<UiApp, 'state'>, { origin }: PageAddress): string | undefined {
  if (relyingPartyOf(origin)) return undefined;
  const { port, hostname } = new URL(origin);
  const isHere = ['127.0.0.1', '[::1]'].includes(hostname);
  const local = `http://localhost${port && `:${port}`}`;
  const elsewhere = relyingPartyOf(state.baseUrl) ? state.baseUrl : 'an https:// address with a host name (public_url)';
  return `Browsers make passkeys only for localhost and for https:// addresses with a host name, and this is ${origin}. Open ${isHere ? local : elsewhere} instead.`;
}

const purposeOf = ({ viewer }: Visit) => `add ${viewer.sessionId}`;

/** Returns what the browser needs to make a passkey for this operator. */
export async function optionsOfNew(visit: Visit): Promise<ScriptData> {
  const { app } = visit;
  refuseIssuers(visit);
  const { expected, cookies } = askFor(visit, purposeOf(visit));
  const { installationId } = installationOf(app.ledger.read);
  const user = { handle: handleOf(installationId), name: 'operator' };
  const known = passkeysAt(app.ledger.read, expected.origin).map((it) => it.credentialId);
  const { creationOptions } = await import('../access/webauthn.ts');
  return { data: await creationOptions(expected, user, known), cookies };
}

const isIssuers = ({ viewer }: Visit) => viewer.kind === 'operator' && viewer.subject !== null;

/** Throws `conflict` for an operator whom the identity provider names: only at its own sign-in is it asked whether they still are one. */
function refuseIssuers(visit: Visit): void {
  if (isIssuers(visit)) throw new Refusal('conflict', ISSUERS);
}

/** Adds the passkey that the browser made. */
export async function add(visit: Visit): Promise<Go> {
  const { app, form, address, now } = visit;
  refuseIssuers(visit);
  const expected = ceremonyOf(visit, purposeOf(visit));
  const { readCreation } = await import('../access/webauthn.ts');
  const credential = await readCreation(form.get('credential') ?? '', expected);
  const name = (form.get('name') ?? '').trim();
  const order = { ...credential, name, origin: expected.origin };
  const passkey = await app.ledger.write(writes.addPasskey, { order, now });
  app.events.passkeyAdded(passkey);
  return { to: '/settings?done=passkey-added#passkeys', cookies: [clearedChallenge(address)] };
}

/** Shows the passkeys, and the form that makes one; elsewhere than at a suitable address the reason why there is none. */
export function passkeyCard(visit: Visit): Html {
  const { app, address } = visit;
  const rows = listPasskeys(app.ledger.read)
    .filter((it) => it.removedAt === null)
    .map((it) => [
      named(it.id, it.name),
      it.origin,
      when(it.createdAt, visit),
      ago(it.lastUsedAt, visit, 'never'),
      isUsable(it)
        ? buttonLink(`/settings/passkeys/${it.id}/remove`, 'Remove')
        : html`${badge('no operator’s any more', 'warn')} ${buttonLink(`/settings/passkeys/${it.id}/remove`, 'Remove')}`,
    ]);
  const list = table(
    'Passkeys',
    [
      { label: 'Name' },
      { label: 'Signs in at' },
      { label: 'Made', kind: 'time' },
      { label: 'Last used', kind: 'time' },
      { label: 'State', kind: 'actions' },
    ],
    rows,
    'There is none yet. With one you sign in here without a link.',
  );
  const reason = isIssuers(visit) ? ISSUERS : whyNone(app, address);
  const adding = reason
    ? html`<p class="notice info">${reason}</p>`
    : form({
        action: '/settings/passkeys',
        passkey: '/settings/passkeys/options',
        fields: [{ name: 'name', label: 'Name of a new passkey', required: true, placeholder: 'laptop' }],
        submit: 'Make a passkey',
      });
  return card('Passkeys', html`${list}${adding}`, '', 'passkeys');
}

/** Asks before a passkey is removed. */
export function confirmRemove(visit: Visit): Page {
  const passkey = listPasskeys(visit.app.ledger.read).find((it) => it.id === visit.params.id);
  if (!passkey || passkey.removedAt !== null) throw new Refusal('not_found', 'There is no such passkey.');
  const body = card(
    'Remove it for good?',
    html`<p>It signs nobody in any more, and the sessions that it opened end. Delete it on the device as well.</p>${form({ action: `/settings/passkeys/${passkey.id}/remove`, submit: 'Remove the passkey', tone: 'danger' })}`,
  );
  return { title: `Remove ${named(passkey.id, passkey.name)}`, body, ...below('/settings') };
}

export async function remove(visit: Visit): Promise<Go> {
  await run(visit, 'passkey.remove', { id: visit.params.id as string });
  return { to: '/settings?done=passkey-removed#passkeys' };
}
