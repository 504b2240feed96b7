import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';

test('of more tags than an answer has rows the largest are told, and the rest as one sum', async (t) => {
  const purser = await openTestServer(t);
  const wallet = await purser.openWallet({ budget_cents: 10_000 });
  for (let i = 0; i < 130; i++) {
    const metadata = Object.fromEntries(Array.from({ length: 8 }, (_, k) => [`t${k}`, `${i}`]));
    assert.equal((await purser.chat(wallet.token, { model: 'free', metadata })).status, 200);
  }
  for (let i = 0; i < 3; i++) await purser.chat(wallet.token, { model: 'flat', metadata: { dear: 'x' } });
  const { body } = await purser.ask('GET', '/v1/run/spend?by=tag', { token: wallet.token });
  assert.equal(body.rows.length, 1000);
  assert.deepEqual([body.rows[0].key, body.rows[0].charged_usd], ['dear=x', '0.03']);
  assert.deepEqual(
    [body.others.operations, body.others.charged_usd, body.total_usd],
    [130 * 8 + 1 - 1000, '0.00', '0.03'],
  );
  const few = await purser.ask('GET', '/v1/run/spend?by=model', { token: wallet.token });
  assert.equal(few.body.others, undefined);
});
