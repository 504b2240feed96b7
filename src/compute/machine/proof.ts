import { inTime } from '../../net/deadline.ts';
import type { ExecOrder, ExecResult } from '../backend.ts';

const ORDER = { timeoutSeconds: 20, streamBytesMax: 64 * 1024 };
const LATE_MILLISECONDS = 25_000;
const LIST = 'nvidia-smi -L';
const NO_TOOL = 'no nvidia-smi';

/**
 * Tries a machine before it is sold: a command has to run, and `nvidia-smi -L` to show the requested GPUs. Returns the fault, or
 * undefined. With `mayLackTool`, a machine without nvidia-smi passes: its GPUs may be of another vendor.
 */
export async function faultOf(
  exec: (order: ExecOrder) => Promise<ExecResult>,
  gpus = 0,
  { mayLackTool = false } = {},
): Promise<string | undefined> {
  const count = mayLackTool ? `command -v nvidia-smi >/dev/null || { echo ${NO_TOOL}; exit; }; ${LIST}` : LIST;
  const command = gpus === 0 ? 'true' : count;
  let result: ExecResult;
  try {
    result = await inTime(exec({ command, ...ORDER }), LATE_MILLISECONDS, `\`${command}\``);
  } catch (error) {
    return `it runs, but nothing can be run in it: ${(error as Error).message}`;
  }
  const stdout = result.stdout.toString();
  const words = result.stderr.toString().trim() || (gpus === 0 ? stdout.trim() : ''); // Docker prints its reason on either.
  const inWords = words ? ` (${words.split('\n').at(-1)?.slice(0, 200)})` : '';
  if (gpus === 0 && result.exitCode === 0) return undefined;
  if (gpus === 0) return `it runs, but \`true\` ended with exit code ${result.exitCode} in it${inWords}`;
  const seen = countGpus(stdout);
  if (seen >= gpus || (mayLackTool && stdout.trim() === NO_TOOL)) return undefined;
  return `${LIST} shows ${seen} of ${gpus} GPUs inside${inWords}`;
}

/** Counts the GPUs in the output of `nvidia-smi -L`: one per line; of a divided GPU each part counts instead. */
export function countGpus(listed: string): number {
  let count = 0;
  for (const [block] of listed.matchAll(/^GPU \d+:.*(?:\n\s+MIG .*)*/gm))
    count += Math.max(1, block.split('\n').length - 1);
  return count;
}
