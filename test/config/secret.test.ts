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

test('a log redacts a secret with characters that JSON escapes, as JSON and as text', () => {
  for (const key of ['pa"ss-0123456789', 'pa\\ss-0123456789', `Basic "${CANARY}\\"`])
    for (const format of ['json', 'text'] as const) {
      const lines: string[] = [];
      const log = createLog('info', redactedTexts(settings(key)), (line) => lines.push(line), format);
      log.info({ reason: `it says ${key}`, err: new Error(`no ${key}`) }, `said ${key}`);
      const [line = ''] = lines;
      assert(!line.includes('0123456789'), line);
      assert.equal(line.split('[redacted]').length - 1 >= 3, true, line);
      if (format === 'json') assert.equal(JSON.parse(line).reason, 'it says [redacted]');
    }
});

test('two settings are the same only with the same secrets', () => {
  assert(isSame(settings(), settings()));
  assert(!isSame(settings(), settings('another-secret')));
  assert(!isSame(settings(), { ...settings(), price: 2n }));
  assert(!isSame(new Secret('[set]'), '[set]'));
  assert(isSame({ a: undefined }, {}));
});
