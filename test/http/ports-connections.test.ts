import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import test from 'node:test';
import { WebSocket } from 'undici';
import { until } from '../helper/waiting.ts';
import { begin, MIB, openPort } from './ports-shared.ts';
import { assertRefused } from './refused.ts';

test('connections are used again, and a server that ends an idle one costs no request', async (t) => {
  const { purser, token, base, tenant, session } = await openPort(t);
  let connections = 0;
  tenant.server.on('connection', () => connections++);
  const warnings: Error[] = [];
  const warn = (warning: Error) => void warnings.push(warning);
  process.on('warning', warn);
  t.after(() => process.off('warning', warn));
  for (let count = 0; count < 20; count++) await purser.ask('GET', `${base}/`, { token });
  assert.equal(connections, 1);
  assert.deepEqual(warnings, [], 'no request leaves a listener on the connection');
  assert.equal(session.running(), 1);
  assert.equal(purser.app.ports.count(), 1);
  for (let count = 0; count < 10; count++) {
    tenant.server.closeIdleConnections();
    assert.equal((await purser.ask('GET', `${base}/`, { token })).status, 200);
  }
  await until('an idle connection is let go', async () => session.running() === 0 && purser.app.ports.count() === 0);
});

test('a lease that ends cuts what is open: at its deadline, at a stop, and when its wallet closes', async (t) => {
  for (const end of ['deadline', 'stop', 'close', 'expiry'] as const)
    await t.test(end, async (t) => {
      const { purser, token, base, id, session, wallet } = await openPort(t, (_, response) => {
        response.writeHead(200).write('begun');
      });
      const { asked, answered } = await begin(`${purser.url}${base}/`, token);
      asked.on('error', () => {}).end();
      const answer = await answered;
      await once(answer, 'data');
      const cut = once(answer, 'error');
      const socket = new WebSocket(`${purser.url.replace('http', 'ws')}${base}/`, {
        headers: { authorization: `Bearer ${token}` },
      });
      await new Promise((resolve) => socket.addEventListener('open', resolve));
      const closed = new Promise((resolve) => socket.addEventListener('close', resolve));
      assert.equal(purser.app.ports.count(), 2);
      if (end === 'stop') await purser.stop(token, id);
      else if (end === 'close') await purser.closeWallet(wallet.id);
      else purser.clock.advance(end === 'deadline' ? 600 : 7200);
      answer.resume();
      const [error] = await cut;
      assert.match(String(error), /aborted|ECONNRESET|terminated/, 'an answer that was cut off does not look whole');
      await closed;
      await until('nothing of it is left', async () => session.running() === 0 && purser.app.ports.count() === 0);
    });
});

test('64 connections of a lease are the most, and one that ends makes room', async (t) => {
  const held: ServerResponse[] = [];
  const { purser, token, base } = await openPort(t, (_, response) => {
    held.push(response);
    response.writeHead(200).flushHeaders();
  });
  const open = [];
  for (let count = 0; count < 64; count++) {
    const one = await begin(`${purser.url}${base}/`, token);
    one.asked.end();
    open.push(one);
  }
  await Promise.all(open.map((it) => it.answered));
  const refused = await purser.ask('GET', `${base}/`, { token });
  assertRefused(refused, 429, 'rate_limited');
  assert.match(refused.text, /64 connections to ports/);
  open[0]?.asked.on('error', () => {}).destroy();
  await until('there is room', async () => purser.app.ports.count() === 63);
  const again = await begin(`${purser.url}${base}/`, token);
  again.asked.end();
  assert.equal((await again.answered).statusCode, 200);
  for (const it of [...open, again]) it.asked.on('error', () => {}).destroy();
  await until('all of it is given back', async () => purser.app.ports.count() === 0);
  assert(purser.app.memory.open('anybody').tryTake(64 * MIB));
});

test('a server that stops cuts what is open and does not wait for it', async (t) => {
  const { purser, token, base, session } = await openPort(t, (_, response) => void response.writeHead(200).write('x'));
  const { asked, answered } = await begin(`${purser.url}${base}/`, token);
  asked.on('error', () => {}).end();
  const answer = await answered;
  const cut = once(answer, 'error');
  answer.resume();
  await purser.close();
  await cut;
  await until('nothing of it is left running', async () => session.running() === 0);
});

test('a wallet that is frozen keeps its ports, as it keeps its leases', async (t) => {
  const { purser, token, base, wallet } = await openPort(t);
  const frozen = await purser.ask('POST', `/v1/wallets/${wallet.id}/freeze`, { token: purser.accountKey, body: {} });
  assert.equal(frozen.status, 200, frozen.text);
  assert.equal((await purser.ask('GET', `${base}/`, { token })).text, 'hello');
});
