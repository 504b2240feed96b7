import assert from 'node:assert/strict';
import test from 'node:test';
import { newId } from '../../src/base/id.ts';

test('an id is its prefix and 26 characters of base 32, none of which can be misread', () => {
  for (const prefix of ['acct', 'wal', 'op', 'inst'] as const)
    assert.match(newId(prefix), new RegExp(`^${prefix}_[0-9a-hjkmnp-tv-z]{26}$`));
});

test('a hundred thousand ids are a hundred thousand different ones', () => {
  const ids = Array.from({ length: 100_000 }, () => newId('op'));
  assert.equal(new Set(ids).size, ids.length);
});

test('an id made in a later millisecond sorts later', (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_795_000_000_000 });
  let before = newId('op');
  for (const milliseconds of [1, 31, 1, 1024, 86_400_000, 2_592_000_000, 31_536_000_000]) {
    t.mock.timers.tick(milliseconds);
    const id = newId('op');
    assert(id > before, `${id} after ${before}`);
    before = id;
  }
});

test('ids of one millisecond sort in the order in which they are made, and are not guessed from one another', (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_795_000_000_000 });
  const ids = Array.from({ length: 100_000 }, () => newId('wal'));
  assert.deepEqual(ids.toSorted(), ids);
  assert.equal(new Set(ids.map((it) => it.slice(-8))).size, ids.length);
});

test('the random part uses every bit: each character of it takes all 32 values', (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_795_000_000_000 });
  const seen = Array.from({ length: 16 }, () => new Set<string>());
  for (let i = 0; i < 5000; i++) {
    t.mock.timers.tick(1);
    const random = newId('op').slice(-16);
    for (const [k, values] of seen.entries()) values.add(random[k] as string);
  }
  for (const values of seen) assert.equal(values.size, 32);
});
