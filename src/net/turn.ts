/** Longest time in milliseconds for which one piece of work after the other is done in one turn of the event loop. */
const TURN_MILLISECONDS = 10;

let turnedAt = performance.now();
let turn: Promise<void> | undefined;

/**
 * Returns a promise for the next turn of the event loop when the last that was waited for is some time ago, undefined
 * otherwise. Work that never has to wait for input or output awaits it between its steps: a chain of promises that are
 * resolved already lets nothing else run, neither timers nor other connections.
 */
export function turnWhenDue(): Promise<void> | undefined {
  if (turn || performance.now() - turnedAt < TURN_MILLISECONDS) return turn;
  turn = new Promise((resolve) =>
    setImmediate(() => {
      turn = undefined;
      turnedAt = performance.now();
      resolve();
    }),
  );
  return turn;
}
