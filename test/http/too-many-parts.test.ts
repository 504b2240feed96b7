import assert from 'node:assert/strict';
import test from 'node:test';
import { openHouse } from '../helper/house.ts';

const many = (item: string, count: number) => `[${Array(count).fill(item).join(',')}]`;

for (const [what, body, code] of [
  ['a million wrong messages', `{"model":"chat","messages":${many('1', 1_000_000)}}`, 'invalid_json'],
  ['a million empty messages', `{"model":"chat","messages":${many('{}', 1_000_000)}}`, 'invalid_json'],
  ['more messages than anybody has', `{"model":"chat","messages":${many('{}', 10_001)}}`, 'invalid_request'],
] as const)
  test(`a body of ${what} is refused with one sentence, and asks nobody`, async (t) => {
    const house = await openHouse(t);
    const { token } = await house.openWallet();
    const answer = await house.ask('POST', '/v1/chat/completions', { token, key: 'k', body });
    assert.deepEqual([answer.status, answer.body.error.code], [400, code]);
    assert.ok(answer.text.length < 500, answer.text);
    assert.deepEqual(house.upstream.calls, []);
  });
