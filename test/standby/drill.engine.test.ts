import test from 'node:test';
import { freezes, takeOvers } from './drill.ts';

// A few of each, with seeds that stay the same; drill.soak.test.ts has the long run.

const [TAKE_OVERS, FREEZES] = [6, 2];

for (const seed of [1, 2])
  test(`${TAKE_OVERS} takeovers under load lose nothing acknowledged and charge nothing twice (seed ${seed})`, (t) =>
    takeOvers(t, seed, TAKE_OVERS, false));

test(`a frozen disk: nothing goes out any more, not even when it is thawed (${FREEZES} times, seed 3)`, (t) =>
  freezes(t, 3, FREEZES, false));
