import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { openUpstream } from '../helper/upstream.ts';
import { allowFiles } from './attacked.ts';
import { chat, walletOf } from './shutdown-shared.ts';

test('without a single descriptor left the server goes on, and is well when there are some again', async (t) => {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, command: ['prlimit', '--nofile=1024:1024', EXECUTABLE] });
  const server = await purser.serve();
  const { token } = await walletOf(purser);
  const status = async () => (await chat(server, token, randomUUID())).status;
  assert.equal(await status(), 200);

  assert(allowFiles(server.pid, 3)); // Below what it has: from here every accept, connect and open fails.
  const starved = Array.from({ length: 50 }, () => status().catch(() => 0));
  await server.logged('head.failed');
  assert(allowFiles(server.pid, 1024));
  const statuses = await Promise.all(starved);
  assert(
    statuses.every((it) => [0, 200, 503].includes(it)),
    String(statuses),
  );
  const again = await Promise.all(Array.from({ length: 50 }, status));
  assert(
    again.every((it) => it === 200),
    String(again),
  );
  assert.equal((await server.ask('GET', '/readyz')).status, 200);
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  assert((await purser.json('ledger', 'verify')).ok);
});
