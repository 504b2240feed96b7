/** Maximum time in milliseconds for which steps of work follow each other in one turn of the event loop. */
const TURN_MILLISECONDS = 10;

let turnedAt = performance.now();
let turn: Promise<void> | undefined;

/**
 * Returns a promise for the next turn of the event loop if the last awaited turn was some time ago, undefined otherwise. Work
 * without input or output awaits it between its steps: a chain of resolved promises blocks everything else.
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

/** Returns a promise for the next turn of the event loop: requests that have arrived are served before. */
export const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
