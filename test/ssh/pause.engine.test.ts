import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { openLeaseInside } from './lease.ts';

test('a pause cuts sessions and connections; commands and background processes go on after it', async (t) => {
  const it = await openLeaseInside(t);
  if (!it) return;
  const { landlord, token, id } = it;
  const ask = (verb: string, body: object = {}) =>
    landlord.ask('POST', `/v1/compute/${verb}`, { token, body: { id, ...body } });
  /** Other files have containers on this engine, too. */
  const containers = async () =>
    (await it.engine.docker.listContainers({ all: true })).filter(({ Labels }) =>
      Labels['purser.tag']?.endsWith(id.replace('_', '-')),
    );
  await it.inside('nc -ll -p 7000 -e cat >/dev/null 2>&1 & mkdir -p /tmp');
  const counter = 'i=0; while :; do i=$((i + 1)); echo $i >/tmp/count; done';
  assert.equal((await ask('process/start', { command: counter })).status, 200);
  const session = it.ssh([], 'touch /tmp/session; exec sleep 12345', null);
  const connection = it.run('ssh', ['-W', '127.0.0.1:7000', it.target], null);
  const waiting = ask('exec', { command: 'while [ ! -e /tmp/go ]; do sleep 0.1; done; echo went', timeout: 120 });
  await until('all of it runs', async () => (await ask('files', { path: '/tmp/session' })).status === 200);
  await until('it counts', async () => Number(await it.inside('cat /tmp/count')) > 0);

  const paused = await ask('pause');
  assert.equal(paused.status, 200, paused.text);
  assert.equal(paused.body.status, 'paused');
  assert.match((await session).stderr, /the lease is paused/);
  await connection;
  const refused = await it.ssh([], 'true');
  assert.notEqual(refused.code, 0);
  const [container] = await containers();
  const { Processes } = await it.engine.docker
    .getContainer(container?.Id as string)
    .top({ ps_args: '-o pid,user,stat,args' });
  const awake = (Processes as string[][]).filter(
    ([, , state, args]) => !/^[TZ]/.test(state ?? '') && !/watchdog|^\/proc\/1\/exe/.test(args ?? ''),
  );
  assert.deepEqual(awake, []);
  assert.equal((await ask('exec', { command: 'true' })).body.error.code, 'resource_not_active');

  assert.equal((await ask('resume')).body.status, 'running');
  const count = Number(await it.inside('cat /tmp/count'));
  await until('it counts on', async () => Number(await it.inside('cat /tmp/count')) > count);
  const { processes } = (await ask('process/list')).body;
  assert.equal(processes[0].status, 'running');
  await it.inside('touch /tmp/go');
  assert.equal((await waiting).body.stdout, 'went\n');
  await it.runs('sleep 12345', false);
  assert.equal((await it.ssh([], 'echo again')).stdout, 'again\n');

  await ask('pause');
  assert.equal((await ask('stop')).body.status, 'stopped');
  assert.deepEqual(await containers(), []);
});
