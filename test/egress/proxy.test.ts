import assert from 'node:assert/strict';
import { connect, Socket } from 'node:net';
import test from 'node:test';
import { followFaults } from '../../src/base/fault.ts';
import { createHelloReader } from '../../src/egress/client-hello.ts';
import { covers, type ListEntry, parseList } from '../../src/egress/list.ts';
import { createHeadReader } from '../../src/egress/request-head.ts';
import { createTally } from '../../src/egress/tally.ts';
import { resetConnection } from '../../src/net/reset.ts';
import { assertLinear } from '../helper/cpu.ts';
import { until } from '../helper/waiting.ts';
import { clientHello, openProxy, openSite, PUBLIC } from './proxy-shared.ts';

const ANSWER = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok';
const get = (url: string, host: string, more = '') => `GET ${url} HTTP/1.1\r\nHost: ${host}\r\n${more}\r\n`;

test('a listed name is reached at the address that was checked, and nothing else is asked for', async (t) => {
  const site = await openSite(t, ANSWER);
  const proxy = openProxy([['pypi.org', '*.debian.org:8080']], site.port, {
    'pypi.org': ['10.0.0.1', PUBLIC],
    'deb.debian.org': [PUBLIC],
  });
  assert.equal(
    await proxy.ask(get('http://pypi.org/simple/?a=1', 'PyPI.org', 'Proxy-Connection: keep-alive\r\n')),
    '200',
  );
  assert.deepEqual(proxy.dialled, [`${PUBLIC} 80`]);
  assert.equal(site.said[0], 'GET /simple/?a=1 HTTP/1.1\r\nhost: pypi.org\r\nconnection: close\r\n\r\n');
  assert.equal(await proxy.ask(get('http://deb.debian.org:8080/', 'deb.debian.org:8080')), '200');
  for (const host of ['example.com', 'debian.org:8080', 'deb.debian.org', 'xpypi.org', 'pypi.org:8080', PUBLIC])
    assert.equal(await proxy.ask(get(`http://${host}/`, host)), '403', host);
  assert.deepEqual(proxy.asked, ['pypi.org', 'deb.debian.org']);
  assert.deepEqual(proxy.tally.list()[0], { host: 'pypi.org', bytes: 104, refused: 1 });
});

test('a name opens no address that is not public, nor one of this machine; a network in the list does', async (t) => {
  const site = await openSite(t, ANSWER);
  const closed = [
    '127.0.0.1',
    '10.1.2.3',
    '169.254.169.254',
    '100.64.0.1',
    '198.18.0.1',
    '192.0.2.1',
    '224.0.0.1',
    '0.0.0.0',
  ];
  const closed6 = [
    '::',
    '::1',
    'fe80::1',
    'fd00::1',
    '::ffff:10.0.0.1',
    '64:ff9b::a00:1',
    '64:ff9b:1::1',
    '2002:a00:1::1',
  ];
  const more = ['2001::1', '2001:db8::1', 'ff02::1', '255.255.255.255', '168.63.129.16', '8.8.4.4', 'no address'];
  for (const address of [...closed, ...closed6, ...more]) {
    const proxy = openProxy([['a.test', 'public']], site.port, { 'a.test': [address] }, ['8.8.4.4']);
    assert.equal(await proxy.ask(get('http://a.test/', 'a.test')), '403', address);
    assert.deepEqual(proxy.dialled, []);
  }
  const own = openProxy([['a.test', '8.8.4.4', '10.0.5.0/24:80']], site.port, { 'a.test': ['10.0.5.9'] }, ['8.8.4.4']);
  assert.equal(await own.ask(get('http://8.8.4.4/', '8.8.4.4')), '200');
  assert.equal(await own.ask(get('http://a.test/', 'a.test')), '200');
  assert.equal(await own.ask(get('http://10.0.5.1:443/', '10.0.5.1:443')), '403');
  // Every list has to admit it.
  const both = openProxy([['public'], ['a.test']], site.port, { 'a.test': [PUBLIC], 'b.test': [PUBLIC] });
  assert.equal(await both.ask(get('http://a.test/', 'a.test')), '200');
  assert.equal(await both.ask(get('http://b.test/', 'b.test')), '403');
});

test('requests that could be read in two ways are refused', async (t) => {
  const site = await openSite(t, ANSWER);
  const proxy = openProxy([['a.test', 'public']], site.port, { 'a.test': [PUBLIC] });
  const line = 'POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\n';
  const refused: [string, string][] = [
    ['400', 'GET / HTTP/1.1\r\nHost: a.test\r\n\r\n'],
    ['400', get('http://a.test/', 'b.test')],
    ['400', get('http://a.test/', 'a.test', 'Host: a.test\r\n')],
    ['400', 'GET http://a.test/ HTTP/1.1\r\n\r\n'],
    ['400', get('http://user@a.test/', 'a.test')],
    ['400', `${line}Content-Length: 1\r\nContent-Length: 1\r\n\r\nx`],
    ['400', `${line}Content-Length: +1\r\n\r\nx`],
    ['400', `${line}A: b\r\n folded\r\n\r\n`],
    ['400', `${line}A : b\r\n\r\n`],
    ['400', `${line}A: b\nC: d\r\n\r\n`],
    ['400', `${line}A: b\rC: d\r\n\r\n`],
    ['400', `${line}A: \0\r\n\r\n`],
    ['411', `${line}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n`],
    ['411', `${line}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`],
    ['431', `${line}A: ${'b'.repeat(17_000)}\r\n\r\n`],
    ['400', 'CONNECT a.test HTTP/1.1\r\n\r\n'],
  ];
  const hosts = [
    'a.test.',
    'a..test',
    '0x7f.1',
    '0x7f000001',
    '017700000001',
    '2130706433',
    '127.1',
    '1.2.3.4.',
    'a%2etest',
  ];
  for (const host of [...hosts, 'bücher.test', '[::1%lo]', '[a.test]', '::1', '-', 'a.test\t'])
    refused.push(['400', `CONNECT ${host}:443 HTTP/1.1\r\n\r\n`]);
  for (const port of ['0', '65536', '080', '-1', '', '99999999999'])
    refused.push(['400', `CONNECT a.test:${port} HTTP/1.1\r\n\r\n`]);
  for (const [status, text] of refused) assert.equal(await proxy.ask(text), status, JSON.stringify(text.slice(0, 120)));
  assert.deepEqual([proxy.dialled, proxy.asked], [[], []]);
});

test('one request is taken of a connection: what follows its body reaches nobody', async (t) => {
  const site = await openSite(t);
  const proxy = openProxy([['a.test']], site.port, { 'a.test': [PUBLIC] });
  const it = proxy.open();
  const second = get('http://b.test/', 'b.test');
  it.client.write(`POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\nbo${'dy'}${second}`);
  await until('the body is there', async () => site.said[0]?.endsWith('body') ?? false);
  it.client.write(second.repeat(100));
  it.client.end();
  await it.over;
  assert(site.said[0]?.endsWith('\r\n\r\nbody'));
  assert.equal(proxy.dialled.length, 1);
});

test('a tunnel to a name has to begin with a ClientHello that names it, at every port', async (t) => {
  const site = await openSite(t);
  const list = ['a.test', 'a.test:22', '93.184.216.0/24:22'];
  const names = { 'a.test': [PUBLIC] };
  const ech = Buffer.from([0xfe, 0x0d, 0, 1, 0]);
  const sound = clientHello(['A.test']);
  const cases: [string, Buffer, boolean][] = [
    ['a.test:443', sound, true],
    ['a.test:22', sound, true],
    ['a.test:443', clientHello(['a.test'], { recordBytes: 3 }), true],
    ['a.test:443', clientHello(['b.test']), false],
    ['a.test:443', clientHello([]), false],
    ['a.test:443', clientHello(['a.test', 'a.test']), false],
    ['a.test:443', clientHello(['a.test'], { extra: ech }), false],
    ['a.test:22', Buffer.from('SSH-2.0-x\r\n'), false],
    ['a.test:443', Buffer.from(get('http://b.test/', 'b.test')), false],
    ['a.test:443', Buffer.from([22, 3, 1, 0, 4, 2, 0, 0, 0]), false],
    ['a.test:443', Buffer.concat([sound.subarray(0, 60), Buffer.alloc(200)]), false],
    [`${PUBLIC}:22`, Buffer.from('SSH-2.0-x\r\n'), true],
  ];
  for (const [target, first, passes] of cases) {
    const proxy = openProxy([list], site.port, names);
    const it = proxy.open();
    it.client.write(`CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`);
    await until('the tunnel is open', async () => it.said().startsWith('HTTP/1.1 200'));
    const before = site.said.length;
    // Byte by byte, as a client may send it.
    for (const byte of first) it.client.write(Buffer.from([byte]));
    if (passes) {
      await until('it is there', async () => site.said.at(-1) === first.toString('latin1'));
      proxy.end();
      it.client.write('more');
    } else it.client.end();
    await it.over;
    assert(passes || !site.said.slice(before - 1).at(-1), `${target} ${first.toString('latin1')}`);
    assert(!site.said.at(-1)?.includes('more'), 'nothing passes after the end of the lease');
    assert.equal(proxy.refusals.length, passes ? 0 : 1);
    site.said.length = 0;
  }
});

test('the work for a head and a ClientHello is in proportion to its bytes', () => {
  const hello = createHelloReader();
  let result: unknown;
  let count = 0;
  // Records of one byte, and none of them complete: each byte is looked at once, and the whole is bounded.
  const piece = Buffer.from([22, 3, 1, 0, 1, 1]);
  while (result === undefined) {
    for (const byte of piece) result ??= hello.take(Buffer.from([byte]));
    count += 1;
  }
  assert(count <= 16_384 / piece.length + 1);
  assert.match(JSON.stringify(result), /fault/);
  const head = createHeadReader();
  let fault: unknown;
  for (let at = 0; fault === undefined; at++) {
    assert(at <= 16_384);
    fault = head.take(Buffer.from('a'));
  }
});

for (const [where, begin, end] of [
  ['a header', 'GET http://a.test/ HTTP/1.1\r\nhost: a.test\r\nx:', '\x7f\r\n\r\n'],
  ['the first line', 'GET http://a.test/', '\x7f HTTP/1.1\r\n\r\n'],
  ['the authority', 'CONNECT a', '\x7f:1 HTTP/1.1\r\n\r\n'],
] as const)
  for (const filling of [' ', '\t', ':', '1', '.', '[', '/'])
    test(`reading ${where} takes time in proportion to its length, full of ${JSON.stringify(filling)}`, () => {
      assertLinear(filling, 16_000, (length) => {
        const bytes = Buffer.from(`${begin}${filling.repeat(length)}${end}`, 'latin1');
        return () => assert(createHeadReader().take(bytes));
      });
    });

test('what follows a ClientHello in the same piece goes to the server', () => {
  const sent = Buffer.concat([clientHello(['a.test']), Buffer.from([20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 1, 9])]);
  for (const end of [sent.length, sent.length - 1, sent.length - 7]) {
    const reader = createHelloReader();
    assert.deepEqual(reader.take(sent.subarray(0, end)), { serverName: 'a.test' });
    assert.deepEqual(reader.taken(), sent.subarray(0, end));
  }
});

test('connections that are being made end with their clients', async () => {
  const servers: Socket[] = [];
  const neverConnected = () => {
    const server = new Socket();
    servers.push(server);
    return server;
  };
  const proxy = openProxy([['public']], 0, { 'a.test': [PUBLIC, '1.1.1.1'] }, [], neverConnected);
  const opened = Array.from({ length: 20 }, proxy.open);
  for (const { client } of opened) client.write('CONNECT a.test:443 HTTP/1.1\r\n\r\n');
  await until('all are being made', async () => servers.length >= 8);
  for (const { cut } of opened) cut();
  await Promise.all(opened.map(({ served }) => served));
  assert(servers.every(({ destroyed }) => destroyed));
  assert(servers.length <= opened.length);
});

test('a server that is gone before the ClientHello has come ends the tunnel, and no byte counts', async (t) => {
  const site = await openSite(t);
  const servers: Socket[] = [];
  const dial = () => {
    servers.push(connect({ host: '127.0.0.1', port: site.port, allowHalfOpen: true }));
    return servers[0] as Socket;
  };
  const proxy = openProxy([['a.test']], site.port, { 'a.test': [PUBLIC] }, [], dial);
  const it = proxy.open();
  it.client.write('CONNECT a.test:443 HTTP/1.1\r\n\r\n');
  await until('the tunnel is open', async () => it.said().startsWith('HTTP/1.1 200') && site.sockets.length > 0);
  resetConnection(site.sockets[0]);
  await until('the server is gone', async () => servers[0]?.closed ?? false);
  it.client.write(clientHello(['a.test']));
  await it.served;
  await it.over;
  assert.deepEqual(proxy.tally.list(), []);
});

test('a server that resets its connections, however many, is no fault of the server', async (t) => {
  const faults: unknown[] = [];
  using _ = followFaults((_where, error) => faults.push(error));
  const site = await openSite(t);
  const proxy = openProxy([['public']], site.port, { 'a.test': [PUBLIC] });
  const tunnel = proxy.open();
  tunnel.client.write('CONNECT a.test:443 HTTP/1.1\r\n\r\nx');
  await until('the server was reached', async () => site.said[0] === 'x');
  resetConnection(site.sockets[0]);
  await tunnel.over;
  assert.deepEqual(faults, []);
});

test('a changed list cuts the open connections that it does not admit, also where nothing passes', async (t) => {
  const site = await openSite(t);
  const address = '10.0.5.9';
  const names = { 'a.test': [PUBLIC], 'b.test': [PUBLIC], 'in.test': [address] };
  const operators = ['public', '10.0.0.0/8:443'];
  const proxy = openProxy([operators], site.port, names);
  const tunnel = async (target: string) => {
    const it = proxy.open();
    it.client.write(`CONNECT ${target}:443 HTTP/1.1\r\n\r\n`);
    await until('the tunnel is open', async () => it.said().startsWith('HTTP/1.1 200'));
    return it;
  };
  const opened: [string, Awaited<ReturnType<typeof tunnel>>][] = [];
  for (const target of ['a.test', 'b.test', PUBLIC, address, 'in.test']) opened.push([target, await tunnel(target)]);
  await until('all can be checked', async () => proxy.checkCount() === opened.length);
  const open = () =>
    opened.filter(([, { client }]) => !client.destroyed && !client.readableEnded).map(([target]) => target);
  const become = async (left: string[], ...lists: string[][]) => {
    proxy.change(lists);
    await until(
      () => `${open()} become ${left}`,
      async () => `${open()}` === `${left}` && proxy.checkCount() === left.length,
    );
  };
  await become(['a.test', 'b.test', PUBLIC, address, 'in.test'], operators);
  // A name of public hosts stays, one that leads elsewhere does not: its address is in no list any more.
  await become(['a.test', 'b.test', PUBLIC], operators, ['public', '10.0.5.9:80']);
  await become(['a.test', 'b.test', PUBLIC], operators, ['public', '93.184.0.0/16']);
  // What began as a tunnel to any public host has not shown that it speaks TLS with this one.
  await become([PUBLIC], operators, ['a.test', PUBLIC]);
  const named = await tunnel('a.test');
  named.client.write(clientHello(['a.test']));
  opened.push(['a.test', named]);
  await until('it can be checked', async () => proxy.checkCount() === 2);
  await become(['a.test'], operators, ['a.test:443']);
  proxy.end();
  await become([]);
});

test('an entry is in a list if all that it stands for is', () => {
  const list = parseList(['pypi.org', '*.debian.org:8080', '10.0.0.0/8:22', '10.1.0.0/16', 'fd00::/8']);
  const everything = parseList(['public']);
  const inside = ['pypi.org', 'PyPI.org:443', '*.debian.org:8080', 'deb.debian.org:8080', '*.deb.debian.org:8080'];
  const networks = ['10.1.2.3', '10.1.0.0/16:443', '10.0.0.0/8:22', '10.1.2.0/24:22', 'fd00::1', '[fd12::/16]:80'];
  for (const it of [...inside, ...networks]) assert(covers(list, parseList([it])[0] as ListEntry), it);
  const outside = ['*.pypi.org', 'xpypi.org', 'pypi.org:22', 'debian.org:8080', 'xdebian.org:8080', '*.org:8080'];
  const others = ['deb.debian.org', 'public', 'public:443', '10.0.0.0/8', '10.0.0.0/7:22', '0.0.0.0/0:22', '10.2.0.1'];
  for (const it of [...outside, ...others, 'fc00::/7', '::/0', '11.0.0.1'])
    assert(!covers(list, parseList([it])[0] as ListEntry), it);
  for (const it of ['public:80', 'a.test', '*.test', PUBLIC, '8.8.8.0/24', '2606:4700::/32'])
    assert(covers(everything, parseList([it])[0] as ListEntry), it);
  for (const it of ['10.0.0.1', '0.0.0.0/0', '8.0.0.0/5', '168.63.0.0/16', '2000::/3', '2001:d00::/24', 'a.test:22'])
    assert(!covers(everything, parseList([it])[0] as ListEntry), it);
});

test('invented hosts take no place of those that were reached', () => {
  const tally = createTally();
  for (let at = 0; at < 10_000; at++) tally.refuse(`junk-${at}.test`);
  tally.add('pypi.org', 10);
  const list = tally.list();
  assert.equal(list.length, 66);
  assert.deepEqual(list[0], { host: 'pypi.org', bytes: 10, refused: 0 });
  assert.deepEqual(list.at(-1), { host: 'other', bytes: 0, refused: 9936 });
});

test('look-ups in flight are limited, and an answer of the proxy says so', async (t) => {
  const site = await openSite(t, ANSWER);
  const names = Object.fromEntries(Array.from({ length: 20 }, (_, at) => [`n${at}.test`, [PUBLIC]]));
  const proxy = openProxy([['*.test']], site.port, names);
  const statuses = await Promise.all(Object.keys(names).map((it) => proxy.ask(get(`http://${it}/`, it))));
  assert.equal(proxy.asked.length, 8);
  assert.deepEqual(
    [statuses.filter((it) => it === '200').length, statuses.filter((it) => it === '429').length],
    [8, 12],
  );
  const it = proxy.open();
  it.client.destroy();
  await it.served;
});
