// A second reporter: says in the last lines which real components this machine lacks, so that a skipped test is seen.
export default async function* missing(source) {
  const names = new Map();
  for await (const { type, data } of source) {
    const component = /^component missing: (.+)$/.exec(typeof data?.skip === 'string' ? data.skip : '')?.[1];
    if (type === 'test:pass' && component) names.set(component, (names.get(component) ?? 0) + 1);
  }
  for (const [name, count] of names)
    yield `\nSKIPPED: ${count} test(s) for want of ${name}. PURSER_TEST_REQUIRE=all makes that a failure.\n`;
}
