import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import test, { type TestContext } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { WebSocket } from 'undici';
import type { TestServerOptions } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { echoWebSocket } from '../helper/web-socket.ts';
import { openMemoryServer } from '../lease/leases.ts';
import { MIB, openPort } from './ports-shared.ts';

/** A lease with a server inside that says without end what its one client, whose connection was upgraded, does not read. */
async function openDeaf(t: TestContext, options: TestServerOptions = {}) {
  const it = await openPort(t, undefined, options);
  let said = 0;
  const piece = Buffer.alloc(MIB);
  it.tenant.server.removeAllListeners('upgrade').on('upgrade', (_, socket: Socket) => {
    socket.on('error', () => {});
    const say = () => {
      said += 1;
      socket.write(piece, (error) => error || say());
    };
    socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: endless\r\n\r\n');
    say();
  });
  const { hostname, port } = new URL(it.purser.url);
  const client = connect(Number(port), hostname).on('error', () => {});
  t.after(() => client.destroy());
  const head = [`GET ${it.base}/ HTTP/1.1`, 'Host: x', `Authorization: Bearer ${it.token}`, 'Connection: Upgrade'];
  client.write(`${head.join('\r\n')}\r\nUpgrade: endless\r\n\r\n`);
  const [answer] = await once(client, 'data');
  client.pause();
  assert.match(String(answer), /^HTTP\/1\.1 101 /);
  await until('everything on the way is full', async () => {
    const before = said;
    await pause(300);
    return said === before;
  });
  return it;
}

test('a server stops although the client of an upgraded connection reads nothing', async (t) => {
  const { purser } = await openDeaf(t);
  let isClosed = false;
  void purser.close().then(() => {
    isClosed = true;
  });
  await until('it has stopped', async () => isClosed);
});

test('the end of a lease ends an upgraded connection although its client reads nothing', async (t) => {
  const { purser, token, id } = await openDeaf(t);
  /** Those of `ask` stay open. */
  const connections = async () =>
    Number(/^purser_connections (\d+)$/m.exec(await purser.app.events.registry.metrics())?.[1]);
  const before = await connections();
  await purser.stop(token, id);
  await until('its connection has ended', async () => (await connections()) < before);
});

test('a client of an upgraded connection that takes nothing is cut off; one that has nothing to say is not', async (t) => {
  const { purser, base, token, tenant } = await openDeaf(t, { stallMilliseconds: 1000 });
  const stalled = async () =>
    /^purser_connections_cut_off_total\{reason="stalled"\} 1$/m.test(await purser.app.events.registry.metrics());
  await until('it was cut off', stalled);
  await until('and the connection inside with it', async () => purser.app.ports.count() === 0);

  tenant.server.removeAllListeners('upgrade').on('upgrade', echoWebSocket);
  const socket = new WebSocket(`${purser.url.replace('http', 'ws')}${base}/`, {
    headers: { authorization: `Bearer ${token}` },
  });
  await once(socket, 'open');
  await pause(2500);
  const answer = once(socket, 'message');
  socket.send('still there');
  assert.equal((await answer)[0].data, 'still there');
  socket.close();
});

test('TCP asks a silent client whether it is still there', async (t) => {
  const purser = await openMemoryServer(t);
  const { hostname, port } = new URL(purser.url);
  const client = connect(Number(port), hostname);
  t.after(() => client.destroy());
  await once(client, 'connect');
  const hex = (it: number) => it.toString(16).toUpperCase().padStart(4, '0');
  // The server's side, and its timer: 02 is that of SO_KEEPALIVE on an idle connection (Linux, proc_net_tcp.rst).
  const row = new RegExp(`: \\w+:${hex(Number(port))} \\w+:${hex(client.localPort as number)} \\w+ \\w+:\\w+ (\\w+):`);
  await until('it is accepted', async () => row.test(readFileSync('/proc/net/tcp', 'utf8')));
  assert.equal(row.exec(readFileSync('/proc/net/tcp', 'utf8'))?.[1], '02');
});
