import type { ChildProcessWithoutNullStreams } from 'node:child_process';
import { startProgram } from '../../../files/programs.ts';
import { onOneLine } from '../../kit/one-line.ts';
import { collect } from '../../machine/collect.ts';

/** Slurm's own programs as child processes: an argument list, no shell, and an environment without Purser's variables. */

export const CALL_MILLISECONDS = 60_000;
const STDERR_BYTES_MAX = 64 * 1024;
/** The most bytes of output, enough for a list of a quarter of a million jobs. Longer output is cut, and then refused. */
const STDOUT_BYTES_MAX = 32 * 1024 * 1024;

const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin';

export type User = { name: string; uid: number; gid: number };
export type CommandResult = { code: number; stdout: string; stderr: string };
/** The program was never started, so nothing reached Slurm. */
export class NeverStarted extends Error {}

export type SlurmCommands = {
  /**
   * Runs a program to its end, as root or as `user`. Throws when it cannot be started, is killed, takes too long or
   * prints too much.
   */
  run(argv: readonly string[], input?: string, user?: User): Promise<CommandResult>;
  /** Starts a program as another user. The caller watches it. Throws NeverStarted where no descriptor is left. */
  start(argv: readonly string[], user: User): ChildProcessWithoutNullStreams;
};

export function createSlurmCommands(slurmConf: string | undefined): SlurmCommands {
  const base = { PATH, LC_ALL: 'C', ...(slurmConf === undefined ? {} : { SLURM_CONF: slurmConf }) };
  // Times come as Unix seconds, whatever time zone the cluster uses.
  const env = { ...base, TZ: 'UTC', SLURM_TIME_FORMAT: '%s' };
  const begin = ([program, ...args]: readonly string[], environment: Record<string, string>, user?: User) => {
    const options = {
      env: environment,
      cwd: '/',
      stdio: 'pipe',
      ...(user && { uid: user.uid, gid: user.gid }),
    } as const;
    try {
      return startProgram(program as string, args, options);
    } catch (error) {
      throw new NeverStarted((error as Error).message);
    }
  };

  return {
    start: (argv, user) => begin(argv, base, user),
    async run(argv, input = '', user) {
      const what = argv[0] as string;
      // sbatch passes its environment on to the job.
      const child = begin(argv, what === 'sbatch' ? base : env, user);
      let late = false;
      const timer = setTimeout(() => {
        late = true;
        child.kill('SIGKILL');
      }, CALL_MILLISECONDS);
      const ended = new Promise<{ code: number | null; signal: string | null }>((resolve, reject) => {
        child.once('error', (error) => reject(new NeverStarted(`${what} cannot be started: ${error.message}`)));
        child.once('exit', (code, signal) => resolve({ code, signal }));
      });
      child.stdin.on('error', () => {}); // It may leave its input unread; its exit code reports the result.
      child.stdin.end(input);
      const streams = Promise.all([collect(child.stdout, STDOUT_BYTES_MAX), collect(child.stderr, STDERR_BYTES_MAX)]);
      streams.catch(() => {}); // A program that never started has none.
      try {
        const { code, signal } = await ended;
        const [stdout, stderr] = await streams;
        if (late) throw new Error(`${what} took longer than ${CALL_MILLISECONDS / 1000} s`);
        if (code === null) throw new Error(`${what} was ended by ${signal}`);
        if (stdout.truncated) throw new Error(`${what} said more than ${STDOUT_BYTES_MAX} bytes`);
        return { code, stdout: stdout.bytes.toString(), stderr: stderr.bytes.toString() };
      } finally {
        clearTimeout(timer);
      }
    },
  };
}

/** Returns a failed program's error output, on one line. */
export const wordsOf = ({ stderr, stdout }: Pick<CommandResult, 'stderr' | 'stdout'>) =>
  onOneLine(stderr.trim() || stdout).slice(0, 300) || 'it said nothing';
