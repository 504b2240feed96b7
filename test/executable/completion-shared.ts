import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { TestContext } from 'node:test';
import { EXECUTABLE, run } from '../helper/executable.ts';
import { temporaryDirectory } from '../ledger/books.ts';

/** Lines before the cursor, and words that have to be offered there, or must not be. */
export const CASES: [line: string, offered: string[], not: string[]][] = [
  ['purser wal', ['wallet'], ['account']],
  ['purser wallet ', ['create', 'close', 'timeline'], ['wallet']],
  ['purser --data /tmp wallet cl', ['close'], ['create']],
  ['purser wallet close --', ['--yes', '--account', '--wait', '--json', '--data'], ['--budget-cents']],
  ['purser spend --by ', ['model', 'wallet', 'tag'], ['spend']],
  ['purser wallet create --name agent --bud', ['--budget', '--budget-cents'], ['--name']],
  ['purser completion ', ['bash', 'zsh', 'fish'], ['wallet']],
  ['purser backup fi', ['file.db'], []],
];

export async function scriptOf(t: TestContext, shell: string) {
  const { code, stdout } = await run(['completion', shell]);
  assert.equal(code, 0);
  const directory = temporaryDirectory(t);
  writeFileSync(join(directory, 'file.db'), '');
  const script = join(directory, 'purser.completion');
  writeFileSync(script, stdout);
  return { directory, script, text: stdout };
}

/** The scripts ask the executable on the PATH. */
export const PATH = `${dirname(EXECUTABLE)}:${process.env.PATH}`;

export const ask = (program: string, args: string[], cwd: string) =>
  new Promise<string>((resolve, reject) =>
    execFile(program, args, { cwd, env: { ...process.env, PATH } }, (error, stdout, stderr) =>
      error || stderr ? reject(error ?? new Error(stderr)) : resolve(stdout),
    ),
  );
