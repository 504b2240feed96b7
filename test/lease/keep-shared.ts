import { randomUUID } from 'node:crypto';
import type { TestContext } from 'node:test';
import type { TestServerOptions } from '../helper/server.ts';
import { LONG, openMemoryServer } from './leases.ts';

/** Leases that are extended while they are busy: provider_three, 600 s for 0.06 USD, so that 60 s cost 0.006 USD. */

/** When a step of 60 s is decided by, before the end of the paid time, and when the reading for it begins. */
export const LEAD = 60;
export const WINDOW = 60;
export const STEP = 60;

/** A server with one lease, whose machine says what it uses of a processor. */
export async function openKept(
  t: TestContext,
  budget: Record<string, unknown> = LONG,
  options: TestServerOptions = {},
) {
  const purser = await openMemoryServer(t, options);
  purser.memory.cpuSeconds = 0;
  const wallet = await purser.openWallet(budget);
  const { token } = wallet;
  const { id, expires_at: end } = (await purser.rent(token)).body;
  const keep = (body: Record<string, unknown> = {}, key: string = randomUUID()) =>
    purser.ask('POST', '/v1/compute/keep', {
      token,
      key,
      body: { id, extend_seconds: STEP, max_seconds: 3600, ...body },
    });
  const calls = (name: string) => purser.memory.calls.filter((it) => it === name).length;
  return Object.assign(purser, {
    walletId: wallet.id,
    token,
    id,
    end: end as number,
    keep,
    calls,
    /** Lets time pass in which the machine uses `share` of a processor, then runs a pass. */
    async pass(seconds: number, share = 0) {
      purser.clock.advance(seconds);
      if (purser.memory.cpuSeconds !== undefined) purser.memory.cpuSeconds += seconds * share;
      await purser.app.reaper.runOnce();
    },
    async passes(count: number, seconds: number, share = 0) {
      for (let i = 0; i < count; i++) await this.pass(seconds, share);
    },
    now: () => purser.status(token, id),
    async paid() {
      const { used_usd: used, held_usd: held } = await purser.budget(token);
      return [used, held];
    },
  });
}

type Kept = Awaited<ReturnType<typeof openKept>>;

/** Lets the lease run to the reading before its first step. */
export const toReading = (purser: Kept) => purser.pass(600 - LEAD - WINDOW);

/** Returns the deadline that the machine itself has. */
export const deadlineOf = (purser: Kept) => [...purser.memory.machines.values()][0]?.deadline;
