/** The end of a request for a file, by the numbers of the SSH File Transfer Protocol (draft-ietf-secsh-filexfer-02). */
export const STATUS = {
  ok: 0,
  endOfFile: 1,
  noSuchFile: 2,
  permissionDenied: 3,
  failure: 4,
  badMessage: 5,
  unsupported: 8,
} as const;
export type SftpStatus = (typeof STATUS)[keyof typeof STATUS];

/** An error that is answered with an SFTP status. */
export class SftpFault extends Error {
  readonly status: SftpStatus;

  constructor(status: SftpStatus, message: string) {
    super(message);
    this.status = status;
  }
}

/**
 * The end of an error message of a shell (dash, bash, busybox) or tool in the C locale, and the status that OpenSSH's server
 * sends for that error.
 */
const STATUSES: [RegExp, SftpStatus][] = [
  [
    /(no such file( or directory)?|nonexistent directory|directory nonexistent|not a directory|too many levels of symbolic links)$/i,
    STATUS.noSuchFile,
  ],
  [/(permission denied|operation not permitted)$/i, STATUS.permissionDenied],
  [/(file name too long|invalid argument)$/i, STATUS.badMessage],
  [/(operation not supported|function not implemented)$/i, STATUS.unsupported],
];
const MESSAGE_CHARACTERS_MAX = 200;

/** Maps a failed command's stderr to an SFTP status. */
export function faultOf(stderr: string): SftpFault {
  const lines = stderr.trim().split('\n').reverse();
  for (const line of lines)
    for (const [pattern, status] of STATUSES)
      if (pattern.test(line)) return new SftpFault(status, line.slice(-MESSAGE_CHARACTERS_MAX));
  return new SftpFault(STATUS.failure, lines[0]?.slice(-MESSAGE_CHARACTERS_MAX) || 'the command failed');
}
