import { nextTurn } from '../base/turn.ts';

const TURN_BYTES = 64 * 1024;

/** Gives bytes to `take` in pieces, each in its own turn of the event loop, and waits for each: other work runs in between. */
export async function inTurns(bytes: Buffer, take: (piece: Buffer) => Promise<void> | undefined): Promise<void> {
  for (let at = 0; at < bytes.length; at += TURN_BYTES) {
    await take(bytes.subarray(at, at + TURN_BYTES));
    await nextTurn();
  }
}
