import type { IncomingMessage } from 'node:http';
import { isIP } from 'node:net';
import { hostname } from 'node:os';
import { Refusal } from '../refusal.ts';

/** A segment of one or two dots, percent-encoded or not, or a backslash, which URL parsers treat as a slash. */
const DOT_SEGMENT = /(^|\/)(\.|%2e){1,2}(\/|$)|\\/i;

/**
 * Returns the refusal that a request gets by its head alone, if any: no Host or two of them (RFC 9112, section 3.2), or a
 * path that normalizes to another one, which could bypass a proxy that filters by path.
 */
export function faultOfHead({ httpVersion, rawHeaders, url = '' }: IncomingMessage): Refusal | undefined {
  let hosts = 0;
  for (let at = 0; at < rawHeaders.length; at += 2) if (rawHeaders[at]?.toLowerCase() === 'host') hosts++;
  if (hosts > 1 || (hosts === 0 && httpVersion === '1.1'))
    return new Refusal('invalid_request', 'Send exactly one Host header.');
  if (DOT_SEGMENT.test(url.split(/[?#]/, 1)[0] as string))
    return new Refusal('not_found', 'There is no such path: it has a dot segment or a backslash.');
  return undefined;
}

/** Tells whether the request has an expectation that cannot be met: answered with 417 (RFC 9110, section 10.1.1). */
export const expectsTooMuch = ({ headers }: IncomingMessage) =>
  headers.expect !== undefined && headers.expect.toLowerCase() !== '100-continue';

/**
 * Tells whether a Host header is an IP address, `localhost`, this machine's host name, or `listen`, the configured host.
 * Guards against DNS rebinding: a foreign page whose name was made to resolve to this machine sends that name.
 */
export function isOwnHost(host: string | undefined, listen: string): boolean {
  const [, bracketed, plain] = /^(?:\[([^\]]*)\]|([^:]*))(?::\d*)?$/.exec(host ?? '') ?? [];
  const name = (bracketed ?? plain ?? '').toLowerCase();
  return isIP(name) !== 0 || ['localhost', hostname().toLowerCase(), listen.toLowerCase()].includes(name);
}
