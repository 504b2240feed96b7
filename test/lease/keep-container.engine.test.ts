import assert from 'node:assert/strict';
import test from 'node:test';
import ssh2 from 'ssh2';
import { until } from '../helper/waiting.ts';
import { openLeaseServer } from './docker-leases.ts';
import { LONG } from './leases.ts';

/** Moves our clock to a moment of the lease. The container's own deadline is in real time, and stays far away. */
test('a real container with a real burner is kept while it burns, and runs out when it stops', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.rent(token)).body;
  const exec = async (command: string) => {
    const { body } = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command } });
    assert.equal(body.exit_code, 0, JSON.stringify(body));
  };
  const [machine = ''] = await until(
    'it is made',
    async () => (await purser.machines()).length > 0 && purser.machines(),
  );
  const measure = async () => {
    const options = { stream: false, 'one-shot': true } as const;
    const { read, cpu_stats } = await purser.engine.docker
      .getContainer(machine.slice(1))
      .stats(options as { stream: false });
    return { at: Date.parse(read) / 1000, used: cpu_stats.cpu_usage.total_usage / 1e9 };
  };
  let before = await measure();
  const pass = async (seconds: number) => {
    if ((await purser.machines()).length) before = await measure();
    purser.clock.advance(seconds);
    await purser.app.reaper.runOnce();
    return purser.status(token, id);
  };
  /**
   * Passes ten seconds of ours once the next reading will show a machine that is busy, or one that is not, however much of a processor
   * the readings themselves and other machines take.
   */
  const later = async (isBusy: boolean) => {
    await until('the machine has been busy, or idle, for long enough', async () => {
      const { at, used } = await measure();
      const [seconds, taken] = [at - before.at, used - before.used];
      return seconds > 0 && (isBusy ? taken / seconds > 0.1 : (2 * taken) / seconds < 0.04);
    });
    return pass(10);
  };

  const burner = '(while [ ! -e /tmp/burnt ]; do :; done) >/dev/null 2>&1 </dev/null &';
  await exec(`${burner.repeat(8)} true`);
  const body = { id, extend_seconds: 60, max_seconds: 600 };
  assert.equal((await purser.ask('POST', '/v1/compute/keep', { token, key: 'k', body })).status, 200);
  await pass(530);
  const kept = await until('a step is bought', async () => {
    const found = await purser.status(token, id);
    assert.equal(found.status, 'running');
    return found.keep.bought_seconds === 60 ? found : void (await later(true));
  });
  assert.deepEqual([kept.expires_at - end, kept.charged_usd, kept.keep.watches], [60, '0.066', ['cpu', 'connections']]);

  await exec(': > /tmp/burnt');
  await pass(1); // What the command above has opened is no reason for the next step.
  const idle = await until('it is seen idle', async () => {
    const found = await purser.status(token, id);
    return found.keep.reason === 'idle' || found.status !== 'running' ? found : void (await later(false));
  });
  assert.deepEqual([idle.status, idle.keep.state], ['running', 'active']);

  const client = new ssh2.Client();
  t.after(() => client.end());
  const access = (await purser.ask('POST', '/v1/compute/ssh', { token, body: { id } })).body;
  const { host, port, username, private_key: privateKey } = access;
  await new Promise((resolve, reject) => {
    client.on('ready', () => resolve(undefined)).on('error', reject);
    client.connect({ host, port, username, privateKey });
  });
  client.exec('sleep 1000', () => {});
  await until('the session is open', async () => purser.app.activity.open(id) === 1);
  const bought = idle.keep.bought_seconds;
  assert.equal((await pass(10)).keep.bought_seconds, bought + 60, 'an open session keeps an idle machine');
  client.end();
  await until('the session is over', async () => purser.app.activity.open(id) === 0);
  await pass(1);

  const ended = await until('it runs out', async () => {
    const found = await later(false);
    return found.status === 'stopped' && found.keep.state === 'ended' && found;
  });
  assert.deepEqual([ended.end_reason, ended.keep.reason], ['lease_expired', 'idle']);
  assert.equal((await purser.budget(token)).used_usd, ended.charged_usd);
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(purser.problems(), []);
});
