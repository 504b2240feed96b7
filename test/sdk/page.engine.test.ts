import '../helper/on-disk.ts';
import { existsSync } from 'node:fs';
import test from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { assertNamesChats } from './env-shared.ts';
import { pythons, run, runBlocks } from './examples.ts';

test('the examples in JavaScript print what they say on the Node of the system', async (t) => {
  const program = '/usr/bin/node';
  if (!existsSync(program)) return t.diagnostic('it is not there');
  t.diagnostic((await run(program, ['--version'])).stdout.trim());
  await runBlocks(t, 'js', program);
});

test('the examples in Python print what they say, on every Python from 3.9 on that is there', async (t) => {
  if (!hasComponent(t, 'python3')) return;
  for (const [version, program] of await pythons()) await t.test(version, async (t) => runBlocks(t, 'python', program));
});

test('the environment of a program in Python names a model for chats', async (t) => {
  if (!hasComponent(t, 'python3')) return;
  await assertNamesChats(t, 'python', 'python3');
});
