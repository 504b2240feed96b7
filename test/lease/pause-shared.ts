import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import type { Answer } from '../helper/server.ts';
import { LONG, openMemoryServer } from './leases.ts';

type Pauses = {
  pause(token: string, id: string): Promise<Answer>;
  resume(token: string, id: string): Promise<Answer>;
  exec(token: string, id: string, command?: string): Promise<Answer>;
};

/** Adds the calls that pause and resume a lease. */
export const pauses = <P extends { ask: Awaited<ReturnType<typeof openMemoryServer>>['ask'] }>(purser: P): P & Pauses =>
  Object.assign(purser, {
    pause: (token: string, id: string) => purser.ask('POST', '/v1/compute/pause', { token, body: { id } }),
    resume: (token: string, id: string) => purser.ask('POST', '/v1/compute/resume', { token, body: { id } }),
    exec: (token: string, id: string, command = 'true') =>
      purser.ask('POST', '/v1/compute/exec', { token, body: { id, command, timeout: 20 } }),
  });

export type PauseServer = Awaited<ReturnType<typeof openMemoryServer>> & Pauses;

/** A lease of 600 s that was paused `after` some seconds. */
export async function openPaused(t: TestContext, { after = 0 } = {}) {
  const purser = pauses(await openMemoryServer(t));
  const wallet = await purser.openWallet(LONG);
  const { id } = (await purser.lease(wallet.token)).body;
  purser.clock.advance(after);
  const paused = await purser.pause(wallet.token, id);
  assert.equal(paused.status, 200, paused.text);
  return {
    purser,
    token: wallet.token,
    id: id as string,
    wallet: { wallet_id: wallet.id, expires_at: paused.body.expires_at },
  };
}

/** Prolongs the wallet of a lease by a day. Returns its new end. */
export async function prolong(
  purser: PauseServer,
  { wallet_id: id, expires_at: end }: { wallet_id: string; expires_at: number },
) {
  const asked = { token: purser.accountKey, key: 'e', body: { seconds: 86_400 } };
  assert.equal((await purser.ask('POST', `/v1/wallets/${id}/extend`, asked)).status, 200);
  return end + 86_400;
}
