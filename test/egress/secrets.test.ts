import assert from 'node:assert/strict';
import { randomBytes, X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { type AddressInfo, connect, createServer as createTcpServer, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import test, { type TestContext } from 'node:test';
import { connect as connectTls, createSecureContext, TLSSocket } from 'node:tls';
import { createLimit } from '../../src/base/limits.ts';
import { Secret } from '../../src/base/secret.ts';
import { type Authority, createAuthority } from '../../src/egress/authority.ts';
import type { Secrets } from '../../src/egress/proxy.ts';
import type { Replacement } from '../../src/egress/request-rewriter.ts';
import { makePair } from '../helper/certificate.ts';
import { until } from '../helper/waiting.ts';
import { clientHello, openProxy, openSite, PUBLIC } from './proxy-shared.ts';

const HOST = 'api.test';
const VALUE = 'sk-$&-the-$1-value';
const PLACEHOLDER = 'purser_placeholder_1';
const NAMES = { [HOST]: [PUBLIC], 'other.test': [PUBLIC], 'api.test.evil.test': [PUBLIC] };
const now = Math.floor(Date.now() / 1000);

/** The authorities that the proxy trusts: that of the servers of the test, and one that has expired. */
const WORLD = createAuthority(randomBytes(32), 'world', now);
const PAST = createAuthority(randomBytes(32), 'past', now - 3660 * 86_400);
const trusted = createSecureContext({ ca: [WORLD.certificate, PAST.certificate] });

const bearer = (value = VALUE): Replacement => ({
  header: 'authorization',
  placeholder: PLACEHOLDER,
  value: new Secret(value),
});

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

/** A server of `https://api.test`, which keeps all that it decrypts. */
async function openHost(t: TestContext, handle: Handler | undefined, authority = WORLD, name = HOST) {
  const said: string[] = [];
  const sockets: Socket[] = [];
  const connections: TLSSocket[] = [];
  const http =
    handle &&
    createServer((request, response) => {
      said.push(`${request.url} ${request.rawHeaders.join(' ')}`);
      handle(request, response);
    });
  const server = createTcpServer({ allowHalfOpen: true }, (socket) => {
    const at = said.push('') - 1;
    const tls = new TLSSocket(socket, {
      ...{ isServer: true, secureContext: authority.contextOf(name), ALPNProtocols: ['http/1.1'] },
    });
    sockets.push(socket, tls);
    connections.push(tls);
    for (const it of [socket, tls]) it.on('error', () => {});
    if (http) return http.emit('connection', tls);
    return tls.on('data', (piece) => {
      said[at] += piece.toString('latin1');
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    for (const it of sockets) it.destroy();
    http?.close();
    server.close();
  });
  return { port: (server.address() as AddressInfo).port, said, connections };
}

/** A lease with secrets for `https://api.test`, and the proxy that it is behind. */
function openLease(port: number, { seed = randomBytes(32), only = 443, mayEnter = true } = {}) {
  const authority: Authority = createAuthority(seed, 'res_1', now);
  const lease = { replacements: [bearer()], entered: 0 };
  const secrets: Secrets = {
    replacements: (host, at) => (host === HOST && at === only ? lease.replacements : []),
    authority: () => authority,
    enter() {
      if (!mayEnter) return undefined;
      lease.entered += 1;
      return () => {
        lease.entered -= 1;
      };
    },
  };
  const lists = [['api.test', 'api.test:8443', 'other.test', `${PUBLIC}:443`, 'api.test:80', '*.evil.test']];
  const proxy = openProxy(
    lists,
    port,
    NAMES,
    [],
    () => connect({ host: '127.0.0.1', port, allowHalfOpen: true }),
    secrets,
    () => trusted,
  );
  /** Opens a tunnel, and returns it, or the answer that refuses it. */
  async function tunnel(target = `${HOST}:443`): Promise<{ raw: Duplex } | { refused: string }> {
    const { client: raw, cut } = proxy.open();
    raw.once('close', cut); // As the program inside has it.
    raw.removeAllListeners('data');
    raw.write(`CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`);
    const [first] = await once(raw, 'data');
    const answer = String(first);
    if (answer.startsWith('HTTP/1.1 200')) return { raw };
    raw.destroy();
    return { refused: answer };
  }
  async function speak(target = `${HOST}:443`, options: object = {}): Promise<TLSSocket> {
    const opened = await tunnel(target);
    assert('raw' in opened, JSON.stringify(opened));
    const tls = connectTls({
      ...{ socket: opened.raw, servername: target.replace(/:.*/, ''), ca: authority.certificate },
      ...options,
    });
    tls.allowHalfOpen = true;
    tls.on('error', () => {});
    await once(tls, 'secureConnect');
    return tls;
  }
  return { ...lease, lease, authority, proxy, tunnel, speak };
}

/** Sends a text over a new connection, and returns all that is answered until the server ends it. */
async function say(tls: TLSSocket, text: string | Buffer): Promise<string> {
  let said = '';
  tls.on('data', (piece) => {
    said += piece.toString('latin1');
  });
  tls.write(typeof text === 'string' ? Buffer.from(text, 'latin1') : text);
  await new Promise((resolve) => tls.once('end', resolve).once('close', resolve));
  tls.destroy();
  return said;
}
const request = (more = '', first = 'GET / HTTP/1.1', host = HOST) =>
  `${first}\r\nHost: ${host}\r\nConnection: close\r\n${more}\r\n`;
const authorized = `Authorization: Bearer ${PLACEHOLDER}\r\n`;
const ok: Handler = (_, response) => void response.end('ok');

test('the value stands in its header alone, and the rest of each request is as it was', async (t) => {
  const seen: [url: string, headers: IncomingMessage['headers'], body: string][] = [];
  const host = await openHost(t, async (request, response) => {
    let body = '';
    for await (const piece of request) body += piece;
    seen.push([request.url as string, request.headers, body]);
    response.setHeader('x-count', seen.length);
    response.end('ok');
  });
  const lease = openLease(host.port);
  const tls = await lease.speak();
  assert.deepEqual([tls.alpnProtocol || 'none', tls.authorized], ['none', true]);
  const ask = async (text: string) => {
    const wanted = `x-count: ${seen.length + 1}`;
    let said = '';
    const listen = (piece: Buffer) => {
      said += piece;
    };
    tls.on('data', listen);
    // Byte by byte, as a client may send it.
    for (const byte of Buffer.from(text, 'latin1')) tls.write(Buffer.from([byte]));
    await until('it is answered', async () => said.endsWith('ok') || said.endsWith('0\r\n\r\n'));
    tls.off('data', listen);
    assert.match(said, new RegExp(wanted));
  };
  // Many requests pass over one connection.
  await ask(`GET /?key=${PLACEHOLDER} HTTP/1.1\r\nHost: API.test:443\r\n${authorized}X-Other: ${PLACEHOLDER}\r\n\r\n`);
  const body = `a ${PLACEHOLDER}`;
  await ask(`POST / HTTP/1.1\r\nHost: ${HOST}\r\n${authorized}Content-Length: ${body.length}\r\n\r\n${body}`);
  await ask(
    `POST / HTTP/1.1\r\nHost: ${HOST}\r\n${authorized}Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n15\r\n ${PLACEHOLDER}\r\n0\r\n\r\n`,
  );
  const basic = (password: string) => `Basic ${Buffer.from(`me:${password}`).toString('base64')}`;
  await ask(`GET / HTTP/1.1\r\nHost: ${HOST}\r\nAuthorization: ${basic(PLACEHOLDER)}\r\n\r\n`);
  // A value that is replaced is so at the next request; one that is removed stops.
  lease.lease.replacements.splice(0, 1, bearer('another-value'));
  await ask(`GET / HTTP/1.1\r\nHost: ${HOST}\r\n${authorized}\r\n`);
  lease.lease.replacements.length = 0;
  await ask(`GET / HTTP/1.1\r\nHost: ${HOST}\r\n${authorized}Upgrade: websocket\r\nConnection: upgrade\r\n\r\n`);
  tls.destroy();
  assert.deepEqual(
    seen.map(([url, { authorization }, body]) => [url, authorization, body]),
    [
      [`/?key=${PLACEHOLDER}`, `Bearer ${VALUE}`, ''],
      ['/', `Bearer ${VALUE}`, body],
      ['/', `Bearer ${VALUE}`, body],
      ['/', basic(VALUE), ''],
      ['/', 'Bearer another-value', ''],
      ['/', `Bearer ${PLACEHOLDER}`, ''],
    ],
  );
  assert.deepEqual([seen[0]?.[1]['x-other'], seen[0]?.[1].host, seen[5]?.[1].upgrade], [PLACEHOLDER, HOST, undefined]);
  await until('its memory is given back', async () => lease.lease.entered === 0);
  assert.deepEqual([lease.proxy.refusals, lease.proxy.checkCount()], [[], 0]);
  // What is counted says nothing of the length of a value.
  const bytesWith = async (value: string, firstBytes = 0) => {
    const other = openLease(host.port);
    other.lease.replacements.splice(0, 1, bearer(value));
    const tls = await other.speak();
    const text = request(authorized);
    if (firstBytes) await new Promise((resolve) => tls.write(text.slice(0, firstBytes), resolve));
    await say(tls, text.slice(firstBytes));
    return other.proxy.tally.list()[0]?.bytes;
  };
  const bytes = await bytesWith('short-value');
  assert.equal(await bytesWith('a-longer-value'.repeat(9)), bytes);
  assert.equal(await bytesWith('short-value', 50), bytes, 'a head in two pieces counts in full');
});

test('a request that could be read in two ways, or for another host, reaches nobody', async (t) => {
  const chunked = `${authorized}Transfer-Encoding: chunked\r\n`;
  const post = 'POST / HTTP/1.1';
  const refused: Record<string, string> = {
    'another host': request(authorized, undefined, 'other.test'),
    'another port': request(authorized, undefined, `${HOST}:8443`),
    'the address of the host': request(authorized, undefined, PUBLIC),
    'a host twice': request(`Host: ${HOST}\r\n${authorized}`),
    'no host': `GET / HTTP/1.1\r\n${authorized}\r\n`,
    'a whole URL': request(authorized, `GET https://other.test/ HTTP/1.1`),
    'a header twice': request(authorized + authorized),
    'a header twice, in two cases': request(`${authorized}AUTHORIZATION: x\r\n`),
    'a folded header': request(`Authorization: Bearer\r\n ${PLACEHOLDER}\r\n`),
    'a bare line feed': request(`Authorization: Bearer ${PLACEHOLDER}\nX: y\r\n`),
    'a bare return': request(`Authorization: Bearer ${PLACEHOLDER}\rX: y\r\n`),
    'a blank before the colon': request(`Authorization : Bearer ${PLACEHOLDER}\r\n`),
    'HTTP/1.0': request(authorized, 'GET / HTTP/1.0'),
    'HTTP/2': 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    TRACE: request(authorized, 'TRACE / HTTP/1.1'),
    CONNECT: request(authorized, `CONNECT ${HOST}:443 HTTP/1.1`),
    'two lengths': request(`${authorized}Content-Length: 1\r\nContent-Length: 1\r\n`, post),
    'a length with a sign': request(`${authorized}Content-Length: +1\r\n`, post),
    'a length and chunks': request(`${chunked}Content-Length: 1\r\n`, post),
    'two codings': request(`${authorized}Transfer-Encoding: gzip, chunked\r\n`, post),
    'two headers of codings': request(`${chunked}Transfer-Encoding: identity\r\n`, post),
    'a coding that is none': request(`${authorized}Transfer-Encoding: xchunked\r\n`, post),
    'a head that is too long': request(`${authorized}${`X: ${'y'.repeat(4000)}\r\n`.repeat(5)}`),
    'a request of another host after one': `GET / HTTP/1.1\r\nHost: ${HOST}\r\n\r\n${request(authorized, undefined, 'other.test')}`,
  };
  const bodies: Record<string, string> = {
    'an extension of a chunk': '1;a=b\r\nx\r\n0\r\n\r\n',
    'a size that is none': '0x1\r\nx\r\n0\r\n\r\n',
    'a negative size': '-1\r\nx\r\n0\r\n\r\n',
    'a size that is too large': `${'1'.repeat(13)}\r\n`,
    'a size with blanks': '1 \r\nx\r\n0\r\n\r\n',
    'a size with a bare line feed': '1\nx\r\n0\r\n\r\n',
    'a chunk that goes on': '1\r\nxy\r\n0\r\n\r\n',
    'a trailer': `0\r\n${authorized}\r\n`,
  };
  const host = await openHost(t, undefined);
  const lease = openLease(host.port);
  for (const [what, text] of Object.entries(refused)) {
    const answer = await say(await lease.speak(), text);
    assert.match(answer, /^HTTP\/1\.1 4(00|31) [\s\S]*Purser: /, what);
    assert(!answer.includes(VALUE), what);
  }
  assert.equal(host.said.join(''), '', 'nothing of them has passed');
  for (const [what, text] of Object.entries(bodies)) {
    const answer = await say(await lease.speak(), request(chunked, post) + text);
    assert.match(answer, /^HTTP\/1\.1 400 /, what);
  }
  assert.equal(lease.proxy.refusals.length, Object.keys(refused).length + Object.keys(bodies).length);
  assert(!JSON.stringify(lease.proxy.refusals).includes(VALUE));
  await until('nothing is kept of them', async () => lease.lease.entered === 0 && lease.proxy.checkCount() === 0);
});

test('a header that is long or not plain is not filled: a server may show it', async (t) => {
  const seen: (string | undefined)[] = [];
  const host = await openHost(t, (request, response) => {
    seen.push(request.headers.authorization);
    response.end('ok');
  });
  const lease = openLease(host.port);
  for (const tail of ['x'.repeat(2000), '\xff', '\ty'])
    await say(await lease.speak(), request(`Authorization: Bearer ${PLACEHOLDER}${tail}\r\n`));
  assert(seen.length === 3 && !seen.join().includes(VALUE) && seen.every((it) => it?.includes(PLACEHOLDER)));
});

test('elsewhere a placeholder is what it is: other hosts, other ports, an address and plain HTTP see it alone', async (t) => {
  const host = await openHost(t, ok, WORLD, 'other.test');
  const lease = openLease(host.port);
  // The TLS of another host is not ended: its own certificate is there, and its own protocol.
  const tls = await lease.speak('other.test:443', { ca: WORLD.certificate });
  assert.match(await say(tls, request(authorized, undefined, 'other.test')), /ok$/);
  assert(host.said.join('').includes(PLACEHOLDER) && !host.said.join('').includes(VALUE));
  for (const target of [`${HOST}:8443`, `${PUBLIC}:443`]) {
    const name = { ca: WORLD.certificate, servername: HOST, checkServerIdentity: () => undefined };
    const tls = await lease.speak(target, name);
    assert.equal(tls.getPeerX509Certificate()?.issuer, 'CN=Purser world', target);
    await say(tls, request(authorized, undefined, target));
  }
  const evil = await lease.tunnel('api.test.evil.test:443');
  assert('raw' in evil);
  evil.raw.destroy();
  assert(!host.said.join('').includes(VALUE));

  const plain = await openSite(t, 'HTTP/1.1 200 OK\r\n\r\n');
  const other = openLease(plain.port);
  await other.proxy.ask(`GET http://${HOST}/ HTTP/1.1\r\nHost: ${HOST}\r\n${authorized}\r\n`);
  assert(plain.said[0]?.includes(PLACEHOLDER) && !plain.said[0].includes(VALUE));
  assert.equal(lease.lease.entered + other.lease.entered, 0);

  // A secret opens no host by itself.
  other.proxy.change([['other.test']]);
  const closed = await other.tunnel();
  assert('refused' in closed && closed.refused.startsWith('HTTP/1.1 403 '));

  // TLS that asks for another server than the request, within a tunnel that is ended.
  const mixed = openLease((await openHost(t, ok)).port);
  const opened = await mixed.tunnel();
  assert('raw' in opened);
  const asking = connectTls({ socket: opened.raw, servername: 'other.test', rejectUnauthorized: false });
  asking.on('error', () => {}).resume();
  await until('it is refused', async () => mixed.proxy.refusals.length === 1);
  assert.match(mixed.proxy.refusals.join(), /asks for another server/);
});

test('a server whose certificate does not hold gets nothing, and the tunnel does not open', async (t) => {
  const unknown = createAuthority(randomBytes(32), 'unknown', now);
  for (const [authority, name, why] of [
    [unknown, HOST, /UNABLE_TO_VERIFY_LEAF_SIGNATURE|SELF_SIGNED/],
    [WORLD, 'other.test', /ERR_TLS_CERT_ALTNAME_INVALID/],
    [PAST, HOST, /CERT_HAS_EXPIRED/],
  ] as const) {
    const host = await openHost(t, ok, authority, name);
    const lease = openLease(host.port);
    const opened = await lease.tunnel();
    assert('refused' in opened);
    assert.match(opened.refused, /^HTTP\/1\.1 502 /);
    assert.match(opened.refused, why);
    assert.deepEqual([host.said.join(''), lease.lease.entered], ['', 1]);
    await until('it is released', async () => lease.lease.entered === 0 || !lease.proxy.checkCount());
  }
  const site = await openSite(t, 'SSH-2.0-x\r\n');
  const lease = openLease(site.port);
  const opened = await lease.tunnel();
  assert('refused' in opened && opened.refused.startsWith('HTTP/1.1 502 '));
});

test('a client that trusts another authority, or speaks HTTP/2 alone, is refused, and it is said why', async (t) => {
  const host = await openHost(t, ok);
  const lease = openLease(host.port);
  for (const options of [{ ca: makePair().cert }, { ALPNProtocols: ['h2'] }]) {
    const opened = await lease.tunnel();
    assert('raw' in opened);
    const tls = connectTls({ socket: opened.raw, servername: HOST, ca: lease.authority.certificate, ...options });
    await once(tls, 'error');
    opened.raw.destroy();
  }
  await until('both are refused', async () => lease.proxy.refusals.length === 2);
  // TLS that comes with the request is read: this one offers nothing that a server could take.
  const { client } = lease.proxy.open();
  client.write(Buffer.concat([Buffer.from(`CONNECT ${HOST}:443 HTTP/1.1\r\n\r\n`), clientHello([HOST])]));
  await until('it is refused', async () => lease.proxy.refusals.length === 3);
  assert.match(lease.proxy.refusals[2] as string, /TLS to the lease failed: ERR_SSL_/);
  assert.match(lease.proxy.refusals.join(), /TLS to the lease failed: /);
  const both = await lease.speak(undefined, { ALPNProtocols: ['h2', 'http/1.1'] });
  assert.equal(both.alpnProtocol, 'http/1.1');
  both.destroy();
  const full = openLease(host.port, { mayEnter: false });
  const opened = await full.tunnel();
  assert('refused' in opened && opened.refused.startsWith('HTTP/1.1 429 '));
});

for (const version of ['TLSv1.2', 'TLSv1.3'] as const)
  test(`a session of ${version} goes on in no other lease`, async (t) => {
    const host = await openHost(t, ok);
    const [one, other] = [openLease(host.port), openLease(host.port)];
    const options = { minVersion: version, maxVersion: version };
    const sessions: Buffer[] = [];
    const first = await one.speak(undefined, options);
    if (version === 'TLSv1.2') sessions.push(first.getSession() as Buffer);
    first.on('session', (it) => sessions.push(it));
    await say(first, request());
    const again = await one.speak(undefined, { ...options, session: sessions[0] });
    assert(again.isSessionReused(), 'the session is a good one');
    const elsewhere = await other.speak(undefined, { ...options, session: sessions[0] });
    assert(!elsewhere.isSessionReused());
    for (const it of [again, elsewhere]) it.destroy();
  });

test('bodies stream both ways, no faster than they are taken', async (t) => {
  const size = 8 * 1024 * 1024;
  const got = Promise.withResolvers<number>();
  let isRead = false;
  const host = await openHost(t, async (request, response) => {
    if (request.headers.expect) response.writeContinue();
    await until('the test lets it read', async () => isRead);
    let count = 0;
    for await (const piece of request) count += piece.length;
    got.resolve(count);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: 1\n\n');
    await once(request.socket, 'close').catch(() => {});
  });
  const lease = openLease(host.port);
  const tls = await lease.speak();
  tls.write(
    `POST / HTTP/1.1\r\nHost: ${HOST}\r\n${authorized}Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n`,
  );
  let said = '';
  tls.on('data', (piece) => {
    said += piece;
  });
  const chunk = Buffer.alloc(65_536, 'x');
  for (let sent = 0; sent < size; sent += chunk.length)
    tls.write(Buffer.concat([Buffer.from('10000\r\n'), chunk, Buffer.from('\r\n')]));
  tls.write('0\r\n\r\n');
  await until('it stands still', async () => tls.writableLength > size / 2);
  isRead = true;
  assert.equal(await got.promise, size);
  // The first event is there while the answer goes on.
  await until('the event is there', async () => said.includes('data: 1'));
  lease.proxy.end();
  lease.proxy.change([[HOST]]);
  await until('it is cut with the lease', async () => tls.readableEnded || tls.destroyed);
});

test('a client that has said everything gets the whole answer of a host that would end with it', async (t) => {
  const asked: ServerResponse[] = [];
  const host = await openHost(t, (_, response) => void asked.push(response));
  const lease = openLease(host.port);
  for (const more of ['', 'Connection: close\r\n']) {
    const tls = await lease.speak();
    let count = 0;
    tls.on('data', (piece) => {
      count += piece.length;
    });
    tls.end(`GET / HTTP/1.1\r\nHost: ${HOST}\r\n${authorized}${more}\r\n`);
    // The end has long been read when a request on a connection that is opened afterwards is there.
    const other = await lease.speak();
    other.write(request());
    await until('both are asked', async () => asked.length === 2);
    for (const it of asked.splice(0)) it.end('y'.repeat(300_000));
    await until('the answer is there, or its connection is over', async () => count > 300_000 || tls.readableEnded);
    assert(count > 300_000, String(count));
    for (const it of [tls, other]) it.destroy();
  }
  await until('nothing is kept of them', async () => lease.lease.entered === 0 && lease.proxy.checkCount() === 0);
});

test('a lease begins so many at once, and no more than that in each minute after', () => {
  let now = 5000;
  const limit = createLimit(600, () => now);
  const may = () => limit.tryTake('res_1');
  const count = () => Array.from({ length: 700 }, may).filter((it) => it).length;
  assert.deepEqual([count(), count()], [600, 0]);
  now += 6000;
  assert.equal(count(), 60);
  now += 600_000;
  assert.equal(count(), 600);
});

test('the same seed makes the same authority, and another seed another', () => {
  const seed = randomBytes(32);
  const [one, again, other] = [
    createAuthority(seed, 'a', now),
    createAuthority(seed, 'a', now),
    createAuthority(randomBytes(32), 'a', now),
  ];
  const keyOf = ({ certificate }: Authority) =>
    new X509Certificate(certificate).publicKey.export({ type: 'spki', format: 'pem' });
  assert.equal(keyOf(one), keyOf(again));
  assert.notEqual(keyOf(one), keyOf(other));
});
