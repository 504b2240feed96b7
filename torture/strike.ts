import { setTimeout as sleep } from 'node:timers/promises';
import { FAULTS } from './faults.ts';
import type { Flags } from './flags.ts';
import { count } from './journal.ts';
import { LANES, type Lane, nameOf, type Step, stepsOf } from './plan.ts';
import type { Rig } from './rig.ts';

/** The steps that were taken, and how often each fault was caused. */
export type Struck = { steps: string[]; faults: Map<string, number> };

/** Causes fault after fault on every lane until the time is over. The last fault of each lane is completed. */
export async function strike(rig: Rig, { minutes, seed, only }: Flags, say: (text: string) => string): Promise<Struck> {
  const struck: Struck = { steps: [], faults: new Map() };
  const until = performance.now() + minutes * 60_000;

  async function once(step: Step): Promise<void> {
    const findings = () => [...rig.journal.findings, ...rig.site.findings];
    struck.steps.push(say(nameOf(step)));
    const before = new Set(findings());
    if ((await FAULTS[step.name](rig, step)) !== 'left out') count(struck.faults, step.name);
    for (const it of findings()) if (!before.has(it)) struck.steps.push(say(`!! ${it.failure}: ${it.what}`));
  }
  async function run(lane: Lane): Promise<void> {
    for (const step of stepsOf(lane, seed, only)) {
      await sleep(Math.max(0, Math.min(until - performance.now(), step.after * 1000)));
      if (performance.now() >= until) return;
      await once(step);
    }
    await sleep(until - performance.now()); // None of its faults is selected.
  }
  await Promise.all((Object.keys(LANES) as Lane[]).map(run));
  return struck;
}
