/**
 * The limit of unread data on either side of a stream. A command may write a byte at a time, and each of these bytes takes an
 * object of 300 bytes while it waits; whole chunks still pass one by one.
 */
export const WAITING = { highWaterMark: 4 * 1024 };
