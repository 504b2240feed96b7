import {
  closeSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';

/** Records older than this belong to no lease that could still be alive. */
const KEPT_SECONDS = 90 * 86_400;

/** A host's name, and its `place`, which tells whether it is still that host. Older records have no `place`. */
export type AskedHost = { name: string; place: string | undefined };

/**
 * Records which host was asked to make the machine of a tag, written before the host is asked. With it, a host that is
 * down blocks only its own leases; without it, every host has to be asked.
 */
export type Asked = {
  write(tag: string, host: AskedHost, deadline: number): void;
  /** The one host that may have made the machine; undefined when that is not known. */
  read(tag: string): AskedHost | undefined;
};

export function createAsked(root: string): Asked {
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
      const fresh = join(root, `${tag}.new`);
      writeFileSync(fresh, `${host.name}\n${deadline}\n${host.place}\n`, { mode: 0o600, flush: true });
      renameSync(fresh, join(root, tag));
      const directory = openSync(root, 'r');
      try {
        fsyncSync(directory); // An older record must not come back after a power cut.
      } finally {
        closeSync(directory);
      }
    },
    read(tag) {
      const [name, , place] = read(tag);
      return name ? { name, place: place || undefined } : undefined;
    },
  };
}
