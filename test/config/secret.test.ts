import assert from 'node:assert/strict';
import test from 'node:test';
import { format, inspect } from 'node:util';
import { deserialize, serialize } from 'node:v8';
import { createLog } from '../../src/base/log.ts';
import { isSame, redactedTexts, Secret, secretsIn } from '../../src/base/secret.ts';

const CANARY = 'canary-0123456789';
const settings = (text = CANARY) => ({ list: [{ name: 'a', key: new Secret(text) }], none: undefined, price: 1n });

test('a secret is printed as set in every way, and only reveal gives its text', () => {
  const secret = new Secret(CANARY);
  const { list } = settings();
  const lines: string[] = [];
  createLog('info', [], (line) => lines.push(line)).info({ secret, list }, String(secret));
  const printed = [
    `${secret}`,
    JSON.stringify({ secret }),
    inspect(secret, { showHidden: true, depth: 9 }),
    format('%s %o %O %j', secret, secret, list, list),
    new Error(`no ${secret}`).stack as string,
    ...lines,
  ];
  for (const it of printed) assert(it.includes('[set]') && !it.includes('canary'), it);
  assert(!inspect(deserialize(serialize({ secret, list })), { depth: 9 }).includes('canary'));
  assert.deepEqual(Object.keys(secret), []);
  assert.equal(secret.reveal(), CANARY);
});

test('every secret of a value is found at any depth, and a log redacts its words, too', () => {
  const header = new Secret(`Bearer ${CANARY}`);
  const all = { ...settings('another-secret'), headers: { authorization: header }, text: new Secret('') };
  assert.deepEqual(
    secretsIn(all).map((it) => it.reveal()),
    ['another-secret', `Bearer ${CANARY}`, ''],
  );
  assert.deepEqual(redactedTexts(all), ['another-secret', `Bearer ${CANARY}`, CANARY, '']);
});

test('two settings are the same only with the same secrets', () => {
  assert(isSame(settings(), settings()));
  assert(!isSame(settings(), settings('another-secret')));
  assert(!isSame(settings(), { ...settings(), price: 2n }));
  assert(!isSame(new Secret('[set]'), '[set]'));
  assert(isSame({ a: undefined }, {}));
});
