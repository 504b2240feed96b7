/**
 * Returns a program's output on one line. It is split instead of searched for line ends between spaces: a search takes time with
 * the square of the number of spaces, and a tenant may print many.
 */
export const onOneLine = (text: string): string =>
  text
    .split('\n')
    .map((line) => line.trim())
    .filter(Boolean)
    .join('; ');
