import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { openUpstream as openClient } from '../../src/router/upstream.ts';
import { openTestServer } from '../helper/server.ts';
import { addTenant, childOf, walletOf } from '../helper/tenants.ts';
import { completion, failure, gate, hang, openUpstream, reset } from '../helper/upstream.ts';

/** A server on which a request with `ignore_eos` ends as the test says, and others are answered. */
async function open(t: TestContext) {
  const purser = await openTestServer(t);
  const other = await addTenant(purser, 'other');
  const mine = { accountId: purser.accountId, accountKey: purser.accountKey };
  const answer = completion();
  const late = (end = hang) => {
    purser.upstream.handle = (call, response) => (call.body.ignore_eos ? end : answer)(call, response);
  };
  late();
  let count = 0;
  const ask = async (token: string, body: object = {}) => {
    const { status, text, headers, body: said } = await purser.chat(token, { user: `request ${count++}`, ...body });
    return { status, text, code: said.error?.code, isOpen: text.includes('circuit_open'), headers };
  };
  const attack = (token: string) => ask(token, { ignore_eos: true, max_tokens: 1000 });
  const circuits = () =>
    purser.log
      .filter((line) => line.includes('"event":"upstream.circuit_open"'))
      .map((it) => JSON.parse(it).closed_for);
  return { purser, other, mine, late, ask, attack, circuits };
}

test('three requests that outlast their time together close a model for nobody while others are answered', async (t) => {
  const { purser, other, mine, late, ask, attack, circuits } = await open(t);
  const attacker = await walletOf(purser, mine);
  const workers = [];
  for (let i = 0; i < 6; i++) workers.push(await walletOf(purser, i % 2 ? mine : other));
  for (let round = 0; round < 3; round++) {
    const slow = gate(failure(504)); // What a server on the way says of a request that takes longer than it waits.
    late(slow.handler);
    const calls = purser.upstream.calls.length;
    const attacks = [1, 2, 3].map(() => attack(attacker.token));
    await purser.upstream.arrived(calls + 3);
    const during: { status: number }[] = await Promise.all(workers.map(({ token }) => ask(token)));
    slow.open();
    const codes = (await Promise.all(attacks)).map((it) => it.code);
    assert.deepEqual(codes, Array(3).fill('operation_uncertain'));
    const after: typeof during = await Promise.all(workers.map(({ token }) => ask(token)));
    const statuses = [...during, ...after].map((it) => it.status);
    assert.deepEqual(statuses, Array(12).fill(200), 'all workers are served throughout');
  }
  assert.deepEqual(circuits(), []);
  assert.equal((await ask(attacker.token)).status, 200, 'the attacker as well');
  assert(!purser.log.some((line) => line.includes('"event":"upstream.down"')), 'the server is not said to be down');
  assert.deepEqual(purser.problems(), []);
});

test('a call whose time is over is told from one that was cut off', async (t) => {
  const upstream = await openUpstream(t);
  const client = openClient({
    name: 'local',
    base_url: upstream.url,
    timeout_seconds: 1,
    connect_timeout_seconds: 1,
  });
  t.after(() => client.close());
  const outcome = async (stream: boolean) => {
    const reply = await client.ask({ api: 'chat', body: Buffer.from('{}') }, 'op_test', stream);
    assert.equal(reply.kind, 'unknown');
    return reply.kind === 'unknown' && reply.isLate === true;
  };
  for (const stream of [false, true]) {
    upstream.handle = hang;
    assert(await outcome(stream));
    upstream.handle = reset;
    assert(!(await outcome(stream)));
    upstream.handle = failure(504);
    assert(await outcome(stream));
  }
});

test('while nobody else asks, a tree of wallets closes the model for itself only, whatever its children do', async (t) => {
  const { purser, other, mine, late, attack, ask, circuits } = await open(t);
  const attacker = await walletOf(purser, mine);
  const child = await childOf(purser, attacker.token);
  const grandchild = await childOf(purser, child.token, '0.20');
  const neighbour = await walletOf(purser, mine);
  const stranger = await walletOf(purser, other);
  const slow = gate(failure(504));
  late(slow.handler);
  const attacks = [attacker, child, grandchild].map((it) => attack(it.token));
  await purser.upstream.arrived(3);
  slow.open();
  for (const it of await Promise.all(attacks)) assert.equal(it.code, 'operation_uncertain');
  assert.deepEqual(circuits(), [attacker.id]);
  const calls = purser.upstream.calls.length;
  for (const { token } of [attacker, child, grandchild]) assert((await ask(token)).isOpen);
  assert.equal(purser.upstream.calls.length, calls);
  assert.equal((await ask(stranger.token)).status, 200, 'another account is served');
  assert.equal((await ask(neighbour.token)).status, 200, 'and so is another wallet of the same');
  assert.equal((await ask(attacker.token)).status, 200, 'whose answer closes it');
});

test('two wallets of an account close the model for the account, two accounts for all', async (t) => {
  const { purser, other, mine, ask, circuits } = await open(t);
  const third = await addTenant(purser, 'third');
  const [one, two, three] = [await walletOf(purser, mine), await walletOf(purser, mine), await walletOf(purser, mine)];
  const stranger = await walletOf(purser, other);
  const bystander = await walletOf(purser, third);
  purser.upstream.handle = reset;
  for (const { token } of [one, one, two]) assert.equal((await ask(token)).code, 'operation_uncertain');
  assert.deepEqual(circuits(), [purser.accountId]);
  for (const { token } of [one, two, three]) assert((await ask(token)).isOpen);
  assert.equal((await ask(stranger.token)).code, 'operation_uncertain');
  assert.deepEqual(circuits(), [purser.accountId, 'all'], 'a server that has died costs another account one hold');
  const calls = purser.upstream.calls.length;
  for (const { token } of [one, three, stranger, bystander]) assert((await ask(token)).isOpen);
  assert.equal(purser.upstream.calls.length, calls);
});

test('a single wallet notices a dead server with three holds', async (t) => {
  const { purser, mine, attack, late, circuits } = await open(t);
  const { id, token } = await walletOf(purser, mine);
  late(failure(504));
  for (let i = 0; i < 3; i++) assert.equal((await attack(token)).code, 'operation_uncertain');
  const held = purser.wallet(id).held;
  assert((await attack(token)).isOpen);
  assert.deepEqual(circuits(), [id]);
  assert.equal(purser.wallet(id).held, held);
});

test('a trial that hangs keeps nobody else from trying, and those that failed try after others', async (t) => {
  const { purser, other, mine, late, ask, attack } = await open(t);
  const third = await addTenant(purser, 'third');
  const [attacker, helper, honest] = [
    await walletOf(purser, mine),
    await walletOf(purser, other),
    await walletOf(purser, third),
  ];
  late(failure(504));
  for (const { token } of [attacker, attacker, attacker, helper])
    assert.equal((await attack(token)).code, 'operation_uncertain');
  late(hang);
  assert((await ask(honest.token)).isOpen, 'it is closed for all');
  purser.clock.advance(5);
  assert((await attack(helper.token)).isOpen, 'who has failed gives way to others for a moment');
  purser.clock.advance(5);
  const hanging = attack(helper.token);
  await purser.upstream.arrived(5);
  assert((await ask(honest.token)).isOpen, 'one at a time');
  purser.clock.advance(5);
  assert.equal((await ask(honest.token)).status, 200, 'somebody else after the wait');
  assert.equal((await ask(attacker.token)).status, 200);
  await purser.upstream.leave();
  await hanging;
});

test('what an open circuit refuses leaves nothing in the books, and does not count as released', async (t) => {
  const { purser, mine, ask } = await open(t);
  const { id, token } = await walletOf(purser, mine);
  purser.upstream.handle = reset;
  for (let i = 0; i < 3; i++) await ask(token);
  const rows = () => purser.app.ledger.client.prepare('select count(*) from operation').pluck().get();
  const before = rows();
  for (let i = 0; i < 70; i++) assert((await ask(token)).isOpen, `refusal ${i}: more than released_per_minute`);
  assert.equal(rows(), before);
  purser.clock.advance(5);
  const slow = gate();
  purser.upstream.handle = slow.handler;
  let refusedCount = 0;
  const burst = Array.from({ length: 20 }, async () => {
    const { status, isOpen } = await ask(token);
    if (isOpen && ++refusedCount === 19) slow.open();
    return status;
  });
  assert.deepEqual((await Promise.all(burst)).sort(), [200, ...Array(19).fill(503)]);
  assert.equal(Number(rows()), Number(before) + 1, 'nor when several came at the moment of a trial');
  assert.equal((await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey })).status, 200);
  purser.upstream.handle = reset;
  assert.equal((await ask(token)).code, 'wallet_closed');
});

test('a trial that is refused for want of money is left to the next', async (t) => {
  const { purser, mine, ask } = await open(t);
  const { token } = await walletOf(purser, mine, { budget_cents: 100 });
  purser.upstream.handle = reset;
  for (let i = 0; i < 3; i++) await ask(token, { model: 'dear', max_tokens: 10 });
  purser.clock.advance(5);
  assert.match(String((await ask(token, { model: 'dear', max_tokens: 1000 })).code), /funds/);
  purser.upstream.handle = completion();
  assert.equal((await ask(token, { model: 'dear', max_tokens: 10 })).status, 200);
});
