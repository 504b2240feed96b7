/** The parts of backends' settings that name the users of leases. */
type Users = { job_user?: string; job_users?: readonly string[] };

/**
 * Returns, in words, the first user that two backends of a slot give to leases while one of them gives it to a single lease at a
 * time; undefined if there is none. Each backend knows only its own claims.
 */
export function firstSharedUser(list: readonly (readonly [name: string, settings: object])[]): string | undefined {
  const all = list.map(([name, settings]) => ({ name, ...(settings as Users) }));
  for (const { name, job_users: own = [] } of all)
    for (const user of own) {
      const other = all.find((it) => it.name !== name && (it.job_user === user || it.job_users?.includes(user)));
      if (other)
        return `the job user ${user} is given to ${name} and to ${other.name}, so two leases could get the same user: give each backend job_users of its own`;
    }
  return undefined;
}
