import test from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { assertLinksStay } from './hostile-shared.ts';

test('a tree has no link that leads out of it, also through its other links, in Python', async (t) => {
  if (hasComponent(t, 'python3')) await assertLinksStay(t, 'python', 'python3');
});
