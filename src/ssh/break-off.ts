import type { ServerChannel } from 'ssh2';

/** OpenSSH's own number for a session that broke off. */
const BROKEN_OFF_EXIT = 255;

/** Ends a session before what the client started is over: tells why, and as its exit status that it broke off. */
export function breakOff(channel: ServerChannel, why: string): void {
  channel.stderr.write(`purser: ${why}\n`);
  channel.exit(BROKEN_OFF_EXIT);
  channel.close();
}
