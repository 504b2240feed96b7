import { createKeyedMutex } from '../../../base/keyed-mutex.ts';
import { type Engine, statusOf, textOf } from './engine.ts';

/**
 * Leases of different wallets must not reach each other, so no lease is in the network that the operator named: each wallet gets a
 * bridge like it (docs/decisions/0033-isolation-between-leases.md). Engines do not pass packets between bridges; Podman only with
 * an option. The operator's own containers in the named network, which exists for them, are connected to the wallets' networks as
 * well.
 */

/** The label with a network's name, on the network and on its containers. */
export const NETWORK_LABEL = 'purser.network';

/** The networks that engines come with. Containers that were started without a network of their own are in them. */
const DEFAULT_NETWORKS = ['bridge', 'podman'];

/** Options of a bridge that hold for another one too; a name or an address does not. */
const COPIED_OPTIONS = [
  'com.docker.network.driver.mtu',
  'com.docker.network.bridge.enable_icc',
  'com.docker.network.bridge.enable_ip_masquerade',
  'mtu',
];

type EngineNetwork = {
  name: string;
  driver: string;
  internal: boolean;
  created: string;
  options?: Record<string, string> | null;
  labels?: Record<string, string> | null;
};
/** A network in the words of the Docker Engine API. */
type DockerNetwork = {
  Name: string;
  Driver: string;
  Internal: boolean;
  Created: string;
  Options?: Record<string, string> | null;
  Labels?: Record<string, string> | null;
};
const fromDocker = ({ Name, Driver, Internal, Created, Options, Labels }: DockerNetwork): EngineNetwork => ({
  ...{ name: Name, driver: Driver, internal: Internal, created: Created },
  ...{ options: Options ?? {}, labels: Labels ?? {} },
});
type AttachedContainer = {
  Name: string;
  Config: { Labels: Record<string, string> | null };
  NetworkSettings: { Networks: Record<string, { Aliases?: string[] | null }> };
};

/** No subnet is left for another network. */
export class NoSubnet extends Error {}

export type WalletNetworks = {
  /**
   * Makes the network `name` if it does not exist, and runs `make` with the network that a container has to be in; the network is
   * not removed while `make` runs. Throws `NoSubnet`.
   */
  within<T>(name: string, make: (network: string) => Promise<T>): Promise<T>;
  /** Removes a network that Purser made, unless a container is in it. */
  release(name: string): Promise<void>;
  /** Networks that Purser made, and that no container is in. */
  listUnused(prefix: string): Promise<{ name: string; createdAt: number }[]>;
};

/** Queues of the networks of all backends: two slots may share an engine, and there the network of a wallet. */
const inTurn = createKeyedMutex();

/** Creates the networks of wallets. `template` is the network that the operator named, or `none`. */
export function createWalletNetworks(engine: Engine, template: string): WalletNetworks {
  const { docker, ask } = engine;
  const { look, listMade, make } = openNetworkApi(engine);
  const serially = <T>(name: string, work: () => Promise<T>) => inTurn(`${engine.socket} ${name}`, work);

  /** Returns the ids of the running containers in a network. */
  const attachedTo = async (name: string) =>
    (await ask('list', (abortSignal) => docker.listContainers({ filters: { network: [name] }, abortSignal }))).map(
      ({ Id }) => Id,
    );

  /** Connects the operator's containers that are in the template and not in the network yet, under the same names. */
  async function connectServices(to: string): Promise<void> {
    if (DEFAULT_NETWORKS.includes(template)) return;
    const there = await attachedTo(to);
    for (const id of (await attachedTo(template)).filter((it) => !there.includes(it))) {
      const network = (await ask('inspect', (abortSignal) => docker.getContainer(id).inspect({ abortSignal })).catch(
        () => undefined, // It may have ended.
      )) as AttachedContainer | undefined;
      // Purser's own containers are leases, not services of the operator.
      if (!network || Object.keys(network.Config.Labels ?? {}).some((it) => it.startsWith('purser.'))) continue;
      const names = network.NetworkSettings.Networks[template]?.Aliases ?? [];
      const Aliases = [...new Set([network.Name.replace(/^\//, ''), ...names])].filter((it) => !id.startsWith(it));
      // The operator's container keeps its route to the outside.
      const EndpointConfig = { Aliases, GwPriority: -1 };
      await engine.request('POST', `/networks/${to}/connect`, { Container: id, EndpointConfig });
    }
  }

  async function prepare(name: string): Promise<string> {
    const from = await look(template);
    // Only a bridge can be made again: other networks are bound to a device, or span machines. `check` names them.
    if (from?.driver !== 'bridge') return template;
    if (!(await look(name))) await make(name, from);
    await connectServices(name);
    return name;
  }

  const members = (name?: string) =>
    ask('list', (abortSignal) =>
      docker.listContainers({
        all: true,
        filters: { label: [name === undefined ? NETWORK_LABEL : `${NETWORK_LABEL}=${name}`] },
        abortSignal,
      }),
    );

  return {
    within: (name, make) =>
      template === 'none' ? make(template) : serially(name, async () => make(await prepare(name))),

    release: (name) =>
      serially(name, async () => {
        const network = await look(name);
        if (network?.labels?.[NETWORK_LABEL] !== name || (await members(name)).length) return;
        const handle = docker.getNetwork(name);
        for (const Container of await attachedTo(name))
          await ask('disconnect', (abortSignal) => handle.disconnect({ Container, Force: true, abortSignal }));
        await ask('network', (abortSignal) => handle.remove({ abortSignal }));
      }),

    async listUnused(prefix) {
      const ours = (await listMade()).filter(
        ({ name, labels }) => name.startsWith(prefix) && labels?.[NETWORK_LABEL] === name,
      );
      if (!ours.length) return [];
      const used = new Set((await members()).map(({ Labels }) => Labels[NETWORK_LABEL]));
      return ours
        .filter(({ name }) => !used.has(name))
        .map(({ name, created }) => ({ name, createdAt: Math.floor(Date.parse(created) / 1000) }));
    },
  };
}

/** Returns the calls that differ between Docker and Podman. */
function openNetworkApi(engine: Engine) {
  /**
   * Podman is asked by its own API only. Its Docker API does not take `isolate`, and forgets the option of a network that
   * it shows, until the configuration is read again (4.3.1).
   */
  const libpod = '/v4.0.0/libpod/networks';

  async function look(name: string): Promise<EngineNetwork | undefined> {
    try {
      if (await engine.isPodman()) return await engine.request<EngineNetwork>('GET', `${libpod}/${name}/json`);
      return fromDocker(await engine.request<DockerNetwork>('GET', `/networks/${name}`));
    } catch (error) {
      if (statusOf(error) === 404) return undefined;
      throw error;
    }
  }

  async function listMade(): Promise<EngineNetwork[]> {
    const query = { filters: { label: [NETWORK_LABEL] } };
    if (await engine.isPodman()) return engine.request<EngineNetwork[]>('GET', `${libpod}/json?`, query);
    return (await engine.request<DockerNetwork[]>('GET', '/networks?', query)).map(fromDocker);
  }

  async function make(name: string, { internal, options }: EngineNetwork): Promise<void> {
    const copied = Object.fromEntries(
      Object.entries(options ?? {}).filter(([option]) => COPIED_OPTIONS.includes(option)),
    );
    const labels = { [NETWORK_LABEL]: name };
    try {
      if (await engine.isPodman())
        await engine.request('POST', `${libpod}/create`, {
          ...{ name, driver: 'bridge', internal, labels, dns_enabled: true },
          options: { ...copied, isolate: 'true' },
        });
      else
        await engine.request('POST', '/networks/create', {
          ...{ Name: name, Driver: 'bridge', Internal: internal, Labels: labels },
          ...{ CheckDuplicate: true, Options: copied },
        });
    } catch (error) {
      if (/fully subnetted|non-overlapping|no free.*subnet/i.test(textOf(error))) throw new NoSubnet(textOf(error));
      throw error;
    }
  }

  return { look, listMade, make };
}
