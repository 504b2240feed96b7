import * as v from 'valibot';
import type { Backend, Surroundings } from '../../backend.ts';
import { noEgress } from '../../kit/egress.ts';
import { hostKey, hourly, limits, whole } from '../../kit/fields.ts';

/** A pool of hosts reached by SSH: the settings, the notes for the operator, and how the backend is opened. */

/** A pool of hosts. Each host has one tenant at a time. */
const Ssh = v.strictObject({
  backend: v.literal('ssh'),
  hosts: v.pipe(
    v.array(
      v.strictObject({
        chip: v.pipe(v.string(), v.minLength(1), v.maxLength(100)),
        /** The host is leased only while at least this many GPUs answer. */
        gpus: v.optional(whole(0, 64), 0),
        address: v.pipe(v.string(), v.regex(/^[\w.:-]+$/, 'must be a name or an address')),
        port: v.optional(whole(1, 65_535), 22),
        user: v.optional(v.literal('root', 'must be root: tenants are users that it makes and removes'), 'root'),
        host_key: hostKey,
        identity_file: v.pipe(v.string(), v.minLength(1)),
        /** The directory in which the host keeps its record of the tenant and of the user ids it has given out. */
        state_directory: v.optional(
          v.pipe(v.string(), v.regex(/^(\/[\w-][\w.-]*)+$/, 'must be a plain absolute path')),
          '/var/lib/purser-pool',
        ),
        price_hourly_usd: hourly,
      }),
    ),
    v.minLength(1),
    v.check(
      (hosts) => new Set(hosts.map(({ address, port }) => `${address}:${port}`)).size === hosts.length,
      'two hosts have the same address and port',
    ),
    v.check(
      (hosts) => hosts.every((a) => hosts.every((b) => a.chip !== b.chip || a.price_hourly_usd === b.price_hourly_usd)),
      'hosts of one chip have different prices',
    ),
  ),
  limits,
  egress: noEgress('a tenant is in the network of its host, which Purser does not filter'),
  provision_seconds: v.optional(whole(1, 86_400), 60),
});

export const slots = { provider_two: Ssh };
export type SshSettings = v.InferOutput<typeof Ssh>;

export function notes({ hosts }: SshSettings): string[] {
  return [
    ...hosts
      .filter((host) => host.gpus === 0)
      .map(
        (host) => `GPUs of ${host.address}:${host.port} are not counted before it is leased; set gpus if it has some`,
      ),
    'a tenant has the whole host and its network; disk and traffic are not limited',
  ];
}

export async function open(settings: SshSettings, { leases, now }: Surroundings): Promise<Backend> {
  const { openSshBackend } = await import('./ssh.ts');
  return openSshBackend(settings, { leases, now });
}
