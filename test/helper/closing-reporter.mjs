// A second reporter, for the end of a run: prints where the time went, and which real components this machine lacks, so that
// skipped tests are noticed.
import { dirname, relative, resolve } from 'node:path';

const SLOWEST_COUNT = 10;
const IS_TEST = /\.test\.ts$/;
const seconds = (milliseconds) => `${(milliseconds / 1000).toFixed(1).padStart(7)} s`;

export default async function* closing(source) {
  const missing = new Map();
  const times = new Map();
  const tests = new Map();
  let total;
  for await (const { type, data } of source) {
    const component = /^component missing: (.+)$/.exec(typeof data?.skip === 'string' ? data.skip : '')?.[1];
    if (type === 'test:pass' && component) missing.set(component, (missing.get(component) ?? 0) + 1);
    if (type === 'test:complete' && data.file === resolve(data.name)) {
      if (IS_TEST.test(data.name)) times.set(data.name, data.details.duration_ms);
    } else if (type === 'test:complete' && data.nesting === 0 && data.file) {
      // Of files that share a process, the times of their tests are known.
      const name = relative('.', data.file);
      tests.set(name, (tests.get(name) ?? 0) + data.details.duration_ms);
    }
    if (type === 'test:summary' && !data.file) total = data.duration_ms;
  }
  const known = new Map([...tests, ...times]);
  if (known.size > 1) yield timesByPart(known, total);
  for (const [name, count] of missing)
    yield `\nSKIPPED: ${count} test(s) because ${name} is missing. PURSER_TEST_REQUIRE=all makes this a failure.\n`;
}

/** Files run side by side, so their times add up to more than the whole. */
function timesByPart(times, total) {
  const parts = new Map();
  for (const [file, duration] of times) parts.set(dirname(file), (parts.get(dirname(file)) ?? 0) + duration);
  const lines = (list) =>
    [...list].sort(([, a], [, b]) => b - a).map(([name, duration]) => `${seconds(duration)}  ${name}\n`);
  return [
    '\nTime by part (files run side by side):\n',
    ...lines(parts),
    'Slowest files:\n',
    ...lines(times).slice(0, SLOWEST_COUNT),
    `${seconds(total ?? 0)}  in all\n`,
  ].join('');
}
