import { parseHost, parsePort, type Target } from './list.ts';

/**
 * The head of a request to the proxy (RFC 9112, sections 2 and 3). It is read strictly: what another reader could understand
 * otherwise is refused. Of a body only one of known length is taken, so that no second request can hide behind the first.
 */

const BYTES_MAX = 16 * 1024;
const [CR, LF] = [13, 10];

export type ProxyRequest = { target: Target; host: string } & (
  | { kind: 'connect' }
  /** `head` goes to the server, and `bodyBytes` bytes after it. */
  | { kind: 'plain'; head: Buffer; bodyBytes: number }
);
export type HeadFault = { code: 400 | 411 | 431; fault: string };
export type Head = { request: ProxyRequest; rest: Buffer };

type HeadReader = {
  /** Takes the next bytes. Returns undefined while the head is not complete. */
  take(piece: Buffer): Head | HeadFault | undefined;
};

/** Creates a reader of one head, which looks at each byte once. */
export function createHeadReader(): HeadReader {
  const bytes = Buffer.allocUnsafe(BYTES_MAX);
  let length = 0;
  let lineLength = 0;
  return {
    take(piece) {
      for (const [at, byte] of piece.entries()) {
        if (length === BYTES_MAX) return { code: 431, fault: `its head is longer than ${BYTES_MAX} bytes` };
        const afterReturn = length > 0 && bytes[length - 1] === CR;
        if ((byte === LF) !== afterReturn) return { code: 400, fault: 'a line of its head does not end with CR LF' };
        bytes[length++] = byte;
        if (byte !== LF) {
          lineLength += 1;
          continue;
        }
        if (lineLength === 1 && length > 2) {
          const parsed = parseHead(bytes.toString('latin1', 0, length - 4));
          return 'fault' in parsed ? parsed : { request: parsed, rest: piece.subarray(at + 1) };
        }
        lineLength = 0;
      }
      return undefined;
    },
  };
}

const REQUEST_LINE = /^([A-Z]{1,32}) ([\x21-\x7e]+) HTTP\/1\.[01]$/;
const FIELD = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\x20-\x7e\x80-\xff\t]*)$/;
const PLAIN_URL = /^http:\/\/([^/?#@]+)((?:[/?].*)?)$/i;
/** Headers of one connection, which end here; and whether the body comes in pieces of unknown length. */
const OWN_HEADERS = /^(connection|keep-alive|te|trailer|upgrade|proxy-.*)$/;
/** Headers that no server may read otherwise than the proxy does, so they may come only once. */
const SINGLE = ['host', 'content-length'];

function parseHead(text: string): ProxyRequest | HeadFault {
  const refuse = (fault: string, code: HeadFault['code'] = 400): HeadFault => ({ code, fault });
  const [line = '', ...lines] = text.split('\r\n');
  const [, method, url = ''] = REQUEST_LINE.exec(line) ?? [];
  if (method === undefined) return refuse('its first line is none of HTTP/1.1');
  const headers: [name: string, value: string][] = [];
  for (const it of lines) {
    const [, name, value = ''] = FIELD.exec(it) ?? [];
    if (name === undefined) return refuse('one of its headers is malformed');
    headers.push([name.toLowerCase(), value.trim()]);
  }
  const valuesOf = (name: string) => headers.filter((it) => it[0] === name).map((it) => it[1]);
  const doubled = SINGLE.find((name) => valuesOf(name).length > 1);
  if (doubled) return refuse(`its header ${doubled} comes twice`);
  const [host] = valuesOf('host');
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
  if (valuesOf('transfer-encoding').length)
    return refuse('its body has no Content-Length; this proxy takes no chunks, and passes TLS on unseen', 411);
  const [size = '0'] = valuesOf('content-length');
  if (!/^\d{1,15}$/.test(size)) return refuse('its Content-Length is no length');
  const kept = headers.filter(([name]) => !OWN_HEADERS.test(name) && name !== 'host');
  const origin = path.startsWith('/') ? path : `/${path}`;
  const sent = [
    `${method} ${origin} HTTP/1.1`,
    `host: ${authority}`,
    ...kept.map((it) => it.join(': ')),
    'connection: close',
  ];
  const head = Buffer.from(`${sent.join('\r\n')}\r\n\r\n`, 'latin1');
  return { kind: 'plain', target, host: hostOf(authority), head, bodyBytes: Number(size) };
}

/** Reads HOST:PORT; with a usual port, it may be left out. */
function targetOf(authority: string, usualPort: number | undefined): Target | undefined {
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
const isSame = (one: Target | undefined, other: Target) => one !== undefined && keyOf(one) === keyOf(other);
