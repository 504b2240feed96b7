import assert from 'node:assert/strict';
import test from 'node:test';
import { waitFor } from '../helper/waiting.ts';
import { openLeaseServer } from './docker-leases.ts';
import { MONTH, snapshotting } from './snapshot-shared.ts';

test('on Docker a lease goes on where the snapshot of another was taken, and its wallet leaves no image behind', async (t) => {
  const opened = await openLeaseServer(t);
  if (!opened) return;
  const purser = snapshotting(opened);
  const images = async () =>
    (await purser.engine.docker.listImages()).flatMap((it) => it.RepoTags ?? []).filter((it) => /snapshot/.test(it));
  const wallet = await purser.openWallet(MONTH);
  const { token } = wallet;
  const exec = async (id: string, command: string) =>
    (await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command, timeout: 60 } })).body.stdout;
  const { id } = (await purser.lease(token)).body;
  await exec(id, 'echo hello >/tmp/file; head -c 20000000 /dev/urandom >/tmp/big');
  const { status, body, text } = await purser.snapshot(token, id);
  assert.equal(status, 200, text);
  assert.equal(body.size_gib, 0.02);
  assert.equal((await images()).length, 1);
  await purser.stop(token, id);
  const made = await purser.leaseFrom(token, body.snapshot_id);
  assert.equal(made.body.status, 'running', made.text);
  assert.equal(await exec(made.body.id, 'cat /tmp/file'), 'hello\n');
  assert.equal((await purser.forget(token, body.snapshot_id)).body.status, 'deleting', 'a lease needs it');

  assert.equal((await purser.closeWallet(wallet.id)).status, 200);
  assert.deepEqual([await images(), await purser.machines()], [[], []]);
  assert.deepEqual(purser.problems(), []);
});

test('on Docker a snapshot whose process died in the middle is resolved, and what stood still goes on', async (t) => {
  const opened = await openLeaseServer(t);
  if (!opened) return;
  const purser = snapshotting(opened);
  const { token } = await purser.openWallet(MONTH);
  const { id } = (await purser.lease(token)).body;
  const [name = ''] = await purser.machines();
  const died = Promise.withResolvers<void>();
  const never = Promise.withResolvers<never>();
  const { snapshots } = purser.backend.guest;
  assert.ok(typeof snapshots === 'object');
  purser.backend.guest.snapshots = {
    ...snapshots,
    async take(order) {
      await snapshots.take(order);
      // As if it had died while the engine copied: the processes that it stopped stand still.
      const exec = await purser.engine.docker
        .getContainer(name.slice(1))
        .exec({ Cmd: ['/.purser-watchdog', 'stop'], User: '0:0', AttachStdout: true });
      for await (const _ of await exec.start({})) void _;
      died.resolve();
      return never.promise;
    },
  };
  const sleeper = { id, command: 'sleep 500 & echo $!', timeout: 10 };
  const pid = (await purser.ask('POST', '/v1/compute/exec', { token, body: sleeper })).body.stdout.trim();
  const state = async () =>
    (
      await purser.ask('POST', '/v1/compute/exec', {
        token,
        body: { id, command: `cut -d" " -f3 /proc/${pid}/stat`, timeout: 10 },
      })
    ).body.stdout;
  void purser.snapshot(token, id, 'k').catch(() => {});
  await waitFor('it dies', died.promise);
  assert.equal(await state(), 'T\n');
  await purser.crash(() => never.reject(new Error('it is dead')));
  purser.clock.advance(1);
  await purser.app.reaper.runOnce();
  assert.equal(await state(), 'S\n');
  assert.equal((await purser.snapshots(token))[0].status, 'ready');
  assert.deepEqual(purser.problems(), []);
});
