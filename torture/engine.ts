import { type Daemon, IMAGE, openDocker } from '../test/compute/engines/docker.ts';
import { type EngineProxy, type Moment, openEngineProxy } from '../test/compute/engines/proxy.ts';
import { HOURLY_USD } from './prices.ts';
import type { Stage } from './site.ts';

const TAG_LABEL = 'purser.tag';

export type Machines = {
  /** The `compute` settings of the slot that uses them. */
  settings: object;
  engine: Daemon;
  proxy: EngineProxy;
  /** Lists the containers with a tag, and whether they run. Throws while the engine does not answer. */
  list(): Promise<Machine[]>;
};
export type Machine = { tag: string; resourceId: string; running: boolean; id: string };

/** Opens the container backend on a real engine, behind a proxy that can fail. Returns undefined without Docker. */
export async function openMachines(t: Stage): Promise<Machines | undefined> {
  const engine = await openDocker(t as Parameters<typeof openDocker>[0]);
  if (!engine) return undefined;
  const proxy = await openEngineProxy(t, engine);
  const offers = [{ id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: HOURLY_USD, count: 6 }];
  return {
    settings: {
      provider_three: { backend: 'container', socket: proxy.socket, image: IMAGE, provision_seconds: 30, offers },
    },
    engine,
    proxy,
    async list() {
      const found = await engine.docker.listContainers({ all: true });
      return found
        .filter(({ Labels }) => Labels[TAG_LABEL] !== undefined)
        .map(({ Labels, State, Id }) => {
          const tag = Labels[TAG_LABEL] as string;
          return {
            tag,
            resourceId: (/res[-_]\w+$/.exec(tag)?.[0] ?? tag).replace('-', '_'),
            running: State === 'running',
            id: Id,
          };
        });
    },
  };
}

/** Loses the n-th of the next requests, or its answer. */
export function lose(proxy: EngineProxy, moment: Moment, nth: number): void {
  proxy.watch({ nth, moment, strike: () => {} });
}
