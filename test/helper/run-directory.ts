import {
  accessSync,
  appendFileSync,
  chmodSync,
  constants,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statfsSync,
  statSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

/** The directory of one run of the tests, which contains all its temporary files. */
export type RunDirectory = {
  path: string;
  /** The temporary directory of its tests. */
  temporary: string;
  /** The temporary directory of tests that need a disk (test/helper/on-disk.ts). */
  onDisk: string;
  /** Returns the processor time of each test process of the run, by its file, in seconds. */
  processorSeconds(): Map<string, number>;
  /** Returns what the run has left behind, processes, mounts and files, and removes the directory. */
  close(): Promise<string[]>;
};

/** Short, since the path of a Unix socket has at most 107 bytes. */
const PREFIX = 'pt-';
/** A killed process with a lot of memory still exists for a moment. */
const ENDING_MILLISECONDS = 30_000;
const LOOK_MILLISECONDS = 100;
const LEFT_NAMES_MAX = 20;

const timesIn = (directory: string) => join(directory, 'times');

const MEMORY = '/dev/shm';
const MEMORY_BYTES_MIN = 2 * 1024 ** 3;

/**
 * Returns the directory for temporary files of tests that neither cut the power nor have to wait for a disk: in memory where
 * there is room, unless TMPDIR is set.
 */
export function memoryDirectory(): string {
  try {
    const { bavail, bsize } = statfsSync(MEMORY);
    accessSync(MEMORY, constants.W_OK);
    if (process.env.TMPDIR === undefined && bavail * bsize >= MEMORY_BYTES_MIN) return MEMORY;
  } catch {
    // The directory does not exist, or must not be written.
  }
  return tmpdir();
}

export function openRunDirectory({ isInMemory = false } = {}): RunDirectory {
  const [path, onDisk] = [isInMemory ? memoryDirectory() : tmpdir(), tmpdir()].map((parent) => {
    const directory = mkdtempSync(join(parent, PREFIX));
    mkdirSync(join(directory, 't'));
    // Tests run programs as other users, too.
    chmodSync(directory, 0o755);
    chmodSync(join(directory, 't'), 0o1777);
    return directory;
  }) as [string, string];
  const both = [path, onDisk];
  return {
    path,
    temporary: join(path, 't'),
    onDisk: join(onDisk, 't'),
    processorSeconds() {
      const text = existsSync(timesIn(path)) ? readFileSync(timesIn(path), 'utf8') : '';
      const lines = text.split('\n').filter(Boolean);
      return new Map(lines.map((it) => it.split('\t') as [string, string]).map(([file, time]) => [file, Number(time)]));
    },
    async close() {
      for (let waited = 0; processesOf(both).length && waited < ENDING_MILLISECONDS; waited += LOOK_MILLISECONDS)
        await pause(LOOK_MILLISECONDS);
      const mounts = readFileSync('/proc/mounts', 'utf8').split('\n');
      const left = [
        ...processesOf(both),
        ...mounts.filter((it) => both.some((of) => it.includes(`${of}/`))).map((it) => `mount ${it.split(' ')[1]}`),
        ...both.flatMap((of) =>
          readdirSync(join(of, 't')).map((it) => `file ${join(of, 't', it)}${contentOf(join(of, 't', it))}`),
        ),
      ];
      if (!left.some((it) => it.startsWith('mount')))
        for (const it of both) rmSync(it, { recursive: true, force: true });
      return left;
    },
  };
}

/** Returns the first names in a directory that was left, which tell whose it was. */
function contentOf(path: string): string {
  if (!statSync(path, { throwIfNoEntry: false })?.isDirectory()) return '';
  const names = readdirSync(path, { recursive: true, encoding: 'utf8' });
  return `: ${names.slice(0, LEFT_NAMES_MAX).join(', ') || 'empty'}`;
}

/** Records the processor time of this process, and of those that it started and waited for, when it exits. */
export function noteProcessorTime(directory: string, file: string): void {
  process.once('exit', () => appendFileSync(timesIn(directory), `${file}\t${processorSeconds().toFixed(2)}\n`));
}

/** Returns the processor time of this process and of all below it that have been waited for, in seconds. */
export function processorSeconds(): number {
  const TICKS_PER_SECOND = 100; // Of Linux, for every kernel.
  const stat = readFileSync('/proc/self/stat', 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  const ticks = fields.slice(11, 15).reduce((sum, it) => sum + Number(it), 0); // proc(5): utime, stime, cutime, cstime
  return ticks / TICKS_PER_SECOND;
}

/** Returns the processes that a run has started: their environment, arguments or directory name one of its directories. */
function processesOf(directories: readonly string[]): string[] {
  const pids = readdirSync('/proc').filter((it) => /^\d+$/.test(it) && Number(it) !== process.pid);
  return pids.flatMap((pid) => {
    try {
      const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').trim();
      const environment = readFileSync(`/proc/${pid}/environ`, 'utf8');
      const where = readlinkSync(`/proc/${pid}/cwd`);
      const isOurs = [command, environment, where].some((it) => directories.some((of) => it.includes(of)));
      return isOurs ? [`process ${pid}: ${command}`] : [];
    } catch {
      return []; // It has ended, or it is another user's.
    }
  });
}
