import assert from 'node:assert/strict';
import test from 'node:test';
import { parseExpiry, parseExtension, parseTime } from '../../cli/context.ts';

const secondsOf = (text: string) => Date.parse(text) / 1000;

test('a time is read in every form, and a day that no calendar has is refused in all of them', () => {
  assert.equal(parseTime('1795000000'), 1_795_000_000);
  assert.equal(parseTime('2024-02-29'), secondsOf('2024-02-29T00:00:00Z'));
  assert.equal(parseTime('2026-03-31T14:05:09Z'), secondsOf('2026-03-31T14:05:09Z'));
  assert.equal(parseTime('2026-03-31T14:05:09+02:00'), secondsOf('2026-03-31T12:05:09Z'));
  for (const day of ['2026-02-29', '2026-02-31', '2026-04-31', '2026-13-01', '2026-00-10', '2026-01-00', '2026-01-32'])
    for (const rest of ['', 'T00:00:00Z', 'T23:00:00-02:00'])
      assert.throws(() => parseTime(day + rest), { code: 'commander.invalidArgument' }, day + rest);
});

test('a duration out of its bounds is refused in the units in which it was typed', () => {
  assert.deepEqual(['1m', '60', '30d', 'never', '0'].map(parseExpiry), [60, 60, 2_592_000, 0, 0]);
  for (const value of ['59', '59s', '31d'])
    assert.throws(() => parseExpiry(value), { message: 'It must be from 1m to 30d, or "never".' }, value);
  assert.deepEqual(['1', '365d'].map(parseExtension), [1, 31_536_000]);
  for (const value of ['0', '366d'])
    assert.throws(() => parseExtension(value), { message: 'It must be from 1s to 365d.' });
});
