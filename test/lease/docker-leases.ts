import { after, type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { type Engine, IMAGE, openDocker } from '../compute/engines/docker.ts';
import type { TestServerOptions } from '../helper/server.ts';
import { type LeaseServer, openWith } from './leases.ts';

let engine: Engine | undefined;
after(() => engine?.stop());
/** One engine for a whole file: it takes two seconds to start. */
export async function sharedDocker(t: TestContext): Promise<Engine | undefined> {
  engine ??= await openDocker(t, { shared: true });
  return engine;
}

/** A purser whose leases are containers of a real engine, Docker unless another is given. Undefined, and the test skipped, without one. */
export async function openLeaseServer(
  t: TestContext,
  options: TestServerOptions & { socket?: string } = {},
  engine = sharedDocker,
): Promise<(LeaseServer & { engine: Engine }) | undefined> {
  const docker = await engine(t);
  if (!docker) return undefined;
  const purser = await openWith(t, options.socket ?? docker.socket, IMAGE, options);
  return Object.assign(purser, {
    engine: docker,
    machines: async () =>
      (await docker.docker.listContainers({ all: true }))
        .map((it) => it.Names[0] as string)
        .filter((name) => name.startsWith(`/${tagPrefix(purser.app.installationId)}`)),
  });
}
