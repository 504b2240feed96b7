import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import test from 'node:test';
import { leftOf } from '../demo/left.ts';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE } from '../helper/executable.ts';
import { until } from '../helper/waiting.ts';
import { place, startServing } from './demo-shared.ts';

test('the demo needs no privilege', async (t) => {
  if (!hasComponent(t, 'root')) return;
  for (const user of ['nobody', '54321']) {
    const command = ['setpriv', `--reuid=${user}`, '--regid=nogroup', '--clear-groups', EXECUTABLE];
    const { directory, purser } = place(t, { command });
    const { code, stdout, stderr } = await purser.cli('demo', '--once');
    assert.deepEqual([code, stderr], [0, ''], stdout);
    assert.match(stdout, /✓ it reads the same: true\n/);
    assert.deepEqual(leftOf(directory), []);
  }
});

test('what the demo prints for renting by curl can be pasted into a shell', async (t) => {
  if (!hasComponent(t, 'curl')) return;
  const { said } = await startServing(t);
  const [pasted] = /^ {2}rent\(\)[\s\S]*?(?=\n\n)/m.exec(said) as RegExpExecArray;
  const lines = pasted.split('\n');
  const create = lines.findIndex((line) => line.includes('rent create'));
  const shell = (...more: string[]) =>
    JSON.parse(execFileSync('sh', ['-c', [...lines.slice(0, create), ...more].join('\n')], { encoding: 'utf8' }));
  const made = shell(lines[create] as string);
  assert.equal(made.status, 'running');
  const [exec, stop] = lines.slice(create + 1).map((line) => line.replace('res_…', made.id)) as [string, string];
  assert.match(shell(exec).stdout, /\/home\n$/);
  await until('it has stopped', async () => shell(stop).status === 'stopped');
});

test('the demo reaches its lease by plain ssh', async (t) => {
  if (!hasComponent(t, 'openssh-client')) return;
  const { purser } = place(t);
  const { code, stdout } = await purser.cli('demo', '--once');
  assert.equal(code, 0, stdout);
  assert.match(stdout, /✓ it printed: reached, in home\n/);
});
