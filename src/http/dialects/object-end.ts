/** Follows a JSON object that comes in pieces to find its end, without reading any part of it twice. */
type ObjectEnd = {
  push(piece: string): void;
  /** Returns whether all its brackets are closed, with only white space behind them. */
  isClosed(): boolean;
};

const [QUOTE, BACKSLASH] = ['"', '\\'].map((it) => it.charCodeAt(0));
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [...'[]{}'].map((it) => it.charCodeAt(0));
const isSpace = (code: number) => code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09;

export function createObjectEnd(): ObjectEnd {
  let depth = 0;
  let isInString = false;
  let isEscaped = false;
  let state: 'before' | 'inside' | 'closed' | 'other' = 'before';

  function step(code: number): void {
    if (isEscaped) isEscaped = false;
    else if (isInString) {
      if (code === BACKSLASH) isEscaped = true;
      else if (code === QUOTE) isInString = false;
    } else if (state === 'inside') {
      if (code === QUOTE) isInString = true;
      else if (code === OPEN_LIST || code === OPEN_OBJECT) depth++;
      else if ((code === CLOSE_LIST || code === CLOSE_OBJECT) && --depth === 0) state = 'closed';
    } else if (!isSpace(code)) {
      state = state === 'before' && code === OPEN_OBJECT ? 'inside' : 'other';
      depth = 1;
    }
  }

  return {
    push(piece) {
      for (let at = 0; at < piece.length && state !== 'other'; at++) step(piece.charCodeAt(at));
    },
    isClosed: () => state === 'closed',
  };
}
