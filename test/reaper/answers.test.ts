import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';

const KEPT_SECONDS = 72 * 3600;

test('an answer can be replayed for 72 hours, then it is pruned and its key says so for ever', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { token } = await purser.openWallet({ expires_in_seconds: 0 });
  const key = randomUUID();
  const first = await purser.chat(token, {}, key);
  const again = () => purser.chat(token, {}, key);
  purser.clock.advance(KEPT_SECONDS - 1);
  assert.equal((await purser.app.reaper.runOnce()).pruned, 0);
  const replayed = await again();
  assert.deepEqual([replayed.status, replayed.text], [200, first.text]);
  assert.equal(replayed.headers['idempotent-replayed'], 'true');

  purser.clock.advance(1);
  assert.equal((await purser.app.reaper.runOnce()).pruned, 1);
  for (const seconds of [0, 365 * 86_400]) {
    purser.clock.advance(seconds);
    const gone = await again();
    assert.deepEqual([gone.status, gone.body.error.code], [409, 'idempotency_key_expired']);
  }
  assert.equal(purser.upstream.calls.length, 1, 'never a second effect');
  assert.deepEqual(purser.problems(), []);
});

test('pruning hundreds of answers takes one pass, and leaves those whose time has not come', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { token } = await purser.openWallet({ expires_in_seconds: 0 });
  const chats = (count: number) =>
    Promise.all(Array.from({ length: count }, () => purser.chat(token, { model: 'free' })));
  await chats(250);
  purser.clock.advance(3600);
  await chats(10);
  purser.clock.advance(KEPT_SECONDS - 3600);
  assert.equal((await purser.app.reaper.runOnce()).pruned, 250);
  assert.equal(purser.app.ledger.client.prepare('select count(*) from answer').pluck().get(), 10n);
  purser.clock.advance(3600);
  assert.equal((await purser.app.reaper.runOnce()).pruned, 10);
});

test('an answer outlives a leap of the clock that is still doubted', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { token } = await purser.openWallet({ expires_in_seconds: 0 });
  await purser.chat(token);
  purser.clock.leap(KEPT_SECONDS + 1);
  assert.equal((await purser.app.reaper.runOnce()).pruned, 0, 'the leap is not believed yet');
  purser.clock.advance(300);
  assert.equal((await purser.app.reaper.runOnce()).pruned, 1);
});
