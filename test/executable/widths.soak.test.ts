import assert from 'node:assert/strict';
import test from 'node:test';
import { widthOf } from '../../cli/terminal.ts';
import { EXECUTABLE } from '../helper/executable.ts';
import { onTerminal, withoutControls } from '../helper/terminal.ts';
import { openSample } from '../ui/sample.ts';

const LISTS = [
  ['account', 'list'],
  ['account', 'statement', 'default'],
  ['wallet', 'list'],
  ['wallet', 'timeline', 'research agent'],
  ['operation', 'list'],
  ['resource', 'list', '--all'],
  ['models', 'list'],
  ['key', 'list', '--account', 'default'],
  ['operator-key', 'list'],
  ['passkey', 'list'],
  ['events', 'list'],
  ['checkout', 'list'],
  ['spend', '--by', 'wallet'],
  ['status'],
];

test('all lists fit 80, 100 and 120 columns of a real terminal, with one line for each record', async (t) => {
  const sample = await openSample(t);
  await sample.openWallet({ name: 'モデルーの名前はとても長いので、表の幅に収まりません' });
  for (const command of LISTS) {
    const args = [EXECUTABLE, '--data', sample.directory, ...command];
    for (const columns of [80, 100, 120]) {
      const terminal = onTerminal(t, args, { columns });
      assert.equal(await terminal.ended, 0, terminal.screen());
      const lines = withoutControls(terminal.screen()).trimEnd().split('\n');
      for (const line of lines) assert.ok(widthOf(line) <= columns, `${command.join(' ')} at ${columns}: ${line}`);
      if (command[0] === 'operation') assert.ok(lines.length <= 100 + 6, `${lines.length} lines`);
    }
  }
});
