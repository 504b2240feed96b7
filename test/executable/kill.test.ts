import assert from 'node:assert/strict';
import test from 'node:test';
import { installation } from '../helper/executable.ts';
import { MODELS } from '../helper/models.ts';
import { length, randomFrom, SEED } from '../helper/random.ts';
import { openUpstream } from '../helper/upstream.ts';
import { waitFor } from '../helper/waiting.ts';
import { audit, CREDIT_CENTS, fund } from './audit.ts';
import { nanos, sum } from './books.ts';
import { unleash } from './chaos.ts';
import { type ChatEntry, openClients } from './clients.ts';

/** `npm run torture` kills for as long as it is told to. */
const KILLS = length(4, 100);
const SERVERS = ['one', 'other'];
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
  await audit(purser, clients, chaos, { servers: SERVERS.length });

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

const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
