import test from 'node:test';
import { createRandom, SEED } from '../helper/random.ts';
import { HOSTILE_ENGINES } from './engines/hostile.ts';

for (const [name, attack] of Object.entries(HOSTILE_ENGINES))
  test(`hostile answers of ${name} fail their calls only (seed ${SEED})`, (t) => attack(t, createRandom(SEED), 150));
