import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { EXECUTABLE, installation, run } from '../helper/executable.ts';
import { onTerminal } from '../helper/terminal.ts';
import { until } from '../helper/waiting.ts';
import { openBrowser } from '../ui/sample.ts';

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

test('a data directory that cannot be made is refused in words, also where Node would try for ever', async () => {
  for (const directory of ['/proc/x', '/proc/x/y', '/sys/x', '/dev/null/x']) {
    const { code, stderr } = await run(['--data', directory, 'serve']);
    assert.equal(code, 1, directory);
    assert.match(stderr, /The data directory \S+ cannot be made \(E\w+\)\. Choose another with --data/);
  }
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
  await until('the page is there', () => existsSync(`${seen}.html`));
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
  await until('the file is there', () => existsSync(file));
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

test('one wallet is unfrozen, with a reason or without, and all frozen wallets of an account by one command', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  await purser.json('account', 'credit', 'default', '1000c');
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
