/** The end of the list, in a line of its own: no name of a file has two slashes. */
const END = '\n//\n';

/**
 * Reads a list of names, one a line, up to the line `//`, as it comes: however small its pieces are, each is looked at once. `push`
 * returns the names, and the bytes after the list in the piece with its end; `tooLong` when the list has more than `bytesMax`
 * before its end.
 */
export function createLinkListReader(bytesMax: number) {
  const pieces: string[] = [];
  let length = 0;
  /** The last characters that may begin the end. */
  let joint = '\n';

  return {
    push(chunk: Buffer): { names: string[]; rest: string } | 'tooLong' | undefined {
      if (length > bytesMax) return 'tooLong';
      const text = chunk.toString('latin1');
      const looked = joint + text;
      const found = looked.indexOf(END);
      pieces.push(text);
      length += text.length;
      if (found < 0) {
        joint = looked.slice(1 - END.length);
        if (length <= bytesMax) return undefined;
        pieces.length = 0; // Nothing more of it is kept, however much comes.
        return 'tooLong';
      }
      const after = looked.length - found - END.length;
      const names = pieces
        .join('')
        .slice(0, length - after)
        .split('\n');
      return {
        names: names.flatMap((line) => (line.startsWith('./') ? [line.slice(2)] : [])),
        rest: after === 0 ? '' : text.slice(-after),
      };
    },
  };
}
