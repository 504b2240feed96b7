import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import test from 'node:test';
import { openSshd } from '../compute/engines/sshd.ts';
import { installation } from '../helper/executable.ts';
import { until } from '../helper/waiting.ts';

/** Answers that Node reads and would not write again, or that end nothing. */
const ANSWERS = [
  'HTTP/1.1 200 a\x01b\r\nContent-Length: 2\r\n\r\nok',
  'HTTP/1.1 200 \x00\r\nContent-Length: 2\r\n\r\nok',
  'HTTP/1.1 101 a\x01b\r\nContent-Length: 2\r\n\r\nok',
  'HTTP/1.1 099 a\r\nContent-Length: 2\r\n\r\nok',
  'HTTP/1.1 101 a\x01b\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nok',
];

test('no answer of a server inside a lease ends the executable', async (t) => {
  const pool = await openSshd(t);
  if (!pool) return;
  const host = { ...pool.host, price_hourly_usd: '0.36' };
  const purser = installation(t, { settings: { compute: { provider_two: { backend: 'ssh', hosts: [host] } } } });
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000c');
  const create = ['wallet', 'create', '--account', accounts[0].id, '--name', 'agent', '--budget-cents', '500'];
  const { agent_token: token } = await purser.json(...create);
  const order = { provider: 'provider_two', spec: { chip: 'test-chip', max_seconds: 600 } };
  const { id } = (await server.ask('POST', '/v1/compute/create', { token, key: randomUUID(), body: order })).body;
  await until('the lease runs', async () => {
    const { body } = await server.ask('POST', '/v1/compute/status', { token, body: { id } });
    assert(['provisioning', 'running'].includes(body.status), JSON.stringify(body));
    return body.status === 'running';
  });

  let said = '';
  const tenant = createServer((socket) => {
    socket.on('error', () => {}).once('data', () => socket.end(Buffer.from(said, 'latin1')));
  });
  tenant.listen(0, '127.0.0.1'); // The machine of the lease is this one.
  await once(tenant, 'listening');
  t.after(() => tenant.close());
  const { port } = tenant.address() as AddressInfo;
  for (said of ANSWERS) {
    const { status } = await server.ask('GET', `/v1/compute/${id}/port/${port}/`, { token });
    assert([200, 502].includes(status), `${status} for ${JSON.stringify(said)}`);
  }
  assert.equal((await server.ask('GET', '/healthz')).status, 200);
  assert.deepEqual((await purser.json('status')).faults, { count: 0, last_at: null, last_where: null });
  assert.equal((await server.stop()).code, 0);
  assert.equal((await purser.json('ledger', 'verify')).ok, true);
});
