import assert from 'node:assert/strict';
import test from 'node:test';
import { createActivity } from '../../src/compute/activity.ts';
import type { Backend } from '../../src/compute/backend.ts';
import { type CpuTime, cpuShare, readCpuTime } from '../../src/compute/cpu-time.ts';

const machineSaying = (text: string) =>
  ({ guest: { exec: async () => ({ stdout: Buffer.from(text) }) } }) as unknown as Backend;

test('what a machine says of its processor is read in its unit, and anything else is no answer', async () => {
  for (const [text, expected] of [
    ['purser-cpu cgroup 2500000 1000000 100.25\n', { source: 'cgroup', usedSeconds: 2.5, uptimeSeconds: 100.25 }],
    ['purser-cpu cgroup 2500000000 1000000000 7.00\n', { source: 'cgroup', usedSeconds: 2.5, uptimeSeconds: 7 }],
    ['a banner\npurser-cpu processes 250 100 1\n', { source: 'processes', usedSeconds: 2.5, uptimeSeconds: 1 }],
    ['purser-cpu none 0 1 100.25\n', { source: 'none' }],
    ['', { source: 'none' }],
    ['purser-cpu cgroup -5 1000000 100.25\n', { source: 'none' }],
    ['purser-cpu cgroup NaN 1 Infinity\n', { source: 'none' }],
    ['purser-cpu cgroup 1e9 1 1\n', { source: 'none' }],
  ] as const)
    assert.deepEqual(await readCpuTime(machineSaying(text), 'm1'), expected, text);
});

test('the share of a processor is by the clock of the machine, and nothing is made of what cannot be compared', () => {
  const at = (usedSeconds: number, uptimeSeconds: number, source: 'cgroup' | 'processes' = 'cgroup'): CpuTime => {
    return { source, usedSeconds, uptimeSeconds };
  };
  assert.equal(cpuShare(at(10, 100), at(40, 160)), 0.5);
  assert.equal(cpuShare(at(10, 100), at(250, 160)), 4, 'four processors');
  assert.equal(cpuShare(at(40, 100), at(10, 160)), -0.5, 'a process took its time with it');
  for (const [before, after] of [
    [at(10, 100), at(40, 100)],
    [at(10, 100), at(40, 5)], // It was booted again.
    [at(10, 100), at(40, 160, 'processes')],
    [{ source: 'none' }, at(40, 160)],
    [at(10, 100), { source: 'none' }],
  ] as [CpuTime, CpuTime][])
    assert.equal(cpuShare(before, after), undefined);
});

test('what is open is counted until it ends, once, and what has ended since it was asked for is known', () => {
  const activity = createActivity();
  assert.equal(activity.takeActivity('a'), false);
  const [first, second] = [activity.begin('a'), activity.begin('a')];
  assert.deepEqual([activity.open('a'), activity.open('b')], [2, 0]);
  first();
  first();
  assert.deepEqual([activity.open('a'), activity.takeActivity('a'), activity.takeActivity('a')], [1, true, true]);
  second();
  assert.deepEqual([activity.open('a'), activity.takeActivity('a')], [0, false]);
  activity.begin('a')();
  assert.deepEqual([activity.open('a'), activity.takeActivity('a'), activity.takeActivity('a')], [0, true, false]);
  activity.begin('a')();
  activity.forget('a');
  assert.equal(activity.takeActivity('a'), false);
});
