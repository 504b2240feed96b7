import { relative, resolve } from 'node:path';
import type { EventData } from 'node:test';
import { COMPONENTS } from '../components.ts';

const SLOWEST_COUNT = 10;
const seconds = (value: number) => `${value.toFixed(1).padStart(7)} s`;

/** The events of a run that count. */
export type TestEvent =
  | { type: 'test:pass'; data: EventData.TestPass }
  | { type: 'test:fail'; data: EventData.TestFail }
  | { type: 'test:complete'; data: EventData.TestComplete }
  | { type: 'test:summary'; data: EventData.TestSummary };
export type Tally = {
  note(event: TestEvent): void;
  counts(): { passed: number; failed: number; skipped: number };
  /** The files that took longest, a line each, with the processor time of those that had a process of their own. */
  slowest(processorSeconds: ReadonlyMap<string, number>): string[];
  /** Each component whose absence caused tests to be skipped, a line each. */
  missing(): string[];
};

export function openTally(): Tally {
  const skippedFor = new Map<string, number>();
  /** For files that share a process, the times of their tests are known; for the others, that of their process. */
  const [ofProcesses, ofTests] = [new Map<string, number>(), new Map<string, number>()];
  const counts = { passed: 0, failed: 0, skipped: 0 };
  return {
    note({ type, data }) {
      if (type === 'test:pass') {
        const component = /^component missing: (.+)$/.exec(typeof data.skip === 'string' ? data.skip : '')?.[1];
        if (component) skippedFor.set(component, (skippedFor.get(component) ?? 0) + 1);
      }
      if (type === 'test:complete') {
        const took = data.details.duration_ms / 1000;
        if (data.file === resolve(data.name)) ofProcesses.set(relative('.', data.name), took);
        else if (data.nesting === 0 && data.file) {
          const file = relative('.', data.file);
          ofTests.set(file, (ofTests.get(file) ?? 0) + took);
        }
      }
      if (type === 'test:summary' && !data.file) {
        counts.passed += data.counts.passed;
        counts.failed += data.counts.tests - data.counts.passed - data.counts.skipped - data.counts.todo;
        counts.skipped += data.counts.skipped;
      }
    },
    counts: () => counts,
    slowest(processorSeconds) {
      const known = [...new Map([...ofTests, ...ofProcesses])].filter(([file]) => file.endsWith('.test.ts'));
      return known
        .sort(([, a], [, b]) => b - a)
        .slice(0, SLOWEST_COUNT)
        .map(([file, took]) => {
          const processor = processorSeconds.get(file);
          return `${seconds(took)}${processor === undefined ? '' : `, ${processor.toFixed(1)} s of a processor`}  ${file}`;
        });
    },
    missing: () => [...skippedFor].map(([name, count]) => `${name}: ${count} tests skipped`),
  };
}

/** Returns each component that this machine lacks, and what `npm run test:all` would leave out without it, a line each. */
export const missingComponents = (): string[] =>
  Object.entries(COMPONENTS)
    .filter(([, it]) => !it.isThere())
    .map(([name, { tests }]) => `${name}: ${tests}`);
