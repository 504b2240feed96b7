import type { IncomingMessage, ServerResponse } from 'node:http';
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response';
import { type Context, type Handler, Hono } from 'hono';
import { admit } from '../../access/principal.ts';
import { refuseFault } from '../../base/health.ts';
import { Refusal } from '../../base/refusal.ts';
import { isPaused, notRunning } from '../../lease/pausing.ts';
import { accessible } from '../../lease/ports.ts';
import { endReasonOf } from '../../lease/why.ts';
import { findResource } from '../../ledger/resource.ts';
import { PortLink, PortRequest } from '../../wire/port.ts';
import { authenticateAndLimit } from '../caller.ts';
import { OF_TRAFFIC, openPorts, TRAFFIC_TOKEN } from '../e2b/envd.ts';
import { type Env, endpoint, type HttpApp, onError, requestIdOf } from '../endpoint.ts';
import { hasBody } from '../head.ts';
import type { PortAccess } from '../port-links.ts';
import { hasOwnToken } from '../port-proxy.ts';
import { ACTIVE_REFUSALS, active } from './compute.ts';

export const PORT_PATH = '/v1/compute/:id/port/:port';
/** The path of a request to a port: the first part is for Purser, the rest for the server inside. */
const IN_PATH = /^(?:https?:\/\/[^/?#]*)?(\/v1\/compute\/[^/?#]+\/port\/[^/?#]+)([/?#].*)?$/;
/** A host name of a port begins with the port and the resource's id. */
const LABEL = /^(\d{1,5})-([0-9a-z]{26})\.(.+)$/;
const OPEN_PATH = '/.purser/open';
const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/;
const PORT_MAX = 65_535;

/** Returns the port that a text names; undefined for none. */
export const portOf = (text: string) =>
  /^[1-9]\d{0,4}$/.test(text) && Number(text) <= PORT_MAX ? Number(text) : undefined;

/** The addresses at which browsers reach ports: the scheme, and the part of their host names after the first label. */
type Hosts = { scheme: string; suffix: string };

/**
 * Returns the host names of ports: those of `ports.host`, or below `localhost` if Purser is reached by loopback; browsers
 * resolve these themselves. Undefined if there are none.
 */
export function hostsOf({ state, portHost }: Pick<HttpApp, 'state' | 'portHost'>): Hosts | undefined {
  const { protocol, hostname, port } = new URL(state.baseUrl);
  const name = portHost ?? (LOOPBACK.test(hostname) ? 'localhost' : undefined);
  if (name === undefined) return undefined;
  return { scheme: protocol, suffix: port && !/:\d+$/.test(name) ? `${name}:${port}` : name };
}

/** Returns the port that the host name of a request stands for, if any. */
function portAtHost(app: Pick<HttpApp, 'state' | 'portHost'>, request: IncomingMessage): PortAccess | undefined {
  const [, digits = '', id = '', rest] = LABEL.exec(request.headers.host?.toLowerCase() ?? '') ?? [];
  if (rest === undefined) return undefined;
  const port = portOf(digits);
  return port !== undefined && hostsOf(app)?.suffix === rest ? { resourceId: `res_${id}`, port } : undefined;
}

/**
 * Returns whether a request may upgrade its protocol: it must be for a port and have no body, which Node would leave in
 * front of the data of the new protocol.
 */
export const mayUpgrade = (app: Pick<HttpApp, 'state' | 'portHost'>, request: IncomingMessage): boolean =>
  !hasBody(request) && (portAtHost(app, request) !== undefined || IN_PATH.test(request.url ?? ''));

export const openPort = endpoint({
  summary: 'Get a link with which a browser opens an HTTP port of a resource: good once, for five minutes',
  scope: 'wallet',
  body: PortRequest,
  answer: PortLink,
  refusals: ACTIVE_REFUSALS,
  example: {
    body: { id: 'res_01k9v3c2mq8r5t7w1x4z6b0d2f', port: 8888 },
    answer: {
      id: 'res_01k9v3c2mq8r5t7w1x4z6b0d2f',
      port: 8888,
      url: 'http://8888-01k9v3c2mq8r5t7w1x4z6b0d2f.localhost:7420/.purser/open?code=link.…',
      expires_at: 1795000300,
    },
  },
  run(app, { principal, body: { id, port } }) {
    const { resource } = active(app, principal.wallet, id);
    const hosts = hostsOf(app);
    if (!hosts)
      throw new Refusal(
        'provider_not_configured',
        `This installation has no host names for ports (the setting ports.host). Forward the port by ssh instead, with -L ${port}:127.0.0.1:${port} and what POST /v1/compute/ssh answers.`,
      );
    const { code, expiresAt } = app.portLinks.mint({ resourceId: id, port }, resource.expiresAt);
    const url = `${hosts.scheme}//${port}-${id.slice('res_'.length)}.${hosts.suffix}${OPEN_PATH}?code=${code}`;
    return { body: { id, port, url, expires_at: expiresAt } };
  },
});

/** Serves a port under Purser's own origin, to callers with the wallet's token. */
export function servePortPath(app: HttpApp): Handler<Env> {
  return async (c) => {
    refuseFault(app.health);
    const { wallet } = admit(await authenticateAndLimit(app, c), 'wallet');
    const { incoming, outgoing } = c.env;
    const [, base = '', rest = ''] = IN_PATH.exec(incoming.url as string) ?? [];
    const port = portOf(c.req.param('port') as string);
    if (port === undefined) throw new Refusal('invalid_request', `port: must be a number from 1 to ${PORT_MAX}.`);
    if (hasOwnToken(decoded(rest)))
      throw new Refusal('invalid_request', 'Send the token in the header "Authorization" and never in the address.');
    const { resource } = active(app, wallet, c.req.param('id') as string);
    const target = {
      requestId: requestIdOf(c),
      resourceId: resource.id,
      port,
      path: pathOf(rest),
      base,
      origin: undefined,
      cookie: '',
    };
    await app.portProxy.forward(incoming, outgoing as ServerResponse, target);
    return RESPONSE_ALREADY_SENT;
  };
}

/** Returns the URL of a request without the host that a proxy's form of it has (RFC 9112, section 3.2.2). */
export const urlOf = ({ url }: IncomingMessage): string => (url as string).replace(/^https?:\/\/[^/?#]*/i, '');

/** Returns the path and query of a request to a port, without those before it. */
export const pathOf = (rest: string) => (rest.startsWith('/') ? rest : `/${rest}`);
/** Decodes each escape by itself: a malformed one does not hide the others. */
const decoded = (text: string) =>
  text.replace(/%([0-9a-f]{2})/gi, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 16)));

/**
 * Builds the application of the ports' own host names, for browsers. A link sets a cookie, which opens the port. None of Purser's
 * own paths is answered there. E2B's clients show the token of a sandbox's ports instead.
 */
export function createPortPages(app: HttpApp): {
  isFor(request: IncomingMessage): boolean;
  fetch: Hono<Env>['fetch'];
} {
  const hono = new Hono<Env>();
  hono.onError(onError(app));
  hono.all('*', (c) => servePortPage(app, c));
  return { isFor: (request) => portAtHost(app, request) !== undefined, fetch: hono.fetch };
}

async function servePortPage(app: HttpApp, c: Context<Env>): Promise<Response> {
  refuseFault(app.health);
  const { incoming, outgoing } = c.env;
  const { scheme } = hostsOf(app) as Hosts;
  const access = portAtHost(app, incoming) as PortAccess;
  const requestId = requestIdOf(c);
  const isSecure = scheme === 'https:';
  // Browsers accept the prefix, which binds a cookie to its host name, over TLS only.
  const cookie = `${isSecure ? '__Host-' : ''}purser-port`;
  const origin = `${scheme}//${incoming.headers.host?.toLowerCase()}`;
  const resource = accessible(app, access.resourceId)?.resource;

  if (incoming.headers[TRAFFIC_TOKEN] !== undefined) {
    openPorts(app, c, access.resourceId.slice('res_'.length));
    const path = pathOf(urlOf(incoming));
    const target = { requestId, ...access, path, base: '', origin, cookie, ofPurser: OF_TRAFFIC };
    await app.portProxy.forward(incoming, outgoing as ServerResponse, target);
    return RESPONSE_ALREADY_SENT;
  }
  if (c.req.path === OPEN_PATH && c.req.method === 'GET') {
    const code = c.req.query('code') ?? '';
    if (!resource && app.portLinks.isUnused(code, access)) throw notOpen(app, access.resourceId);
    const redeemed = app.portLinks.redeem(code, access);
    if (!redeemed) throw unauthenticated('This link was used already, is too old, or is not for this address.');
    const attributes = `Path=/; HttpOnly; SameSite=Lax; Max-Age=${redeemed.seconds}${isSecure ? '; Secure' : ''}`;
    const headers = {
      location: '/',
      'set-cookie': `${cookie}=${redeemed.session}; ${attributes}`,
      'cache-control': 'no-store',
      'referrer-policy': 'no-referrer',
      'x-request-id': requestId,
    };
    return new Response(null, { status: 303, headers });
  }
  const shown = (incoming.headers.cookie ?? '').split(';').map((it) => it.trim());
  const sessions = shown.filter((it) => it.startsWith(`${cookie}=`)).map((it) => it.slice(cookie.length + 1));
  if (!sessions.some((it) => app.portLinks.opens(it, access))) throw unauthenticated('This port was not opened here.');
  refuseOtherSites(incoming, origin);
  if (!resource) throw notOpen(app, access.resourceId);
  app.authenticated.add(incoming.socket);
  const path = pathOf(urlOf(incoming));
  await app.portProxy.forward(incoming, outgoing as ServerResponse, {
    requestId,
    ...access,
    path,
    base: '',
    origin,
    cookie,
  });
  return RESPONSE_ALREADY_SENT;
}

/** Returns the refusal of a port whose lease does not run: it is paused, or over. */
function notOpen(app: HttpApp, id: string): Refusal {
  const row = findResource(app.ledger.read, id);
  const message =
    row && isPaused(row) && endReasonOf(app, id) === null
      ? notRunning(row)
      : 'The lease is over, and with it whatever ran in it.';
  return new Refusal('resource_not_active', message);
}

const unauthenticated = (what: string) =>
  new Refusal('unauthenticated', `${what} Ask for a new link with POST /v1/compute/port.`);

/**
 * Throws `wrong_token_scope` for a request from a page of another origin, above all of another lease: a browser regards its
 * host name as the same site, and sends the cookie. Following a link from elsewhere is allowed.
 */
function refuseOtherSites({ headers, method }: IncomingMessage, origin: string): void {
  const site = headers['sec-fetch-site'] ?? 'none';
  const isFollowed =
    headers['sec-fetch-mode'] === 'navigate' && headers['sec-fetch-dest'] === 'document' && method === 'GET';
  const isOwn = headers.origin === undefined || headers.origin === origin;
  if (isOwn && (site === 'same-origin' || site === 'none' || isFollowed)) return;
  throw new Refusal('wrong_token_scope', 'This request was made by a page of another address.');
}
