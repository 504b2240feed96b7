import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import test, { type TestContext } from 'node:test';
import { WATCHDOG } from '../compute/engines/host-session.ts';
import { openSite, PUBLIC } from '../egress/proxy-shared.ts';
import { freePort } from '../helper/free-port.ts';
import { until } from '../helper/waiting.ts';
import { LONG, openMemoryServer, SPEC } from './leases.ts';

const OPERATORS = ['a.test', '*.b.test', '10.0.0.0/8:80'];

/** A server whose leases have a way out: the program itself, on this machine's loopback. Every connection leads to one site. */
async function openReaching(t: TestContext) {
  const site = await openSite(t, 'HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n');
  const provider = {
    ...{ backend: 'container', socket: 'unix:///nowhere/docker.sock', image: 'nowhere:1', egress: OPERATORS },
    prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
    limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
  };
  const purser = await openMemoryServer(t, {
    settings: { compute: { provider_one: provider } },
    outside: {
      lookUp: async () => [PUBLIC],
      dial: () => connect({ host: '127.0.0.1', port: site.port, allowHalfOpen: true }),
      isOwn: () => false,
    },
  });
  const port = await freePort();
  const programs = new Set<number>();
  const giveWaysOut = () => {
    const { egress } = purser.backend.guest;
    assert(egress);
    egress.begin = async () => {
      const child = spawn(WATCHDOG, ['egress', String(port)], { stdio: ['pipe', 'pipe', 'inherit'] });
      programs.add(child.pid as number);
      t.after(() => child.kill('SIGKILL'));
      const ended = once(child, 'exit').then(() => programs.delete(child.pid as number));
      return { stdin: child.stdin, stdout: child.stdout, ended, kill: () => child.stdin.destroy() };
    };
  };
  giveWaysOut();
  const { id: walletId, token } = await purser.openWallet(LONG);
  const created = await purser.lease(token);
  assert.equal(created.status, 200, created.text);
  const id = created.body.id as string;
  const dial = () => {
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    t.after(() => socket.destroy());
    return socket.on('error', () => {});
  };
  return {
    ...{ purser, walletId, token, id, programs, giveWaysOut },
    narrow: (allow: unknown, whose = token, lease = id) =>
      purser.ask('POST', '/v1/compute/egress', { token: whose, body: { id: lease, allow } }),
    /** The status of a request that the lease makes; nothing where it has no way out. */
    async get(host: string): Promise<string> {
      const socket = dial();
      socket.end(`GET http://${host}/ HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
      let said = '';
      for await (const piece of socket) said += piece;
      return said.slice(9, 12);
    },
    /** Opens a tunnel over which nothing passes. */
    async tunnel(): Promise<Socket> {
      const socket = dial();
      socket.write('CONNECT 10.1.2.3:80 HTTP/1.1\r\n\r\n');
      const [piece] = await once(socket, 'data');
      assert.match(String(piece), /^HTTP\/1.1 200/);
      return socket;
    },
  };
}

const over = async (socket: Socket) => socket.readableEnded || once(socket, 'end');

test('an agent narrows what its lease reaches within the operator’s list, at once and over a restart', async (t) => {
  const it = await openReaching(t);
  const tunnel = await it.tunnel();
  assert.deepEqual([await it.get('a.test'), await it.get('x.b.test'), await it.get('c.test')], ['200', '200', '403']);

  const narrowed = await it.narrow(['*.b.test', '10.1.0.0/16:80']);
  assert.deepEqual([narrowed.status, narrowed.body], [200, { id: it.id, allow: ['*.b.test', '10.1.0.0/16:80'] }]);
  assert.deepEqual([await it.get('a.test'), await it.get('x.b.test'), await it.get('10.1.2.3')], ['403', '200', '200']);
  assert(!tunnel.readableEnded);
  await it.narrow(['a.test']);
  assert.equal(await it.get('a.test'), '200');
  assert(tunnel.readableEnded, 'it was cut before the next request began');
  assert.deepEqual([await it.get('x.b.test'), await it.get('10.1.2.3')], ['403', '403']);

  // An entry beside the operator's list is named, and nothing changes.
  for (const [allow, at] of [
    [['a.test', 'c.test'], 1],
    [['public'], 0],
    [['*.b.test', '*.test'], 1],
    [['a.test:22'], 0],
    [['10.0.0.0/7:80'], 0],
    [['a.test', 'a b'], 1],
    [[''], 0],
  ] as const) {
    const refused = await it.narrow(allow);
    assert.deepEqual([refused.status, refused.body.error.code], [400, 'invalid_request'], refused.text);
    assert(refused.body.error.message.includes(`allow.${at}: `), refused.text);
    assert(refused.body.error.message.includes(JSON.stringify(allow[at])) || !allow[at], refused.text);
  }
  for (const allow of [undefined, 'a.test', [1], Array(101).fill('a.test')])
    assert.equal((await it.narrow(allow)).body.error?.code, 'invalid_request');
  assert.deepEqual([await it.get('a.test'), await it.get('x.b.test')], ['200', '403']);

  await it.purser.reopen();
  it.giveWaysOut();
  await until('the way out is open again', async () => (await it.get('a.test').catch(() => '')) === '200');
  assert.deepEqual([await it.get('x.b.test'), it.programs.size], ['403', 1]);

  await it.narrow([]);
  assert.equal(await it.get('a.test'), '403');
  await it.narrow(OPERATORS);
  assert.deepEqual([await it.get('a.test'), await it.get('x.b.test')], ['200', '200']);
  assert.deepEqual(it.purser.problems(), []);
});

test('only the wallet’s own token sets a list, and only of a running lease with egress', async (t) => {
  const it = await openReaching(t);
  const codeOf = async (answer: ReturnType<typeof it.narrow>) => (await answer).body.error?.code;
  const other = await it.purser.openWallet(LONG);
  assert.equal(await codeOf(it.narrow(['a.test'], other.token)), 'not_found');
  assert.equal(await codeOf(it.narrow(['a.test'], it.purser.accountKey)), 'wrong_token_scope');
  assert.equal(await codeOf(it.narrow(['a.test'], it.token, 'res_none')), 'not_found');

  const without = await it.purser.rent(it.token);
  const refused = await it.narrow([], it.token, without.body.id);
  assert.deepEqual([refused.status, refused.body.error.code], [400, 'invalid_request']);
  assert.match(refused.body.error.message, /no egress/);

  it.purser.memory.ready = false;
  const coming = await it.purser.ask('POST', '/v1/compute/create?wait_seconds=0', {
    token: it.token,
    key: 'coming',
    body: { provider: 'provider_one', spec: SPEC },
  });
  assert.equal(await codeOf(it.narrow(['a.test'], it.token, coming.body.id)), 'resource_not_active');

  const tunnel = await it.tunnel();
  await it.purser.closeWallet(it.walletId);
  assert.equal(await codeOf(it.narrow(['a.test'])), 'wallet_closed');
  await over(tunnel);
  await until('the program has ended', async () => it.programs.size === 0);
});
