import type { ServerChannel } from 'ssh2';

/** The exit status that OpenSSH uses for a broken connection. */
const BROKEN_OFF_EXIT = 255;

/**
 * Closes a channel from here: a session gets the reason on stderr and exit status 255, a forwarded connection has neither.
 * A channel that has ended by itself is left to end.
 */
export function breakOff(channel: ServerChannel, why: string): void {
  if (channel.writableEnded) return;
  if (channel.type === 'session') {
    channel.stderr.write(`purser: ${why}\n`);
    channel.exit(BROKEN_OFF_EXIT);
  }
  channel.close();
}
