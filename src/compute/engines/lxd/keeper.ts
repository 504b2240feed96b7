import { createHash } from 'node:crypto';
import type { Ref } from '../../backend.ts';
import { pack } from '../../kit/tar.ts';
import { MOVE_MILLISECONDS, RUNNING_WATCHDOG, WATCHDOG_PATH } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { isAbsent, type LxdApi, LxdRefusal, succeeded } from './api.ts';
import { CREATED_KEY, type LxdInstance, nameOf, rawOf, SHARED_CONFIG, STAYING } from './describe.ts';
import { watchdogOf } from './files.ts';
import type { LxdHost } from './host.ts';
import { CHANGE_MILLISECONDS, type LxdInstances, stateOf } from './instances.ts';
import { powerAddress } from './power.ts';
import { runProgram } from './program.ts';
import type { LxdSettings } from './settings.ts';

/**
 * The keeper of a virtual machine: a container beside it whose first process is the watchdog. It holds the machine's deadline and
 * its power: the chardev of a management controller that QEMU lends it. It has no rights in LXD. Root inside the machine can talk
 * to that controller, but neither remove it nor speak for the other side.
 */

const KEEPS_KEY = 'user.purser.keeps';
const DOOR = '/power';

export const keeperOf = (ref: Ref): string => ref.replace('purser-', 'purser-keeper-');
/** Returns the tag of the machine that this instance keeps, if it is a keeper; not for a copy of one. */
export function keptTag({ name, config }: LxdInstance): string | undefined {
  const tag = config?.[KEEPS_KEY];
  return tag !== undefined && name === keeperOf(nameOf(tag)) ? tag : undefined;
}

/** Returns the image of every keeper: the watchdog, and what LXD mounts on. */
function packImage(architecture: string): Buffer {
  const directory = (name: string) => ({ name, mode: 0o755, owner: 0 });
  return pack(
    {
      ...{ name: 'metadata.yaml', mode: 0o644, owner: 0 },
      content: Buffer.from(
        `architecture: ${architecture}\ncreation_date: 1\nproperties: { description: keeper of Purser }\n`,
      ),
    },
    ...['rootfs', 'rootfs/proc', 'rootfs/sys', 'rootfs/dev'].map(directory),
    { name: `rootfs${WATCHDOG_PATH}`, content: watchdogOf(architecture), mode: 0o555, owner: WATCHDOG_USER },
  );
}

type KeeperOrder = { tag: string; deadline: number; created: number; fingerprint: string };

function describeKeeper(settings: LxdSettings, { tag, deadline, created, fingerprint }: KeeperOrder): object {
  const owner = String(WATCHDOG_USER);
  return {
    name: keeperOf(nameOf(tag)),
    type: 'container',
    source: { type: 'image', fingerprint },
    profiles: [],
    config: {
      ...SHARED_CONFIG,
      ...STAYING,
      [KEEPS_KEY]: tag,
      [CREATED_KEY]: String(created),
      'limits.memory': '64MiB',
      'limits.processes': '32',
      'security.privileged': 'false',
      'security.nesting': 'false',
      'raw.lxc': rawOf(`keep ${deadline}`),
    },
    devices: {
      root: { type: 'disk', path: '/', pool: settings.pool },
      power: {
        ...{ type: 'proxy', bind: 'instance', listen: `unix:${DOOR}`, connect: powerAddress(tag) },
        ...{ uid: owner, gid: owner, mode: '0600' },
      },
    },
  };
}

export type Keepers = ReturnType<typeof createKeepers>;

/** Creates the calls for the keepers of the settings' machines. */
export function createKeepers(
  lxd: LxdApi,
  settings: LxdSettings,
  { instances, host }: { instances: LxdInstances; host: LxdHost },
) {
  /** Has the server have the image. Returns its fingerprint, by which LXD knows what it has already. */
  async function haveImage(): Promise<string> {
    const image = packImage(await host.architecture());
    const fingerprint = createHash('sha256').update(image).digest('hex');
    const isThere = () =>
      lxd.ask('GET', `/1.0/images/${fingerprint}`).then(
        () => true,
        (error) => {
          if (!isAbsent(error)) throw error;
          return false;
        },
      );
    if (await isThere()) return fingerprint;
    const headers = { 'content-type': 'application/octet-stream', 'X-LXD-filename': 'keeper.tar' };
    const { id } = await lxd.ask<{ id: string }>('POST', '/1.0/images', image, { headers });
    const operation = await lxd.wait(id, AbortSignal.timeout(CHANGE_MILLISECONDS));
    if (!(await isThere())) succeeded(operation); // Another create may have been quicker.
    return fingerprint;
  }

  const run = (ref: Ref, ...args: string[]) =>
    runProgram(lxd, keeperOf(ref), WATCHDOG_USER, [RUNNING_WATCHDOG, ...args], MOVE_MILLISECONDS);

  return {
    /**
     * Has a keeper run for the machine of a tag: one that is there keeps its deadline. Returns its instance. Throws LxdRefusal, and
     * another error where the outcome is unknown.
     */
    async begin(tag: string, deadline: number, created: number): Promise<LxdInstance> {
      const name = keeperOf(nameOf(tag));
      if (!(await instances.look(name))) {
        const wanted = describeKeeper(settings, { tag, deadline, created, fingerprint: await haveImage() });
        await lxd.run('POST', '/1.0/instances', wanted, CHANGE_MILLISECONDS);
      }
      const keeper = await instances.look(name);
      if (!keeper || keptTag(keeper) !== tag) throw new LxdRefusal(`${name} is something else`, 409);
      if (stateOf(keeper) !== 'ended') return keeper;
      await lxd.run('PUT', `/1.0/instances/${name}/state`, { action: 'start', timeout: 30 }, CHANGE_MILLISECONDS);
      return keeper;
    },

    /**
     * Returns the instance whose first process holds the deadline of a machine. Throws LxdRefusal for a virtual machine that does not
     * run: its keeper, which does, would take a deadline for nothing.
     */
    async holderOf(ref: Ref): Promise<Ref> {
      if (!(await instances.isMachine(ref))) return ref;
      const machine = await instances.settled(ref);
      if (!machine || stateOf(machine) === 'ended') throw new LxdRefusal(`${ref} is not running`, 400);
      return keeperOf(ref) as Ref;
    },

    /** Returns the keeper of a machine; undefined when the server confirms that there is none. */
    look: (ref: Ref) => instances.look(keeperOf(ref)),
    remove: (ref: Ref) => instances.remove(keeperOf(ref)),
    /** Returns whether the keeper of a machine holds its power. */
    holds: async (ref: Ref) => (await run(ref, 'held')).exitCode === 0,
    /** Returns the seconds since the boot of the kernel of LXD's machine. */
    bootSeconds: async (ref: Ref) => Number((await run(ref, 'boot')).stdout),
  };
}
