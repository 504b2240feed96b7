import assert from 'node:assert/strict';
import test from 'node:test';
import { createAudience } from '../../src/spend/audience.ts';
import { createFundsQueue } from '../../src/spend/funds-queue.ts';

test('256 wait in a tree of wallets and 1,024 in all, beyond which others still get an even share', () => {
  const queue = createFundsQueue(
    () => 60,
    (walletId) => ({ treeId: walletId.slice(0, 1), accountId: '' }),
    () => {},
  );
  const joined = (walletId: string, tries: number) =>
    Array.from({ length: tries }, () => queue.join(walletId)).filter((it) => it !== undefined).length;
  for (const tree of ['a', 'b', 'c', 'd'])
    assert.equal(
      Array.from({ length: 6 }, (_, i) => joined(`${tree}${i}`, 65)).reduce((a, b) => a + b),
      256,
    );
  assert.equal(queue.count(), 1024);
  assert.equal(joined('e', 65), 64);
  queue.stop();
  assert.throws(() => queue.join('f'), /stopping/);
});

test('a wake that comes while the first tries is not lost', async () => {
  const queue = createFundsQueue(
    () => 60,
    () => ({ treeId: 'a', accountId: '' }),
    () => {},
  );
  let isThere = true;
  const [audience, first] = [createAudience(), queue.join('w')];
  audience.admit(undefined);
  assert.equal(await first?.come(() => isThere, audience), 'first');
  queue.wake('w'); // While it tries.
  assert.equal(await first?.come(() => isThere, audience), 'first');
  isThere = false;
  const waits = first?.come(() => isThere, audience);
  const second = queue.join('w');
  const behind = second?.come(() => true, audience);
  first?.leave('late');
  assert.equal(await behind, 'first');
  queue.stop();
  await Promise.race([waits, Promise.resolve()]);
});
