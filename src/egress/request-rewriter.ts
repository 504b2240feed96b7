import type { Secret } from '../base/secret.ts';
import {
  createReader,
  type HeadFault,
  type HeadLines,
  headOf,
  isSame,
  lengthOf,
  refuse,
  refuseDoubled,
  targetOf,
  valuesOf,
} from './request-head.ts';

/**
 * The requests to a host inside TLS that the proxy has ended. Each is sent on as it was read here: a server that read its length
 * otherwise could take a header with a secret for a part of a body, and show it to anybody.
 */

/** The value that takes the place of a placeholder in one header, whose name is in lower case. */
export type Replacement = { header: string; placeholder: string; value: Secret };

/** A request that is not sent on. */
export class RequestFault extends Error {
  readonly code: HeadFault['code'];
  constructor({ code, fault }: HeadFault) {
    super(`the request is refused: ${fault}`);
    this.code = code;
  }
}

/** Those of each header. */
type Replacements = ReadonlyMap<string, readonly Replacement[]>;

type BodyLength = { remainingBytes: number } | 'chunks' | 'none';

/** The longest header in which a placeholder is replaced: servers show the beginning of one that is too long for them. */
const HEADER_LENGTH_MAX = 1024;
const SIZE_LINE = /^[0-9A-Fa-f]{1,12}$/;
const SIZE_LINE_LENGTH_MAX = 14;
const LF = 10;

/** A server that carries these out returns the request, with its headers, to any client. */
const ECHOES = ['TRACE', 'TRACK'];
/** Methods whose body some servers leave unread. */
const BODILESS = ['GET', 'HEAD', 'DELETE', 'OPTIONS'];

/**
 * Creates a function that is given what a client sends to `https://host:port`, in pieces, and returns what the server gets. It
 * throws RequestFault. `replacements` are asked for once for each piece: many requests in one cost no more.
 */
export function createRequestRewriter(
  host: string,
  port: number,
  replacements: () => readonly Replacement[],
): (piece: Buffer) => Buffer {
  const place = placeOf(host, port);
  let current: Replacements | undefined;
  const head = createReader((lines) => {
    if (hasEnded) return refuse('the one before it was the last of its connection');
    current ??= Map.groupBy(replacements(), ({ header }) => header);
    return rewrite(lines, place, current);
  });
  let body: BodyLength = 'none';
  let hasEnded = false;
  const chunks = createChunkReader();

  /** Takes the beginning of a piece. Returns what is sent on, and the rest. */
  function takeOne(piece: Buffer): { sent?: Buffer; rest: Buffer } {
    if (body === 'chunks') {
      const { count, isWhole } = chunks(piece);
      if (isWhole) body = 'none';
      return { sent: piece.subarray(0, count), rest: piece.subarray(count) };
    }
    if (body !== 'none') {
      const sent = piece.subarray(0, body.remainingBytes);
      body.remainingBytes -= sent.length;
      if (body.remainingBytes === 0) body = 'none';
      return { sent, rest: piece.subarray(sent.length) };
    }
    const read = head.take(piece);
    if (!read) return { rest: piece.subarray(piece.length) };
    if ('fault' in read) throw new RequestFault(read);
    ({ body, isLast: hasEnded } = read.request);
    return { sent: read.request.head, rest: read.rest };
  }

  return (piece) => {
    const all: Buffer[] = [];
    current = undefined;
    for (let rest = piece; rest.length; ) {
      const { sent, rest: more } = takeOne(rest);
      if (sent) all.push(sent);
      rest = more;
    }
    return Buffer.concat(all);
  };
}

function placeOf(host: string, port: number) {
  const authority = port === 443 ? host : `${host}:${port}`;
  return { authority, target: targetOf(authority, 443) };
}

function rewrite(
  { method, url, minor, headers, values }: HeadLines,
  { authority, target }: ReturnType<typeof placeOf>,
  replacements: Replacements,
): { head: Buffer; body: BodyLength; isLast: boolean } | HeadFault {
  const [host] = valuesOf(values, 'host');
  if (minor !== '1') return refuse('it is not of HTTP/1.1');
  if (method === 'CONNECT' || ECHOES.includes(method))
    return refuse(`${method} is not passed on where a secret may be`);
  if (!url.startsWith('/') && !(method === 'OPTIONS' && url === '*')) return refuse('its target is no path');
  if (host === undefined || !target || !isSame(targetOf(host, 443), target))
    return refuse(`its header Host is not ${authority}, the host of its connection`);
  const doubled = refuseDoubled(values, replacements.keys());
  if (doubled) return doubled;
  const codings = valuesOf(values, 'transfer-encoding');
  const length = lengthOf(values);
  if (length === undefined) return refuse('its Content-Length is no length');
  const isChunked = codings.length > 0;
  if (isChunked && (codings.join().toLowerCase() !== 'chunked' || valuesOf(values, 'content-length').length))
    return refuse('the length of its body could be read in two ways');
  const filled = headers.map(([name, value]): [string, string] => [name, fill(value, replacements.get(name))]);
  // A server that left the body unread would take it for a request, and the next head, with a value in it, for that one's body.
  const mayBeUnread = (isChunked || length > 0) && (BODILESS.includes(method) || valuesOf(values, 'expect').length > 0);
  const isLast = mayBeUnread || valuesOf(values, 'connection').some((it) => /\bclose\b/i.test(it));
  return {
    head: headOf(`${method} ${url} HTTP/1.1`, authority, filled, isLast),
    body: isChunked ? 'chunks' : length ? { remainingBytes: length } : 'none',
    isLast,
  };
}

/**
 * Returns a header's value with the values of the placeholders that are once in it; the password of basic authentication counts as
 * well.
 */
function fill(text: string, own: readonly Replacement[] | undefined): string {
  if (!own || text.length > HEADER_LENGTH_MAX || !/^[\x20-\x7e]*$/.test(text)) return text;
  // Not by a pattern or a plain text: `$&` in a value would be read.
  const replaceEach = (it: string) =>
    own.reduce((all, { placeholder, value }) => {
      // Twice, a header that is short here could become one that is too long there.
      const isOnce = all.split(placeholder).length === 2;
      return isOnce ? all.replace(placeholder, () => value.reveal()) : all;
    }, it);
  const [, scheme = '', coded] = /^(basic +)([A-Za-z0-9+/]+={0,2})$/i.exec(text) ?? [];
  if (coded === undefined) return replaceEach(text);
  const plain = Buffer.from(coded, 'base64').toString('latin1');
  const filled = replaceEach(plain);
  return filled === plain ? text : scheme + Buffer.from(filled, 'latin1').toString('base64');
}

/**
 * Creates a reader of successive bodies in chunks (RFC 9112, section 7.1). It counts the bytes that belong to a body, and returns
 * whether it is whole. Throws RequestFault, also for extensions and trailers, which few servers read alike.
 */
function createChunkReader(): (piece: Buffer) => { count: number; isWhole: boolean } {
  let line = '';
  /** The bytes of the chunk that are still to come; its line is read first, and an empty one after it. */
  let remainingBytes = 0;
  let next: 'size' | 'data' | 'end of chunk' | 'end' = 'size';

  function takeLine(): boolean {
    const isSound = next === 'size' ? SIZE_LINE.test(line) : line === '';
    if (!isSound)
      throw new RequestFault(refuse(`its body is malformed, or has what this proxy does not take (${next})`));
    if (next === 'end') {
      next = 'size';
      return true;
    }
    if (next === 'size') remainingBytes = Number.parseInt(line, 16);
    next = next === 'end of chunk' ? 'size' : remainingBytes ? 'data' : 'end';
    line = '';
    return false;
  }

  return (piece) => {
    for (let at = 0; at < piece.length; ) {
      if (next === 'data') {
        const count = Math.min(remainingBytes, piece.length - at);
        remainingBytes -= count;
        at += count;
        if (remainingBytes === 0) next = 'end of chunk';
        continue;
      }
      const byte = piece[at++] as number;
      const afterReturn = line.endsWith('\r');
      if ((byte === LF) !== afterReturn || line.length > SIZE_LINE_LENGTH_MAX)
        throw new RequestFault(refuse('a line of its body is malformed'));
      if (byte !== LF) {
        line += String.fromCharCode(byte);
        continue;
      }
      line = line.slice(0, -1);
      if (takeLine()) {
        line = '';
        return { count: at, isWhole: true };
      }
    }
    return { count: piece.length, isWhole: false };
  };
}
