import assert from 'node:assert/strict';
import test from 'node:test';
import { Nanos } from '../../src/base/money.ts';
import { placeHold } from '../../src/ledger/hold.ts';
import { settle } from '../../src/ledger/operation.ts';
import { writeWith } from '../helper/closures.ts';
import { openTestServer } from '../helper/server.ts';
import { holdOrder } from '../ledger/books.ts';

/** Operations of one wallet, which an agent sends in an hour. */
const COUNT = 3000;

test('a long timeline lets requests run meanwhile, and shows the wallet as it was when it was begun', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const now = purser.app.clock.now();
  const charge = Nanos(1000n);
  await writeWith(purser.app.ledger, (tx) => {
    for (let i = 0; i < COUNT; i++) {
      const operation = placeHold(tx, holdOrder(id, Nanos(3000n)), now);
      settle(tx, operation.id, { kind: 'done', charge, usage: null, answer: null }, 'answer', now);
    }
  });
  let turns = 0;
  const count = () => {
    turns++;
    next = setImmediate(count);
  };
  let next = setImmediate(count);
  const shown = purser.run('wallet.timeline', { id }).finally(() => clearImmediate(next));
  const [{ wallet, steps, open }, chat] = await Promise.all([shown, purser.chat(token, { model: 'flat' })]);
  assert.equal(chat.status, 200);
  assert(turns > (3 * COUNT) / 1000, `${turns} turns of the event loop`);
  assert.equal(steps.length, 1 + 3 * COUNT);
  assert.deepEqual(
    steps.slice(0, 4).map(({ what, amount_usd: usd }) => [what, usd]),
    [
      ['opened', '10.00'],
      ['held', '0.000003'],
      ['charged', '0.000001'],
      ['released', '0.000002'],
    ],
  );
  assert.deepEqual(
    steps.map(({ seq }) => seq),
    steps.map(({ seq }) => seq).toSorted((a, b) => a - b),
  );
  assert.deepEqual([steps.at(-1)?.available_usd, open], [wallet.available_usd, []]);
  const after = await purser.run('wallet.timeline', { id });
  assert.equal(after.steps.length, steps.length + 2, 'the hold and the charge of the chat');
  assert.equal(after.steps.at(-1)?.available_usd, after.wallet.available_usd);
});
