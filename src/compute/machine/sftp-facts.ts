import { SftpFault, STATUS } from './sftp-fault.ts';

/** The name that `stat` prints for a user or group without one. */
const NAMELESS = 'UNKNOWN';
const UINT32_MAX = 2 ** 32 - 1;

/** The attributes of a file; those that a packet omits are undefined. Times are Unix seconds. */
export type FileAttributes = {
  size?: bigint;
  owner?: { uid: number; gid: number };
  mode?: number;
  times?: { accessed: number; modified: number };
};

export type Facts = { attributes: FileAttributes; links: number; user: string; group: string };

/** Parses the output of `stat` in the format of `SFTP_SCRIPT`. Throws SftpFault when it has another form. */
export function factsOf(output: string): Facts {
  const match = /^([0-9a-f]{1,8}) (\d{1,19}) (\d+) (\d+) (-?\d+) (-?\d+) (\d+):([^:/]*):([^/\n]*)\n?$/.exec(output);
  if (!match) throw new SftpFault(STATUS.failure, 'the machine says nothing that can be understood of the file');
  const [, mode = '', size = '', uid, gid, accessed, modified, links, user = '', group = ''] = match;
  const uint32 = (text: string | undefined) => Math.min(Math.max(Number(text), 0), UINT32_MAX);
  return {
    attributes: {
      size: BigInt(size),
      owner: { uid: uint32(uid), gid: uint32(gid) },
      mode: Number.parseInt(mode, 16),
      times: { accessed: uint32(accessed), modified: uint32(modified) },
    },
    links: uint32(links),
    user: user === NAMELESS ? String(uid) : user,
    group: group === NAMELESS ? String(gid) : group,
  };
}

/** Yields the entries of the script's listing. `separator` begins each; it is random, so no file name contains it. */
export function* entriesOf(output: Buffer, separator: string): Generator<{ name: Buffer; facts: Facts }, undefined> {
  for (let at = output.indexOf(separator); at >= 0; ) {
    const from = at + separator.length;
    at = output.indexOf(separator, from);
    const entry = output.subarray(from, at < 0 ? undefined : at);
    const slash = entry.indexOf('/');
    const facts = factsOf(entry.subarray(0, slash).toString());
    yield { name: entry.subarray(slash + '/./'.length, -1), facts }; // The script prints ./name and a newline.
  }
}
