/**
 * So much waits for a reader on either side of a stream. A command may write a byte at a time, and each of these bytes is
 * an object of 300 bytes while it waits; whole chunks pass one by one all the same.
 */
export const WAITING = { highWaterMark: 4 * 1024 };
