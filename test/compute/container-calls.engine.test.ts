import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { IMAGE, openDocker } from './engines/docker.ts';
import { openEngineProxy } from './engines/proxy.ts';

test('a create asks the engine for no more than it needs', async (t) => {
  const engine = await openDocker(t);
  if (!engine) return;
  const proxy = await openEngineProxy(t, engine);
  const compute = {
    provider_one: {
      backend: 'container',
      socket: proxy.socket,
      image: IMAGE,
      prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
      limits: { cpus: 2, memory_gib: 1 },
    },
  };
  const purser = await openTestServer(t, { settings: { compute } });
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const spec = { cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
  async function create(key: string): Promise<string[]> {
    proxy.watch();
    const body = { provider: 'provider_one', spec };
    const created = await purser.ask('POST', '/v1/compute/create', { token, key, body });
    assert.equal(created.body.status, 'running', created.text);
    const asked = [...proxy.asked];
    await purser.ask('POST', '/v1/compute/stop', { token, body: { id: created.body.id } });
    return asked;
  }
  await create('first'); // Learns what the engine and its image are.
  const asked = await create('second');
  assert.deepEqual(
    asked.filter((it) => !it.startsWith('GET')),
    [
      'POST /containers/create',
      'PUT /containers/:id/archive', // The watchdog.
      'POST /containers/:id/start',
      'POST /containers/:id/exec', // The proof that a command runs.
      'POST /exec/:id/start',
      'POST /containers/:id/exec', // The deadline of the paid time.
      'POST /exec/:id/start',
    ],
  );
  // How often it reads depends on how long all of it takes, and so on how busy the machine is; what it reads does not.
  const reads = new Set(asked.filter((it) => it.startsWith('GET')));
  for (const it of ['/containers/json', `/images/${IMAGE}/json`, '/containers/:id/json', '/exec/:id/json'])
    reads.delete(`GET ${it}`);
  assert.deepEqual([...reads], []);
});
