import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type IncomingMessage, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import test, { type TestContext } from 'node:test';
import { openInside } from './shared.ts';

/** A sandbox with a server inside, which tells what it was asked. */
async function openServed(t: TestContext) {
  const it = await openInside(t);
  const heard: IncomingMessage[] = [];
  const server = createServer(async (asked, answer) => {
    heard.push(asked);
    answer.end(`${asked.method} ${asked.url} ${await text(asked)}`);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  const traffic = { 'e2b-traffic-access-token': it.sandbox.trafficAccessToken };
  /** A request by the host name that `getHost` computes. */
  async function byHost(path: string, headers: Record<string, string>) {
    const host = `${port}-${it.sandbox.sandboxID}.${it.sandbox.domain}`;
    const asked = request(it.purser.url + path, { headers: { host, ...headers }, agent: false });
    asked.end();
    const [answer] = (await once(asked, 'response')) as [IncomingMessage];
    return { status: answer.statusCode, text: await text(answer) };
  }
  /** A request below the address of the agent, as those to a kernel. */
  const byHeader = (path: string, headers: Record<string, string>, body?: string) =>
    it.purser.ask(body === undefined ? 'GET' : 'POST', `/v1/e2b/envd${path}`, {
      headers: { 'e2b-sandbox-id': it.sandbox.sandboxID, 'e2b-sandbox-port': String(port), ...headers },
      ...(body === undefined ? {} : { body }),
    });
  return { ...it, heard, traffic, byHost, byHeader };
}

test('a port opens with the traffic token, by its host name and by headers, and the server inside sees no token', async (t) => {
  const { heard, traffic, byHost, byHeader, sandbox } = await openServed(t);
  assert.deepEqual(await byHost('/x?y=1', traffic), { status: 200, text: 'GET /x?y=1 ' });
  const both = { ...traffic, 'x-access-token': sandbox.envdAccessToken };
  const executed = await byHeader('/execute', both, '{"code":"1"}');
  assert.deepEqual([executed.status, executed.text], [200, 'POST /execute {"code":"1"}']);
  assert.equal((await byHeader('', traffic)).text, 'GET / ');
  assert.equal(heard.length, 3);
  for (const { rawHeaders } of heard)
    for (const token of [sandbox.trafficAccessToken, sandbox.envdAccessToken])
      assert.ok(!rawHeaders.includes(token), rawHeaders.join(' '));
});

test('a port is shut to everything else', async (t) => {
  const { purser, wallet, heard, traffic, byHost, byHeader, sandbox } = await openServed(t);
  const other = await purser.ask('POST', '/v1/e2b/v2/sandboxes', {
    headers: { 'x-api-key': wallet.token },
    body: { templateID: 'fixed' },
  });
  assert.equal(other.status, 201, other.text);
  for (const shown of ['', 'ff'.repeat(32), sandbox.envdAccessToken, other.body.trafficAccessToken]) {
    const headers = { 'e2b-traffic-access-token': shown };
    assert.equal((await byHost('/', headers)).status, 401);
    assert.equal((await byHeader('/', headers)).status, 401);
  }
  assert.equal((await byHost('/', {})).status, 401);
  assert.equal((await byHeader('/', { 'x-access-token': sandbox.envdAccessToken })).status, 401);
  assert.equal((await byHeader('/', { ...traffic, 'e2b-sandbox-port': '0' })).status, 400);
  assert.equal(heard.length, 0);
  const key = { 'x-api-key': wallet.token };
  assert.equal((await purser.ask('DELETE', `/v1/e2b/sandboxes/${sandbox.sandboxID}`, { headers: key })).status, 204);
  assert.equal((await byHeader('/', traffic)).status, 502);
});
