import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { tagOf } from '../../src/compute/backend.ts';
import { allLiveResources, type Resource } from '../../src/ledger/resource.ts';
import type { Engine } from '../compute/engines/docker.ts';
import { type EngineProxy, openEngineProxy } from '../compute/engines/proxy.ts';
import { waitFor } from '../helper/waiting.ts';
import type { LeaseServer } from './leases.ts';
import { createLife, type Mortal, type Place, stepThroughWrites } from './mortal.ts';

/** The address of the engine in the settings of a server that can die: each server has a line of its own to it. */
export const ENGINE_SOCKET = `\${${'ENGINE_SOCKET'}}`;

/** What a test sees of a real engine. */
type Eyes = {
  /** Returns the tags of this server's machines, with what belongs to each. */
  tags(): Promise<string[]>;
  /** Returns what is wrong with the machine of a lease that runs or is paused; undefined if nothing is. */
  faultOf(row: Resource): Promise<string | undefined>;
  /** Returns what else is wrong. */
  others?(rows: Resource[]): Promise<string[]>;
};

/**
 * Opens a server with a real engine that can die at each of its requests but GETs, when the engine has answered and nobody reads
 * that: those are its steps. It may ask fewer of them in another life, where it waits for something.
 */
export async function openMortalOn<P extends LeaseServer>(
  t: TestContext,
  engine: Pick<Engine, 'directory' | 'socket'>,
  open: (env: Record<string, string>) => Promise<P>,
  lookAt: (purser: P) => Eyes,
): Promise<P & Mortal> {
  const env: Record<string, string> = {};
  let proxy: EngineProxy;
  async function connect() {
    proxy = await openEngineProxy(t, engine);
    env.ENGINE_SOCKET = proxy.socket;
  }
  function begin() {
    const mine = proxy;
    const life = createLife(() => false);
    void life.died.then(() => mine.cut());
    const watch = (at: Place | undefined) => {
      const strike = () => void life.die().catch(() => {});
      mine.watch(at && { nthChange: at.nth, moment: 'before it is answered', strike });
    };
    stepThroughWrites(purser.app.ledger, life);
    return Object.defineProperty(Object.assign(life, { watch }), 'steps', {
      get: () => mine.changes,
    });
  }
  await connect();
  const purser = await open(env);
  const eyes = lookAt(purser);
  const rowsOf = () => allLiveResources(purser.app.ledger.read);
  async function strangers(): Promise<string[]> {
    const known = new Set(purser.app.warm.ids().map((id) => tagOf(purser.app.installationId, id)));
    for (const { tag } of rowsOf()) known.add(tag);
    return (await eyes.tags()).filter((tag) => !known.delete(tag)).map((tag) => `${tag} is a stranger`);
  }
  return Object.assign(purser, {
    life: begin(),
    momentsOf: () => ['after' as const],
    mayLive: true,
    strangers,
    async faults() {
      const rows = rowsOf();
      const found = await Promise.all(
        rows.map(async (row) => {
          assert.ok(['running', 'paused'].includes(row.status), `it is still ${row.status}`);
          return eyes.faultOf(row);
        }),
      );
      return [
        ...(await strangers()),
        ...found.filter((it) => it !== undefined),
        ...((await eyes.others?.(rows)) ?? []),
      ];
    },
    async succeed() {
      const { life } = purser as P & Mortal;
      life.die().catch(() => {});
      // The next server waits for that by a clock, which is in the test's hand, and a busy engine knows another one.
      await waitFor('the engine has carried out what it got', Promise.resolve(proxy.carriedOut));
      await connect();
      await purser.crash(life.bury);
      await purser.app.reaper.stop();
      Object.assign(purser, { life: begin() });
    },
  });
}
