import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { createRandom, SEED } from '../helper/random.ts';
import { openTestServer } from '../helper/server.ts';
import { failure, type Handler, reset } from '../helper/upstream.ts';
import { CHARGE, call } from './retry-shared.ts';

const WALKS = 3;
for (let walk = 0; walk < WALKS; walk++)
  test(`clients that come, repeat and leave at random: nothing is paid twice (PURSER_TEST_SEED=${SEED + walk})`, async (t) => {
    const random = createRandom(SEED + walk);
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser, { wallet: { budget_cents: 50_000 } });
    const bodies = Array.from({ length: 3 }, () => randomUUID());
    let answers = 0;
    purser.upstream.handle = async (it, response) => {
      // Resets are rare enough for the circuit to stay closed.
      const handler = random.pick<Handler>([reset, failure(503), ...Array.from({ length: 8 }, () => answering)]);
      for (let turns = random.whole(0, 20); turns; turns--) await new Promise((resolve) => setImmediate(resolve));
      await handler(it, response);
    };
    const answering: Handler = (_, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 };
      response.end(JSON.stringify({ id: `answer ${++answers}`, choices: [{ message: { content: 'hi' } }], usage }));
    };
    const read: string[] = [];
    const running: Promise<void>[] = [];
    for (let i = 0; i < 150; i++) {
      const client = call(purser, gateway, { user: random.pick(bodies) });
      const stay = random.whole(0, 2) > 0;
      const turns = random.whole(0, 30);
      running.push(
        (async () => {
          if (!stay) {
            for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setImmediate(resolve));
            client.leave();
          }
          const answer = await client.answer;
          const id = answer && /answer \d+/.exec(answer.text)?.[0];
          if (id) read.push(id);
        })(),
      );
      if (random.whole(0, 3) === 0) await running[random.whole(0, running.length - 1)];
    }
    await Promise.all(running);
    await gateway.quiet();
    assert.equal(new Set(read).size, read.length, 'each answer is given to one client');
    const { spent, held } = purser.wallet(gateway.walletId);
    assert.equal(spent, BigInt(answers) * CHARGE, 'each answer is charged once');
    assert(read.length <= answers);
    const uncertain = (await purser.run('operation.list', { uncertain: true })).operations;
    assert.equal(held === 0n, uncertain.length === 0);
    assert.deepEqual(purser.problems(), []);
    t.diagnostic(`${answers} answers, ${read.length} read, ${uncertain.length} uncertain`);
  });
