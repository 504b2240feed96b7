import { type Daemon, IMAGE, openDocker } from '../test/compute/engines/docker.ts';
import { type EngineProxy, type Moment, openEngineProxy } from '../test/compute/engines/proxy.ts';
import type { Engine } from './engine.ts';
import { HOURLY_USD } from './prices.ts';
import type { Stage } from './site.ts';
import { resourceIdOf } from './tag.ts';

const TAG_LABEL = 'purser.tag';
const MEMORY_GIB = 0.25;

export type DockerEngine = Engine & { daemon: Daemon; proxy: EngineProxy };

/** Opens the container backend on a real engine, behind a proxy that can fail. Returns undefined without Docker. */
export async function openDockerEngine(t: Stage): Promise<DockerEngine | undefined> {
  const daemon = await openDocker(t as Parameters<typeof openDocker>[0]);
  if (!daemon) return undefined;
  const proxy = await openEngineProxy(t, daemon);
  const shared = { backend: 'container', socket: proxy.socket, image: IMAGE, provision_seconds: 30 };
  const offer = { id: 'small', cpus: 0.5, memory_gib: MEMORY_GIB, max_disk_gb: 5, price_hourly_usd: HOURLY_USD };
  const containers = async () =>
    (await daemon.docker.listContainers({ all: true })).flatMap(({ Labels, State, Id }) => {
      const tag = Labels[TAG_LABEL];
      return tag === undefined ? [] : [{ tag, resourceId: resourceIdOf(tag), running: State === 'running', id: Id }];
    });
  return {
    settings: {
      provider_one: {
        ...shared,
        prices: { cpu_hourly_usd: HOURLY_USD, memory_gib_hourly_usd: '0' },
        limits: { cpus: 1, memory_gib: MEMORY_GIB },
      },
      provider_three: { ...shared, offers: [{ ...offer, count: 6 }] },
    },
    kinds: [
      {
        provider: 'provider_one',
        spec: (max_seconds) => ({ cpus: 1, memory_gib: MEMORY_GIB, max_seconds }),
        canExtend: false,
      },
      {
        provider: 'provider_three',
        spec: (max_seconds) => ({ offer_id: offer.id, disk_gb: 5, max_seconds }),
        canExtend: true,
      },
    ],
    graceSeconds: 30,
    daemon,
    proxy,
    list: containers,
    async kill({ tag }) {
      const found = (await containers()).find((it) => it.tag === tag);
      if (found) await daemon.docker.getContainer(found.id).kill();
    },
  };
}

/** Loses the n-th of the next requests, or its answer. */
export function lose(proxy: EngineProxy, moment: Moment, nth: number): void {
  proxy.watch({ nth, moment, strike: () => {} });
}
