import { collectPieces } from '../net/pieces.ts';

/** Shorter pieces are joined. */
const CRUMB_BYTES_MAX = 1024;
/** After this many pieces the other bodies wait for the next turn: a thousand pieces take some milliseconds to read. */
const TURN_COUNT = 2048;

type Push = (piece: Buffer | null) => boolean;

/** Bodies with short pieces to pass on. Each entry passes them on and returns their number. */
const due: (() => number)[] = [];

function giveDue(): void {
  try {
    for (let count = 0; count < TURN_COUNT && due.length > 0; ) count += (due.shift() as () => number)();
  } finally {
    if (due.length > 0) setImmediate(giveDue);
  }
}

/**
 * Joins the short pieces that one read of a socket yields before they are pushed. Node makes a piece of each chunk, even of one
 * byte; a waiting piece takes two hundred bytes of memory, and every reader down the line is called for it. A socket that yields
 * such pieces is not read further in this turn, nor, where many do so, before its own turn.
 */
export function joinCrumbs(push: Push): Push {
  let crumbs = collectPieces();
  let count = 0;
  /** Until the pieces are passed on, the socket is stopped at each piece: another reader may have resumed it. */
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
    return false; // Pushing the joined piece resumes the socket once there is demand.
  };
}
