import test from 'node:test';
import { length, SEED } from '../helper/random.ts';
import { freezes, takeOvers } from './drill.ts';

const [TAKE_OVERS, FREEZES] = [length(1, 20), length(1, 5)];

test(`${TAKE_OVERS} takeovers under load, with machines, lose nothing acknowledged and charge nothing twice (seed ${SEED})`, (t) =>
  takeOvers(t, SEED, TAKE_OVERS));

test(`a frozen disk, with machines: nothing goes out any more, not even when it is thawed (${FREEZES} times, seed ${SEED})`, (t) =>
  freezes(t, SEED, FREEZES));
