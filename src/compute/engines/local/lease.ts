import { type ChildProcessByStdio, execFile } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { promisify } from 'node:util';
import { Refusal } from '../../../base/refusal.ts';
import { startProgram } from '../../../files/programs.ts';
import type { Machine } from '../../backend.ts';
import { createDeadlineFiles } from './deadline-files.ts';
import { killAll, PATH } from './kill.ts';

/** A lease on this machine: a directory with its marks, a keeper, and the processes that carry its tag. */

/**
 * The variable with the tag that every process of a lease inherits, and is found by. The keeper has its own.
 * @NOTE A process that clears its environment, or hides it as ssh-agent does, is not found: a demo is not worth a namespace.
 */
const LEASED = 'PURSER_LEASE';
const KEEPING = 'PURSER_KEEPER';

const START_MILLISECONDS = 10_000;
const END_MILLISECONDS = 10_000;

/**
 * The lease's watchdog: at the deadline in the directory `$1`, or when Purser (the process `$3`) is gone, it kills every process
 * with the tag `$2`, and removes the directory. An unreadable deadline counts as passed. It needs a grep that can find the tag.
 */
const KEEPER = `directory=$1 tag=$2 owner=$3
grep -qzxF "${KEEPING}=$tag" "/proc/$$/environ" && echo $$ > "$directory/keeper" && echo ready || exit 1
exec > /dev/null 2>&1
while read -r pid name state parent rest < "/proc/$$/stat" && [ "$parent" = "$owner" ] &&
  read -r deadline < "$directory/deadline" && [ "$(date +%s)" -lt "$deadline" ]; do
  sleep 1
done
chmod 700 "$directory" && rm -f "$directory/keeper"
for look in 1 2; do
  while found=$(grep -lzxsF "${LEASED}=$tag" /proc/[0-9]*/environ); [ -n "$found" ]; do
    for it in $found; do
      it=\${it#/proc/}; kill -KILL "\${it%/environ}"
    done
    sleep 0.05
  done
  sleep 0.05
done
chmod -R u+rwx "$directory"
rm -rf "$directory"`;

/** Creates access to the leases below the directory `root`, each in a directory named after its tag. */
export function createLeases(root: string) {
  const deadlines = createDeadlineFiles(root);
  const { directory } = deadlines;
  const at = (tag: string, name: string) => join(directory(tag), name);

  /** Returns whether the keeper is alive. Its process id is trusted only if that process carries the keeper's mark. */
  function isKept(tag: string): boolean {
    try {
      const pid = readFileSync(at(tag, 'keeper'), 'utf8').trim();
      return readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').includes(`${KEEPING}=${tag}`);
    } catch {
      return false; // One of the two files is gone.
    }
  }

  function inspect(tag: string): Machine | undefined {
    if (!existsSync(directory(tag))) return undefined;
    const deadline = deadlines.read(tag);
    return { ref: tag, state: isKept(tag) ? 'running' : 'ended', ...(deadline === undefined ? {} : { deadline }) };
  }

  return {
    inspect,
    setDeadline: deadlines.write,
    createdAt: (tag: string) => Number(readFileSync(at(tag, 'created'), 'utf8')),

    /** The tags of all leases. */
    list(): string[] {
      if (!existsSync(root)) return [];
      return readdirSync(root).filter((name) => !name.startsWith('.'));
    },

    /** Makes the directory, whole or not at all. */
    make(tag: string, createdAt: number, deadline: number): void {
      const fresh = `.new-${tag}`;
      rmSync(directory(fresh), { recursive: true, force: true });
      mkdirSync(at(fresh, 'home/tmp'), { recursive: true, mode: 0o700 });
      writeFileSync(at(fresh, 'created'), `${createdAt}\n`);
      deadlines.write(fresh, deadline);
      renameSync(directory(fresh), directory(tag));
    },

    /** Starts the keeper in a session of its own. Rejects when it does not start. */
    async keep(tag: string): Promise<void> {
      const keeper = startProgram('/bin/sh', ['-c', KEEPER, 'purser', directory(tag), tag, String(process.pid)], {
        cwd: '/',
        env: { PATH, [KEEPING]: tag },
        detached: true,
        stdio: ['ignore', 'pipe', 'ignore'],
      });
      keeper.unref();
      await untilBegun(keeper);
    },

    /** Kills the keeper and all that the lease started, and removes the directory when no process is left. Throws if not. */
    async end(tag: string): Promise<void> {
      if (!existsSync(directory(tag))) return;
      chmodSync(directory(tag), 0o700); // Its tenant may have locked it.
      rmSync(at(tag, 'keeper'), { force: true }); // From here on nothing is started in it.
      await killAll([`${LEASED}=${tag}`, `${KEEPING}=${tag}`]);
      if (!existsSync(directory(tag))) return; // Its keeper removed it first.
      await unlock(directory(tag));
      await rm(directory(tag), { recursive: true, force: true });
    },

    /** Returns the home of the lease's processes, and their whole environment. Refuses once the lease has ended. */
    enter(tag: string): { home: string; env: Record<string, string> } {
      if (!isKept(tag)) throw new Refusal('resource_not_active', 'The lease has ended.');
      const home = at(tag, 'home');
      const env = { PATH, HOME: home, TMPDIR: join(home, 'tmp'), LANG: 'C.UTF-8', TERM: 'dumb', [LEASED]: tag };
      return { home, env };
    },
  };
}

/** Waits for the first output of a keeper. Rejects when it ends before, or takes too long. */
async function untilBegun(keeper: ChildProcessByStdio<null, Readable, null>): Promise<void> {
  const begun = Promise.withResolvers<void>();
  keeper.once('error', begun.reject);
  keeper.once('exit', () => begun.reject(new Error('its keeper, a script for sh, grep and date, ended at once')));
  keeper.stdout.once('data', () => begun.resolve());
  const late = new Error(`its keeper did not begin within ${START_MILLISECONDS} ms`);
  const timer = setTimeout(() => begun.reject(late), START_MILLISECONDS);
  try {
    await begun.promise;
  } finally {
    clearTimeout(timer);
    keeper.stdout.destroy();
  }
}

/** Makes folders removable that a tenant may have made unremovable. */
async function unlock(directory: string): Promise<void> {
  const options = { cwd: '/', env: { PATH }, timeout: END_MILLISECONDS, killSignal: 'SIGKILL' } as const;
  await promisify(execFile)('chmod', ['-R', 'u+rwx', directory], options).catch(() => {}); // What is left, rm reports.
}
