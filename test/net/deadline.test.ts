import assert from 'node:assert/strict';
import test from 'node:test';
import { deadline, inTime } from '../../src/net/deadline.ts';

test('what comes in time is the answer, also where it is an error', async () => {
  assert.equal(await inTime(Promise.resolve(7), 1000, 'It'), 7);
  await assert.rejects(inTime(Promise.reject(new Error('no')), 1000, 'It'), /^Error: no$/);
});

test('what takes longer is named, with its limit', async () => {
  const never = new Promise<never>(() => {});
  await assert.rejects(inTime(never, 20, 'The list'), /^Error: The list took longer than 0\.02 s$/);
});

test('a deadline comes early when it is cut, and at once when it was cut before', async () => {
  const never = new Promise<never>(() => {});
  const cut = new AbortController();
  const waiting = deadline(never, 600_000, () => 'late', cut.signal);
  cut.abort();
  assert.equal(await waiting, 'late');
  assert.equal(await deadline(Promise.resolve(7), 600_000, () => 'late', cut.signal), 'late');
});
