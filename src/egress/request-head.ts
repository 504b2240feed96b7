import { parseHost, parsePort, type Target } from './list.ts';

/**
 * The head of a request to the proxy (RFC 9112, sections 2 and 3). Anything that another reader could understand otherwise is
 * refused. A body must have a known length, so that no second request can hide behind the first.
 */

const BYTES_MAX = 16 * 1024;
const [CR, LF] = [13, 10];

export type ProxyRequest = { target: Target; host: string } & (
  | { kind: 'connect' }
  /** `head` goes to the server, and `bodyBytes` bytes after it. */
  | { kind: 'plain'; head: Buffer; bodyBytes: number }
);
export type HeadFault = { code: 400 | 411 | 431; fault: string };

type HeadReader<T> = {
  /** Takes the next bytes. Returns undefined while the head is not complete. */
  take(piece: Buffer): { request: T; rest: Buffer } | HeadFault | undefined;
};

/** Creates a reader of the head of one request to the proxy. */
export const createHeadReader = (): HeadReader<ProxyRequest> => createReader(parseProxyRequest);

/** Creates a reader of heads, one after another, which looks at each byte once. `parse` is given the lines of each. */
export function createReader<T extends object>(parse: (lines: HeadLines) => T | HeadFault): HeadReader<T> {
  const bytes = Buffer.allocUnsafe(BYTES_MAX);
  let length = 0;
  let lineLength = 0;
  return {
    take(piece) {
      for (let at = 0; at < piece.length; at++) {
        const byte = piece[at] as number;
        if (length === BYTES_MAX) return { code: 431, fault: `its head is longer than ${BYTES_MAX} bytes` };
        const afterReturn = length > 0 && bytes[length - 1] === CR;
        if ((byte === LF) !== afterReturn) return { code: 400, fault: 'a line of its head does not end with CR LF' };
        bytes[length++] = byte;
        if (byte !== LF) {
          lineLength += 1;
          continue;
        }
        if (lineLength === 1 && length > 2) {
          const lines = parseLines(bytes.toString('latin1', 0, length - 4));
          length = lineLength = 0;
          const request = 'fault' in lines ? lines : parse(lines);
          return 'fault' in request ? request : { request, rest: piece.subarray(at + 1) };
        }
        lineLength = 0;
      }
      return undefined;
    },
  };
}

const REQUEST_LINE = /^([A-Z]{1,32}) ([\x21-\x7e]+) HTTP\/1\.([01])$/;
const FIELD = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\x20-\x7e\x80-\xff\t]*)$/;
const PLAIN_URL = /^http:\/\/([^/?#@]+)((?:[/?].*)?)$/i;
/** Headers of one connection, which end here; and whether the body comes in pieces of unknown length. */
const OWN_HEADERS = /^(connection|keep-alive|te|trailer|upgrade|proxy-.*)$/;
/** Headers that no server may read otherwise than the proxy does, so they may come only once. */
const SINGLE = ['host', 'content-length'];

/** The lines of a head: the names of its headers in lower case, no two of them `host` or `content-length`. */
export type HeadLines = {
  method: string;
  url: string;
  minor: string;
  headers: [name: string, value: string][];
  /** The same by name: looking through thousands of headers for each that matters would hold up everybody. */
  values: HeaderValues;
};
type HeaderValues = ReadonlyMap<string, string[]>;

export const refuse = (fault: string, code: HeadFault['code'] = 400): HeadFault => ({ code, fault });

function parseLines(text: string): HeadLines | HeadFault {
  const [line = '', ...lines] = text.split('\r\n');
  const [, method, url = '', minor = ''] = REQUEST_LINE.exec(line) ?? [];
  if (method === undefined) return refuse('its first line is none of HTTP/1.1');
  const headers: HeadLines['headers'] = [];
  const values = new Map<string, string[]>();
  for (const it of lines) {
    const [, spelled, untrimmed = ''] = FIELD.exec(it) ?? [];
    if (spelled === undefined) return refuse('one of its headers is malformed');
    const [name, value] = [spelled.toLowerCase(), untrimmed.trim()];
    headers.push([name, value]);
    const same = values.get(name);
    if (same) same.push(value);
    else values.set(name, [value]);
  }
  return refuseDoubled(values, SINGLE) ?? { method, url, minor, headers, values };
}

/** Returns the fault of headers of which one of `names` comes twice. */
export function refuseDoubled(values: HeaderValues, names: Iterable<string>): HeadFault | undefined {
  const doubled = [...names].find((name) => valuesOf(values, name).length > 1);
  return doubled === undefined ? undefined : refuse(`its header ${doubled} comes twice`);
}

/** Returns the values of a header. */
export const valuesOf = (values: HeaderValues, name: string): readonly string[] => values.get(name) ?? [];

/** Reads the length of a body; undefined where it is none. One that begins with 0 is octal to some. */
export function lengthOf(values: HeaderValues): number | undefined {
  const [size = '0'] = valuesOf(values, 'content-length');
  return /^(0|[1-9]\d{0,14})$/.test(size) ? Number(size) : undefined;
}

/** Writes a head, without the headers of the client's connection: the server has one of its own. */
export function headOf(first: string, host: string, headers: HeadLines['headers'], isLast: boolean): Buffer {
  const kept = headers.filter(([name]) => !OWN_HEADERS.test(name) && name !== 'host');
  const lines = [first, `host: ${host}`, ...kept.map((it) => it.join(': ')), ...(isLast ? ['connection: close'] : [])];
  return Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1');
}

/** Returns whether a header, in lower case, goes from a client to a server as it is, and does not change how a request is read. */
export const isPassedOn = (name: string): boolean =>
  !OWN_HEADERS.test(name) && ![...SINGLE, 'transfer-encoding', 'expect'].includes(name);

function parseProxyRequest({ method, url, headers, values }: HeadLines): ProxyRequest | HeadFault {
  const [host] = valuesOf(values, 'host');
  if (method === 'CONNECT') {
    const target = targetOf(url, undefined);
    if (!target) return refuse('CONNECT needs HOST:PORT, a name or an address as they are usually written');
    return { kind: 'connect', target, host: hostOf(url) };
  }
  const [, authority = '', path = ''] = PLAIN_URL.exec(url) ?? [];
  const target = targetOf(authority, 80);
  if (!target) return refuse('it needs the whole URL of its target, http://HOST/…');
  if (host === undefined || !isSame(targetOf(host, 80), target))
    return refuse('its URL and its header Host do not agree');
  if (valuesOf(values, 'transfer-encoding').length)
    return refuse('its body has no Content-Length; this proxy takes no chunks, and passes TLS on unseen', 411);
  const bodyBytes = lengthOf(values);
  if (bodyBytes === undefined) return refuse('its Content-Length is no length');
  const origin = path.startsWith('/') ? path : `/${path}`;
  const head = headOf(`${method} ${origin} HTTP/1.1`, authority, headers, true);
  return { kind: 'plain', target, host: hostOf(authority), head, bodyBytes };
}

/** Reads HOST:PORT; with a usual port, it may be left out. */
export function targetOf(authority: string, usualPort: number | undefined): Target | undefined {
  const [, text = '', digits] = /^(\[[^\]]*\]|[^:]*)(?::(\d+))?$/.exec(authority) ?? [];
  const host = parseHost(text);
  const port = digits === undefined ? usualPort : parsePort(digits);
  return host && port !== undefined ? { host, port } : undefined;
}

const hostOf = (authority: string) => authority.replace(/:\d+$/, '').toLowerCase();

const keyOf = ({ host, port }: Target) => {
  const text = host.kind === 'name' ? host.name : `${host.address.family} ${host.address.value}`;
  return `${text} ${port}`;
};
export const isSame = (one: Target | undefined, other: Target) => one !== undefined && keyOf(one) === keyOf(other);
