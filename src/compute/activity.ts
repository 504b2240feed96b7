/** Counts the commands, uploads, sessions and ports that are open into each machine. Kept in memory: none outlives the process. */
export type Activity = {
  /** Counts one more. Call the returned function when it has ended. */
  begin(resourceId: string): () => void;
  /** Returns how many are open at the moment. */
  open(resourceId: string): number;
  /** Returns whether any is open, or was at any time since this was last asked. */
  takeActivity(resourceId: string): boolean;
  /** Returns a number that changes when anything is begun; undefined unless exactly one is open. */
  alone(resourceId: string): number | undefined;
  /** Forgets a resource whose lease has ended. */
  forget(resourceId: string): void;
};

/** Creates the counts, all zero. */
export function createActivity(): Activity {
  const counts = new Map<string, number>();
  /** Resources for which something was begun since the last `takeActivity`. */
  const begun = new Set<string>();
  let begins = 0;
  /** The newest begin of each resource. */
  const newest = new Map<string, number>();
  const open = (resourceId: string) => counts.get(resourceId) ?? 0;
  return {
    begin(resourceId) {
      begun.add(resourceId);
      newest.set(resourceId, ++begins);
      counts.set(resourceId, open(resourceId) + 1);
      let isOpen = true;
      return () => {
        if (!isOpen) return;
        isOpen = false;
        const left = open(resourceId) - 1;
        if (left > 0) counts.set(resourceId, left);
        else counts.delete(resourceId);
      };
    },
    open,
    takeActivity: (resourceId) => begun.delete(resourceId) || open(resourceId) > 0,
    alone: (resourceId) => (open(resourceId) === 1 ? newest.get(resourceId) : undefined),
    forget(resourceId) {
      begun.delete(resourceId);
      newest.delete(resourceId);
    },
  };
}
