import test from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { assertLinksStay, assertSizesForward } from './hostile-shared.ts';

test('a tree has no link that leads out of it, also through its other links, in Python', async (t) => {
  if (hasComponent(t, 'python3')) await assertLinksStay(t, 'python', 'python3');
});
test('an archive that leads back in itself is no whole one, in Python', async (t) => {
  if (hasComponent(t, 'python3')) await assertSizesForward(t, 'python', 'python3');
});
