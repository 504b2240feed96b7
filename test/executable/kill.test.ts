import assert from 'node:assert/strict';
import test from 'node:test';
import { type Installation, installation } from '../helper/executable.ts';
import { MODELS } from '../helper/models.ts';
import { length, randomFrom, SEED } from '../helper/random.ts';
import { openUpstream } from '../helper/upstream.ts';
import { waitFor } from '../helper/waiting.ts';
import { nanos, readBooks, sum } from './books.ts';
import { type Chaos, unleash } from './chaos.ts';
import { BUDGET_CENTS, type ChatEntry, openClients } from './clients.ts';

/** `npm run torture` kills for as long as it is told to. */
const KILLS = length(4, 100);
const SERVERS = ['one', 'other'];
const CREDIT_CENTS = 100_000_000;
const NANOS_PER_CENT = 10_000_000n;
/** A server is killed at a random moment of so many milliseconds of load; some not even then, but while they start. */
const LOAD_MILLISECONDS_MAX = 500;
const START_MILLISECONDS_MAX = 300;

test(`${KILLS} kills under load lose nothing acknowledged and charge nothing twice (seed ${SEED})`, async (t) => {
  const random = randomFrom(SEED);
  const upstream = await openUpstream(t);
  const chaos = unleash(upstream, random);
  // A pool of two servers that are one: it sees whatever both are asked.
  const router = {
    upstreams: SERVERS.map((name) => ({ name, base_url: upstream.url, timeout_seconds: 300 })),
    models: MODELS.map(({ upstream: _, ...model }) => ({ ...model, upstreams: SERVERS })),
    uncertain: { after_seconds: 1, policy: 'charge' },
  };
  const purser = installation(t, { settings: { router } });
  const { accountId, key } = await fund(purser);
  const clients = openClients(key, random);

  const ready: number[] = [];
  for (let i = 0; i < KILLS; i++) {
    const launched = purser.launch('serve');
    if (random() < 0.1) await pause(random() * START_MILLISECONDS_MAX);
    else {
      const server = await launched.serving;
      ready.push(server.readyMilliseconds);
      const load = clients.load(server);
      await Promise.race([load, pause(random() * LOAD_MILLISECONDS_MAX)]);
      assert.equal(launched.child.exitCode, null, `the server ended by itself:\n${server.output.stderr.slice(-2000)}`);
      server.kill('SIGKILL');
      await waitFor('the clients have noticed', load);
    }
    launched.child.kill('SIGKILL');
    assert.deepEqual(await launched.ended, { code: null, signal: 'SIGKILL' }, launched.output.stderr.slice(-2000));
  }

  const server = await purser.serve();
  await clients.replay(server);
  await clients.close(server); // It decides what is still uncertain by its policy, at once.
  await clients.replay(server);
  const { body: account } = await server.ask('GET', '/v1/account', { token: key });
  await server.stop();
  const { wallets, chats } = clients;
  assert.deepEqual(
    [...wallets, ...chats].filter((it) => it.outcome === 'unknown'),
    [],
    'in the end everything is known',
  );
  await audit(purser, clients, chaos);

  const spent = sum(wallets.map((it) => (nanos(it.closed.used_usd) + NANOS_PER_CENT - 1n) / NANOS_PER_CENT));
  const expected = {
    available_cents: CREDIT_CENTS - Number(spent),
    reserved_cents: 0,
    spent_cents: Number(spent),
    welcome_credit_cents: 0,
  };
  assert.deepEqual(account, expected);
  assert.equal((await purser.json('account', 'show', accountId)).available_cents, account.available_cents);

  ready.sort((a, b) => a - b);
  const [median = 0, slowest = 0] = [ready[ready.length >> 1], ready.at(-1)];
  const count = (outcome: ChatEntry['outcome']) => chats.filter((it) => it.outcome === outcome).length;
  const moved = [...chaos.seen.values()].filter(({ refused, taken }) => refused && taken).length;
  t.diagnostic(
    `seed ${SEED}: ${wallets.length} wallets, ${count('charged')} chats charged, ${count('lost')} by policy, ${count('refused')} refused, ${moved} moved to the second server`,
  );
  t.diagnostic(`ready after a kill: median ${Math.round(median)} ms, slowest ${Math.round(slowest)} ms`);
});

/** Holds the clients' journal and the upstream's against the books of the server. */
async function audit(purser: Installation, { wallets, chats }: ReturnType<typeof openClients>, chaos: Chaos) {
  const verdict = await purser.json('ledger', 'verify');
  assert.deepEqual(verdict.problems, []);
  const { stdout } = await purser.cli('ledger', 'export');
  const { entries, operations, opened } = readBooks(stdout);
  assert.equal(verdict.entries, entries.length);

  const once = new Map(wallets.map((it) => [it.id, 1]));
  assert.deepEqual(opened, once, 'every wallet that was asked for is there exactly once');
  assert.equal(once.size, wallets.length);
  for (const [id, { refused, taken }] of chaos.seen) {
    assert(taken <= 1, `the servers took ${id} on ${taken} times`);
    assert(refused + taken <= SERVERS.length, `the servers saw ${id} ${refused + taken} times`);
  }

  for (const [id, { holds, charges, releases }] of operations) {
    assert.equal(holds.length, 1, id);
    assert(charges.length <= 1 && releases.length <= 1, id);
    assert.equal(sum([...charges, ...releases]), holds[0], `what ${id} held is settled`);
  }
  for (const id of chaos.answered)
    assert.equal(operations.get(id)?.charges.length, 1, `${id} was answered, and given back`);
  const charged = new Map([...operations].filter(([, { charges }]) => charges.length));
  for (const { key, text, wallet } of chats.filter((it) => it.outcome === 'charged')) {
    const { id, usage } = JSON.parse(text);
    const booked = charged.get(id);
    assert(booked, `the answer to ${key} was acknowledged, and its charge is lost`);
    const price = BigInt(usage.prompt_tokens) * 1000n + BigInt(usage.completion_tokens) * 2000n + 100_000n;
    assert.deepEqual([booked.walletId, booked.charges], [wallet.id, [price]]);
    assert(chaos.answered.has(id));
    assert(charged.delete(id), `the operation ${id} answered two keys`);
  }
  // What is left was charged by policy: its whole hold, once for each key whose answer was lost.
  for (const [id, { holds, charges }] of charged) assert.deepEqual(charges, holds, id);
  const lost = chats.filter((it) => it.outcome === 'lost').map((it) => it.wallet.id);
  assert.deepEqual([...charged.values()].map((it) => it.walletId).sort(), lost.sort());

  for (const { id, closed } of wallets) {
    const used = sum([...operations.values()].filter((it) => it.walletId === id).flatMap((it) => it.charges));
    assert.equal(nanos(closed.used_usd), used, id);
    assert.equal(BigInt(closed.returned_cents), BigInt(BUDGET_CENTS) - (used + NANOS_PER_CENT - 1n) / NANOS_PER_CENT);
  }
  for (const { id } of wallets.slice(-3)) {
    const { steps } = await purser.json('wallet', 'timeline', id);
    const own = entries.filter((it) => it.cause_id === id || operations.get(it.cause_id)?.walletId === id);
    const told = steps.map((it: { seq: number; amount_usd: string }) => [it.seq, it.amount_usd]);
    assert.deepEqual(
      told,
      own.map((it) => [it.seq, it.amount_usd]),
    );
  }
}

test(`a credit that is killed at any moment and repeated with its key is there once (seed ${SEED})`, async (t) => {
  const random = randomFrom(SEED);
  const purser = installation(t);
  await (await purser.serve()).stop();
  const { accounts } = await purser.json('account', 'list');
  const rounds = Math.ceil(KILLS / 10);
  for (let i = 0; i < rounds; i++) {
    const credit = ['account', 'credit', accounts[0].id, '100c', '--key', `round-${i}`];
    const cut = purser.launch(...credit);
    await Promise.race([cut.ended, pause(random() * START_MILLISECONDS_MAX)]);
    cut.child.kill('SIGKILL');
    await cut.ended;
    assert.equal((await purser.json(...credit)).available_cents, 100 * (i + 1));
  }
  assert((await purser.json('ledger', 'verify')).ok);
});

async function fund(purser: Installation): Promise<{ accountId: string; key: string }> {
  const server = await purser.serve();
  const { id: accountId } = await purser.operate('account.credit', { id: 'default', cents: CREDIT_CENTS });
  const { key } = await purser.operate('key.create', { account: accountId, name: 'clients' });
  await server.stop();
  return { accountId, key };
}

const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
