import { collectPieces } from '../net/pieces.ts';

/** Shorter pieces are joined. */
const CRUMB_BYTES_MAX = 1024;
/** Once so many pieces were joined, the other bodies wait for the next turn: a thousand take some milliseconds to read. */
const TURN_COUNT = 2048;

type Push = (piece: Buffer | null) => boolean;

/** Bodies that have short pieces to give on, each with what does that and returns their number. */
const due: (() => number)[] = [];

function giveDue(): void {
  try {
    for (let count = 0; count < TURN_COUNT && due.length > 0; ) count += (due.shift() as () => number)();
  } finally {
    if (due.length > 0) setImmediate(giveDue);
  }
}

/**
 * Joins the short pieces of a body that one read of its socket has given, before they are pushed: Node makes a piece of each chunk,
 * of one byte too. While it waits it takes two hundred bytes, and whoever passes it on is called for each, and makes another chunk
 * of it. A socket that gives such pieces is read no further in this turn, nor, where many do, before its turn has come.
 */
export function joinCrumbs(push: Push): Push {
  let crumbs = collectPieces();
  let count = 0;
  /** Until then the socket is stopped at each piece: something else may have had it read again. */
  let isDue = false;
  function give(): boolean {
    if (crumbs.length() === 0) return true;
    const joined = crumbs.whole();
    crumbs = collectPieces();
    return push(joined);
  }
  function giveRest(): number {
    const given = count;
    isDue = false;
    count = 0;
    give();
    return given;
  }
  return (piece) => {
    if (piece === null || piece.length > CRUMB_BYTES_MAX) {
      give();
      return push(piece);
    }
    crumbs.add(piece);
    count++;
    if (!isDue && due.push(giveRest) === 1) setImmediate(giveDue);
    isDue = true;
    return false; // What is pushed then has the socket read again, once somebody wants more.
  };
}
