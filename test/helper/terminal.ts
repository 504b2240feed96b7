import { type ChildProcess, spawn } from 'node:child_process';
import type { TestContext } from 'node:test';
import { waitFor } from './waiting.ts';

export type Terminal = {
  child: ChildProcess;
  /** Returns all output to the terminal so far, without carriage returns before line feeds. */
  screen(): string;
  type(text: string): void;
  /** Resolves with the first match in the output, without control sequences. */
  shows(what: RegExp): Promise<RegExpExecArray>;
  /** Resolves with the exit code. */
  ended: Promise<number | null>;
};

const CONTROLS = new RegExp(`${'\u001b'}\\[[\\d;?]*[A-Za-z]`, 'g');
/** Removes the control sequences of a screen. */
export const withoutControls = (screen: string) => screen.replaceAll(CONTROLS, '');

const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;

/** Runs a program on its own terminal (script(1)) with this many columns. It ends with the test. */
export function onTerminal(
  t: Pick<TestContext, 'after'>,
  command: readonly string[],
  { columns = 80, env = {} }: { columns?: number; env?: Record<string, string> } = {},
): Terminal {
  const line = `stty cols ${columns} rows 40; exec ${command.map(quoted).join(' ')}`;
  const child = spawn('script', ['--quiet', '--return', '--command', line, '/dev/null'], {
    env: { PATH: process.env.PATH ?? '/usr/bin:/bin', TERM: 'xterm-256color', SHELL: '/bin/sh', ...env },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  let told = '';
  const waiting = new Set<() => void>();
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    told += text;
    for (const check of [...waiting]) check();
  });
  const screen = () => told.replaceAll('\r\n', '\n');
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
  t.after(async () => {
    child.kill('SIGKILL'); // Its terminal ends with it, and the program gets SIGHUP.
    await ended;
  });
  return {
    child,
    screen,
    type: (text) => void child.stdin.write(text),
    shows(what) {
      const seen = Promise.withResolvers<RegExpExecArray>();
      const check = () => {
        const found = what.exec(withoutControls(screen()));
        if (found) seen.resolve(found);
      };
      waiting.add(check);
      check();
      return waitFor(
        () => `the terminal shows ${what}:\n${screen()}`,
        seen.promise.finally(() => waiting.delete(check)),
      );
    },
    ended,
  };
}
