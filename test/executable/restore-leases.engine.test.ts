import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { openSshd } from '../compute/engines/sshd.ts';
import { installation } from '../helper/executable.ts';
import { until } from '../helper/waiting.ts';
import { temporaryDirectory } from '../ledger/books.ts';

test('a restore names the machines that the restored books do not know, and nothing is done to any before --apply', async (t) => {
  const hosts = [await openSshd(t, { chip: 'early' }), await openSshd(t, { chip: 'late' })];
  const [one, two] = hosts;
  if (!one || !two) return;
  const pool = [one, two].map(({ host }) => ({ ...host, price_hourly_usd: '0.36' }));
  const settings = {
    listen: '127.0.0.1:0',
    ssh: { listen: '127.0.0.1:0' },
    compute: { provider_two: { backend: 'ssh', hosts: pool } },
  };
  const purser = installation(t, { settings });
  let server = await purser.serve();
  const account = (await purser.json('account', 'list')).accounts[0].id as string;
  await purser.json('account', 'credit', account, '1000c');
  const rent = async (chip: string) => {
    const create = ['wallet', 'create', '--account', account, '--name', chip, '--budget-cents', '100'];
    const { agent_token: token } = await purser.json(...create, '--expires', '7200');
    const body = { provider: 'provider_two', spec: { chip, max_seconds: 3600 } };
    const made = await server.ask('POST', '/v1/compute/create', { token, key: randomUUID(), body });
    assert.equal(made.body.status, 'running', made.text);
    return made.body.id as string;
  };
  const live = () => [one, two].map((it) => existsSync(join(it.pool, 'tenant')));

  const known = await rent('early');
  const backup = join(temporaryDirectory(t), 'backup.db');
  await purser.json('backup', backup);
  const lost = await rent('late');
  server.kill('SIGKILL');
  await server.ended;

  const restored = await purser.json('restore', backup);
  assert.deepEqual(
    restored.leases.map((it: { id: string; machine: string }) => [it.id, it.machine]),
    [[known, 'running']],
  );
  assert.equal(restored.orphans.length, 1);
  assert(restored.orphans[0].tag.endsWith(lost.replace('_', '-')), restored.orphans[0].tag);
  assert.deepEqual([restored.faults, live()], [[], [true, true]]);

  server = await purser.serve();
  assert.match((await server.ask('GET', '/readyz')).body.report_only, /resource reconcile --apply/);
  assert.equal((await purser.json('resource', 'stop', known)).status, 'stopping', 'held back');
  assert.deepEqual(live(), [true, true]);
  const again = await purser.json('resource', 'reconcile');
  assert.deepEqual([again.leases.length, again.orphans.length, live()], [1, 1, [true, true]]);

  await purser.json('resource', 'reconcile', '--apply');
  await until('the one that was told to stop is gone', async () => !live()[0]);
  assert.equal(live()[1], true, 'young: the sweep takes it when its time of grace is over');
  await server.stop();
});
