import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { onTerminal } from '../helper/terminal.ts';
import { ask, CASES, PATH, scriptOf } from './completion-shared.ts';

test('fish completes commands, options, choices and files, with their descriptions', async (t) => {
  if (!hasComponent(t, 'fish')) return;
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
  if (!hasComponent(t, 'zsh')) return;
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
    ['purser wallet create --budget-', 'wallet create --budget-cents'],
    ['purser spend --by acc', 'spend --by account'],
    ['purser completion fi', 'completion fish'],
    ['purser backup fi', 'backup file.db'],
  ] as const) {
    const shell = onTerminal(t, ['zsh', '-i'], {
      columns: 200,
      env: { HOME: home, ZDOTDIR: home, TERM: 'dumb', PATH },
    });
    await shell.shows(/READY/);
    shell.type(`${typed}\t`);
    shell.type('\n');
    const [, said] = await shell.shows(/GOT:(.*?):END/);
    assert.equal(said?.trim(), got, typed);
    shell.type('exit\n');
    await shell.ended;
  }
});
