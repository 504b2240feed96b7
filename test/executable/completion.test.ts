import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { run } from '../helper/executable.ts';
import { onTerminal } from '../helper/terminal.ts';
import { temporaryDirectory } from '../ledger/books.ts';

/** Lines before the cursor, and words that have to be offered there, or must not be. */
const CASES: [line: string, offered: string[], not: string[]][] = [
  ['purser wal', ['wallet'], ['account']],
  ['purser wallet ', ['create', 'close', 'timeline'], ['wallet']],
  ['purser --data /tmp wallet cl', ['close'], ['create']],
  ['purser wallet close --', ['--yes', '--account', '--wait', '--json', '--data'], ['--budget-cents']],
  ['purser spend --by ', ['model', 'wallet', 'tag'], ['spend']],
  ['purser wallet create --name agent --bud', ['--budget-cents'], ['--name']],
  ['purser completion ', ['bash', 'zsh', 'fish'], ['wallet']],
  ['purser backup fi', ['file.db'], []],
];

async function scriptOf(t: TestContext, shell: string) {
  const { code, stdout } = await run(['completion', shell]);
  assert.equal(code, 0);
  const directory = temporaryDirectory(t);
  writeFileSync(join(directory, 'file.db'), '');
  const script = join(directory, 'purser.completion');
  writeFileSync(script, stdout);
  return { directory, script, text: stdout };
}
const ask = (program: string, args: string[], cwd: string) =>
  new Promise<string>((resolve, reject) =>
    execFile(program, args, { cwd, timeout: 120_000 }, (error, stdout, stderr) =>
      error || stderr ? reject(error ?? new Error(stderr)) : resolve(stdout),
    ),
  );

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

test('fish completes commands, options, choices and files, with their descriptions', async (t) => {
  if (!hasComponent(t, 'fish', () => hasProgram('fish'))) return;
  const { directory, script } = await scriptOf(t, 'fish');
  for (const [line, offered, not] of CASES) {
    const said = (await ask('fish', ['--no-config', '-c', `source ${script}; complete -C '${line}'`], directory))
      .split('\n')
      .map((it) => it.split('\t'));
    for (const word of offered)
      assert.ok(
        said.some(([name]) => name === word),
        `${line}: ${said}`,
      );
    for (const word of not) assert.ok(!said.some(([name]) => name === word), `${line}: ${said}`);
    if (line === 'purser wal') assert.deepEqual(said[0], ['wallet', 'bounded budgets for agents']);
  }
});

test('zsh completes what is typed at its prompt', async (t) => {
  if (!hasComponent(t, 'zsh', () => hasProgram('zsh'))) return;
  const { directory, script, text } = await scriptOf(t, 'zsh');
  assert.match(text, /^#compdef purser\n/);
  const home = join(directory, 'home');
  mkdirSync(home);
  const setup = `PS1=READY; cd ${directory}; autoload -Uz compinit; compinit -u -D; source ${script}; purser() { print -r -- "GOT:$*:END"; }; zstyle ':completion:*' list-prompt ''; setopt no_always_last_prompt; unsetopt prompt_cr`;
  writeFileSync(join(home, '.zshrc'), setup);
  for (const [typed, got] of [
    ['purser wal', 'wallet'],
    ['purser wallet tim', 'wallet timeline'],
    ['purser --data /tmp wallet cl', '--data /tmp wallet close'],
    ['purser wallet create --bud', 'wallet create --budget-cents'],
    ['purser spend --by acc', 'spend --by account'],
    ['purser completion fi', 'completion fish'],
    ['purser backup fi', 'backup file.db'],
  ] as const) {
    const shell = onTerminal(t, ['zsh', '-i'], { columns: 200, env: { HOME: home, ZDOTDIR: home, TERM: 'dumb' } });
    await shell.shows(/READY/);
    shell.type(`${typed}\t`);
    shell.type('\n');
    const [, said] = await shell.shows(/GOT:(.*?):END/);
    assert.equal(said?.trim(), got, typed);
    shell.type('exit\n');
    await shell.ended;
  }
});

test('another shell is a usage error', async () => {
  const refused = await run(['completion', 'csh']);
  assert.deepEqual([refused.code, refused.stdout], [2, '']);
});
