import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { until } from '../helper/waiting.ts';
import { dieAt, type LeaseServer, LONG } from './leases.ts';

/** An await of a life at which the process may die: the wrapped call never returns. */
export type Death = readonly ['before' | 'after', 'create' | 'inspect' | 'extend' | 'destroy' | 'find'];

/** Every one. */
export const DEATHS: readonly Death[] = (['create', 'inspect', 'extend', 'destroy', 'find'] as const).flatMap(
  (name) =>
    [
      ['before', name],
      ['after', name],
    ] as const,
);

type DeathsOrder = {
  open(t: TestContext): Promise<LeaseServer | undefined>;
  deaths?: readonly Death[];
  /** Whether the engine needs time to make and to end what it was asked for. */
  isSlow?: boolean;
};

/** Registers a test for each death: no machine is left without a row, and the books balance. */
export function dieOnEngine(engine: string, { open, deaths = DEATHS, isSlow = false }: DeathsOrder): void {
  for (const [when, name] of deaths)
    test(`${engine}: dying ${when} ${name} leaves no machine that no row knows, and the books balance`, async (t) => {
      const purser = await open(t);
      if (!purser) return;
      const { id, token } = await purser.openWallet(LONG);
      await dieAt(purser, token, when, name);
      const again = await purser.lease(token, 'k');
      assert.ok([200, 503].includes(again.status), again.text);
      const pass = async () => {
        purser.clock.advance(purser.backend.absence.apartSeconds);
        await purser.app.reaper.runOnce();
      };
      for (let i = 0; i < 3; i++) await pass();
      const liveRows = async (): Promise<{ status: string }[]> => {
        const { body } = await purser.ask('GET', `/v1/wallets/${id}/resources`, { token: purser.accountKey });
        return body.resources.filter((it: { ended_at: number | null }) => it.ended_at === null);
      };
      if (isSlow)
        await until('every machine has a row, and every row a machine that runs', async () => {
          await pass();
          const live = await liveRows();
          // A pod that is deleted while its container is made is gone after a minute only: kubelet comes back to it no sooner.
          return live.every((it) => it.status === 'running') && (await purser.machines()).length === live.length;
        });
      else {
        const live = await liveRows();
        assert.equal((await purser.machines()).length, live.length, JSON.stringify(live));
      }
      assert.deepEqual(purser.problems(), []);
      const closed = await until('the wallet is closed', async () => {
        purser.clock.advance(10);
        const answer = await purser.closeWallet(id);
        return answer.status === 200 && answer;
      });
      assert.ok(closed.body.used_cents <= 1);
      assert.deepEqual(await purser.machines(), []);
      assert.deepEqual(purser.problems(), []);
    });
}
