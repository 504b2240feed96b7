import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import type { Duplex } from 'node:stream';
import test, { type TestContext } from 'node:test';
import { until } from '../helper/waiting.ts';
import { type LeaseInside, openLeaseInside } from '../ssh/lease.ts';

const MIB = 1024 * 1024;
const SIZE = 50 * MIB;
/** Scripts of the server inside: events, the size of an upload, and all that it is told of a request. */
const SCRIPTS = {
  events: `printf 'Content-Type: text/event-stream\\r\\n\\r\\n'; for n in 1 2 3; do echo "data: $n"; echo; sleep 0.3; done; sleep 1000`,
  count: `printf 'Content-Type: text/plain\\r\\n\\r\\n'; sleep 1; wc -c`,
  told: `printf 'Content-Type: text/plain\\r\\n\\r\\n'; env`,
};

/** A container with busybox's web server in it. */
async function openSite(t: TestContext) {
  const it = await openLeaseInside(t);
  if (!it) return undefined;
  const lines = Object.entries(SCRIPTS).map(
    ([name, script]) =>
      `cat > /tmp/www/cgi-bin/${name} <<'END'\n#!/bin/sh\n${script}\nEND\nchmod 755 /tmp/www/cgi-bin/${name}`,
  );
  await it.inside(
    `mkdir -p /tmp/www/cgi-bin; ${lines.join('\n')}
    echo hello > /tmp/www/hello; dd if=/dev/urandom of=/tmp/www/big bs=1M count=${SIZE / MIB} 2>/dev/null
    cd /tmp/www; httpd -p 127.0.0.1:8000 -h /tmp/www; sleep 0.3`,
  );
  const base = `/v1/compute/${it.id}/port`;
  const ask = (path: string, options: object = {}) =>
    it.landlord.ask('GET', `${base}/8000${path}`, { token: it.token, ...options });
  const begin = (path: string, options: object = {}) =>
    request(`${it.landlord.url}${base}${path}`, {
      agent: false,
      headers: { authorization: `Bearer ${it.token}` },
      ...options,
    });
  return { ...it, base, ask, begin };
}

const nothingLeft = (it: LeaseInside) =>
  until('nothing of it is left', async () => {
    const list = await it.inside('ps -o args');
    return it.landlord.app.ports.count() === 0 && !/relay|nc 127/.test(list);
  });

test('a server in a container is reached over HTTP: files and scripts', async (t) => {
  const it = await openSite(t);
  if (!it) return;
  assert.deepEqual(((it) => [it.status, it.text])(await it.ask('/hello')), [200, 'hello\n']);
  const told = await it.ask('/cgi-bin/told?a=1');
  assert.match(told.text, /QUERY_STRING=a=1/);
  assert(!told.text.includes(it.token));
  await nothingLeft(it);
});

test('events and 50 MiB either way pass through a container’s port', async (t) => {
  const it = await openSite(t);
  if (!it) return;
  const events = it.begin('/8000/cgi-bin/events').end();
  const [answer] = (await once(events, 'response')) as [IncomingMessage];
  let heard = '';
  answer
    .on('error', () => {})
    .on('data', (piece) => {
      heard += piece;
    });
  await until('the third event is there', async () => heard.includes('data: 3'));
  events.on('error', () => {}).destroy();

  const down = it.begin('/8000/big').end();
  const [big] = (await once(down, 'response')) as [IncomingMessage];
  let bytes = 0;
  for await (const piece of big) bytes += piece.length;
  assert.equal(bytes, SIZE);

  const up = it.begin('/8000/cgi-bin/count', {
    method: 'POST',
    headers: { authorization: `Bearer ${it.token}`, 'content-length': String(SIZE) },
  });
  const answered = once(up, 'response'); // The head of the answer comes while the body is still on its way.
  const piece = Buffer.alloc(MIB, 7);
  for (let sent = 0; sent < SIZE; sent += MIB) if (!up.write(piece)) await once(up, 'drain');
  up.end();
  const [counted] = (await answered) as [IncomingMessage];
  assert.equal(String(Buffer.concat(await counted.toArray())).trim(), String(SIZE));
  await nothingLeft(it);
});

test('a connection that is upgraded goes both ways, and one that its client leaves leaves nothing behind', async (t) => {
  const it = await openSite(t);
  if (!it) return;
  const reply = 'HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n';
  await it.inside(
    `cat > /tmp/echo <<'END'\n#!/bin/sh\nwhile read -r line && [ "$line" != "$(printf '\\r')" ]; do :; done; printf '${reply}'; exec cat\nEND
    chmod 755 /tmp/echo; nc -ll -p 8001 -e /tmp/echo >/dev/null 2>&1 & sleep 0.3`,
  );
  const asked = it.begin('/8001/', {
    headers: { authorization: `Bearer ${it.token}`, connection: 'Upgrade', upgrade: 'echo' },
  });
  asked.end();
  const [answer, socket] = (await once(asked, 'upgrade')) as [IncomingMessage, Duplex];
  assert.deepEqual([answer.statusCode, answer.headers.upgrade], [101, 'echo']);
  for (const words of ['one', 'two']) {
    socket.write(words);
    assert.equal(String((await once(socket, 'data'))[0]), words);
  }
  socket.on('error', () => {}).destroy();
  await nothingLeft(it);
});

test('without the relay that Purser brings, what the image has is used', async (t) => {
  const it = await openSite(t);
  if (!it) return;
  await it.inside('rm -f /.purser-watchdog; [ ! -e /.purser-watchdog ]');
  assert.deepEqual(((it) => [it.status, it.text])(await it.ask('/hello')), [200, 'hello\n']);
  const closed = await it.landlord.ask('GET', `${it.base}/1/`, { token: it.token });
  assert.deepEqual([closed.status, closed.body.error.code], [502, 'port_unreachable']);
  await nothingLeft(it);
});

test('a container that is killed and a lease that ends cut what is open', async (t) => {
  for (const end of ['kill', 'stop'] as const) {
    const it = await openSite(t);
    if (!it) return;
    const events = it.begin('/8000/cgi-bin/events').end();
    const [answer] = (await once(events, 'response')) as [IncomingMessage];
    await once(answer, 'data');
    const cut = once(answer, 'error');
    answer.resume();
    if (end === 'stop') await it.landlord.ask('POST', '/v1/compute/stop', { token: it.token, body: { id: it.id } });
    else {
      const [container] = await it.engine.docker.listContainers({ filters: { status: ['running'] } });
      await it.engine.docker.getContainer(container?.Id as string).kill();
    }
    await cut;
    const refused = await it.ask('/hello');
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'resource_not_active']);
    await until('nothing is left', async () => it.landlord.app.ports.count() === 0);
  }
});
