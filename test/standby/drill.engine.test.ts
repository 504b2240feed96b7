import test from 'node:test';
import { freezes, takeOvers } from './drill.ts';

// A few of each, with seeds that stay the same; drill.soak.test.ts has the long run.

const [TAKE_OVERS, FREEZES] = [6, 2];

test(`${TAKE_OVERS} takeovers under load lose nothing acknowledged and charge nothing twice (seed 1)`, (t) =>
  takeOvers(t, 1, TAKE_OVERS, false));

test(`a frozen disk: nothing goes out any more, not even when it is thawed (${FREEZES} times, seed 3)`, (t) =>
  freezes(t, 3, FREEZES, false));
