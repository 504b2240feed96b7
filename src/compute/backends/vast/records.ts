import { randomBytes } from 'node:crypto';
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** What this backend keeps of one rented machine, beside what Vast knows of it. */
export type VastRecord = {
  tag: string;
  /** Unix seconds at which Vast said that it exists, and whether it has been seen since: Vast's lists lag. */
  madeAt: number;
  seen: boolean;
  /** The seed of its own SSH key, and whether the machine has been given the public half. */
  seed: string;
  attached: boolean;
  /** The host key that it showed first, base64. */
  hostKey: string | undefined;
  /** What stands in the machine's deadline file, where that is known here. */
  deadline: number | undefined;
};

/**
 * One small file a machine, readable by the owner alone. It may be lost: then the machine gets another key, and is asked
 * for its deadline.
 */
export function createVastRecords(root: string) {
  const file = (ref: string) => join(root, `vast-${ref}.json`);
  const read = (ref: string): VastRecord | undefined => {
    try {
      return JSON.parse(readFileSync(file(ref), 'utf8'));
    } catch {
      return undefined;
    }
  };
  const write = (ref: string, record: VastRecord) => {
    mkdirSync(root, { recursive: true, mode: 0o755 });
    const fresh = `${file(ref)}.new`;
    writeFileSync(fresh, JSON.stringify(record), { mode: 0o600, flush: true });
    renameSync(fresh, file(ref));
    return record;
  };
  return {
    read,
    /** The record of a machine, a new one when there is none. */
    keep(ref: string, tag: string, change: Partial<VastRecord> = {}): VastRecord {
      const known = read(ref);
      if (known) return known;
      const seed = randomBytes(32).toString('base64');
      return write(ref, {
        ...{ tag, madeAt: 0, seen: true, seed, attached: false, hostKey: undefined, deadline: undefined },
        ...change,
      });
    },
    /** Changes a record that is there. */
    change(ref: string, change: Partial<VastRecord>): void {
      const known = read(ref);
      if (known) write(ref, { ...known, ...change });
    },
    remove: (ref: string) => rmSync(file(ref), { force: true }),
  };
}
