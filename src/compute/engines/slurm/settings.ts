import { userInfo } from 'node:os';
import * as v from 'valibot';
import type { Backend, Surroundings } from '../../backend.ts';
import { noEgress } from '../../kit/egress.ts';
import { above0, CLOUD_PROVISION_SECONDS, hourly, limits, whole } from '../../kit/fields.ts';

/** Jobs of a Slurm cluster: the settings, the notes for the operator, and how the backend is opened. */

/** The name of the user that this process runs as, where it has one. */
function ownUser(): string | undefined {
  try {
    return userInfo().username;
  } catch {
    return undefined; // A number without a name.
  }
}
const notOurs = (name: string) => name !== 'root' && name !== ownUser();
const word = (of: RegExp) => v.pipe(v.string(), v.maxLength(200), v.regex(of, 'has characters that Slurm cannot take'));

const jobUser = v.pipe(
  word(/^[A-Za-z_][\w.-]*$/),
  v.check(notOurs, 'must be neither root nor the user that Purser runs as: what is leased runs as this user'),
);

/** The resources that a job requests for each chip. */
const Fields = v.strictObject({
  backend: v.literal('slurm'),
  /** The user that all leases run as. */
  job_user: v.optional(jobUser),
  /** The users that leases run as, one lease at a time each. */
  job_users: v.optional(
    v.pipe(
      v.array(jobUser),
      v.minLength(1, 'names nobody'),
      v.maxLength(1000),
      v.check((names) => new Set(names).size === names.length, 'has a user twice'),
    ),
  ),
  /** The job users run only Purser's jobs: any other job of theirs is ended like an orphan. */
  exclusive_user: v.optional(v.boolean(), false),
  partition: v.optional(word(/^[\w.][\w.,-]*$/)),
  /** Path of Slurm's configuration, if Slurm does not find it by itself. */
  slurm_conf: v.optional(v.pipe(v.string(), v.regex(/^\//, 'must be an absolute path'))),
  chips: v.pipe(
    v.record(
      v.pipe(v.string(), v.minLength(1), v.maxLength(100)),
      v.strictObject({
        gres: v.optional(word(/^[A-Za-z][\w.:,-]*$/)),
        cpus: whole(1, 100_000),
        memory_gib: above0,
        price_hourly_usd: hourly,
      }),
    ),
    v.check((chips) => Object.keys(chips).length > 0, 'has no chip'),
  ),
  limits,
  egress: noEgress('a job is in the network of its node, which Purser does not filter'),
  provision_seconds: v.optional(whole(1, 86_400), CLOUD_PROVISION_SECONDS),
});

const Slurm = v.pipe(
  Fields,
  v.forward(
    v.check(
      ({ job_user, job_users }) => (job_user === undefined) !== (job_users === undefined),
      'give either job_user or job_users',
    ),
    ['job_user'],
  ),
);

export const slots = { provider_two: Slurm };
export type SlurmSettings = v.InferOutput<typeof Slurm>;

export function notes({ job_users: users, job_user: user }: SlurmSettings): string[] {
  return [
    users
      ? 'each lease has a user of its own; what else keeps tenants apart is the cluster’s configuration, and `purser doctor` says what that is'
      : `all tenants are the one user ${user}, so they can read, signal and enter each other; give job_users where they do not trust each other`,
  ];
}

export async function open(settings: SlurmSettings, { prefix, leases, now }: Surroundings): Promise<Backend> {
  const { openSlurmBackend } = await import('./slurm.ts');
  return openSlurmBackend(settings, { prefix, leases, now });
}
