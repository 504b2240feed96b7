import assert from 'node:assert/strict';
import test from 'node:test';
import { SEED } from '../helper/random.ts';
import { type ChatRequest, openCounters } from '../helper/tokenizers.ts';
import { assertBounded, PROMPTS, REAL_COUNTS, randomPrompts } from './rendered-shared.ts';

const counters = openCounters();
const countsOf = (request: ChatRequest) =>
  Object.fromEntries(counters.map(({ name, count }) => [name, count(request)]));

test('the recorded counts are those of real tokenizers and templates', () => {
  const counts = Object.fromEntries(PROMPTS.map(([what, request]) => [what, countsOf(request)]));
  assert.deepEqual(REAL_COUNTS, counts, `real-counts.json has to be:\n${JSON.stringify(counts, null, 2)}`);
});

test(`every real count of random prompts is within the bound (seed ${SEED})`, (t) => {
  for (const prompt of randomPrompts(SEED)) assertBounded(t, prompt, countsOf(prompt[1]));
});
