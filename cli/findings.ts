import type { CheckFinding } from '../src/compute/backend.ts';
import { WARNING } from '../src/compute/finding.ts';
import { onOneLine } from '../src/compute/kit/one-line.ts';
import type { Globals } from './context.ts';
import { print, show } from './report.ts';
import { type Tone, toned } from './terminal.ts';

/**
 * Prints the findings of a check, or a JSON object of them and `more`, and sets the exit code: 1 if one of them is a fault.
 */
export function report(checks: readonly CheckFinding[], { json }: Globals, more: object = {}): void {
  const ok = checks.every((check) => check.ok);
  if (json) print(JSON.stringify({ ok, ...more, checks }));
  else for (const check of checks) show(lineOf(check));
  process.exitCode = ok ? 0 : 1;
}

/** Returns a finding as one line, after its level as a word in a column of four characters. */
export function lineOf(finding: CheckFinding): string {
  const { ok, detail } = finding;
  const [tone, word]: [Tone, string] = !ok
    ? ['bad', 'BAD']
    : detail.startsWith(WARNING)
      ? ['warn', 'warn']
      : ['good', 'ok'];
  return `${toned(tone, word)}${' '.repeat(4 - word.length)} ${plainLine(finding)}`;
}

/**
 * Returns a finding as one line without its level, for the log. What a command in a trial machine printed may be in it, and must
 * not look like another finding.
 */
export const plainLine = ({ name, detail }: CheckFinding) =>
  onOneLine(`${name}: ${detail.startsWith(WARNING) ? detail.slice(WARNING.length) : detail}`);
