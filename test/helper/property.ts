import fc from 'fast-check';
import { length, SEED } from './random.ts';

// fast-check with the seed of the run. The soak tries more.
fc.configureGlobal({ seed: SEED, numRuns: length(100, 500) });

export default fc;
