import '../helper/on-disk.ts';
import { existsSync } from 'node:fs';
import test from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { length } from '../helper/random.ts';
import { assertNamesChats } from './env-shared.ts';
import { pythons, run, runBlocks } from './examples.ts';

test('the examples in JavaScript print what they say on the Node of the system', async (t) => {
  const program = '/usr/bin/node';
  if (!existsSync(program)) return t.diagnostic('it is not there');
  t.diagnostic((await run(program, ['--version'])).stdout.trim());
  await runBlocks(t, 'js', program);
});

/** The number of Pythons: in the engines' layer the oldest and the newest, in the soak all. */
const PYTHON_COUNT = length(2, 100);

test('the examples in Python print what they say, on the Pythons from 3.9 on that are there', async (t) => {
  if (!hasComponent(t, 'python3')) return;
  const there = await pythons();
  const tried = there.length <= PYTHON_COUNT ? there : [...there.slice(0, PYTHON_COUNT - 1), there.at(-1) as never];
  for (const [version, program] of tried) await t.test(version, async (t) => runBlocks(t, 'python', program));
});

test('the environment of a program in Python names a model for chats', async (t) => {
  if (!hasComponent(t, 'python3')) return;
  await assertNamesChats(t, 'python', 'python3');
});
