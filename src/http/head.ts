import type { IncomingMessage, ServerResponse } from 'node:http';
import { isIP } from 'node:net';
import { hostname } from 'node:os';
import { Refusal } from '../base/refusal.ts';
import { TAG_HEADER } from './tags.ts';

/** A segment of one or two dots, percent-encoded or not, or a backslash, which URL parsers treat as a slash. */
const DOT_SEGMENT = /(^|\/)(\.|%2e){1,2}(\/|$)|\\/i;

/**
 * The headers that Purser reads as one value. A request may have each of them once: of two lines Node takes the first or joins
 * both, while a proxy before Purser may have read the last.
 */
export const SINGLE_HEADERS: ReadonlySet<string> = new Set([
  'anthropic-version',
  'connect-timeout-ms',
  'authorization',
  'content-length',
  'content-type',
  'e2b-sandbox-id',
  'e2b-sandbox-port',
  'e2b-traffic-access-token',
  'expect',
  'host',
  'idempotency-key',
  'keepalive-ping-interval',
  'origin',
  'sec-fetch-dest',
  'sec-fetch-mode',
  'sec-fetch-site',
  'session-id',
  'session_id',
  'stripe-signature',
  'traceparent',
  'x-access-token',
  'x-api-key',
  'x-claude-code-session-id',
  'x-session-id',
]);
/** Beginnings of the names of more such headers. */
const SINGLE_PREFIXES = ['mcp-', TAG_HEADER];
/** The headers that Purser reads as lists: several lines are equivalent to one line with all of their values. */
export const LIST_HEADERS: ReadonlySet<string> = new Set([
  'accept',
  'accept-encoding',
  'anthropic-beta',
  'connection',
  'content-encoding',
  'cookie', // A proxy may divide it into several lines (RFC 9113, section 8.2.3).
  'transfer-encoding',
  'upgrade',
  'x-forwarded-for',
]);
const NAME_LENGTH_SHOWN = 80;
const HEADER_COUNT_MAX = 2000;

const isSingle = (name: string) => SINGLE_HEADERS.has(name) || SINGLE_PREFIXES.some((it) => name.startsWith(it));

/** Returns the name of a repeated header that may occur only once, if any. */
function repeatedHeader(rawHeaders: readonly string[]): string | undefined {
  seen.clear();
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = (rawHeaders[at] as string).toLowerCase();
    if (!isSingle(name)) continue;
    if (seen.has(name)) return rawHeaders[at];
    seen.add(name);
  }
  return undefined;
}
/** The same for each head: a set is an object of some size. */
const seen = new Set<string>();

/**
 * Returns the refusal that a request gets by its head alone, if any: for an HTTP version that is not supported, a missing Host, a
 * repeated header with a single value, an unknown coding, too many headers (RFC 9112, sections 2.3, 3.2 and 6.1), or a path that
 * normalizes to another one, which could bypass a proxy that filters by path.
 */
export function faultOfHead(request: IncomingMessage): Refusal | undefined {
  const { method, httpVersion, headers, rawHeaders, url = '' } = request;
  if (method === 'CONNECT') return new Refusal('invalid_request', 'CONNECT is for proxies, and this is none.');
  if (httpVersion !== '1.1' && httpVersion !== '1.0')
    return new Refusal('invalid_request', 'The request line must end with HTTP/1.1 or HTTP/1.0.');
  if (rawHeaders.length > 2 * HEADER_COUNT_MAX)
    return new Refusal('head_too_large', `The request has more than ${HEADER_COUNT_MAX} headers.`);
  const repeated = repeatedHeader(rawHeaders);
  if (repeated !== undefined)
    return new Refusal(
      repeated.toLowerCase() === 'idempotency-key' ? 'invalid_idempotency_key' : 'invalid_request',
      `Send exactly one ${repeated.slice(0, NAME_LENGTH_SHOWN)} header.`,
    );
  if (headers.host === undefined && httpVersion === '1.1')
    return new Refusal('invalid_request', 'Send exactly one Host header.');
  if (headers['transfer-encoding'] !== undefined && headers['transfer-encoding'].toLowerCase() !== 'chunked')
    return new Refusal('invalid_request', 'Transfer-Encoding: only chunked is known.');
  if (DOT_SEGMENT.test(url.split(/[?#]/, 1)[0] as string))
    return new Refusal('not_found', 'There is no such path: it has a dot segment or a backslash.');
  return undefined;
}

/** Returns whether the request has an expectation that cannot be met: answered with 417 (RFC 9110, section 10.1.1). */
export const expectsTooMuch = ({ headers }: IncomingMessage) =>
  headers.expect !== undefined && headers.expect.toLowerCase() !== '100-continue';

/** Returns whether a request has a body, judged by its head. */
export const hasBody = ({ headers }: IncomingMessage): boolean =>
  Number(headers['content-length'] ?? 0) > 0 || headers['transfer-encoding'] !== undefined;

/**
 * Sends "100 Continue" only when the body is read: a request that is refused without its body, such as for its length, is
 * refused before the client sends it.
 */
export function continueWhenRead(request: IncomingMessage, response: ServerResponse): void {
  const proceed = () => {
    if (!response.headersSent) response.writeContinue();
  };
  if (hasBody(request)) request.once('resume', proceed);
  else proceed();
}

/**
 * Returns whether a Host header is an IP address, `localhost`, this machine's host name, or `listen`, the configured host.
 * Guards against DNS rebinding: a foreign page whose name was made to resolve to this machine sends that name.
 */
export function isOwnHost(host: string | undefined, listen: string): boolean {
  const [, bracketed, plain] = /^(?:\[([^\]]*)\]|([^:]*))(?::\d*)?$/.exec(host ?? '') ?? [];
  const name = (bracketed ?? plain ?? '').toLowerCase();
  return isIP(name) !== 0 || ['localhost', hostname().toLowerCase(), listen.toLowerCase()].includes(name);
}
