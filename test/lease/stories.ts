import assert from 'node:assert/strict';
import { allLiveResources, type Resource } from '../../src/ledger/resource.ts';
import type { Answer } from '../helper/server.ts';
import { SPEC } from './leases.ts';
import { type Mortal, SETTLED_SECONDS, type Story, type Wallet } from './mortal.ts';
import { pauses } from './pause-shared.ts';
import { DAY, snapshotting } from './snapshot-shared.ts';

/** What may happen to leases and snapshots, on any engine: stories for servers that die. */

export const HOUR = { max_seconds: 3600 };

export const done = (answer: Answer) => {
  assert.equal(answer.status, 200, answer.text);
  return answer;
};
export const lease = async (purser: Mortal, { token }: Wallet) => {
  const { body } = done(await purser.lease(token, 'lease', HOUR));
  assert.equal(body.status, 'running');
  return body.id as string;
};
/** A lease in which a process waits. */
const busy = async (purser: Mortal, wallet: Wallet) => {
  const id = await lease(purser, wallet);
  await pauses(purser).exec(wallet.token, id, 'sleep 1000 >/dev/null 2>&1 &');
  return id;
};
const pause = async (purser: Mortal, { token }: Wallet, id: string) => done(await pauses(purser).pause(token, id));
const paused = async (purser: Mortal, wallet: Wallet) => {
  const id = await busy(purser, wallet);
  await pause(purser, wallet, id);
  return id;
};
const snapshot = async (purser: Mortal, { token }: Wallet, id: string) =>
  done(await snapshotting(purser).snapshot(token, id, 'snapshot')).body.snapshot_id as string;
const taken = async (purser: Mortal, wallet: Wallet) => snapshot(purser, wallet, await busy(purser, wallet));
export const stop = async (purser: Mortal, { token }: Wallet, id: string) => done(await purser.stop(token, id));
export const close = async (purser: Mortal, { id }: Wallet) => done(await purser.closeWallet(id));

/** A paused lease has all its time but what it ran for, also where an earlier pause was undone. */
async function keptItsTime({ app }: Mortal): Promise<void> {
  const [row] = allLiveResources(app.ledger.read);
  const { secondsLeft, pausedAt, readyAt } = row as Resource;
  assert.equal(Number(secondsLeft) + Number(pausedAt) - Number(readyAt), HOUR.max_seconds);
}
/** A lease that was resumed has no more time than before. */
async function gotItsTime({ app }: Mortal): Promise<void> {
  const [row] = allLiveResources(app.ledger.read);
  const left = Number(row?.expiresAt) - app.clock.now();
  assert.ok(left > HOUR.max_seconds - SETTLED_SECONDS && left <= HOUR.max_seconds, `it has ${left} s left`);
}

export const STORIES = {
  'a lease is paused': { before: busy, act: pause, check: keptItsTime },
  'a lease is resumed': {
    before: paused,
    act: async (purser, { token }, id: string) => done(await pauses(purser).resume(token, id)),
    check: gotItsTime,
  },
  'a paused lease reaches its deadline': {
    async before(purser, wallet) {
      await paused(purser, wallet);
      purser.clock.advance(30 * DAY);
    },
    act: (purser) => purser.app.reaper.runOnce(),
  },
  'the wallet of a paused lease is closed': { before: paused, act: close },
  'a snapshot is taken': { before: busy, act: snapshot },
  'a snapshot of a paused lease is taken': { before: paused, act: snapshot },
  'a lease is made from a snapshot': {
    before: taken,
    act: async (purser, { token }, id: string) => done(await snapshotting(purser).leaseFrom(token, id, 'from')),
  },
  'a snapshot is deleted': {
    before: taken,
    act: async (purser, { token }, id: string) => done(await snapshotting(purser).forget(token, id)),
  },
  'another day of a snapshot begins': {
    async before(purser, wallet) {
      await taken(purser, wallet);
      purser.clock.advance(DAY / 2);
      await purser.app.reaper.runOnce();
      purser.clock.advance(DAY / 2);
    },
    act: (purser) => purser.app.reaper.runOnce(),
  },
  'the wallet of a snapshot is closed': { before: taken, act: close },
} satisfies Record<string, Story>;

/** Changes settings so that one machine of the size of `SPEC` is kept warm. */
export function keepingWarm(settings: Record<string, any>): Record<string, unknown> {
  const { provider_one: one, ...others } = settings.compute;
  const warm = [{ count: 1, cpus: SPEC.cpus, memory_gib: SPEC.memory_gib }];
  return { ...settings, compute: { ...others, provider_one: { ...one, warm } } };
}

/** Has a pool of one machine be full: the first pass of a server has found an engine that is not there. */
export async function fill(purser: Mortal) {
  purser.clock.advance(60);
  await purser.app.warm.tend();
  assert.equal(purser.app.warm.count(purser.backend), 1);
}

export const WARM = {
  'a warm machine is made': {
    async before(purser, wallet) {
      await fill(purser);
      await lease(purser, wallet);
      assert.equal(purser.app.warm.count(purser.backend), 0);
      purser.clock.advance(60);
    },
    act: ({ app }) => app.warm.tend(),
  },
  'a lease takes a warm machine': { before: fill, act: lease },
} satisfies Record<string, Story>;
