import test from 'node:test';
import { assertLinksStay, assertSizesForward } from './hostile-shared.ts';

test('a tree has no link that leads out of it, also through its other links', (t) =>
  assertLinksStay(t, 'js', process.execPath));
test('an archive that leads back in itself is no whole one', (t) => assertSizesForward(t, 'js', process.execPath));
