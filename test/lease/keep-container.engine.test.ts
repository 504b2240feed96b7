import assert from 'node:assert/strict';
import test from 'node:test';
import ssh2 from 'ssh2';
import { until } from '../helper/waiting.ts';
import { openLeaseServer } from './docker-leases.ts';
import { LONG } from './leases.ts';

/** Moves our clock to a moment of the lease. The container's own deadline is in real time, and stays far away. */
test('a real container with a real burner is kept while it burns, and runs out when it stops', async (t) => {
  // A second of the machine is measured here, not a minute, and to ask a slow machine takes more than the usual 5 % of it. It may use
  // half a processor, and eight burners get most of that beside whatever else is busy.
  const purser = await openLeaseServer(t, { settings: { keep: { cpu_percent: 25 } } });
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.rent(token)).body;
  const exec = async (command: string) => {
    const { body } = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command } });
    assert.equal(body.exit_code, 0, JSON.stringify(body));
  };
  const pass = async (seconds: number) => {
    purser.clock.advance(seconds);
    await purser.app.reaper.runOnce();
    return purser.status(token, id);
  };
  /** Ten seconds of ours are at least one of the machine. */
  const later = () => new Promise((resolve) => setTimeout(resolve, 1000)).then(() => pass(10));

  const burner = '(while [ ! -e /tmp/burnt ]; do :; done) >/dev/null 2>&1 </dev/null &';
  await exec(`${burner.repeat(8)} true`);
  const body = { id, extend_seconds: 60, max_seconds: 600 };
  assert.equal((await purser.ask('POST', '/v1/compute/keep', { token, key: 'k', body })).status, 200);
  await pass(480);
  await new Promise((resolve) => setTimeout(resolve, 1000));
  await pass(60);
  const kept = await until('a step is bought', async () => {
    const found = await purser.status(token, id);
    assert.equal(found.status, 'running');
    return found.keep.bought_seconds === 60 ? found : void (await later());
  });
  assert.deepEqual([kept.expires_at - end, kept.charged_usd, kept.keep.watches], [60, '0.066', ['cpu', 'connections']]);

  await exec(': > /tmp/burnt');
  await pass(1); // What the command above has opened is no reason for the next step.
  const idle = await until('it is seen idle', async () => {
    const found = await purser.status(token, id);
    return found.keep.reason === 'idle' || found.status !== 'running' ? found : void (await later());
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
    const found = await later();
    return found.status === 'stopped' && found.keep.state === 'ended' && found;
  });
  assert.deepEqual([ended.end_reason, ended.keep.reason], ['lease_expired', 'idle']);
  assert.equal((await purser.budget(token)).used_usd, ended.charged_usd);
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(purser.problems(), []);
});
