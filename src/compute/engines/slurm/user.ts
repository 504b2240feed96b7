import { join } from 'node:path';
import { createClaimRecords } from './claim-records.ts';
import { CALL_MILLISECONDS, type SlurmCommands, type User, wordsOf } from './command.ts';
import type { SlurmSettings } from './settings.ts';

/** A submission of unknown outcome may still be in the controller's message queue; its user stays claimed this long. */
const DOUBTED_MILLISECONDS = 120_000;

export type UserClaim = { user: User; settle(outcome: 'known' | 'unknown'): void };
export type JobUsers = {
  /** All job users, in the order configured. Throws when one cannot be found. */
  all(): Promise<readonly [User, ...User[]]>;
  /**
   * Claims the user for a new job: `job_user`, or the first of `job_users` without a job or a claim; undefined when none is free.
   * No other job gets that user until the claim is settled, once Slurm has answered.
   */
  claim(busy: () => Promise<ReadonlySet<number>>): Promise<UserClaim | undefined>;
  /** The user that `claim` would claim now. */
  free(busy: () => Promise<ReadonlySet<number>>): Promise<User | undefined>;
};

/** Creates the job users. `leases` is the backend's directory: claims of `job_users` that are not settled outlive the process in it. */
export function createJobUsers(
  slurm: SlurmCommands,
  { job_user: one, job_users: many }: Pick<SlurmSettings, 'job_user' | 'job_users'>,
  { leases, now }: { leases: string; now: () => number },
): JobUsers {
  const names = many ?? [one as string];
  let lookup: Promise<User[]> | undefined;
  const records = createClaimRecords(join(leases, 'slurm'), now);
  /** The end of each user's claim, in milliseconds of process time. */
  const claimedUntil = new Map<number, number>();
  /** The records of other processes that have been seen. */
  const seen = new Map<number, string>();

  /** Claims the users of other processes' submissions for as long as one of this process that is in doubt. */
  function claimForOthers(): void {
    for (const { uid, text } of records.others((CALL_MILLISECONDS + DOUBTED_MILLISECONDS) / 1000)) {
      if (seen.get(uid) === text) continue;
      seen.set(uid, text);
      claimedUntil.set(uid, Math.max(claimedUntil.get(uid) ?? 0, performance.now() + DOUBTED_MILLISECONDS));
    }
  }
  if (many) claimForOthers();

  /** Looks up all job users. A failure is not cached. */
  async function all() {
    lookup ??= Promise.all(names.map(find)).catch((error) => {
      lookup = undefined;
      throw error;
    });
    return (await lookup) as [User, ...User[]];
  }

  async function find(name: string): Promise<User> {
    const number = async (flag: string) => {
      const result = await slurm.run(['id', flag, '--', name]);
      if (result.code !== 0 || !/^\d+\n$/.test(result.stdout))
        throw new Error(`job_user ${name} cannot be found: ${wordsOf(result)}`);
      return Number(result.stdout);
    };
    const [uid, gid] = [await number('-u'), await number('-g')];
    if (uid === 0 || uid === process.getuid?.()) throw new Error(`job_user ${name} is root or Purser's own user`);
    return { name, uid, gid };
  }

  /** Finds the user for a new job; undefined when none is free. `then` runs before anything else can find the same one. */
  async function findFree(busy: () => Promise<ReadonlySet<number>>, then: (user: User) => void = () => {}) {
    const users = await all();
    if (!many) return users[0];
    const began = performance.now();
    const usedIds = await busy();
    claimForOthers();
    // The list may have been made before the job of a claim that was settled after it began.
    const user = users.find(({ uid }) => !usedIds.has(uid) && (claimedUntil.get(uid) ?? 0) < began);
    if (user) then(user);
    return user;
  }

  return {
    all,
    free: (busy) => findFree(busy),
    async claim(busy) {
      const user = await findFree(busy, ({ uid }) => {
        records.write(uid);
        claimedUntil.set(uid, Number.POSITIVE_INFINITY);
      });
      if (!user) return undefined;
      if (!many) return { user, settle() {} };
      return {
        user,
        settle(outcome) {
          claimedUntil.set(user.uid, performance.now() + (outcome === 'known' ? 0 : DOUBTED_MILLISECONDS));
          if (outcome === 'known') records.remove(user.uid);
        },
      };
    },
  };
}
