import { readdirSync, readFileSync, realpathSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { parseDocument } from 'yaml';
import type { Config } from './config.ts';
import { excessIn } from './excess.ts';

/** Names of the settings files of other programs, and likely misspellings of ours. */
const NAMES = /^(purser|config|settings)\.(ya?ml|json|toml)$/i;
/** Settings that hardly any other program has at the top of its file. */
const OURS = ['router', 'compute', 'public_url', 'child_wallets', 'drain_seconds', 'trusted_proxies'];

/**
 * Returns a sentence for each file in the data directory or beside it that looks like settings of Purser and is not read:
 * a wrong name (purser.yml) or a wrong place (beside the data directory).
 */
export function unreadFiles({ dataDirectory, file }: Pick<Config, 'dataDirectory' | 'file'>): string[] {
  const read = join(dataDirectory, 'purser.yaml');
  const inUse = file === undefined ? undefined : whole(file);
  return [dataDirectory, dirname(dataDirectory)].flatMap((directory) =>
    namesIn(directory)
      .map((name) => join(directory, name))
      .filter((path) => whole(path) !== inUse && (basename(path).startsWith('purser.') || isOurs(path)))
      .map((path) =>
        file === undefined
          ? `${path} is not read. Settings are read from ${read}: move it there, or name it with --config.`
          : `${path} is not read: the settings are those of ${file}.`,
      ),
  );
}

function namesIn(directory: string): string[] {
  try {
    return readdirSync(directory).filter((name) => NAMES.test(name));
  } catch {
    return []; // It is not there yet, or may not be listed.
  }
}

function whole(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return path;
  }
}

function isOurs(path: string): boolean {
  try {
    const text = readFileSync(path, 'utf8');
    if (excessIn(text)) return false;
    const document = parseDocument(text, { prettyErrors: false });
    return OURS.some((name) => document.has(name));
  } catch {
    return false;
  }
}
