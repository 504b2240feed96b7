/** Returns `. Did you mean NAME?` with the first of `names` that is near to `name`; empty if none is. */
export function suggestion(name: string, names: readonly string[]): string {
  const near = names.find((it) => isNear(it, name));
  return near === undefined ? '' : `. Did you mean ${near}?`;
}

/**
 * Returns whether two names differ by at most two letters that are missing, added or wrong (Levenshtein's distance), or by a
 * third of their letters where they are short.
 */
function isNear(a: string, b: string): boolean {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next.push(
        Math.min(
          (row[j] as number) + 1,
          (next[j - 1] as number) + 1,
          (row[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1),
        ),
      );
    row = next;
  }
  return (row[b.length] as number) <= Math.min(2, Math.floor(Math.max(a.length, b.length) / 3));
}
