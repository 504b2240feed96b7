/** Takes a step for each item, for `count` of them at a time. Rejects with the first step that fails. */
export async function forEachAtOnce<T>(
  items: readonly T[],
  count: number,
  step: (item: T) => Promise<unknown>,
): Promise<void> {
  const rest = items.values();
  const work = async () => {
    for (const it of rest) await step(it);
  };
  await Promise.all(Array.from({ length: Math.min(count, items.length) }, work));
}
