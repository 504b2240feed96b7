import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');

/** Collects all memory of this thread that nothing refers to. */
export const collectGarbage = runInNewContext('gc') as () => void;
