import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');

/** Collects all memory of this thread that nothing refers to. */
export const collectGarbage = runInNewContext('gc') as () => void;

// With the flag, V8 would not take what it compiled before of the modules that are still to be loaded.
setFlagsFromString('--no-expose-gc');
