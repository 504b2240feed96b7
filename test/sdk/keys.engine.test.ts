import test from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { assertToldKey } from './keys-shared.ts';

test('a paid call whose answer was lost tells its key, in Python', async (t) => {
  if (hasComponent(t, 'python3')) await assertToldKey(t, 'python', 'python3');
});
