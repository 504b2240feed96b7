import type { Random } from '../helper/random.ts';

/** Answers of HTTP/1.1 that a program would hardly send: well-formed ones, with faults put in by part. */

const STATUS_LINES = ['HTTP/1.1', 'HTTP/1.0', 'HTTP/2', 'HTTP/0.9', 'HTTP/1.1 ', 'http/1.1', 'ICY', ''];
const STATUSES = [
  '200',
  '204',
  '304',
  '206',
  '101',
  '100',
  '102',
  '103',
  '199',
  '299',
  '404',
  '500',
  '599',
  '600',
  '999',
  '000',
  '099',
  '1000',
  '-1',
  '2e2',
  'x',
  '',
];
const NAMES = [
  'Content-Length',
  'Transfer-Encoding',
  'Content-Type',
  'Connection',
  'Upgrade',
  'Trailer',
  'Set-Cookie',
  'Location',
  'X-Request-Id',
  'Date',
  'Keep-Alive',
  'Link',
  'Content-Encoding',
  'X',
  'x y',
  'X:',
  '',
  ' X',
  '__proto__',
  'constructor',
  'X\x00',
  'Ü',
  'X-Long',
];
const VALUES = [
  '',
  '0',
  '5',
  '-1',
  '18446744073709551616',
  '5, 5',
  '0x5',
  'chunked',
  'gzip, chunked',
  'chunked, chunked',
  'identity',
  'close',
  'keep-alive',
  'Upgrade',
  'X-Request-Id, close',
  'websocket',
  'text/event-stream',
  'text/html; charset=\xff',
  '/',
  'http://localhost:1/',
  '//evil',
  'a=b; Domain=x',
  '\x01',
  'a\x00b',
  'a\tb',
  'a\rb',
  'a\nb',
  '\x7f',
  '\x80\xff',
  ' '.repeat(50),
  'x'.repeat(9000),
];
const ENDS = ['\r\n', '\n', '\r', '\r\r\n', '\n\r', '', '\r\n ', '\r\n\t'];
export const BODIES = [
  '',
  'hello',
  '5\r\nhello\r\n0\r\n\r\n',
  '5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n',
  'ffffffffffffffff\r\nx',
  '-5\r\nhello',
  '5\nhello\n0\n\n',
  '0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil',
  'data: x\n\n',
  '5\r\nhel',
  '0\r\nContent-Length: 5\r\n\r\n',
  '\x00'.repeat(100),
];
const CHARACTERS = ['\x00', '\x01', '\x08', '\t', '\n', '\r', ' ', ':', '\x7f', '\x80', '\xa0', '\xff'];

/** One hostile answer. */
export function hostileAnswer(random: Random, isUpgrade = false): Buffer {
  const odd = (chance: number) => random.whole(1, 100) <= chance;
  const end = () => (odd(3) ? random.pick(ENDS) : '\r\n');
  const inserted = (text: string, chance: number) => {
    if (!odd(chance)) return text;
    const at = random.whole(0, text.length);
    return text.slice(0, at) + random.pick(CHARACTERS) + text.slice(at);
  };
  const version = odd(5) ? random.pick(STATUS_LINES) : 'HTTP/1.1';
  const status = isUpgrade && odd(70) ? '101' : odd(60) ? '200' : random.pick(STATUSES);
  const phrase = inserted(random.pick(['OK', '', 'a b', 'ü', 'x'.repeat(300)]), 40);
  const headers: string[] = [];
  if (isUpgrade && odd(80)) headers.push(`Connection: Upgrade${end()}`, `Upgrade: x${end()}`);
  const body = random.pick(BODIES);
  if (odd(70))
    headers.push(
      /^[0-9a-f-]+[;\r\n]/.test(body) ? `Transfer-Encoding: chunked${end()}` : `Content-Length: ${body.length}${end()}`,
    );
  for (let left = random.weighted({ 0: 4, 1: 3, 3: 2, 8: 1, 60: 0.1 }) as unknown as number; left > 0; left--)
    headers.push(`${inserted(random.pick(NAMES), 5)}:${odd(5) ? '' : ' '}${inserted(random.pick(VALUES), 10)}${end()}`);
  for (let swaps = odd(20) ? 3 : 0; swaps > 0 && headers.length > 1; swaps--)
    headers.push(headers.splice(random.whole(0, headers.length - 1), 1)[0] as string);
  const interim = odd(5)
    ? `HTTP/1.1 ${random.pick(['100', '102', '103'])} ${inserted('Go on', 40)}\r\n${odd(50) ? 'Link: </x>\r\n' : ''}\r\n`
    : '';
  const text = `${interim}${inserted(`${version} ${status} ${phrase}`, 5)}${end()}${headers.join('')}${end()}${body}`;
  if (odd(5)) return Buffer.from(text.slice(0, random.whole(0, text.length)), 'latin1');
  if (odd(3)) return Buffer.from(text + text, 'latin1');
  return Buffer.from(text, 'latin1');
}

const ODD: unknown[] = [
  null,
  true,
  false,
  0,
  -1,
  1.5,
  1e308,
  2 ** 53,
  '',
  'x',
  '\u0000',
  '\ud800',
  '__proto__',
  'x'.repeat(5000),
  [],
  {},
  [[]],
  [null],
  { length: -1 },
  { toString: 1 },
  '2026-13-99',
  '9'.repeat(400),
];

/** A value with the shape of another one, some of whose parts are missing, twice there, or of another kind. */
export function mutated(random: Random, value: unknown): unknown {
  if (random.whole(1, 12) === 1) return random.pick(ODD);
  if (Array.isArray(value)) {
    const items = value.flatMap((it) => (random.whole(1, 15) === 1 ? [] : [mutated(random, it)]));
    return random.whole(1, 15) === 1 ? [...items, ...items, random.pick(ODD)] : items;
  }
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).flatMap(([name, it]) => {
    if (random.whole(1, 15) === 1) return [];
    return [[random.whole(1, 40) === 1 ? name.toUpperCase() : name, mutated(random, it)]];
  });
  if (random.whole(1, 15) === 1)
    entries.push([random.pick(['__proto__', 'constructor', 'toString', 'x']), random.pick(ODD)]);
  return Object.fromEntries(entries);
}

/** A body with a head that announces it, truly for the most part. */
export function framed(random: Random, status: string, body: string): Buffer {
  const bytes = Buffer.from(random.whole(1, 20) === 1 ? body.slice(0, random.whole(0, body.length)) : body);
  const type =
    random.whole(1, 10) === 1 ? random.pick(VALUES.filter((it) => /^[\t -~]*$/.test(it))) : 'application/json';
  const said = random.whole(1, 15) === 1 ? bytes.length + random.whole(-5, 5) : bytes.length;
  const head = random.whole(1, 4) === 1 ? 'Transfer-Encoding: chunked' : `Content-Length: ${said}`;
  const parts = head.startsWith('T')
    ? [Buffer.from(`${said.toString(16)}\r\n`), bytes, Buffer.from('\r\n0\r\n\r\n')]
    : [bytes];
  return Buffer.concat([Buffer.from(`HTTP/1.1 ${status} X\r\nContent-Type: ${type}\r\n${head}\r\n\r\n`), ...parts]);
}
