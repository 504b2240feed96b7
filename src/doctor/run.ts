import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import type { CheckFinding } from '../compute/backend.ts';
import type { Config } from '../config/config.ts';
import { runOwn } from '../files/own-command.ts';

/** The calls that the checks make have limits of their own, which together may take longer. */
const LIMIT_MILLISECONDS = 120_000;
const OUTPUT_BYTES_MAX = 4 * 1024 * 1024;

/**
 * Returns the function with which a server examines its installation by `purser doctor` in another process, as the books are read
 * as a whole. Concurrent calls share their findings. Throws `conflict` when the process does not end in time. The signal of a stop
 * ends it.
 */
export function createDoctor(
  { dataDirectory, file }: Pick<Config, 'dataDirectory' | 'file'>,
  stopping: AbortSignal,
  limitMilliseconds = LIMIT_MILLISECONDS,
): () => Promise<CheckFinding[]> {
  const args = ['--data', dataDirectory, ...(file === undefined ? [] : ['--config', file]), '--json', 'doctor'];
  let running: Promise<CheckFinding[]> | undefined;
  async function examine(): Promise<CheckFinding[]> {
    const limits = { timeout: limitMilliseconds, killSignal: 'SIGKILL', maxBuffer: OUTPUT_BYTES_MAX } as const;
    const { stdout, error } = await runOwn(args, { ...limits, signal: stopping });
    if (stopping.aborted) throw new Refusal('read_only', 'The server is stopping: the examination was ended.');
    if (error?.killed)
      throw new Refusal(
        'conflict',
        `The examination did not end within ${limitMilliseconds / 1000} s, and was stopped. Run it where Purser runs: purser doctor`,
      );
    try {
      return (parseJson(stdout) as { checks: CheckFinding[] }).checks.map(({ name, ok, detail }) => ({
        name,
        ok,
        detail,
      }));
    } catch {
      throw new Error('`purser doctor` printed no findings', { cause: error });
    }
  }
  return () => {
    running ??= examine().finally(() => {
      running = undefined;
    });
    return running;
  };
}
