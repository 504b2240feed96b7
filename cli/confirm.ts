import type { Command } from 'commander';
import { Refusal } from '../src/base/refusal.ts';
import { canAsk } from './terminal.ts';

/** Adds `--yes` to a command that cannot be undone: on a terminal such a command asks first (`confirm`). */
export const irreversible = (command: Command): Command =>
  command.option('-y, --yes', 'do not ask; without a terminal nothing is asked anyway');

/** Asks on stderr. Without an answer, as at Ctrl-D or Ctrl-C, returns `otherwise`. */
export async function askYesOrNo(question: string, otherwise = false): Promise<boolean> {
  const { createInterface } = await import('node:readline/promises');
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  const closed = new AbortController();
  terminal.once('close', () => closed.abort());
  try {
    const answer = await terminal.question(`${question} [${otherwise ? 'Y/n' : 'y/N'}] `, { signal: closed.signal });
    return answer.trim() ? /^y(es)?$/i.test(answer.trim()) : otherwise;
  } catch {
    process.stderr.write('\n');
    return false;
  } finally {
    terminal.close();
  }
}

/**
 * Asks before an action that cannot be undone, on a terminal and without --yes or --json. Scripts are not asked. Throws
 * `conflict` when the answer is not yes.
 */
export async function confirm(command: Command, question: string): Promise<void> {
  const { yes, json } = command.optsWithGlobals<{ yes?: boolean; json?: boolean }>();
  if (yes || json || !canAsk()) return;
  if (!(await askYesOrNo(question))) throw new Refusal('conflict', 'Nothing was changed.');
}

/** Asks like `confirm`, but throws `conflict` without a terminal: there the command needs --yes. */
export async function confirmAlways(command: Command, question: string): Promise<void> {
  if (command.optsWithGlobals<{ yes?: boolean }>().yes) return;
  if (!canAsk()) throw new Refusal('conflict', 'Nothing was changed. To do it, add --yes.');
  if (!(await askYesOrNo(question))) throw new Refusal('conflict', 'Nothing was changed.');
}
