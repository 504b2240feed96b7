import { mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { writeDurablySync } from '../../../files/durable-file.ts';

/** Records older than this belong to no lease that could still be alive. */
const KEPT_SECONDS = 90 * 86_400;

/** A host's name, and its `identity`, by which the same host is recognised. */
type RecordedHost = { name: string; identity: string };

/**
 * Records which host was asked to make the machine of a tag, written before the host is asked. With it, a host that is
 * down blocks only its own leases; without it, every host has to be asked.
 */
type HostRecords = {
  write(tag: string, host: RecordedHost, deadline: number): void;
  /** Returns the one host that may have made the machine; undefined when that is not known. */
  read(tag: string): RecordedHost | undefined;
};

export function createHostRecords(root: string): HostRecords {
  let isPruned = false;
  const read = (tag: string): string[] => {
    try {
      return readFileSync(join(root, tag), 'utf8').split('\n');
    } catch {
      return [];
    }
  };
  function prune(deadline: number): void {
    isPruned = true;
    for (const tag of readdirSync(root)) {
      const written = Number(read(tag)[1]);
      if (Number.isFinite(written) && written < deadline - KEPT_SECONDS) rmSync(join(root, tag), { force: true });
    }
  }
  return {
    write(tag, host, deadline) {
      mkdirSync(root, { recursive: true, mode: 0o700 });
      if (!isPruned) prune(deadline);
      // Durably, name included: an older record must not come back after a power cut.
      writeDurablySync(join(root, tag), `${host.name}\n${deadline}\n${host.identity}\n`);
    },
    read(tag) {
      const [name, , identity] = read(tag);
      return name && identity ? { name, identity } : undefined;
    },
  };
}
