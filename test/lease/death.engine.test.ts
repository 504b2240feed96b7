import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { openLeaseServer } from './docker-leases.ts';
import { dieAt, LONG } from './leases.ts';

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
    const purser = await openLeaseServer(t);
    if (!purser) return;
    const { id, token } = await purser.openWallet(LONG);
    await dieAt(purser, token, when, name);
    const again = await purser.lease(token, 'k');
    assert.ok([200, 503].includes(again.status), again.text);
    for (let i = 0; i < 3; i++) {
      purser.clock.advance(purser.backend.absence.apartSeconds);
      await purser.app.reaper.runOnce();
    }
    const { resources } = (await purser.ask('GET', `/v1/wallets/${id}/resources`, { token: purser.accountKey })).body;
    const live = resources.filter((it: { ended_at: number | null }) => it.ended_at === null);
    assert.equal((await purser.machines()).length, live.length, JSON.stringify(resources));
    assert.deepEqual(purser.problems(), []);
    const closed = await until('the wallet is closed', async () => {
      purser.clock.advance(10);
      const answer = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
      return answer.status === 200 && answer;
    });
    assert.ok(closed.body.used_cents <= 1);
    assert.deepEqual(await purser.machines(), []);
    assert.deepEqual(purser.problems(), []);
  });
}
