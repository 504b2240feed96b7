import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { installation, run } from '../helper/executable.ts';
import { ask, CASES, scriptOf } from './completion-shared.ts';

test('bash completes commands, options, choices and files', async (t) => {
  const { directory, script } = await scriptOf(t, 'bash');
  for (const [line, offered, not] of CASES) {
    const words = line.split(' ');
    const code = `source ${script}
      compopt() { :; }
      COMP_WORDS=(${words.map((it) => `"${it}"`).join(' ')}); COMP_CWORD=${words.length - 1}
      _purser; printf '%s\\n' "\${COMPREPLY[@]}"; complete -p purser`;
    const said = (await ask('bash', ['--norc', '--noprofile', '-c', code], directory)).split('\n');
    for (const word of offered) assert.ok(said.includes(word), `${line}: ${said}`);
    for (const word of not) assert.ok(!said.includes(word), `${line}: ${said}`);
    assert.ok(said.includes('complete -F _purser purser'));
  }
});

/** Names as a model server may give its models. */
const HOSTILE = [
  '$(touch ran)',
  '`touch ran`',
  '; touch ran',
  'a b',
  '*',
  '~',
  "it's",
  'back\\slash',
  '"$HOME"',
  'qwen3:8b',
];

test('bash takes no name for its own language: none is run, and each is offered as one word', async (t) => {
  const { directory, script } = await scriptOf(t, 'bash');
  writeFileSync(join(directory, 'offered'), HOSTILE.map((it) => `${it}\ta description\n`).join(''));
  writeFileSync(join(directory, 'purser'), '#!/bin/sh\ncat offered\n', { mode: 0o755 });
  const code = `PATH=${directory}:$PATH; source ${script}
    COMP_WORDS=(purser run --model ''); COMP_CWORD=3; _purser
    for line in "\${COMPREPLY[@]}"; do eval "words=($line)"; printf '%s\\n' "\${#words[@]} $words"; done`;
  const said = await ask('bash', ['--norc', '--noprofile', '-c', code], directory);
  assert.deepEqual(
    said.split('\n').filter(Boolean),
    HOSTILE.map((it) => `1 ${it}`),
  );
  assert.ok(!existsSync(join(directory, 'ran')));
});

test('names of wallets, accounts and models are offered while a server runs, and nothing is waited for without one', async (t) => {
  const purser = installation(t);
  const candidates = async (...words: string[]) => {
    const { code, stdout } = await purser.cli('candidates', '--', '--data', purser.directory, ...words);
    assert.equal(code, 0);
    return stdout.split('\n').filter(Boolean);
  };
  assert.deepEqual(await candidates('wallet', 'close', ''), []);
  assert.deepEqual(await candidates('spend', '--account', ''), []);
  await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 2000 });
  const make = (name: string) => purser.operate('wallet.create', { account: 'default', name, budget_cents: 100 });
  await make('agent-7');
  const twice = [await make('twice'), await make('twice')];
  const hostile = await make('a b; rm -rf / $(id)');
  const posing = [await make('--account=default'), await make(hostile.id), await make('-y')];
  const closed = await make('closed');
  await purser.cli('wallet', 'close', closed.id);
  for (const asked of [
    ['wallet', 'close', ''],
    ['operation', 'list', '--wallet', ''],
  ]) {
    const offered = await candidates(...asked);
    assert.ok(offered.includes('agent-7\tactive'), offered.join());
    assert.deepEqual(
      offered.map((it) => it.split('\t')[0]).toSorted(),
      ['agent-7', hostile.id, ...[...twice, ...posing].map((it) => it.id)].toSorted(),
    );
  }
  assert.deepEqual(await candidates('wallet', 'raise', 'agent-7', ''), [], 'an amount is not a name');
  assert.match((await candidates('account', 'show', '')).join(), /^default\tacct_/);
  const missed = await purser.cli('wallet', 'show', 'agent-8');
  assert.equal(missed.stderr, 'There is no wallet agent-8. Did you mean agent-7?\n');
  assert.match((await purser.cli('account', 'show', 'defualt')).stderr, /Did you mean default\?/);
  assert.equal((await purser.cli('account', 'show', 'nobody')).stderr, 'There is no account nobody.\n');
});

test('another shell is a usage error', async () => {
  const refused = await run(['completion', 'csh']);
  assert.deepEqual([refused.code, refused.stdout], [2, '']);
});
