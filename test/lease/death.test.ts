import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../compute/conformance.ts';
import { openLeaseHouse } from './docker-leases.ts';
import { LONG } from './leases.ts';

/** Every await of a life at which the process may die: the wrapped call never returns. */
const DEATHS = ['create', 'inspect', 'extend', 'destroy', 'find'] as const;
for (const [when, name] of DEATHS.flatMap(
  (it) =>
    [
      ['before', it],
      ['after', it],
    ] as const,
)) {
  test(`dying ${when} ${name} leaves no machine that no row knows, and the books balance`, async (t) => {
    const house = await openLeaseHouse(t);
    if (!house) return;
    const { id, token } = await house.openWallet(LONG);
    const { create } = house.backend;
    if (name === 'find')
      // The tag is asked only where an answer was lost.
      house.backend.create = async (order) => {
        await create(order);
        throw new Error('the connection was reset');
      };
    const died = Promise.withResolvers<void>();
    const never = Promise.withResolvers<never>();
    const real = house.backend[name] as (...args: never[]) => Promise<unknown>;
    (house.backend as Record<string, unknown>)[name] = async (...args: never[]) => {
      if (when === 'after') await real(...args);
      died.resolve();
      return never.promise;
    };
    const life = async () => {
      let made = await house.lease(token, 'k');
      if (made.status === 503) made = await house.lease(token, 'k');
      await house.stop(token, made.body.id);
    };
    void life().catch(() => {});
    await died.promise;
    await house.crash(() => never.reject(new Error('it is dead')));
    const again = await house.lease(token, 'k');
    assert.ok([200, 503].includes(again.status), again.text);
    for (let i = 0; i < 3; i++) {
      house.clock.advance(house.backend.absence.apartSeconds);
      await house.app.reaper.runOnce();
    }
    const { resources } = (await house.ask('GET', `/v1/wallets/${id}/resources`, { token: house.accountKey })).body;
    const live = resources.filter((it: { ended_at: number | null }) => it.ended_at === null);
    assert.equal((await house.machines()).length, live.length, JSON.stringify(resources));
    assert.deepEqual(house.problems(), []);
    const closed = await until('the wallet is closed', async () => {
      house.clock.advance(10);
      const answer = await house.ask('POST', `/v1/wallets/${id}/close`, { token: house.accountKey });
      return answer.status === 200 && answer;
    });
    assert.ok(closed.body.used_cents <= 1);
    assert.deepEqual(await house.machines(), []);
    assert.deepEqual(house.problems(), []);
  });
}
