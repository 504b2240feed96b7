import { STATUS, type Status } from './sftp-wire.ts';

/** A request that is answered with a status and nothing else. */
export class SftpFault extends Error {
  readonly status: Status;

  constructor(status: Status, message: string) {
    super(message);
    this.status = status;
  }
}

/**
 * The last words of what a shell (dash, bash, busybox) or one of its tools says in the C locale, and the status that
 * OpenSSH's own server gives for that error.
 */
const WORDS: [RegExp, Status][] = [
  [
    /(no such file( or directory)?|nonexistent directory|directory nonexistent|not a directory|too many levels of symbolic links)$/i,
    STATUS.noSuchFile,
  ],
  [/(permission denied|operation not permitted)$/i, STATUS.permissionDenied],
  [/(file name too long|invalid argument)$/i, STATUS.badMessage],
  [/(operation not supported|function not implemented)$/i, STATUS.unsupported],
];
const MESSAGE_CHARACTERS_MAX = 200;

/** The fault that the words of a failed command tell of. */
export function faultOf(said: string): SftpFault {
  const lines = said.trim().split('\n').reverse();
  for (const line of lines)
    for (const [words, status] of WORDS)
      if (words.test(line)) return new SftpFault(status, line.slice(-MESSAGE_CHARACTERS_MAX));
  return new SftpFault(STATUS.failure, lines[0]?.slice(-MESSAGE_CHARACTERS_MAX) || 'the command failed');
}
