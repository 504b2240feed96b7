/**
 * Returns what a program said, on one line. It is split and not searched for line ends between spaces: that takes the square of the
 * spaces' number, and a tenant may print them.
 */
export const onOneLine = (said: string): string =>
  said
    .split('\n')
    .map((line) => line.trim())
    .filter(Boolean)
    .join('; ');
