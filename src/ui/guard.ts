import type { IncomingMessage } from 'node:http';
import { Refusal } from '../base/refusal.ts';
import { isSecure } from '../http/tls-door.ts';
import type { UiApp } from './visit.ts';

/** A name or an address, with or without a port. Other parts of a URL, such as a user, are not part of a host. */
const HOST = /^([\w.-]+|\[[\da-f:.]+\])(:\d{1,5})?$/i;
/** Loopback by name or address: the Host header from a browser on this machine, or at the end of an SSH tunnel. */
const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?$/i;

/**
 * Headers of every answer of the page. The referrer policy is `same-origin`: with `no-referrer` a browser sends
 * `Origin: null` with a form.
 */
export const PAGE_HEADERS = {
  'content-security-policy': [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
  ].join('; '),
  'cache-control': 'no-store',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'permissions-policy': 'camera=(), geolocation=(), microphone=(), payment=()',
  'referrer-policy': 'same-origin',
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
} as const;

/** The address at which a browser reached the page: its origin, and whether it uses TLS. */
export type PageAddress = { origin: string; isSecure: boolean };

/**
 * Returns the address by the Host header. Only the configured address and loopback are answered: a foreign page whose name
 * was made to resolve to this machine sends its own name (DNS rebinding). Throws `not_found`.
 */
export function pageAddressOf({ state }: Pick<UiApp, 'state'>, { headers, socket }: IncomingMessage): PageAddress {
  const host = headers.host ?? '';
  const own = new URL(state.baseUrl);
  // A proxy may write the port even if it is the default one.
  if (HOST.test(host) && URL.parse(`${own.protocol}//${host}`)?.origin === own.origin)
    return { origin: own.origin, isSecure: own.protocol === 'https:' };
  // 127.0.0.256 is neither an address nor a name.
  const loopback = LOOPBACK.test(host) ? URL.parse(`${isSecure(socket) ? 'https' : 'http'}://${host}`) : null;
  if (loopback) return { origin: loopback.origin, isSecure: loopback.protocol === 'https:' };
  throw new Refusal(
    'not_found',
    `There is no page under this host name. It answers at ${own.origin} (public_url) and on loopback, for example through an SSH tunnel.`,
  );
}

/**
 * Throws `wrong_token_scope` for a form from another site: a browser gives the origin of a form in Sec-Fetch-Site and in
 * Origin. A proxy that replaces Host leaves Origin unchanged, so the configured address counts as well.
 */
export function refuseForeignForm(
  { state }: Pick<UiApp, 'state'>,
  { headers }: IncomingMessage,
  { origin }: PageAddress,
): void {
  const site = headers['sec-fetch-site'];
  const isOwn = headers.origin === origin || headers.origin === new URL(state.baseUrl).origin;
  if (isOwn && (site === undefined || site === 'same-origin')) return;
  throw new Refusal('wrong_token_scope', 'This form was not sent by the page itself. Open the page and send it again.');
}

/**
 * Returns the full name of a cookie. `__Host-` binds it to this host and to TLS. Browsers accept that prefix over TLS only,
 * so it is omitted on loopback.
 */
const nameOf = ({ isSecure }: PageAddress, name: string) => (isSecure ? `__Host-${name}` : name);
export const SESSION = 'purser-session';
export const ATTEMPT = 'purser-sign-in';
/** The reader's time zone, as the page's script knows it from the browser. */
export const ZONE = 'purser-zone';

/** Returns the value of a cookie, or undefined. */
export function cookieOf({ headers }: IncomingMessage, address: PageAddress, name: string): string | undefined {
  const wanted = nameOf(address, name);
  for (const part of (headers.cookie ?? '').split(';')) {
    const at = part.indexOf('=');
    if (at > 0 && part.slice(0, at).trim() === wanted) return part.slice(at + 1).trim();
  }
  return undefined;
}

/** Builds a Set-Cookie header; `seconds` 0 deletes the cookie. `value` may contain only base64url and dots. */
export function cookie(address: PageAddress, name: string, value: string, seconds: number): string {
  const attributes = `Path=/; HttpOnly; SameSite=Lax; Max-Age=${seconds}${address.isSecure ? '; Secure' : ''}`;
  return `${nameOf(address, name)}=${value}; ${attributes}`;
}
