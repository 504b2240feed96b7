import assert from 'node:assert/strict';
import test from 'node:test';
import { newJournal } from '../../torture/journal.ts';
import { openOrders } from '../../torture/orders.ts';
import type { Serving } from '../helper/executable.ts';
import type { Answer } from '../helper/server.ts';

const DONE: Answer = { status: 200, headers: {}, body: {}, text: '{}' };

/** A wallet, and orders to a server that answers when it is told to, in any order. */
function orders() {
  const answers: PromiseWithResolvers<Answer>[] = [];
  const ask = () => {
    const answer = Promise.withResolvers<Answer>();
    answers.push(answer);
    return answer.promise;
  };
  const it = openOrders(newJournal(), async () => ({ ask }) as unknown as Serving, 'key');
  const wallet = it.wallet(1n, 0);
  const send = async (isFrozen: boolean) => {
    const sent = it.freeze(wallet, isFrozen);
    await Promise.resolve(); // By then the server has it.
    const answer = answers.at(-1) as PromiseWithResolvers<Answer>;
    return async () => {
      answer.resolve(DONE);
      await sent;
      return wallet.frozen.state;
    };
  };
  return { send, lose: () => answers.at(-1)?.reject(new Error('reset')), it, wallet };
}

test('a freeze is known once it is answered, and so is its end', async () => {
  const { send, wallet } = orders();
  assert.equal(wallet.frozen.state, 'no');
  const frozen = await send(true);
  assert.equal(wallet.frozen.state, 'maybe');
  assert.equal(await frozen(), 'yes');
  assert.equal(await (await send(false))(), 'no');
});

test('of two that were on their way at once neither says what came last', async () => {
  const { send } = orders();
  for (const order of ['as they were sent', 'the other way round']) {
    const [frozen, thawed] = [await send(true), await send(false)];
    const both = order === 'as they were sent' ? [frozen, thawed] : [thawed, frozen];
    for (const answered of both) assert.equal(await answered(), 'maybe', order);
  }
  assert.equal(await (await send(false))(), 'no');
});

test('one that was lost may be carried out after the next', async () => {
  const { send, lose, it, wallet } = orders();
  const lost = it.freeze(wallet, true);
  await Promise.resolve();
  lose();
  await assert.rejects(lost);
  assert.equal(await (await send(false))(), 'maybe');
});
