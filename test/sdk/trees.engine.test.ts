import test from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { assertDottedNames } from './trees-shared.ts';

test('names that begin with two dots stay in their tree, in Python', async (t) => {
  if (hasComponent(t, 'python3')) await assertDottedNames(t, 'python', 'python3');
});
