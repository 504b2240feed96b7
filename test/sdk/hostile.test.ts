import test from 'node:test';
import { assertLinksStay } from './hostile-shared.ts';

test('a tree has no link that leads out of it, also through its other links', (t) =>
  assertLinksStay(t, 'js', process.execPath));
