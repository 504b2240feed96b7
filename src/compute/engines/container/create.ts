import type { Backend, Created, SecretsOrder } from '../../backend.ts';
import { type Claim, labelsOf } from '../../kit/claim.ts';
import { refused } from '../../kit/created.ts';
import { SECRETS_LABEL, trustVariables } from '../../kit/trust.ts';
import type { Deadlines } from '../../kit/watchdog.ts';
import type { Containers } from './containers.ts';
import { type ContainerSpec, lacksRuntime, makeContainer, ONE_RUNTIME } from './describe.ts';
import { type Engine, statusOf, textOf, wasNeverSent } from './engine.ts';
import { lacksImage } from './image.ts';
import { NETWORK_LABEL, NoSubnet, type WalletNetworks } from './network.ts';
import { type ContainerSettings, contentsOf } from './settings.ts';
import { imageOfSnapshot } from './snapshots.ts';
import { putTrust } from './trust.ts';
import { putWatchdog } from './watchdog.ts';

export const CREATED_LABEL = 'purser.created';

export type ContainerOrder = Parameters<Backend['create']>[0];

type MakerParts = {
  prefix: string;
  now: () => number;
  containers: Containers;
  networks: WalletNetworks;
  deadlines: Deadlines;
};

/** Creates the call that makes a container for a claim and starts it. */
export function createMaker(
  engine: Engine,
  settings: ContainerSettings,
  { prefix, now, containers, networks, deadlines }: MakerParts,
) {
  /** Makes a container, and the network of its wallet, and starts it. Throws when the outcome is unknown. */
  async function make(order: ContainerOrder, claim: Claim): Promise<Created | 'no_image'> {
    const { tag, walletId } = order;
    // Another slot may have another network, which may reach more: a wallet has one like each.
    const name = walletId === undefined ? tag : `${prefix}${walletId.replace('_', '-')}-${settings.network}`;
    try {
      return await networks.within(name, (network) => makeIn(network, order, claim));
    } catch (error) {
      if (!(error instanceof NoSubnet)) throw error;
      return refused('No subnet is left for a network of this wallet', error.message, 'capacity_unavailable');
    }
  }

  async function makeIn(network: string, order: ContainerOrder, claim: Claim): Promise<Created | 'no_image'> {
    const { tag, deadline, secrets } = order;
    const { runtime } = contentsOf(settings, claim.offer);
    let isFresh = true;
    try {
      if (runtime !== undefined && (await engine.isPodman()))
        return refused(`There is no runtime ${runtime}`, ONE_RUNTIME);
      await makeContainer(engine, specOf(order, claim, { settings, network, now: now() }));
    } catch (error) {
      if (wasNeverSent(error)) return refused('The provider cannot be reached', textOf(error));
      if (statusOf(error) === undefined) throw error;
      if (lacksImage(error)) return 'no_image';
      if (lacksRuntime(error)) return refused(`There is no runtime ${runtime}`, textOf(error));
      // An answer means that nothing is under way: an earlier attempt has made the container, or there is none.
      const existing = await containers.look(tag);
      if (!existing) return refused('The provider refused the machine', textOf(error));
      if (existing.State.Status !== 'created') return { kind: 'created', ref: tag };
      isFresh = false; // It has the deadline of that attempt.
    }
    const started = await start(tag, runtime !== undefined, secrets);
    if (isFresh && started.kind === 'created') deadlines.note(tag, deadline);
    return started;
  }

  /** Starts an existing container. Throws when the outcome is unknown. */
  async function start(tag: string, hasDirectory: boolean, secrets: SecretsOrder | undefined): Promise<Created> {
    try {
      await engine.defaultsOf(tag); // A container in which no command can run must not be sold.
      await putWatchdog(engine, tag, { architecture: await engine.architecture(), hasDirectory });
      if (secrets) await putTrust(engine, tag, secrets);
      await engine.ask('start', (abortSignal) => engine.docker.getContainer(tag).start({ abortSignal }));
    } catch (error) {
      if (statusOf(error) !== 304) {
        // It exists and does not run: it is removed, and only a confirmed removal is a clear no.
        await containers.remove(tag);
        if (await containers.look(tag)) throw error;
        return refused('The provider could not start the machine', textOf(error));
      }
    }
    return { kind: 'created', ref: tag };
  }

  return make;
}

/** Describes the container of an order: what its settings put in it, within the claim of its offer. */
function specOf(
  { tag, deadline, isTrial = false, secrets, snapshot }: ContainerOrder,
  claim: Claim,
  { settings, network, now }: { settings: ContainerSettings; network: string; now: number },
): ContainerSpec {
  const contents = contentsOf(settings, claim.offer);
  return {
    name: tag,
    ...contents,
    ...(snapshot === undefined ? {} : { image: imageOfSnapshot(snapshot) }),
    env: { ...contents.env, ...trustVariables(secrets) },
    labels: {
      ...labelsOf(claim),
      [CREATED_LABEL]: String(now),
      ...(secrets ? { [SECRETS_LABEL]: tag } : {}),
      ...(network === 'none' ? {} : { [NETWORK_LABEL]: network }),
    },
    cpus: claim.cpus,
    memoryGib: claim.memoryGib,
    pids: settings.pids,
    network,
    deadline,
    devices: claim.devices,
    gpuMode: 'offers' in settings ? 'nvidia' : settings.gpu_mode,
    diskGb: claim.diskGb,
    keepsLog: isTrial,
  };
}
