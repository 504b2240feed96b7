import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { LONG } from './leases.ts';
import { openLxdServer } from './lxd-leases.ts';

test('lxd: a lease is rented, used, extended and stopped', async (t) => {
  const purser = await openLxdServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const made = await purser.rent(token);
  assert.equal(made.status, 200, made.text);
  const { id } = made.body;
  await until('it runs', async () => {
    await purser.app.reaper.runOnce();
    return (await purser.status(token, id)).status === 'running';
  });
  const ask = (path: string, body: object) => purser.ask('POST', `/v1/compute/${path}`, { token, key: id, body });
  const file = Buffer.from('hello');
  assert.equal((await ask('upload', { id, path: 'there', content_base64: file.toString('base64') })).status, 200);
  const said = await ask('exec', { id, command: 'cat there; id -u; nosuchprogram', timeout: 20 });
  assert.deepEqual([said.body.exit_code, said.body.stdout], [127, 'hello1000\n'], said.text);
  const extended = await purser.extend(token, id, 600);
  assert.equal(extended.status, 200, extended.text);
  assert.equal((await purser.stop(token, id)).status, 200);
  await until('it is gone', async () => {
    await purser.app.reaper.runOnce();
    return (await purser.machines()).length === 0;
  });
  assert.deepEqual(purser.problems(), []);
});
