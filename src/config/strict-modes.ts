import { existsSync, type Stats, statSync } from 'node:fs';
import type { Config, Secrets } from './config.ts';

/** Other users of this machine could change what Purser believes, or read its master key. */
export class OpenToOthersError extends Error {}

const octal = ({ mode }: Stats) => (mode & 0o7777).toString(8);
const isWritable = ({ mode }: Stats) => (mode & 0o022) !== 0;

/**
 * Refuses, as sshd's StrictModes does, a data directory or a configuration that others may write, and a master key that
 * others may read. Throws OpenToOthersError with every fault and its remedy. `warn` hears of a master key outside of the data
 * directory that others may read: container runtimes put secrets in place like that.
 */
export function refuseOpenToOthers(
  { dataDirectory, file }: Pick<Config, 'dataDirectory' | 'file'>,
  { masterKey }: Pick<Secrets, 'masterKey'>,
  warn: (sentence: string) => void,
): void {
  const faults: string[] = [];
  const directory = statSync(dataDirectory);
  if (isWritable(directory))
    faults.push(
      `${dataDirectory} can be written by other users (mode ${octal(directory)}), who could put files of theirs in it. Run: chmod go-w ${dataDirectory}`,
    );
  if (file !== undefined) {
    const it = statSync(file);
    if (it.uid !== 0 && it.uid !== directory.uid)
      faults.push(
        `${file} belongs to user ${it.uid}, who could have our keys sent to himself. Run: chown ${directory.uid} ${file}`,
      );
    if (isWritable(it))
      faults.push(
        `${file} can be changed by other users (mode ${octal(it)}), who could have our keys sent to themselves. Run: chmod go-w ${file}`,
      );
  }
  const { path } = masterKey;
  if (path !== undefined && existsSync(path)) {
    const it = statSync(path);
    const sentence = `${path} can be read by other users (mode ${octal(it)}), who could act as every wallet. Run: chmod 600 ${path}`;
    if (isMasterKeyOpen(it)) {
      if (masterKey.from === 'data directory') faults.push(sentence);
      else warn(sentence);
    }
  }
  if (faults.length) throw new OpenToOthersError(faults.join('\n'));
}

/** A key of root's may be readable by a group that we are in: that is how it is given to a service. */
function isMasterKeyOpen({ mode, uid, gid }: Stats): boolean {
  const self = process.getuid?.() ?? uid;
  const isOurGroup = uid === 0 && self !== 0 && (process.getgroups?.() ?? []).includes(gid);
  return (mode & (isOurGroup ? 0o037 : 0o077)) !== 0;
}
