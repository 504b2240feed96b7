import assert from 'node:assert/strict';
import test from 'node:test';
import { onOneLine } from '../../src/compute/kit/one-line.ts';
import { assertLinear } from '../helper/cpu.ts';

test('what a program says comes on one line, however many spaces it prints', () => {
  assert.equal(onOneLine(' srun: a \r\n\n\t b\n  c '), 'srun: a; b; c');
  assert.equal(onOneLine(' \n '), '');
  assertLinear('spaces', 64 * 1024, (length) => () => onOneLine(`a${' '.repeat(length)}b`));
});
