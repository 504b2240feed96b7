import assert from 'node:assert/strict';
import test from 'node:test';
import { widthOf } from '../../cli/terminal.ts';
import { EXECUTABLE } from '../helper/executable.ts';
import { onTerminal, withoutControls } from '../helper/terminal.ts';
import { fillWithLong, LONG } from '../ui/long.ts';
import { openSample, pagesOf } from '../ui/sample.ts';

/** The records of a page of a list, and the lines around them. */
const [RECORD_COUNT_MAX, FRAME_COUNT_MAX] = [100, 8];

const LISTS = [
  ['account', 'list'],
  ['account', 'statement', 'default'],
  ['wallet', 'list'],
  ['wallet', 'timeline', 'research agent'],
  ['operation', 'list'],
  ['operation', 'list', '--uncertain'],
  ['resource', 'list', '--all'],
  ['models', 'list'],
  ['key', 'list', '--account', 'default'],
  ['operator-key', 'list'],
  ['passkey', 'list'],
  ['events', 'list'],
  ['checkout', 'list'],
  ['spend'],
  ['spend', '--by', 'wallet'],
  ['spend', '--by', 'account'],
  ['spend', '--by', 'tag'],
  ['spend', '--by', 'day'],
  ['status'],
];

test('all lists fit 80, 100 and 120 columns of a real terminal, with one line for each record', async (t) => {
  const sample = await openSample(t);
  await pagesOf(sample); // Adds a passkey and a gateway key.
  await fillWithLong(sample, RECORD_COUNT_MAX);
  for (const command of [...LISTS, ['wallet', 'timeline', LONG]]) {
    const args = [EXECUTABLE, '--data', sample.directory, ...command];
    for (const columns of [80, 100, 120]) {
      const terminal = onTerminal(t, args, { columns });
      assert.equal(await terminal.ended, 0, terminal.screen());
      const lines = withoutControls(terminal.screen()).trimEnd().split('\n');
      const where = `${command.join(' ')} at ${columns}`;
      for (const line of lines) assert.ok(widthOf(line) <= columns, `${where}: ${line}`);
      assert.ok(lines.length > 1, `${where} has no record: ${lines}`);
      const { length } = lines;
      if (command[1] !== 'timeline')
        assert.ok(length <= RECORD_COUNT_MAX + FRAME_COUNT_MAX, `${where}: ${length} lines`);
    }
  }
});
