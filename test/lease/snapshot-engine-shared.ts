import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { until, waitFor } from '../helper/waiting.ts';
import type { LeaseServer } from './leases.ts';
import { MONTH, snapshotting } from './snapshot-shared.ts';

/** A purser whose snapshots are those of a real engine. */
export type SnapshotServer = LeaseServer & {
  /** Returns the names of what its engine has of this house's snapshots, also of those that are not whole. */
  kept(): Promise<string[]>;
  /** Stops what runs in a machine, as a take that breaks off leaves it. */
  halt(ref: string): Promise<void>;
  /** Makes of a snapshot what is there when Purser dies before it is whole. */
  undo(tag: string): Promise<void>;
};

/** Opens one, with a wallet, a lease of it that runs, and its commands. Undefined, and the test skipped, without the engine. */
async function openLeased(t: TestContext, open: (t: TestContext) => Promise<SnapshotServer | undefined>) {
  const opened = await open(t);
  if (!opened) return undefined;
  const purser = snapshotting(opened);
  const { id: wallet, token } = await purser.openWallet(MONTH);
  const exec = async (id: string, command: string) =>
    (await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command, timeout: 60 } })).body.stdout;
  const made = await purser.lease(token);
  assert.equal(made.body.status, 'running', made.text);
  return { purser, wallet, token, exec, id: made.body.id as string };
}

/** Registers the tests that leases with the snapshots of every engine pass. */
export function conformLeaseSnapshots(
  name: string,
  open: (t: TestContext) => Promise<SnapshotServer | undefined>,
): void {
  test(`${name}: a lease goes on where the snapshot of another was taken, and its wallet leaves none behind`, async (t) => {
    const leased = await openLeased(t, open);
    if (!leased) return;
    const { purser, token, wallet, exec, id } = leased;
    await exec(id, 'echo hello >/tmp/file; head -c 20000000 /dev/urandom >/tmp/big');
    const { status, body, text } = await purser.snapshot(token, id);
    assert.equal(status, 200, text);
    assert.equal(body.size_gib, 0.02);
    assert.equal((await purser.kept()).length, 1);
    await purser.stop(token, id);
    const made = await purser.leaseFrom(token, body.snapshot_id);
    assert.equal(made.body.status, 'running', made.text);
    assert.equal(await exec(made.body.id, 'cat /tmp/file'), 'hello\n');
    assert.equal((await purser.forget(token, body.snapshot_id)).body.status, 'deleting', 'a lease needs it');

    assert.equal((await purser.closeWallet(wallet)).body.status, 'closed');
    assert.deepEqual([await purser.kept(), await purser.machines()], [[], []]);
    assert.deepEqual(purser.problems(), []);
  });

  for (const isWhole of [true, false])
    test(`${name}: a take whose process dies ${isWhole ? 'after' : 'before'} the snapshot is whole is resolved, and what stood still goes on`, async (t) => {
      const leased = await openLeased(t, open);
      if (!leased) return;
      const { purser, token, wallet, exec, id } = leased;
      const died = Promise.withResolvers<void>();
      const never = Promise.withResolvers<never>();
      const { snapshots } = purser.backend.guest;
      assert.ok(typeof snapshots === 'object');
      purser.backend.guest.snapshots = {
        ...snapshots,
        async take(order) {
          await snapshots.take(order);
          if (!isWhole) await purser.undo(order.tag);
          await purser.halt(order.ref);
          died.resolve();
          return never.promise;
        },
      };
      const before = await purser.budget(token);
      const pid = (await exec(id, 'sleep 500 >/dev/null 2>&1 & echo $!')).trim();
      const state = () => exec(id, `cut -d" " -f3 /proc/${pid}/stat`);
      void purser.snapshot(token, id, 'k').catch(() => {});
      await waitFor('it dies', died.promise);
      assert.equal(await state(), 'T\n');
      await purser.crash(() => never.reject(new Error('it is dead')));
      const row = async () => (await purser.snapshots(token))[0];
      assert.equal((await row()).status, 'taking');
      purser.clock.advance(1);
      await purser.app.reaper.runOnce();
      assert.equal(await state(), 'S\n');
      if (isWhole) {
        assert.equal((await row()).status, 'ready');
      } else {
        assert.equal((await purser.kept()).length, 1);
        await until('it is given up, and swept', async () => {
          purser.clock.advance(61);
          await purser.app.reaper.runOnce();
          return (await purser.kept()).length === 0;
        });
        assert.equal((await row()).status, 'failed');
        assert.deepEqual(await purser.budget(token), before, 'nothing is held for it, and nothing was paid');
      }
      assert.equal((await purser.closeWallet(wallet)).body.status, 'closed');
      assert.deepEqual([await purser.kept(), await purser.machines()], [[], []]);
      assert.deepEqual(purser.problems(), []);
    });
}
