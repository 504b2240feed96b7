import assert from 'node:assert/strict';
import test from 'node:test';
import { createRandom, length, SEED } from '../helper/random.ts';
import { completion, failure } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { DEAR, later, open } from './funds-wait-shared.ts';

for (let walk = 0; walk < length(1, 20); walk++)
  test(`at random: no budget is exceeded, and every request ends (PURSER_TEST_SEED=${SEED + walk})`, async (t) => {
    const random = createRandom(SEED + walk);
    const it = await open(t, { wallet: { budget_cents: 2000, expires_in_seconds: 0 } });
    const { purser, gateway, calls, time } = it;
    const body = { name: 'c', budget_usd: '6' };
    const child = (await purser.ask('POST', '/v1/run/wallets', { token: gateway.token, key: 'c', body })).body;
    const key = (await purser.ask('POST', '/v1/router/key', { token: child.agent_token, body: {} })).body.api_key;
    const ids = [gateway.walletId, child.id as string];
    const ends: Promise<unknown>[] = [];
    const held: typeof calls = [];
    const check = () => {
      for (const id of ids) {
        const { budget, held: onHold, spent, delegated } = purser.wallet(id);
        assert.ok(
          onHold >= 0n && spent + onHold + delegated <= budget,
          `${id}: ${spent}, ${onHold}, ${delegated} of ${budget}`,
        );
      }
    };
    const send = (token: string, strict: boolean) => {
      const gone = new AbortController();
      const asked = { ...DEAR, messages: [{ role: 'user', content: 'hi' }], max_tokens: random.whole(1, 700) };
      const seed = ends.length; // None is the retry of another.
      const sent = fetch(`${purser.url}${strict ? '/v1/chat/completions' : '/v1/router/chat/completions'}`, {
        method: 'POST',
        signal: gone.signal,
        headers: {
          authorization: `Bearer ${token}`,
          'content-type': 'application/json',
          ...(strict ? { 'idempotency-key': `k${seed}` } : {}),
        },
        body: JSON.stringify({ ...asked, seed, ...(strict || random.whole(0, 1) ? {} : { stream: true }) }),
      })
        .then((response) => response.text())
        .catch(() => {});
      ends.push(sent);
      if (random.whole(0, 9) === 0) setTimeout(() => gone.abort(), random.whole(0, 20));
    };
    const answer = () => {
      while (calls.length) held.push(calls.shift() as (typeof calls)[number]);
      const [one] = held.splice(random.whole(0, Math.max(0, held.length - 1)), 1);
      const tokens = random.whole(0, 20);
      one?.answer(
        random.pick([
          undefined,
          undefined,
          undefined,
          completion({ prompt_tokens: 1, completion_tokens: tokens, total_tokens: 1 + tokens }),
          failure(400),
        ]),
      );
    };
    for (let step = 0; step < length(120, 400); step++) {
      const what = random.weighted({
        ask: 40,
        strict: 5,
        answer: 40,
        raise: 4,
        lower: 4,
        freeze: 2,
        expire: 1,
        turn: 10,
      });
      if (what === 'ask') send(random.pick([gateway.key, key]), false);
      else if (what === 'strict') send(random.pick([gateway.token, child.agent_token]), true);
      else if (what === 'answer') answer();
      else if (what === 'raise' || what === 'lower')
        await later(purser, `/v1/wallets/${random.pick(ids)}/budget`, {
          add_cents: random.whole(1, 200) * (what === 'raise' ? 1 : -1),
        });
      else if (what === 'freeze') {
        const id = random.pick(ids);
        await purser.run('wallet.freeze', { id });
        await purser.run('wallet.unfreeze', { id });
      } else if (what === 'expire') time.expire();
      else for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
      check();
    }
    let isOver = false;
    const over = Promise.all(ends).then(() => {
      isOver = true;
    });
    await until('every request has ended', () => {
      answer();
      check();
      return isOver;
    });
    await over;
    await until('nothing waits or runs', () => {
      answer();
      return purser.app.inFlight.count() === 0;
    });
    assert.equal(purser.app.fundsQueue.count(), 0);
    assert.deepEqual(purser.problems(), []);
  });
