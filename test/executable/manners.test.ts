import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { EXECUTABLE, installation, run } from '../helper/executable.ts';
import { onTerminal } from '../helper/terminal.ts';
import { openBrowser } from '../ui/sample.ts';

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

test('a list that shall go on after what does not exist says so', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const lists = [['wallet'], ['operation'], ['resource'], ['checkout'], ['events'], ['key', '--account', 'default']];
  for (const [group = '', ...more] of lists) {
    const { code, stdout, stderr } = await purser.cli(group, 'list', ...more, '--before', 'nope');
    assert.deepEqual([code, stdout], [3, ''], group);
    assert.match(stderr, /^There is no \w+ nope\./);
  }
});

test('one wallet is unfrozen, with a reason or without, and all frozen wallets of an account by one command', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  await purser.json('account', 'credit', 'default', '1000');
  for (const name of ['one', 'two', 'three'])
    await purser.json('wallet', 'create', '--name', name, '--budget-cents', '100');
  const frozen = async () => (await purser.json('status')).frozen;
  await purser.json('wallet', 'freeze', 'one');
  assert.match((await purser.cli('status')).stdout, /^frozen +1 wallet is frozen: no new holds$/m);
  const thawed = await purser.json('wallet', 'unfreeze', 'one', '--reason', 'it was the price list');
  assert.deepEqual([thawed.frozen_at, thawed.freeze_reason], [null, null]);
  for (const name of ['one', 'two']) await purser.json('wallet', 'freeze', name);
  assert.equal((await frozen()).wallets, 2);
  const { wallets } = await purser.json('wallet', 'unfreeze', '--account', 'default');
  assert.deepEqual(wallets.map((it: { name: string }) => it.name).sort(), ['one', 'two']);
  assert.equal((await frozen()).wallets, 0);
  const { code, stderr } = await purser.cli('wallet', 'unfreeze');
  assert.equal(code, 2);
  assert.match(stderr, /name one wallet, or --account/);
});

test('a data directory that cannot be made is refused in words, also where Node would try for ever', async () => {
  for (const directory of ['/proc/x', '/proc/x/y', '/sys/x', '/dev/null/x']) {
    const { code, stderr } = await run(['--data', directory, 'serve']);
    assert.equal(code, 1, directory);
    assert.match(stderr, /The data directory \S+ cannot be made \(E\w+\)\. Choose another with --data/);
  }
});

test('init says the next command for the directory that it wrote to', async (t) => {
  const purser = installation(t, { settings: null });
  const directory = join(purser.directory, 'new/one');
  const { stdout } = await run(['--data', directory, 'init', '--yes', '--server', 'http://127.0.0.1:9']);
  assert.match(stdout, new RegExp(`^Next: purser --data ${directory} serve$`, 'm'));
  assert.equal(statSync(directory).mode & 0o777, 0o700);
});

test('on a desktop `purser ui` opens a browser, and no other user of the machine sees the link', async (t) => {
  const purser = installation(t);
  const serving = await purser.serve();
  const programs = join(purser.directory, 'bin');
  const seen = join(purser.directory, 'seen');
  mkdirSync(programs);
  const opener = join(programs, 'xdg-open');
  writeFileSync(
    opener,
    `#!/bin/sh\n{ printf '%s\\n' "$@"; env; ps -eo args; } > '${seen}'\ncp -p "$1" '${seen}.part' && mv '${seen}.part' '${seen}.html'\n`,
  );
  chmodSync(opener, 0o755);
  const file = join(purser.directory, 'sign-in.html');
  const env = { PATH: `${programs}:${process.env.PATH}`, NO_COLOR: '1' };
  const open = (more: Record<string, string>, ...args: string[]) =>
    onTerminal(t, [EXECUTABLE, '--data', purser.directory, 'ui', ...args], { columns: 300, env: { ...env, ...more } });

  const at = open({ DISPLAY: ':7' });
  const [link] = await at.shows(/http:\S+\/sign-in\/link\/[\w-]{43}/);
  const path = new URL(link).pathname;
  const code = path.split('/').at(-1) as string;
  await at.shows(/Opening it in the browser/);
  while (!existsSync(`${seen}.html`)) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(statSync(`${seen}.html`).mode & 0o777, 0o600);
  assert.ok(readFileSync(`${seen}.html`, 'utf8').includes(`content="0;url=${link}"`));
  const told = readFileSync(seen, 'utf8');
  assert.ok(told.startsWith(`${file}\n`), 'its only argument is the file');
  assert.ok(!told.includes(code), 'neither arguments nor environment nor the process list have the link');
  assert.ok(existsSync(file), 'until it is used');
  const browser = openBrowser(serving);
  assert.equal((await browser.get(path)).status, 303);
  assert.equal(await at.ended, 0);
  assert.ok(!existsSync(file), 'then it is gone');

  const interrupted = open({ WAYLAND_DISPLAY: 'w' });
  await interrupted.shows(/Opening it in the browser/);
  while (!existsSync(file)) await new Promise((resolve) => setTimeout(resolve, 20));
  interrupted.type('\u0003');
  assert.equal(await interrupted.ended, 130);
  assert.ok(!existsSync(file));

  for (const quiet of [open({}), open({ DISPLAY: ':7' }, '--no-open')]) {
    assert.equal(await quiet.ended, 0);
    assert.match(quiet.screen(), /\/sign-in\/link\//);
    assert.doesNotMatch(quiet.screen(), /Opening/);
  }
  writeFileSync(opener, '#!/bin/sh\nexit 3\n'); // As it does where there is no browser.
  const without = open({ DISPLAY: ':7' });
  assert.equal(await without.ended, 0);
  assert.match(without.screen(), /No browser could be opened here/);
  assert.ok(!existsSync(file));
});
