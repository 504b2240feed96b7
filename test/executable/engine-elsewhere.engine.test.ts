import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { deadlineInside, IMAGE, openDocker } from '../compute/engines/docker.ts';
import { installation } from '../helper/executable.ts';
import { until } from '../helper/waiting.ts';

test('an engine that sees nothing of Purser’s file system rents out machines all the same', async (t) => {
  const hidden = mkdtempSync(join(tmpdir(), 'purser-hidden-'));
  t.after(() => rmSync(hidden, { recursive: true, force: true }));
  const engine = await openDocker(t, { blindTo: hidden });
  if (!engine) return;
  const offers = [{ id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: '0.36' }];
  const provider_three = { backend: 'container', socket: engine.socket, image: IMAGE, offers };
  const directory = join(hidden, 'data');
  mkdirSync(directory, { mode: 0o700 });
  const purser = installation(t, { directory, settings: { listen: '127.0.0.1:0', compute: { provider_three } } });
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  const [account] = accounts;
  await purser.json('account', 'credit', account.id, '1000c');
  const order = ['--account', account.id, '--name', 'a', '--budget-cents', '500'];
  const { agent_token: token } = await purser.json('wallet', 'create', ...order);
  const spec = { offer_id: 'small', disk_gb: 5, max_seconds: 600 };
  const ask = (path: string, body: object, key?: string) =>
    server.ask('POST', `/v1/compute/${path}`, { token, body, ...(key ? { key } : {}) });

  const made = await ask('create', { provider: 'provider_three', spec }, 'create');
  assert.deepEqual([made.status, made.body.status], [200, 'running'], made.text);
  const { id, provider_id: ref, expires_at: end } = made.body;
  const ran = await ask('exec', { id, command: 'echo inside' });
  assert.equal(ran.body.stdout, 'inside\n');
  const extended = await ask('extend', { id, additional_seconds: 60 }, 'extend');
  assert.equal(extended.body.expires_at, end + 60, extended.text);
  assert.equal(await deadlineInside(engine.docker, ref), end + 60);
  assert.deepEqual(
    readdirSync(directory).filter((name) => name === 'leases'),
    [],
    'nothing of a lease lies here',
  );
  await until('it has stopped', async () => (await ask('stop', { id })).body.status === 'stopped');
});
