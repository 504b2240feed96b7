import test from 'node:test';
import { assertToldKey } from './keys-shared.ts';

test('a paid call whose answer was lost tells its key', (t) => assertToldKey(t, 'js', process.execPath));
