import assert from 'node:assert/strict';
import test from 'node:test';
import { run } from '../helper/executable.ts';
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

test('another shell is a usage error', async () => {
  const refused = await run(['completion', 'csh']);
  assert.deepEqual([refused.code, refused.stdout], [2, '']);
});
