import { createHash } from 'node:crypto';
import type { SecretsOrder } from '../../backend.ts';
import { type Claim, claimOf, GIB, labelsOf } from '../../kit/claim.ts';
import { egressVariables } from '../../kit/egress.ts';
import { SECRETS_LABEL, trustVariables } from '../../kit/trust.ts';
import { WATCHDOG_PATH } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { powerArguments } from './power.ts';
import { contentsOf, type LxdSettings } from './settings.ts';

const CPU_PERIOD_MILLISECONDS = 100;

/** Returns the setting `limits.cpu.allowance` for this many CPUs, and at least 1 ms in 100 ms: less the kernel does not take. */
export const allowanceOf = (cpus: number) =>
  `${Math.max(1, Math.round(cpus * CPU_PERIOD_MILLISECONDS))}ms/${CPU_PERIOD_MILLISECONDS}ms`;

/**
 * Returns the name of a tag's instance, always the same: LXD refuses a second instance of that name. A name has at most 63
 * characters, fewer than a tag, so the tag itself is in the instance's configuration.
 */
export const nameOf = (tag: string) => `purser-${createHash('sha256').update(tag).digest('hex').slice(0, 32)}`;
/** Returns whether an instance may be a lease, judged by its name. */
export const isLeaseName = (name: string) => /^purser-[0-9a-f]{32}$/.test(name);
/** Returns whether an instance may be a lease or the keeper of one. */
export const isOwnName = (name: string) => isLeaseName(name.replace('purser-keeper-', 'purser-'));

/** An instance as `GET /1.0/instances` lists it. */
export type LxdInstance = {
  name: string;
  type?: string;
  status: string;
  status_code: number;
  architecture: string;
  created_at: string;
  /** The member of the cluster, or `none`. */
  location: string;
  /** Missing where the member does not answer. */
  config?: Record<string, string> | null;
  devices?: Record<string, Record<string, string>> | null;
};

export const isMachine = ({ type }: LxdInstance): boolean => type === 'virtual-machine';

/** Returns the query that has an instance made on the member of the cluster that this one is on. */
export const targetOf = ({ location }: LxdInstance) =>
  location && location !== 'none' ? `?target=${encodeURIComponent(location)}` : '';

/** The keys in which LXD keeps the state of an instance and the facts about its image. */
const OF_THE_IMAGE = /^(volatile|image)\./;

type Wanted = { config: Record<string, string>; devices: Record<string, Record<string, string>> };
/** Returns the configuration and the devices of a copy of an instance: these alone. A copy has all those that it does not name. */
export function withoutOthers({ config, devices }: LxdInstance, wanted: Wanted): Wanted {
  const keys = Object.keys(config ?? {}).filter((key) => !OF_THE_IMAGE.test(key));
  const names = Object.keys(devices ?? {});
  return {
    config: { ...Object.fromEntries(keys.map((key) => [key, ''])), ...wanted.config },
    devices: { ...Object.fromEntries(names.map((name) => [name, { type: 'none' }])), ...wanted.devices },
  };
}

const USER_KEY = 'user.';
export const CREATED_KEY = 'user.purser.created';
const SECRETS_KEY = USER_KEY + SECRETS_LABEL;

/** Returns whether an instance was made with secrets. A copy of one has its configuration, and another name. */
export const hasSecrets = ({ name, config }: LxdInstance): boolean => nameOf(config?.[SECRETS_KEY] ?? '') === name;

/** Returns the claim of an instance from its configuration. The keys are the labels of the container backend. */
export const claimIn = ({ config }: LxdInstance): Claim =>
  claimOf(
    Object.fromEntries(
      Object.entries(config ?? {}).flatMap(([key, value]) =>
        key.startsWith(USER_KEY) ? [[key.slice(USER_KEY.length), value]] : [],
      ),
    ),
  );

/** Every capability that Linux has (capabilities(7)): liblxc has no keyword for all of them. */
const CAPABILITIES = `audit_control audit_read audit_write block_suspend bpf checkpoint_restore chown dac_override
dac_read_search fowner fsetid ipc_lock ipc_owner kill lease linux_immutable mac_admin mac_override mknod net_admin
net_bind_service net_broadcast net_raw perfmon setfcap setgid setpcap setuid sys_admin sys_boot sys_chroot sys_module
sys_nice sys_pacct sys_ptrace sys_rawio sys_resource sys_time sys_tty_config syslog wake_alarm`.replace(/\s+/g, ' ');

/** The configuration of every instance: the server starts none by itself. */
export const SHARED_CONFIG = { 'boot.autostart': 'false' };
/** A virtual machine and its keeper stay on one member of a cluster. */
export const STAYING = { 'cluster.evacuate': 'stop' };

/**
 * Returns the configuration that LXD has no setting for (lxc.container.conf(5)): process 1 is the watchdog, no process inside has
 * or gains a capability, and there is a loopback, down in a container without a network. The hook runs before process 1, by the
 * `ip` of LXD's machine; where that lacks it, a lease has no loopback. liblxc adds arguments, which the shell ignores.
 */
export const rawOf = (watchdogArguments: string) =>
  [
    `lxc.init.cmd = ${WATCHDOG_PATH} ${watchdogArguments}`,
    `lxc.init.uid = ${WATCHDOG_USER}`,
    `lxc.init.gid = ${WATCHDOG_USER}`,
    'lxc.no_new_privs = 1',
    `lxc.cap.drop = ${CAPABILITIES}`,
    'lxc.hook.mount = /bin/sh -c "ip link set lo up || :"',
  ].join('\n');

/** The requests that make a subvolume of btrfs, or a snapshot of one (ioctl_btrfs(2)), each in two versions. */
const MAKE_SUBVOLUME = ['0x5000940e', '0x50009418', '0x50009401', '0x50009417'];
/**
 * System calls that are refused beside those that LXD refuses. The owner of a directory may make a subvolume in it, whose files no
 * quota of the instance counts. The kernel reads only the lower 32 bits of a request.
 */
const REFUSED_CALLS = MAKE_SUBVOLUME.map((it) => `ioctl errno 1 [1,${it},SCMP_CMP_MASKED_EQ,0xffffffff]`).join('\n');

type InstanceOrder = {
  claim: Claim;
  deadline: number;
  created: number;
  isIncus: boolean;
  secrets: SecretsOrder | undefined;
  /** The instance of a snapshot, which it is a copy of. */
  from: LxdInstance | undefined;
};

/** Returns the body of `POST /1.0/instances`: a limited instance without any profile of the operator's. */
export function describeInstance(settings: LxdSettings, order: InstanceOrder): object {
  const { claim, created, isIncus, secrets, from } = order;
  const { image, type } = contentsOf(settings, claim.offer);
  const variables = Object.entries({ ...egressVariables(settings, claim.offer), ...trustVariables(secrets) });
  const labels = Object.entries(labelsOf(claim)).map(([key, value]) => [USER_KEY + key, value]);
  const wanted = {
    config: {
      ...Object.fromEntries(labels),
      ...Object.fromEntries(variables.map(([name, value]) => [`environment.${name}`, value])),
      [CREATED_KEY]: String(created),
      ...(secrets ? { [SECRETS_KEY]: claim.tag } : {}),
      ...SHARED_CONFIG,
      'limits.cpu': String(Math.ceil(claim.cpus)),
      'limits.memory': `${Math.round(claim.memoryGib * GIB)}`,
      [isIncus ? 'security.guestapi' : 'security.devlxd']: 'false',
      ...(type === 'container' ? configOfContainer(settings, order) : configOfMachine(order)),
    },
    devices: {
      root: { type: 'disk', path: '/', pool: settings.pool, size: `${claim.diskGb}GiB` },
    },
  };
  return {
    name: nameOf(claim.tag),
    type,
    profiles: [],
    ...(from
      ? { source: { type: 'copy', source: from.name, instance_only: true }, ...withoutOthers(from, wanted) }
      : { source: { type: 'image', ...sourceOf(image) }, ...wanted }),
  };
}

/** Returns the configuration of an unprivileged container that ends itself. */
const configOfContainer = ({ pids }: LxdSettings, { claim, deadline }: InstanceOrder) => ({
  'limits.cpu.allowance': allowanceOf(claim.cpus),
  'limits.memory.swap': 'false',
  'limits.processes': String(pids),
  'security.privileged': 'false',
  'security.nesting': 'false',
  // No other container has the same users outside.
  'security.idmap.isolated': 'true',
  'security.syscalls.deny': REFUSED_CALLS,
  'raw.lxc': rawOf(String(deadline)),
});

/** Returns the configuration of a virtual machine whose power is lent to its keeper. Most images have no signature of their kernel. */
const configOfMachine = ({ claim }: InstanceOrder) => ({
  ...STAYING,
  'security.secureboot': 'false',
  'raw.qemu': powerArguments(claim.tag),
});

const FINGERPRINT = /^[0-9a-f]{12,64}$/;
const sourceOf = (image: string) => (FINGERPRINT.test(image) ? { fingerprint: image } : { alias: image });
/** Returns the path that shows an image, and whether it names an alias of it. */
export const imagePath = (image: string) =>
  FINGERPRINT.test(image) ? `/1.0/images/${image}` : `/1.0/images/aliases/${encodeURIComponent(image)}`;
