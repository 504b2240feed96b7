import assert from 'node:assert/strict';
import { statSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { installation, run } from '../helper/executable.ts';

test('-v, -V and --version are the version', async () => {
  for (const flag of ['-v', '-V', '--version']) {
    const { code, stdout, stderr } = await run([flag]);
    assert.deepEqual([code, stderr], [0, ''], flag);
    assert.match(stdout, /^\d+\.\d+\.\d+\n$/);
  }
});

test('a misspelled option is named, with the right one, also where another is missing', async (t) => {
  const purser = installation(t);
  for (const [args, meant] of [
    [['wallet', 'list', '--acount', 'x'], '--account'],
    [['wallet', 'create', '--acount', 'x'], '--account'],
    [['wallet', 'create', '--nam=x'], '--name'],
    [['wallet', 'unfreeze', '--acount', 'x'], '--account'],
    [['key', 'create', '--jsn'], '--json'],
  ] as const) {
    const { code, stderr } = await purser.cli(...args);
    assert.equal(code, 2);
    assert.match(stderr, new RegExp(`unknown option '--\\w+'\\n\\(Did you mean ${meant}\\?\\)`), args.join(' '));
  }
  const { stderr } = await purser.cli('wallet', 'create', '--account', 'x');
  assert.match(stderr, /required option '--name <name>' not specified/);
});

test('init says the next command for the directory that it wrote to', async (t) => {
  const purser = installation(t, { settings: null });
  const directory = join(purser.directory, 'new/one');
  const { stdout } = await run(['--data', directory, 'init', '--yes', '--server', 'http://127.0.0.1:9']);
  assert.match(stdout, new RegExp(`^Next: purser --data ${directory} serve$`, 'm'));
  assert.equal(statSync(directory).mode & 0o777, 0o700);
});
