import assert from 'node:assert/strict';
import test from 'node:test';
import { words } from '../../src/service/installed.ts';

test('a list of systemd is split as systemd quotes it', () => {
  assert.deepEqual(words(''), []);
  assert.deepEqual(words('PURSER_DATA=/var/lib/purser PURSER_CONFIG=/etc/purser/purser.yaml'), [
    'PURSER_DATA=/var/lib/purser',
    'PURSER_CONFIG=/etc/purser/purser.yaml',
  ]);
  assert.deepEqual(words('"A=two words" B=1 "C=a \\"quote\\" and \\\\"'), ['A=two words', 'B=1', 'C=a "quote" and \\']);
  assert.deepEqual(words('$\'A=line\\none\' "B="'), ['A=line\none', 'B=']);
});
