import type { IncomingMessage } from 'node:http';
import { type Context, Hono } from 'hono';
import { type Challenges, createChallenges } from '../access/challenges.ts';
import { isZone } from '../base/calendar.ts';
import { refuseFault } from '../base/health.ts';
import { REFUSALS, Refusal } from '../base/refusal.ts';
import { readBody } from '../http/body.ts';
import { callerNetwork, enter } from '../http/caller.ts';
import { allowOf, describeError, type Env, onError, requestIdOf } from '../http/endpoint.ts';
import type { Asset } from './assets.ts';
import { cookieOf, PAGE_HEADERS, type PageAddress, pageAddressOf, refuseForeignForm, SESSION, ZONE } from './guard.ts';
import { EMPTY, type Html, html } from './html.ts';
import { assets, documentOf, type Page, type PageTimes } from './layout.ts';
import { openLive } from './live.ts';
import { createOnce } from './once.ts';
import * as accounts from './pages/accounts.ts';
import { doctorPage } from './pages/doctor.ts';
import { eventsPage, resendEvent, testEvents } from './pages/events.ts';
import { homePage, topUp } from './pages/home.ts';
import * as prices from './pages/import-prices.ts';
import { journalPage, verifyJournal } from './pages/journal.ts';
import * as keys from './pages/keys.ts';
import * as leases from './pages/leases.ts';
import { modelsPage } from './pages/models.ts';
import { nowPage } from './pages/now.ts';
import * as operation from './pages/operation.ts';
import * as operations from './pages/operations.ts';
import * as operatorKeys from './pages/operator-keys.ts';
import * as settings from './pages/settings.ts';
import { spendPage } from './pages/spend.ts';
import * as wallet from './pages/wallet.ts';
import * as forms from './pages/wallet-forms.ts';
import * as wallets from './pages/wallets.ts';
import { address as addressWith } from './parts.ts';
import * as passkeys from './passkeys.ts';
import { createPreviews } from './previews.ts';
import { createPulse } from './pulse.ts';
import {
  type Arrival,
  beginSignIn,
  finishSignIn,
  type Go,
  optionsOfPasskey,
  ownPath,
  type ScriptData,
  signInByKey,
  signInByLink,
  signInByPasskey,
  signInPage,
  signOut,
} from './sign-in.ts';
import { noteUse, sessionOf, viewerOf } from './viewer.ts';
import { type CsvFile, operatorOnly, type UiApp, type UiParts, type Viewer, type Visit } from './visit.ts';

/** The largest form: a few fields. */
const FORM_BYTES_MAX = 16 * 1024;
const ZONE_LENGTH_MAX = 64;
const ASSET_SECONDS = 365 * 86_400;

/** The answer of a page or a form: a page, a redirection, data for the page's script, or a file. */
type Shown = Page | Go | ScriptData | CsvFile;
type Show = (visit: Visit) => Shown | Promise<Shown>;
type PageRoute = readonly [method: 'GET' | 'POST', path: string, show: Show, bytesMax?: number];

/** Restricts a page to the operator. */
const operator =
  (show: Show): Show =>
  (visit) => {
    operatorOnly(visit);
    return show(visit);
  };

/** The pages, and the forms on them. A viewer who is not signed in is redirected to /sign-in. */
const ROUTES: readonly PageRoute[] = [
  ['GET', '/', (visit) => (visit.viewer.kind === 'operator' ? nowPage(visit) : homePage(visit))],
  ['POST', '/top-up', topUp],

  ['GET', '/accounts', operator(accounts.listPage)],
  ['POST', '/accounts', operator(accounts.create)],
  ['GET', '/accounts/:id', operator(accounts.accountPage)],
  ['POST', '/accounts/:id/credit', operator(accounts.credit)],
  ['GET', '/accounts/:id/suspend', operator(accounts.confirmSuspend)],
  ['POST', '/accounts/:id/suspend', operator(accounts.suspend)],
  ['POST', '/accounts/:id/resume', operator(accounts.resume)],
  ['POST', '/accounts/:id/keys', operator(accounts.createKey)],
  ['GET', '/accounts/:id/keys/:key/revoke', operator(accounts.confirmRevoke)],
  ['POST', '/accounts/:id/keys/:key/revoke', operator(accounts.revokeKey)],
  ['POST', '/accounts/:id/sign-out', operator(accounts.signOut)],

  ['GET', '/wallets', wallets.listPage],
  ['GET', '/wallets/new', wallets.newPage],
  ['POST', '/wallets/new', wallets.create],
  ['GET', '/wallets/:id', wallet.walletPage],
  ['POST', '/wallets/:id/token', wallet.token],
  ['GET', '/wallets/:id/freeze', wallet.confirmFreeze],
  ['POST', '/wallets/:id/freeze', wallet.freeze],
  ['POST', '/wallets/:id/unfreeze', wallet.unfreeze],
  ['POST', '/wallets/:id/budget', wallet.changeBudget],
  ['POST', '/wallets/:id/extend', wallet.extend],
  ['POST', '/wallets/:id/refill', forms.setWalletRefill],
  ['POST', '/wallets/:id/refill/end', forms.endWalletRefill],
  ['POST', '/wallets/:id/children', forms.createChild],
  ['POST', '/wallets/:id/gateway-keys', forms.createGatewayKey],
  ['GET', '/wallets/:id/gateway-keys/:key/revoke', operator(forms.confirmRevokeGatewayKey)],
  ['POST', '/wallets/:id/gateway-keys/:key/revoke', operator(forms.revokeGatewayKey)],
  ['GET', '/wallets/:id/close', wallet.confirmClose],
  ['POST', '/wallets/:id/close', wallet.close],

  ['GET', '/leases', leases.listPage],
  ['GET', '/leases/:id', leases.leasePage],
  ['GET', '/leases/:id/stop', operator(leases.confirmStop)],
  ['POST', '/leases/:id/stop', operator(leases.stop)],

  ['GET', '/operations', operator(operations.listPage)],
  ['GET', '/operations/:id', operator(operation.operationPage)],
  ['GET', '/operations/:id/resolve', operator(operation.confirmResolve)],
  ['POST', '/operations/:id/resolve', operator(operation.resolve)],

  ['GET', '/spend', spendPage],
  ['GET', '/models', modelsPage],
  ['GET', '/models/import', operator(prices.importPage)],
  ['POST', '/models/import', operator(prices.previewPage), prices.LIST_BYTES_MAX],
  ['POST', '/models/import/write', operator(prices.write)],

  ['GET', '/keys', keys.listPage],
  ['POST', '/keys', keys.create],
  ['GET', '/keys/:id/revoke', keys.confirmRevoke],
  ['POST', '/keys/:id/revoke', keys.revoke],

  ['GET', '/journal', operator(journalPage)],
  ['POST', '/journal/verify', operator(verifyJournal)],
  ['GET', '/events', operator(eventsPage)],
  ['POST', '/events/test', operator(testEvents)],
  ['POST', '/events/:id/resend', operator(resendEvent)],
  ['GET', '/settings', operator(settings.settingsPage)],
  ['POST', '/settings/backup', operator(settings.backUp)],
  ['POST', '/settings/reload', operator(settings.reload)],
  ['POST', '/settings/doctor', operator(doctorPage)],
  ['POST', '/settings/operator-keys', operator(operatorKeys.create)],
  ['GET', '/settings/operator-keys/:key/revoke', operator(operatorKeys.confirmRevoke)],
  ['POST', '/settings/operator-keys/:key/revoke', operator(operatorKeys.revoke)],
  ['POST', '/settings/passkeys/options', operator(passkeys.optionsOfNew)],
  ['POST', '/settings/passkeys', operator(passkeys.add)],
  ['GET', '/settings/passkeys/:id/remove', operator(passkeys.confirmRemove)],
  ['POST', '/settings/passkeys/:id/remove', operator(passkeys.remove)],
  ['GET', '/settings/freeze', operator(settings.confirmFreeze)],
  ['POST', '/settings/freeze', operator(settings.freeze)],
  ['POST', '/settings/unfreeze', operator(settings.unfreeze)],
];

type Arrive = (arrival: Arrival) => Shown | Promise<Shown>;
/** The pages and forms for visitors who are not signed in. */
const ARRIVALS: readonly (readonly ['GET' | 'POST', string, Arrive])[] = [
  ['GET', '/sign-in', (arrival) => signInPage(arrival)],
  ['POST', '/sign-in/key', signInByKey],
  ['GET', '/sign-in/link/:code', signInByLink],
  ['POST', '/sign-in/passkey/options', optionsOfPasskey],
  ['POST', '/sign-in/passkey', signInByPasskey],
  ['GET', '/sign-in/issuer', beginSignIn],
  ['GET', '/sign-in/callback', finishSignIn],
];

/**
 * Builds the page. It is a separate application, so that its paths, many of them alike, do not slow down the router of the
 * API. `printSettings` returns the settings in force without secrets.
 */
export function createUi(app: UiApp, printSettings: UiParts['settings']): Hono<Env> {
  const hono = new Hono<Env>();
  hono.onError(onError(app, loggedPath));
  hono.notFound(refusing(app, () => new Refusal('not_found', 'There is no such path.')));
  const parts: UiParts = {
    settings: printSettings,
    pulse: createPulse(app.ledger.read),
    once: createOnce(),
    previews: createPreviews(),
  };
  const challenges = createChallenges();
  for (const asset of Object.values(assets)) hono.get(asset.path, (c) => sendAsset(c, asset));
  for (const [method, path, arrive] of ARRIVALS) hono.on(method, path, arriving(app, challenges, arrive));
  for (const [path, which] of [
    ['/sign-out', 'this'],
    ['/sign-out/everywhere', 'everywhere'],
    ['/sign-out/operators', 'operators'],
  ] as const)
    hono.post(
      path,
      handle(app, async (c, address) => {
        const viewer = signedIn(app, c.env.incoming, address)?.viewer;
        return viewer ? go(c, await signOut(app, address, viewer, which)) : go(c, { to: '/sign-in' });
      }),
    );
  hono.get(
    '/live',
    handle(app, (c, address) => {
      const signed = signedIn(app, c.env.incoming, address);
      if (!signed) throw new Refusal('unauthenticated', 'Sign in first.');
      admitViewer(app, c, signed.viewer);
      if (c.req.method === 'HEAD') return answer(c, EMPTY, 200);
      const visit = visitOf(app, parts, challenges, c, address, signed.viewer, new URLSearchParams());
      return openLive(visit, c, () => signedIn(app, c.env.incoming, address) !== undefined);
    }),
  );
  for (const [method, path, show, bytesMax] of ROUTES)
    hono.on(method, path, visiting(app, parts, challenges, show, bytesMax));
  for (const [path, known] of Map.groupBy(hono.routes, (it) => it.path)) {
    const refuse = refusing(app, () => new Refusal('method_not_allowed'));
    hono.all(path, (c) => {
      pageAddressOf(app, c.env.incoming); // Under a foreign host name no path exists.
      c.set('allow', allowOf(known.map(({ method }) => method)));
      return refuse(c);
    });
  }
  return hono;
}

type PageHandler = (c: Context<Env>) => Promise<Response>;

/** Answers requests that no page handles with a refusal: as a page to a browser, in the API's form to programs. */
function refusing(app: UiApp, refusal: () => Refusal): PageHandler {
  const asPage = handle(app, () => {
    throw refusal();
  });
  return async (c) => {
    if (c.req.header('accept')?.includes('text/html')) return asPage(c);
    throw refusal();
  };
}

/** Runs a handler after the checks of every request to the page; its errors become pages. */
function handle(app: UiApp, run: (c: Context<Env>, address: PageAddress) => Promise<Response> | Response): PageHandler {
  return async (c) => {
    const { incoming } = c.env;
    const address = pageAddressOf(app, incoming);
    try {
      refuseFault(app.health);
      if (c.req.method === 'POST') refuseForeignForm(app, incoming, address);
      return await run(c, address);
    } catch (error) {
      const { refusal, message } = describeError(app, requestIdOf(c), loggedPath(c), error);
      const signed = app.health.fault ? undefined : signedIn(app, incoming, address);
      const { status } = REFUSALS[refusal.code];
      const page = answer(c, documentOf(faultPage(message, requestIdOf(c)), signed?.viewer), status);
      if (refusal.retryAfterSeconds !== undefined) page.headers.set('retry-after', String(refusal.retryAfterSeconds));
      if (c.var.allow) page.headers.set('allow', c.var.allow);
      return page;
    }
  };
}

/** Returns the path in the form that may be logged: without the code of a link, which may still be valid. */
const loggedPath = (c: Context<Env>) => c.req.path.replace(/^(\/sign-in\/link\/).*/, '$1…');

const faultPage = (message: string, requestId: string): Page => ({
  title: 'That did not work',
  body: html`<p class="notice bad" role="alert">${message}</p><p class="weak">Request <code>${requestId}</code>. Go <a href="/">back to the first page</a>.</p>`,
});

function arriving(app: UiApp, challenges: Challenges, arrive: Arrive): PageHandler {
  return handle(app, async (c, address) => {
    const { incoming } = c.env;
    const query = queryOf(c);
    const form = await formOf(app, c);
    // Programs that preview a link send HEAD: that does not count as a visit, and uses up neither a link nor a code.
    if (c.req.method === 'HEAD') return answer(c, EMPTY, 200);
    const params = c.req.param() as Record<string, string>;
    const arrival: Arrival = { app, incoming, address, challenges, params, query, form };
    try {
      return result(c, await arrive(arrival), query);
    } catch (error) {
      if (!(error instanceof Refusal) || error.code !== 'unauthenticated') throw error;
      const { message } = describeError(app, requestIdOf(c), loggedPath(c), error);
      if (form.has('next')) query.set('next', ownPath(form.get('next')));
      return result(c, signInPage(arrival, message), query);
    }
  });
}

function visiting(
  app: UiApp,
  parts: UiParts,
  challenges: Challenges,
  show: Show,
  bytesMax = FORM_BYTES_MAX,
): PageHandler {
  return handle(app, async (c, address) => {
    const signed = signedIn(app, c.env.incoming, address);
    if (!signed) return turnAway(c, address);
    admitViewer(app, c, signed.viewer);
    await noteUse(app, signed.session);
    // Only an operator may send much: others get at once the answer that there is no such page.
    const form = await formOf(app, c, signed.viewer.kind === 'operator' ? bytesMax : FORM_BYTES_MAX);
    // A form may arrive slowly: a session that has ended by then must not complete its request.
    const viewer = signedIn(app, c.env.incoming, address)?.viewer;
    if (!viewer) return turnAway(c, address);
    const visit = visitOf(app, parts, challenges, c, address, viewer, form);
    return result(c, await show(visit), visit.query, visit);
  });
}

/** Redirects to the sign-in page, and from there back. Throws `unauthenticated` for a form. */
function turnAway(c: Context<Env>, address: PageAddress): Response {
  if (c.req.method !== 'GET' && c.req.method !== 'HEAD')
    throw new Refusal('unauthenticated', 'Your session has ended. Sign in and send the form again.');
  const next = `${c.req.path}${new URL(c.req.url).search}`;
  const had = cookieOf(c.env.incoming, address, SESSION) !== undefined || next !== '/';
  return go(c, { to: had ? `/sign-in?next=${encodeURIComponent(next)}` : '/sign-in' });
}

function visitOf(
  app: UiApp,
  parts: UiParts,
  challenges: Challenges,
  c: Context<Env>,
  address: PageAddress,
  viewer: Viewer,
  form: URLSearchParams,
): Visit {
  const query = queryOf(c);
  return {
    app,
    parts,
    viewer,
    incoming: c.env.incoming,
    address,
    challenges,
    now: app.clock.now(),
    zone: zoneOf(c.env.incoming, address, query),
    path: c.req.path,
    params: c.req.param() as Record<string, string>,
    query,
    form,
    requestId: requestIdOf(c),
  };
}

/**
 * Returns the zone that the query asks for, or else the one in the reader's cookie; UTC without one, or where that names none.
 * Throws `invalid_request` for a query that names none.
 */
function zoneOf(incoming: IncomingMessage, address: PageAddress, query: URLSearchParams): string {
  const isKnown = (zone: string) => zone.length <= ZONE_LENGTH_MAX && isZone(zone);
  const asked = query.get('zone')?.trim();
  if (asked && !isKnown(asked))
    throw new Refusal('invalid_request', 'There is no such time zone. Write it as Europe/Berlin or UTC.');
  const zone = asked || cookieOf(incoming, address, ZONE);
  return zone && isKnown(zone) ? zone : 'UTC';
}

function signedIn(app: UiApp, incoming: IncomingMessage, address: PageAddress) {
  const session = sessionOf(app, incoming, address);
  const viewer = session && viewerOf(app, session);
  return viewer ? { session, viewer } : undefined;
}

/** Counts a request as its viewer's, and against the limit of its account. Throws `rate_limited`. */
function admitViewer(app: UiApp, c: Context<Env>, viewer: Viewer): void {
  app.authenticated.add(c.env.incoming.socket);
  enter(app, c, viewer.kind === 'account' ? viewer.accountId : 'operator');
  if (viewer.kind === 'account') app.limits.account.take(viewer.accountId);
}

const queryOf = (c: Context<Env>) => new URLSearchParams(new URL(c.req.url).search);

async function formOf(app: UiApp, c: Context<Env>, bytesMax = FORM_BYTES_MAX): Promise<URLSearchParams> {
  if (c.req.method !== 'POST') return new URLSearchParams();
  const share = app.memory.open(callerNetwork(app, c.env.incoming));
  try {
    const body = await readBody(c.env.incoming, bytesMax, share);
    const type = c.req.header('content-type') ?? '';
    if (!/^multipart\/form-data\b/i.test(type)) return new URLSearchParams(body.toString());
    share.take(2 * body.length); // Its parts, and their texts.
    return await partsOf(body, type);
  } finally {
    share.close();
  }
}

/** Returns the fields of a form with files, each file as its text. Throws `invalid_request` for one that cannot be read. */
async function partsOf(body: Buffer, type: string): Promise<URLSearchParams> {
  const fields = new URLSearchParams();
  try {
    const parts = await new Response(body, { headers: { 'content-type': type } }).formData();
    for (const [name, value] of parts) fields.append(name, typeof value === 'string' ? value : await value.text());
  } catch (cause) {
    throw new Refusal('invalid_request', 'The form cannot be read. Send it again.', { cause });
  }
  return fields;
}

function result(c: Context<Env>, shown: Shown, query: URLSearchParams, visit?: Visit): Response {
  if ('to' in shown) return go(c, shown);
  if ('data' in shown) return sendData(c, shown);
  if ('csv' in shown) return sendFile(c, shown);
  const times = visit && timesOf(visit, c.req.method === 'GET');
  return answer(c, documentOf(shown, visit?.viewer, query.get('done'), times), shown.status ?? 200);
}

/** Returns the zone of a page, and the address that shows it in UTC; where its own asks for that, in the zone of the reader. */
function timesOf({ path, query, zone }: Visit, hasAddress: boolean): PageTimes {
  const isAsked = query.has('zone');
  const other = addressWith(path, query, { zone: zone === 'UTC' ? undefined : 'UTC' });
  return { zone, isRequested: isAsked, other: hasAddress && (isAsked || zone !== 'UTC') ? other : undefined };
}

function answer(c: Context<Env>, document: Html, status: number): Response {
  const headers = { ...PAGE_HEADERS, 'content-type': 'text/html; charset=utf-8', 'x-request-id': requestIdOf(c) };
  return new Response(document.toString(), { status, headers });
}

function sendData(c: Context<Env>, { data, cookies }: ScriptData): Response {
  const own = { 'content-type': 'application/json', 'x-request-id': requestIdOf(c) };
  const headers = new Headers({ ...PAGE_HEADERS, ...own });
  for (const it of cookies) headers.append('set-cookie', it);
  return new Response(JSON.stringify(data), { headers });
}

function sendFile(c: Context<Env>, { name, csv }: CsvFile): Response {
  const own = {
    'content-type': 'text/csv; charset=utf-8',
    'content-disposition': `attachment; filename="${name}"`,
    'x-request-id': requestIdOf(c),
  };
  return new Response(csv, { headers: { ...PAGE_HEADERS, ...own } });
}

function go(c: Context<Env>, { to, cookies = [] }: Go): Response {
  const headers = new Headers({ ...PAGE_HEADERS, location: to, 'x-request-id': requestIdOf(c) });
  for (const it of cookies) headers.append('set-cookie', it);
  return new Response(null, { status: 303, headers });
}

function sendAsset(c: Context<Env>, { mime, bytes, gzipped }: Asset): Response {
  const isGzip = /\bgzip\b/.test(c.req.header('accept-encoding') ?? '');
  const headers: Record<string, string> = {
    'content-type': mime,
    'cache-control': `public, max-age=${ASSET_SECONDS}, immutable`,
    'x-content-type-options': 'nosniff',
    'cross-origin-resource-policy': 'same-origin',
    vary: 'accept-encoding',
    'x-request-id': requestIdOf(c),
  };
  if (isGzip) headers['content-encoding'] = 'gzip';
  return new Response(isGzip ? gzipped : bytes, { headers });
}
