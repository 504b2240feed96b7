import assert from 'node:assert/strict';
import test from 'node:test';
import { createRandom, length, SEED } from '../helper/random.ts';
import { deadlineOf, openKept } from './keep-shared.ts';

const WALKS = length(2, 5);
const WALK_LENGTH = 150;

test(`in a random walk every second of every step is paid once, and none is given that is not paid or held (seed ${SEED})`, async (t) => {
  for (let walk = 0; walk < WALKS; walk++) {
    const random = createRandom(SEED + walk);
    const purser = await openKept(t, {
      budget_cents: random.pick([110, 500]),
      expires_in_seconds: random.pick([3000, 90_000]),
    });
    const done: string[] = [];
    let byHand = 0;
    const steps: Record<string, [weight: number, run: () => Promise<unknown>]> = {
      time: [40, () => purser.pass(random.pick([1, 10, 30, 60, 300]), random.pick([0, 0.03, 0.5]))],
      reap: [10, () => purser.app.reaper.runOnce()],
      keep: [
        10,
        () => purser.keep({ extend_seconds: random.pick([60, 90, 300]), max_seconds: random.pick([300, 900, 3600]) }),
      ],
      end: [1, () => purser.keep({ extend_seconds: 0 })],
      extend: [
        2,
        async () => {
          const before = (await purser.now()).purchased_seconds;
          const { status } = await purser.extend(purser.token, purser.id, 60);
          if (status === 200) byHand += 60;
          assert.ok(status !== 200 || (await purser.now()).purchased_seconds === before + 60);
        },
      ],
      exec: [
        5,
        () => purser.ask('POST', '/v1/compute/exec', { token: purser.token, body: { id: purser.id, command: 'true' } }),
      ],
      freeze: [1, () => purser.run('wallet.freeze', { id: purser.walletId }).catch(() => {})],
      unfreeze: [4, () => purser.run('wallet.unfreeze', { id: purser.walletId }).catch(() => {})],
      break: [
        3,
        async () => {
          purser.memory[random.pick(['before', 'after'] as const)].extend = () => {
            throw new Error('the line died');
          };
        },
      ],
      mend: [
        8,
        async () => {
          delete purser.memory.before.extend;
          delete purser.memory.after.extend;
        },
      ],
      restart: [2, () => purser.reopen()],
      stop: [0.2, () => purser.stop(purser.token, purser.id)],
    };
    const weights = Object.fromEntries(Object.entries(steps).map(([name, [weight]]) => [name, weight]));
    for (let i = 0; i < WALK_LENGTH; i++) {
      const name = random.weighted(weights);
      done.push(name);
      await (steps[name] as [number, () => Promise<unknown>])[1]();
      const now = await purser.now();
      const [used, held] = await purser.paid();
      const why = `walk ${walk}: ${done.join(' ')}: ${JSON.stringify(now)}`;
      const seconds = (usd: string) => Math.round(Number(usd) * 10_000); // A second costs 0.0001 USD.
      assert.equal(seconds(used as string), now.purchased_seconds, why);
      assert.equal(now.charged_usd, used, why);
      const given = deadlineOf(purser);
      if (given !== undefined)
        assert.ok(given - purser.end <= now.purchased_seconds - 600 + seconds(held as string), why);
      const rows = purser.app.ledger.client.prepare('select bought_seconds, max_seconds from keep').raw().all() as [
        bigint,
        bigint,
      ][];
      const bought = rows.reduce((sum, [it]) => sum + Number(it), 0);
      // An extension by hand whose outcome was unknown may turn out to be charged later.
      assert.ok(bought + byHand <= now.purchased_seconds - 600, why);
      assert.ok(
        rows.every(([it, max]) => it <= max),
        why,
      );
      if (now.ended_at !== null) break;
    }
    assert.deepEqual(purser.problems(), []);
    await purser.close();
  }
});
