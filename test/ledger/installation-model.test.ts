import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { formatUsd, Nanos } from '../../src/base/money.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completion, failure, hang, reset } from '../helper/upstream.ts';
import { Model, NEW_ACCOUNT } from './model.ts';

/** USD 0.01 for each output token, and nothing else: the hold is what was asked for, the charge what came. */
const NANOS_PER_TOKEN = 10_000_000n;
const POLICY_SECONDS = 900;

/** An operation's key and body, and since when it is uncertain: enough to ask for it again. */
type Asked = { walletId: string; key: string; body: Record<string, unknown>; operationId: string; uncertainAt: number };

const count = length(300, 400);
test(`${count} random requests leave the server equal to the model (PURSER_TEST_SEED=${SEED})`, async (t) => {
  const random = createRandom(SEED);
  const model = new Model();
  const purser = await openTestServer(t, {
    unknownCountMax: Infinity,
    settings: { close_wait_seconds: 0, drain_seconds: 0 },
  });
  await purser.app.reaper.stop(); // It runs when the walk says so.
  model.now = purser.app.clock.now();
  model.accounts.set(purser.accountId, { ...NEW_ACCOUNT, available: 100_000 });
  const tokens = new Map<string, string>();
  const asked: Asked[] = [];
  const seen: Record<string, number> = {};

  const active = () => [...model.wallets].filter(([, it]) => it.status !== 'closed').map(([id]) => id);
  const anyWallet = () => random.pick(random.whole(0, 9) && active().length ? active() : [...model.wallets.keys()]);
  const tokenOf = (id: string) => tokens.get(id) as string;

  /** Decides what is open and closes, as the server does when a wallet ends. */
  function end(id: string, reason: string): void {
    model.freeze(id, reason);
    for (const operation of model.openOperations(id))
      model.settle(operation, 'charged', model.operation(operation).hold);
    model.close(id);
  }
  /** What a request for more is answered when the model says `said`. */
  function assertAnswer(answer: { status: number; body: { error?: { code: string } } }, said: string): void {
    seen[said] = (seen[said] ?? 0) + 1;
    assert.equal(answer.body.error?.code ?? 'ok', said);
  }

  const STEPS: Record<string, () => Promise<void> | void> = {
    async open() {
      const cents = random.whole(100, 3000);
      const seconds = random.pick([0, random.whole(60, 3000)]);
      const answer = await purser.ask('POST', '/v1/wallets', {
        token: purser.accountKey,
        key: randomUUID(),
        body: { name: 'walk', budget_cents: cents, expires_in_seconds: seconds },
      });
      assertAnswer(answer, model.open(answer.body.id, purser.accountId, cents, seconds));
      if (answer.status === 201) tokens.set(answer.body.id, answer.body.agent_token);
    },

    async chat() {
      const walletId = anyWallet();
      const asks = random.whole(1, 400);
      const uses = random.whole(0, asks);
      const hold = BigInt(asks) * NANOS_PER_TOKEN;
      const [how, handle, outcome, charge] = random.pick([
        ['ok', completion({ prompt_tokens: 5, completion_tokens: uses }), 'charged', BigInt(uses) * NANOS_PER_TOKEN],
        ['ok', completion({ prompt_tokens: 5, completion_tokens: uses }), 'charged', BigInt(uses) * NANOS_PER_TOKEN],
        ['ok', completion({}), 'charged', BigInt(Math.min(asks, 'hello'.length)) * NANOS_PER_TOKEN],
        ['invalid_request', failure(400), 'released', 0n],
        ['gateway_unavailable', failure(503), 'released', 0n],
        ['operation_uncertain', reset, 'unknown', 0n],
      ] as const);
      purser.upstream.handle = handle;
      const [key, body] = [randomUUID(), { model: 'dear', max_tokens: asks }];
      const before = purser.upstream.calls.length;
      const answer = await purser.chat(tokenOf(walletId), body, key);
      const operationId = String(purser.upstream.calls.at(-1)?.headers['idempotency-key']);
      const said = model.hold(operationId, walletId, hold);
      assertAnswer(answer, said === 'ok' ? how : said);
      assert.equal(purser.upstream.calls.length - before, said === 'ok' ? 1 : 0);
      if (said !== 'ok') return;
      model.settle(operationId, outcome, charge);
      if (outcome !== 'released') asked.push({ walletId, key, body, operationId, uncertainAt: model.now });
    },

    async askAgain() {
      if (!asked.length) return;
      const { walletId, key, body, operationId } = random.pick(asked);
      const { state, outcome } = model.operation(operationId);
      if (outcome === 'released') return; // The key is free: that would be a new attempt.
      const before = purser.upstream.calls.length;
      const answer = await purser.chat(tokenOf(walletId), body, key);
      assert.equal(purser.upstream.calls.length, before, 'never a second effect');
      if (state !== 'settled') return assertAnswer(answer, 'operation_uncertain');
      const [, settledBy] = purser.app.ledger.client
        .prepare('select id, settled_by from operation where id = ?')
        .raw()
        .get(operationId) as [string, string];
      assertAnswer(answer, settledBy === 'answer' ? 'ok' : 'answer_lost');
    },

    async resolve() {
      const [id] = [...model.operations].find(([, it]) => it.state === 'uncertain') ?? [];
      if (!id) return;
      const decision = random.pick(['charge', 'release'] as const);
      await purser.run('operation.resolve', { id, decision, reason: 'the walk' });
      const charge = decision === 'charge' ? model.operation(id).hold : 0n;
      model.settle(id, decision === 'charge' ? 'charged' : 'released', charge);
    },

    async close() {
      const id = random.pick([...model.wallets.keys()]);
      const answer = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
      end(id, 'account_request');
      assert.equal(answer.status, 200);
      assert.equal(answer.body.returned_cents, model.wallet(id).returned);
    },

    wait() {
      const seconds = random.pick([1, random.whole(1, 60), random.whole(60, 600)]);
      purser.clock.advance(seconds);
      model.now += seconds;
    },

    async reap() {
      await purser.app.reaper.runOnce();
      for (const [id, { status }] of model.wallets) if (status === 'active' && model.isDue(id)) end(id, 'expired');
      for (const { operationId: id, uncertainAt } of asked)
        if (model.operation(id).state === 'uncertain' && uncertainAt + POLICY_SECONDS <= model.now)
          model.settle(id, 'charged', model.operation(id).hold);
    },

    /** The purser goes down in the middle of a call; nobody hears how that ended. */
    async restart() {
      const walletId = anyWallet();
      const body = { model: 'dear', max_tokens: 10 };
      purser.upstream.handle = hang;
      const before = purser.upstream.calls.length;
      const key = randomUUID();
      const call = purser.chat(tokenOf(walletId), body, key);
      const arrived = purser.upstream.arrived(before + 1);
      const refused = await Promise.race([arrived.then(() => undefined), call]);
      await purser.reopen();
      await purser.app.reaper.stop();
      const operationId = String(purser.upstream.calls.at(-1)?.headers['idempotency-key']);
      const said = model.hold(operationId, walletId, 10n * NANOS_PER_TOKEN);
      if (refused) return assertAnswer(refused, said);
      assertAnswer(await call, 'operation_uncertain');
      model.settle(operationId, 'unknown', 0n);
      asked.push({ walletId, key, body, operationId, uncertainAt: model.now });
    },
  };
  const WEIGHTS = { open: 8, chat: 50, askAgain: 12, resolve: 4, close: 4, wait: 10, reap: 8, restart: 3 };

  await STEPS.open?.();
  for (let step = 1; step < count; step++) {
    await STEPS[random.weighted(WEIGHTS)]?.();
    if (step % 10 === 0) await assertEqual(purser, model, tokens);
  }
  await assertEqual(purser, model, tokens);
  t.diagnostic(JSON.stringify({ wallets: model.wallets.size, operations: model.operations.size, ...seen }));
});

/** What the server answers of its figures is what the model says, and the books agree. */
async function assertEqual(purser: TestServer, model: Model, tokens: Map<string, string>): Promise<void> {
  const { available, reserved, spent } = model.account(purser.accountId);
  const answer = await purser.ask('GET', '/v1/account', { token: purser.accountKey });
  const { available_cents, reserved_cents, spent_cents } = answer.body;
  assert.deepEqual([available_cents, reserved_cents, spent_cents], [available, reserved, spent]);
  for (const [id, wallet] of model.wallets) {
    const budget = await purser.budget(tokens.get(id) as string);
    const status = model.isDue(id) ? 'expired' : wallet.status;
    assert.deepEqual(
      [budget.status, budget.budget_usd, budget.held_usd, budget.used_usd, budget.holds.length],
      [
        status,
        ...[wallet.budget, wallet.held, wallet.spent].map((it) => formatUsd(Nanos(it))),
        model.openOperations(id).length,
      ],
    );
  }
  assert.deepEqual(purser.problems(), []);
}
