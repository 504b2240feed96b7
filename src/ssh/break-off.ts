import type { ServerChannel } from 'ssh2';

/** The exit status that OpenSSH uses for a broken connection. */
const BROKEN_OFF_EXIT = 255;

/** Ends a session whose command has not ended: writes the reason to stderr and sends exit status 255. */
export function breakOff(channel: ServerChannel, why: string): void {
  channel.stderr.write(`purser: ${why}\n`);
  channel.exit(BROKEN_OFF_EXIT);
  channel.close();
}
