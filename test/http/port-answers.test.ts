import assert from 'node:assert/strict';
import { once } from 'node:events';
import { request } from 'node:http';
import { connect } from 'node:net';
import { PassThrough } from 'node:stream';
import test, { type TestContext } from 'node:test';
import type { GuestSession } from '../../src/compute/backend.ts';
import { makePair } from '../helper/certificate.ts';
import { openLine } from '../helper/line.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import type { TestServerOptions } from '../helper/server.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';
import { hostileAnswer } from './hostile-http.ts';
import { assertRefused } from './refused.ts';

/**
 * A lease, and what listens inside: it answers each connection with the bytes of the moment, whatever it is asked. The session
 * that connects to it says what the relay of a real one says; a process for each would take most of the time.
 */
async function openHostile(t: TestContext, options: TestServerOptions = {}) {
  const purser = await openMemoryServer(t, options);
  const said: { bytes: Buffer } = { bytes: Buffer.alloc(0) };
  const session = async (): Promise<GuestSession> => {
    const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
    const ended = Promise.withResolvers<{ code: number }>();
    stderr.end();
    stdout.write('connected\n');
    stdin.once('data', () => stdout.end(said.bytes)).resume();
    stdout.once('end', () => ended.resolve({ code: 0 }));
    return { stdin, stdout, stderr, ended: ended.promise, resize() {}, kill: () => ended.resolve({ code: 137 }) };
  };
  Object.assign(purser.backend.guest, { session });
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const base = `/v1/compute/${id}/port/8080/`;
  const ask = (text: string) => {
    said.bytes = Buffer.from(text, 'latin1');
    return purser.ask('GET', base, { token });
  };
  return { purser, token, id: id as string, base, said, ask };
}

const faultsOf = async (purser: Awaited<ReturnType<typeof openHostile>>['purser']) =>
  (await purser.run('status', {})).faults.count;

test('a reason phrase, a header or a status that Node would not write costs nobody but its own request', async (t) => {
  const { purser, token, base, said, ask } = await openHostile(t);
  const printed = ['error', 'info'].map((name) => t.mock.method(console, name as 'error', () => {}));
  for (const phrase of ['a\x01b', 'a\x7fb', '\x00', 'ÿ'.repeat(100)]) {
    const answer = await ask(`HTTP/1.1 200 ${phrase}\r\nContent-Length: 2\r\n\r\nok`);
    if (answer.status !== 200) assertRefused(answer, 502, 'port_unreachable');
  }
  const odd = await ask('HTTP/1.1 299 \x01\r\nX-Good: yes\r\nContent-Length: 2\r\n\r\nok');
  assert.deepEqual([odd.status, odd.text, odd.headers['x-good']], [299, 'ok', 'yes']);
  for (const status of ['101', '099', '000', '199'])
    assertRefused(await ask(`HTTP/1.1 ${status} X\r\nContent-Length: 0\r\n\r\n`), 502, 'port_unreachable');
  // In an answer to an upgrade Node is not asked: the head is written raw.
  said.bytes = Buffer.from(
    'HTTP/1.1 101 a\x01b\r\nUpgrade: x\r\nConnection: Upgrade\r\nX-Good: yes\r\n\r\nhello',
    'latin1',
  );
  const headers = { authorization: `Bearer ${token}`, connection: 'Upgrade', upgrade: 'x' };
  const asked = request(`${purser.url}${base}`, { headers, agent: false }).end();
  const [answer, socket, head] = await once(asked, 'upgrade');
  assert.deepEqual([answer.statusMessage, answer.headers['x-good']], ['Switching Protocols', 'yes']);
  assert.equal(String(head.length ? head : (await once(socket, 'data'))[0]), 'hello');
  socket.destroy();
  assert.deepEqual(
    printed.map((it) => it.mock.callCount()),
    [0, 0],
    'nothing is printed past the log',
  );
  assert.equal(await faultsOf(purser), 0);
  assert.equal((await purser.ask('GET', '/healthz')).status, 200);
});

test('orders to a proxy, or to a browser about the origin of Purser, do not leave a lease', async (t) => {
  const { ask } = await openHostile(t);
  const orders = {
    'X-Accel-Redirect': '/internal/secret',
    'X-Accel-Buffering': 'yes',
    'X-Accel-Limit-Rate': '1',
    'X-Accel-Charset': 'utf-7',
    'X-Accel-Expires': '9999',
    'X-Sendfile': '/etc/passwd',
    'X-Sendfile2': '/etc/passwd 0-',
    'X-Lighttpd-Send-File': '/etc/passwd',
    'X-LiteSpeed-Location': '/internal',
    'X-Reproxy-URL': 'http://127.0.0.1/',
    'X-Envoy-Immediate-Health-Check-Fail': 'yes',
    'Fly-Replay': 'app=other',
    'Surrogate-Control': 'max-age=9999',
    'CDN-Cache-Control': 'max-age=9999',
    'Set-Cookie': 'purser-session=x',
    'Set-Cookie2': 'purser-session=x',
    'Set-Login': 'logged-out',
    'Speculation-Rules': '"/rules.json"',
    'Accept-CH': 'Sec-CH-UA-Model',
    'Activate-Storage-Access': 'load',
    'Use-As-Dictionary': 'match="/*"',
  };
  const lines = Object.entries(orders).map(([name, value]) => `${name}: ${value}\r\n`);
  const answer = await ask(`HTTP/1.1 200 OK\r\n${lines.join('')}X-Own: stays\r\nContent-Length: 2\r\n\r\nok`);
  const names = Object.keys(orders).map((it) => it.toLowerCase());
  assert.deepEqual(
    Object.keys(answer.headers).filter((it) => names.includes(it)),
    [],
  );
  assert.equal(answer.headers['x-own'], 'stays');
  const events = await ask(
    'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Accel-Buffering: yes\r\nContent-Length: 2\r\n\r\n\n\n',
  );
  assert.equal(
    events.headers['x-accel-buffering'],
    'no',
    'Purser asks its proxy itself to pass on events as they come',
  );
});

for (const [over, options] of [
  ['TCP', {}],
  ['TLS', { tls: makePair() }],
] as const)
  test(`an answer that is cut off does not look whole, also where its end is that of the connection, over ${over}`, async (t) => {
    const { purser, token, base, said } = await openHostile(t, options);
    const cut = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n';
    for (const [text, end] of [
      [`${cut}0\r\n\r\n`, undefined],
      [cut, 'ECONNRESET'],
    ] as const) {
      said.bytes = Buffer.from(text, 'latin1');
      const line = await openLine(purser.url);
      line.write(`GET ${base} HTTP/1.0\r\nAuthorization: Bearer ${token}\r\n\r\n`);
      assert.equal(await line.ended, end, JSON.stringify(line.text()));
    }
  });

test(`hostile answers of a server inside harm nobody (seed ${SEED})`, async (t) => {
  const { purser, token, base, said } = await openHostile(t);
  const random = createRandom(SEED);
  const { hostname, port } = new URL(purser.url);
  const count = length(300, 20_000);
  const outcomes: Record<string, number> = {};
  for (let round = 0; round < count; round++) {
    const isUpgrade = random.whole(0, 9) === 0;
    said.bytes = hostileAnswer(random, isUpgrade);
    const socket = connect(Number(port), hostname);
    socket.on('error', () => {});
    const more = isUpgrade ? 'Connection: Upgrade\r\nUpgrade: x\r\n' : 'Connection: close\r\n';
    socket.write(
      `${random.pick(['GET', 'HEAD', 'POST'])} ${base} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n${more}\r\n`,
    );
    // Whoever upgrades and hears nothing more goes.
    let text = '';
    socket.setEncoding('latin1').on('data', (piece: string) => {
      text += piece;
      if (text.startsWith('HTTP/1.1 101')) socket.end();
    });
    await once(socket, 'close');
    const [status = 'none'] = /(?<=^HTTP\/1\.1 )\d{3}/.exec(text) ?? [];
    outcomes[status] = (outcomes[status] ?? 0) + 1;
    assert(
      text === '' || /^HTTP\/1\.1 [1-9]\d\d [ -~]*\r\n([!-9;-~]+: [\t -~\x80-\xff]*\r\n)*\r\n/.test(text),
      `round ${round}: ${JSON.stringify(text.slice(0, 500))} of ${JSON.stringify(said.bytes.toString('latin1').slice(0, 500))}`,
    );
  }
  t.diagnostic(JSON.stringify(outcomes));
  assert.equal(await faultsOf(purser), 0, 'what comes from a lease is expected to be anything');
  assert.equal((await purser.ask('GET', '/healthz')).status, 200);
  assert.deepEqual(purser.problems(), []);
});
