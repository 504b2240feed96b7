import { createHash } from 'node:crypto';
import type { SecretsOrder } from '../../backend.ts';
import { type Claim, claimOf, GIB, labelsOf } from '../../kit/claim.ts';
import { egressVariables } from '../../kit/egress.ts';
import { SECRETS_LABEL, trustVariables } from '../../kit/trust.ts';
import { WATCHDOG_PATH } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import type { LxdSettings } from './settings.ts';

const CPU_PERIOD_MILLISECONDS = 100;

/** Returns the setting `limits.cpu.allowance` for this many CPUs, and at least 1 ms in 100 ms: less the kernel does not take. */
export const allowanceOf = (cpus: number) =>
  `${Math.max(1, Math.round(cpus * CPU_PERIOD_MILLISECONDS))}ms/${CPU_PERIOD_MILLISECONDS}ms`;

/**
 * Returns the name of a tag's instance. A name has at most 63 characters, fewer than a tag, so the tag itself is kept in the
 * instance's configuration. The same tag always makes the same name: LXD refuses a second instance of that name.
 */
export const nameOf = (tag: string) => `purser-${createHash('sha256').update(tag).digest('hex').slice(0, 32)}`;
/** Returns whether an instance may be a lease, judged by its name. */
export const isLeaseName = (name: string) => /^purser-[0-9a-f]{32}$/.test(name);

/** An instance as `GET /1.0/instances` lists it. */
export type LxdInstance = {
  name: string;
  status: string;
  status_code: number;
  architecture: string;
  created_at: string;
  /** The member of the cluster, or `none`. */
  location: string;
  /** Missing where the member does not answer. */
  config?: Record<string, string> | null;
};

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

/**
 * Returns the configuration that LXD has no setting for (lxc.container.conf(5)): process 1 is the watchdog, no process inside has
 * or gains a capability, and there is a loopback. In a container without a network it is down, and no process inside may change
 * that. The hook runs before process 1, by the `ip` of LXD's machine; where that lacks it, a lease has no loopback. liblxc adds
 * arguments, which the shell ignores.
 */
const raw = (deadline: number) =>
  [
    `lxc.init.cmd = ${WATCHDOG_PATH} ${deadline}`,
    `lxc.init.uid = ${WATCHDOG_USER}`,
    `lxc.init.gid = ${WATCHDOG_USER}`,
    'lxc.no_new_privs = 1',
    `lxc.cap.drop = ${CAPABILITIES}`,
    'lxc.hook.mount = /bin/sh -c "ip link set lo up || :"',
  ].join('\n');

type InstanceOrder = {
  claim: Claim;
  deadline: number;
  created: number;
  isIncus: boolean;
  secrets: SecretsOrder | undefined;
};

/** Returns the body of `POST /1.0/instances`: an unprivileged, limited container without any profile of the operator's. */
export function describeInstance(
  settings: LxdSettings,
  { claim, deadline, created, isIncus, secrets }: InstanceOrder,
): object {
  const variables = Object.entries({ ...egressVariables(settings, claim.offer), ...trustVariables(secrets) });
  const labels = Object.entries(labelsOf(claim)).map(([key, value]) => [USER_KEY + key, value]);
  return {
    name: nameOf(claim.tag),
    type: 'container',
    source: { type: 'image', ...sourceOf(imageOf(settings, claim.offer)) },
    profiles: [],
    config: {
      ...Object.fromEntries(labels),
      ...Object.fromEntries(variables.map(([name, value]) => [`environment.${name}`, value])),
      [CREATED_KEY]: String(created),
      ...(secrets ? { [SECRETS_KEY]: claim.tag } : {}),
      'boot.autostart': 'false',
      'limits.cpu': String(Math.ceil(claim.cpus)),
      'limits.cpu.allowance': allowanceOf(claim.cpus),
      'limits.memory': `${Math.round(claim.memoryGib * GIB)}`,
      'limits.memory.swap': 'false',
      'limits.processes': String(settings.pids),
      'security.privileged': 'false',
      'security.nesting': 'false',
      // No other container has the same users outside.
      'security.idmap.isolated': 'true',
      [isIncus ? 'security.guestapi' : 'security.devlxd']: 'false',
      'raw.lxc': raw(deadline),
    },
    devices: {
      root: { type: 'disk', path: '/', pool: settings.pool, size: `${claim.diskGb}GiB` },
    },
  };
}

/** Returns the image that a lease is made from: that of its offer, else that of the backend's settings. */
export const imageOf = (settings: LxdSettings, offerId: string | undefined): string =>
  ('offers' in settings ? settings.offers.find(({ id }) => id === offerId)?.image : undefined) ?? settings.image;
/** Returns every image that leases are made from, each once. */
export const imagesOf = (settings: LxdSettings): string[] => [
  ...new Set(
    'offers' in settings ? settings.offers.map(({ id }) => imageOf(settings, id)) : [imageOf(settings, undefined)],
  ),
];

const FINGERPRINT = /^[0-9a-f]{12,64}$/;
const sourceOf = (image: string) => (FINGERPRINT.test(image) ? { fingerprint: image } : { alias: image });
/** Returns the path that shows an image, and whether it names an alias of it. */
export const imagePath = (image: string) =>
  FINGERPRINT.test(image) ? `/1.0/images/${image}` : `/1.0/images/aliases/${encodeURIComponent(image)}`;
