import assert from 'node:assert/strict';
import test, { suite } from 'node:test';
import { openedOnce } from './opened-once.ts';

let isOpen = false;

test('what a suite opens is not open before it', () => assert.equal(isOpen, false));

suite('a suite', () => {
  const opened = openedOnce(async (t) => {
    isOpen = true;
    t.after(() => {
      isOpen = false;
    });
    return 'it';
  });
  test('has it open for its tests', () => {
    assert.equal(opened(), 'it');
    assert.equal(isOpen, true);
  });
});

test('what a suite opens is closed after it', () => assert.equal(isOpen, false));
