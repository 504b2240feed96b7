import assert from 'node:assert/strict';
import test from 'node:test';
import { Refusal } from '../../src/base/refusal.ts';
import { createConcurrency } from '../../src/http/concurrency.ts';

const refused = (enter: () => unknown, message: RegExp) =>
  assert.throws(
    enter,
    (it) =>
      it instanceof Refusal && it.code === 'rate_limited' && it.retryAfterSeconds === 2 && message.test(it.message),
  );

test('16 commands and uploads run at once on a resource, 64 on the resources of a wallet', () => {
  const atOnce = createConcurrency();
  const ends = Array.from({ length: 16 }, () => atOnce.enter('res_1', 'wal_1'));
  refused(() => atOnce.enter('res_1', 'wal_1'), /^At most 16 .* on this resource/);
  for (const id of ['res_2', 'res_3', 'res_4']) for (let i = 0; i < 16; i++) atOnce.enter(id, 'wal_1');
  refused(() => atOnce.enter('res_5', 'wal_1'), /^At most 64 .* of this wallet/);
  atOnce.enter('res_6', 'wal_2');
  ends[0]?.();
  atOnce.enter('res_5', 'wal_1');
  refused(() => atOnce.enter('res_1', 'wal_1'), /of this wallet/);
  ends[1]?.();
  atOnce.enter('res_1', 'wal_1');
});
