import { statSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Command } from 'commander';
import { adoptEnvironment, namedDataDirectory, settingsFile } from '../src/config/config.ts';
import { SERVICE } from '../src/service/unit.ts';
import { type Globals, rootOf } from './context.ts';

/** Commands that root runs as root: they need no installation, or change the machine. */
const AS_ROOT = ['install', 'upgrade', 'demo', 'version', 'licenses', 'completion'];
/** A command that changes the settings, which are root's unless a unit of an administrator's has them beside the books. */
const CHANGES_SETTINGS = 'models import';

/**
 * Before a command of root's: where the service is installed and no other data directory is named, continues on the service's
 * directory, with its variables, as its user. Otherwise `purser wallet create` of root's would be refused on the service's books,
 * or would make books of its own in the directory where it happens to run.
 */
export async function actAsService(command: Command): Promise<void> {
  const name = nameOf(command);
  if (process.getuid?.() !== 0 || AS_ROOT.includes(name)) return;
  const globals = command.optsWithGlobals<Globals>();
  const named = namedDataDirectory(globals);
  if (named !== undefined && named !== SERVICE.data) return;
  const { findInstalled } = await import('../src/service/installed.ts');
  const installed = findInstalled();
  if (!installed || (named !== undefined && named !== installed.data)) return;
  if (name === 'run') {
    // The program is root's, who started it, and must not see the service's secrets, so neither user nor environment changes.
    rootOf(command).setOptionValue('data', installed.data).setOptionValue('ofService', true);
    return;
  }
  adoptEnvironment({ ...installed.environment, PURSER_DATA: installed.data }, installed.data);
  if (name === CHANGES_SETTINGS && areRoots(settingsFile(globals))) return;
  const { becomeServiceUser } = await import('../src/service/act.ts');
  becomeServiceUser(installed);
}

/** Returns whether only root can change a file of settings, or put a link in its place that leads root elsewhere. */
function areRoots(file: string | undefined): boolean {
  return file !== undefined && [dirname(file), file].every((it) => statSync(it, { throwIfNoEntry: false })?.uid === 0);
}

/** Returns the words that call a command, as `wallet create`. */
function nameOf(command: Command): string {
  const words: string[] = [];
  for (let it: Command | null = command; it?.parent; it = it.parent) words.unshift(it.name());
  return words.join(' ');
}
