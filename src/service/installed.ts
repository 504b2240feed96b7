import { existsSync, readFileSync } from 'node:fs';
import { parseEnv } from 'node:util';
import { runProgram } from './program.ts';
import { SERVICE } from './unit.ts';

/** The service as systemd knows it, with the drop-ins of this machine. */
export type Installed = {
  /** Empty for root, as a site sets it for Slurm. */
  user: string;
  group: string;
  supplementaryGroups: readonly string[];
  environment: Readonly<Record<string, string>>;
  data: string;
};

/** Returns the installed service; undefined without systemd or without the unit. Throws where systemd does not answer. */
export function findInstalled(): Installed | undefined {
  const names = ['LoadState', 'User', 'Group', 'SupplementaryGroups', 'Environment', 'EnvironmentFiles'];
  const { status, stdout } = runProgram('systemctl', 'show', SERVICE.unit, `--property=${names.join(',')}`);
  const lines = stdout.split('\n').map(splitAt);
  const values = new Map(lines);
  if (status !== 0 || values.get('LoadState') !== 'loaded') return undefined;
  const named = lines
    .filter(([name]) => name === 'EnvironmentFiles')
    .map(([, it]) => it.replace(/ \(ignore_errors=\w+\)$/, ''));
  const environment: Record<string, string> = Object.assign(
    Object.fromEntries(words(values.get('Environment') ?? '').map(splitAt)),
    ...named.map(variablesIn),
  );
  const user = values.get('User') ?? '';
  return {
    user: user === 'root' ? '' : user,
    group: values.get('Group') ?? '',
    supplementaryGroups: words(values.get('SupplementaryGroups') ?? ''),
    environment,
    data: environment.PURSER_DATA ?? SERVICE.data,
  };
}

/** Returns the variables of a file as systemd reads it for the service; none where there is no file. */
export const variablesIn = (file: string): Record<string, string | undefined> =>
  existsSync(file) ? parseEnv(readFileSync(file, 'utf8')) : {};

function splitAt(line: string): [string, string] {
  const at = line.indexOf('=');
  return [line.slice(0, at), line.slice(at + 1)];
}

const ESCAPED: Readonly<Record<string, string>> = { n: '\n', t: '\t', r: '\r' };

/** Splits a list as systemd prints it: words between spaces, in double quotes or `$'…'` where a character needs it. */
export function words(text: string): string[] {
  const found: string[] = [];
  for (const [, escaped, quoted, plain] of text.matchAll(/\$'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(\S+)/g))
    found.push(plain ?? (escaped ?? quoted ?? '').replace(/\\(.)/g, (_, it: string) => ESCAPED[it] ?? it));
  return found;
}
