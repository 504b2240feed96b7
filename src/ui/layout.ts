import { VERSION } from '../files/version.ts';
import { readAssets } from './assets.ts';
import { EMPTY, type Html, type HtmlValue, html } from './html.ts';
import { cents, link } from './parts.ts';
import type { Viewer } from './visit.ts';

export const assets = readAssets();

/** A page: its content, and its title. */
export type Page = {
  title: string;
  body: Html;
  /** Content beside the title. */
  aside?: HtmlValue;
  /** The parent pages, shown above the title. */
  path?: readonly (readonly [href: string, text: string])[];
  /** The stream that keeps the figures of the page up to date. */
  stream?: string;
  /** The entry of the menu that this page belongs to. */
  section?: string;
  status?: number;
};

/** Places a page below an entry of the menu: `parents` are the pages between them. */
export function below(section: string, ...parents: NonNullable<Page['path']>): Pick<Page, 'section' | 'path'> {
  const entry = OPERATOR_MENU.find(([href]) => href === section);
  return { section, path: [...(entry ? [entry] : []), ...parents] };
}

const OPERATOR_MENU: readonly (readonly [href: string, text: string])[] = [
  ['/', 'Now'],
  ['/accounts', 'Accounts'],
  ['/wallets', 'Wallets'],
  ['/leases', 'Leases'],
  ['/operations', 'Operations'],
  ['/spend', 'Spending'],
  ['/models', 'Models'],
  ['/journal', 'Journal'],
  ['/events', 'Events'],
  ['/settings', 'Settings'],
];
const ACCOUNT_MENU: typeof OPERATOR_MENU = [
  ['/', 'Overview'],
  ['/wallets', 'Wallets'],
  ['/leases', 'Leases'],
  ['/spend', 'Spending'],
  ['/models', 'Models'],
  ['/keys', 'Keys'],
];

/** The messages after a form, by the word in the address: only these sentences can be shown. */
const DONE: Record<string, string> = {
  frozen: 'The wallet is frozen. It spends nothing until you unfreeze it; what is running goes on.',
  unfrozen: 'The wallet is unfrozen and may spend again.',
  'unfrozen-itself': 'The wallet itself is unfrozen. It spends nothing until those above it are, too.',
  raised: 'The budget was changed.',
  extended: 'The expiry was moved.',
  'refill-set': 'The refill is set.',
  'refill-ended': 'The wallet is refilled no more.',
  closed: 'The wallet is closed. What was left went back to where it came from.',
  closing: 'The wallet spends nothing any more. Its cleanup goes on, and this page shows when it is closed.',
  stopped: 'The lease was told to end. It is over when the backend confirms that.',
  resolved: 'The operation is settled as you decided.',
  credited: 'The account was credited.',
  debited: 'The account was debited.',
  suspended: 'The account is suspended: no new wallets, holds or keys.',
  resumed: 'The account may spend again.',
  revoked: 'The key was revoked. It opens nothing any more.',
  'sessions-ended': 'The sessions of this account have ended.',
  resent: 'The event is sent again.',
  tested: 'A test was sent to every receiver.',
  'passkey-added': 'The passkey was added. Next time, sign in with it.',
  'passkey-removed': 'The passkey was removed, and its sessions have ended.',
  'backed-up': 'A backup was made and verified.',
  reloaded: 'The settings were read again.',
  imported: 'The prices are written, and in force.',
  'all-frozen': 'The installation is frozen: no new holds. Settlements, stops and reads go on.',
  'all-unfrozen': 'The installation takes new holds again.',
  'signed-out': 'You are signed out.',
  'signed-out-everywhere': 'All these sessions have ended.',
};

/** Returns the sentence of the word in the address; for a budget that was lowered in part with the amount. */
function doneSentence(word: string): string | undefined {
  if (Object.hasOwn(DONE, word)) return DONE[word];
  const [, moved, wanted] = /^lowered-(\d{1,9})-of-(\d{1,9})$/.exec(word) ?? [];
  if (moved === undefined) return undefined;
  const [done, asked] = [cents(Number(moved)), cents(Number(wanted))];
  return `${asked} was asked, ${done} could move: a budget is lowered to what is spent, held and delegated at least, in whole cents.`;
}

function menu(viewer: Viewer, section: string | undefined): Html {
  const entries = viewer.kind === 'operator' ? OPERATOR_MENU : ACCOUNT_MENU;
  const items = entries.map(
    ([href, text]) => html`<li><a href="${href}"${href === section && html` aria-current="page"`}>${text}</a></li>`,
  );
  const who = viewer.kind === 'operator' ? 'Operator' : 'Account';
  return html`<header class="side"><a class="brand" href="/"><img src="${assets['icon.svg'].path}" alt="" width="22" height="22">Purser</a><nav aria-label="Main"><ul>${items}</ul></nav><div class="who"><span>${who}</span><form method="post" action="/sign-out" class="inline"><button class="plain">Sign out</button></form></div></header>`;
}

/** The zone of a page's times: the reader's own, or one that its address asks for; and the address that shows it in another. */
export type PageTimes = { zone: string; isRequested: boolean; other?: string | undefined };

/** Builds the whole document. `done` is the word for the result of a form. */
export function documentOf(
  page: Page,
  viewer: Viewer | undefined,
  done?: string | null,
  { zone, isRequested, other }: PageTimes = { zone: 'UTC', isRequested: false },
): Html {
  const { title, body, aside = EMPTY, path = [], stream, section } = page;
  const crumbs = path.length
    ? html`<nav class="crumbs" aria-label="Path">${path.map(([href, text]) => html`<a href="${href}">${text}</a> <span aria-hidden="true">/</span> `)}</nav>`
    : EMPTY;
  const sentence = done ? doneSentence(done) : undefined;
  const notice = sentence && html`<p class="notice good" role="status">${sentence}</p>`;
  const liveMark = stream && html`<span class="live" id="live" hidden>live</span>`;
  return html`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>${title} · Purser</title><link rel="stylesheet" href="${assets['page.css'].path}"><link rel="icon" href="${assets['icon.svg'].path}"><script src="${assets['page.js'].path}" defer></script></head>
<body class="${viewer ? 'app' : 'outside'}"${stream && html` data-stream="${stream}${isRequested && html`&amp;zone=${encodeURIComponent(zone)}`}"`}><a class="skip" href="#main">Skip to the content</a>${viewer && menu(viewer, section)}<main id="main" tabindex="-1">${notice}${crumbs}<div class="title"><h1>${title}</h1>${liveMark}${aside}</div>${body}<footer>Purser ${VERSION}. Times are ${zone}${other && html` (${link(other, zone === 'UTC' ? 'show your time zone' : 'show UTC')})`}, amounts US dollars.</footer></main></body></html>`;
}
