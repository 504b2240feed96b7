import { existsSync, type Stats, statSync } from 'node:fs';
import type { Config } from './config.ts';

/** Thrown when other users of this machine could change Purser's files, or read its master key. */
export class OpenToOthersError extends Error {}

const octal = ({ mode }: Stats) => (mode & 0o7777).toString(8);
const isWritable = ({ mode }: Stats) => (mode & 0o022) !== 0;

/**
 * Refuses, as sshd's StrictModes does, a data directory or a configuration that others may write, and a master key that others may
 * read. Throws OpenToOthersError with every fault and its remedy. Only warns of a readable master key elsewhere: container runtimes
 * mount secrets like that.
 */
export function refuseOpenToOthers(
  { dataDirectory, file, masterKey }: Pick<Config, 'dataDirectory' | 'file' | 'masterKey'>,
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
        `${file} belongs to user ${it.uid}, who could redirect our keys to a server of theirs. Run: chown ${directory.uid} ${file}`,
      );
    if (isWritable(it))
      faults.push(
        `${file} can be changed by other users (mode ${octal(it)}), who could redirect our keys to a server of theirs. Run: chmod go-w ${file}`,
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

/**
 * Returns whether users who should not may read the master key. A key owned by root may be readable by a group that this
 * process is in: this is how a service gets its key.
 */
function isMasterKeyOpen({ mode, uid, gid }: Stats): boolean {
  const self = process.getuid?.() ?? uid;
  const isOurGroup = uid === 0 && self !== 0 && (process.getgroups?.() ?? []).includes(gid);
  return (mode & (isOurGroup ? 0o037 : 0o077)) !== 0;
}
