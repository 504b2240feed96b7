/**
 * The limit of unread data on either side of a stream. A command may write single bytes, each of which takes an object of 300 bytes
 * while it waits; whole chunks still pass one by one.
 */
export const WAITING = { highWaterMark: 4 * 1024 };
