import { randomBytes } from 'node:crypto';
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseJson } from '../../../base/parse-json.ts';

/** The record that Purser keeps about one rented machine, beyond what Vast knows. */
export type VastRecord = {
  tag: string;
  /** Unix seconds at which Vast confirmed it, and whether a list has shown it since: Vast's lists lag. */
  madeAt: number;
  seen: boolean;
  /** The seed of its own SSH key, and whether the machine has been given the public half. */
  seed: string;
  attached: boolean;
  /** The first host key the machine showed, base64. */
  hostKey: string | undefined;
  /** The content of the machine's deadline file, if known. */
  deadline: number | undefined;
};

/**
 * Keeps one small file per machine, readable by the owner only. If one is lost, the machine gets another key and is
 * asked for its deadline.
 */
export function createVastRecords(root: string) {
  const file = (ref: string) => join(root, `vast-${ref}.json`);
  const read = (ref: string): VastRecord | undefined => {
    try {
      return parseJson(readFileSync(file(ref), 'utf8')) as VastRecord;
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
    /** Returns the record of a machine; writes a new one with `change` when there is none. */
    keep(ref: string, tag: string, change: Partial<VastRecord> = {}): VastRecord {
      const known = read(ref);
      if (known) return known;
      const seed = randomBytes(32).toString('base64');
      return write(ref, {
        ...{ tag, madeAt: 0, seen: true, seed, attached: false, hostKey: undefined, deadline: undefined },
        ...change,
      });
    },
    /** Changes a record if it exists. */
    change(ref: string, change: Partial<VastRecord>): void {
      const known = read(ref);
      if (known) write(ref, { ...known, ...change });
    },
    remove: (ref: string) => rmSync(file(ref), { force: true }),
  };
}
