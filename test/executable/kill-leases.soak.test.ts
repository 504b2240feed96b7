import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { deadlineInside, type Engine, IMAGE, openDocker } from '../compute/engines/docker.ts';
import { MOMENTS, type Moment, openEngineProxy } from '../compute/engines/proxy.ts';
import { installation, type Serving } from '../helper/executable.ts';
import type { Answer } from '../helper/server.ts';
import { until, waitFor } from '../helper/waiting.ts';

const CREDIT_CENTS = 1_000_000;
const BUDGET_CENTS = 500;
const LEASE = { provider: 'provider_three', spec: { offer_id: 'small', disk_gb: 5, max_seconds: 600 } };
const [LEASE_CENTS, EXTENSION_CENTS] = [6, 3];
const TAG_LABEL = 'purser.tag';

type Wallet = { id: string; token: string };
/** What an agent orders, and what is so when it has got it, though the server was killed in the middle of it. */
type Phase = {
  /** Whether there has to be a lease before. */
  leased: boolean;
  order(server: Serving, wallet: Wallet, resourceId: string): Promise<Answer>;
  isDone(answer: Answer): boolean;
  /** Cents that are charged in the end, and machines that live. */
  cents: number;
  machines: number;
};

const post = (server: Serving, token: string, path: string, body?: object, key?: string) =>
  server.ask('POST', path, { token, body, key });
const PHASES: Record<string, Phase> = {
  create: {
    leased: false,
    order: (server, { token }) => post(server, token, '/v1/compute/create', LEASE, 'create'),
    isDone: ({ status, body }) => status === 200 && body.status === 'running',
    cents: LEASE_CENTS,
    machines: 1,
  },
  extend: {
    leased: true,
    order: (server, { token }, id) =>
      post(server, token, '/v1/compute/extend', { id, additional_seconds: 300 }, 'extend'),
    isDone: ({ status, body }) => status === 200 && body.purchased_seconds === 900,
    cents: LEASE_CENTS + EXTENSION_CENTS,
    machines: 1,
  },
  stop: {
    leased: true,
    order: (server, { token }, id) => post(server, token, '/v1/compute/stop', { id }),
    isDone: ({ status, body }) => status === 200 && body.status === 'stopped',
    cents: LEASE_CENTS,
    machines: 0,
  },
  close: {
    leased: true,
    order: (server, { token }) => post(server, token, '/v1/run/close'),
    isDone: ({ status }) => status === 200,
    cents: LEASE_CENTS,
    machines: 0,
  },
};

async function openBench(t: TestContext, engine: Engine) {
  const proxy = await openEngineProxy(t, engine);
  const container = { backend: 'container', socket: proxy.socket, image: IMAGE };
  const offers = [{ id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: '0.36' }];
  const purser = installation(t, {
    settings: { ssh: { listen: '127.0.0.1:0' }, compute: { provider_three: { ...container, offers } } },
  });
  let server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, `${CREDIT_CENTS}c`);
  const { key } = await purser.json('key', 'create', '--account', accounts[0].id, '--name', 'test');

  /** The first pass of the reaper sweeps; afterwards the engine hears only what an order needs. */
  const swept = () => until('the first sweep', async () => proxy.asked.includes('GET /containers/json'));
  const prefix = tagPrefix((await purser.json('unfreeze')).installation_id);
  const tags = async () =>
    (await engine.docker.listContainers({ all: true }))
      .map((it) => it.Labels[TAG_LABEL] as string)
      .filter((tag) => tag.startsWith(prefix));
  await swept();
  return {
    purser,
    proxy,
    tags,
    deadlineOf: (tag: string) => deadlineInside(engine.docker, tag),
    server: () => server,
    async openWallet(name: string): Promise<Wallet> {
      const body = { name, budget_cents: BUDGET_CENTS, expires_in_seconds: 7200 };
      const made = await server.ask('POST', '/v1/wallets', { token: key, key: name, body });
      assert.equal(made.status, 201, made.text);
      return { id: made.body.id, token: made.body.agent_token };
    },
    async lease({ token }: Wallet): Promise<string> {
      return until('the lease runs', async () => {
        const made = await post(server, token, '/v1/compute/create', LEASE, 'create');
        return made.body.status === 'running' && made.body.id;
      });
    },
    async restart() {
      proxy.watch();
      server = await purser.serve();
      await swept();
    },
    closeWallet: (id: string) => server.ask('POST', `/v1/wallets/${id}/close`, { token: key }),
    account: async () => (await server.ask('GET', '/v1/account', { token: key })).body,
  };
}
type Bench = Awaited<ReturnType<typeof openBench>>;

/** Kills the server at one moment of one request of a phase, and holds what is then there against the books. */
async function killAt(bench: Bench, name: string, phase: Phase, nth: number, moment: Moment): Promise<void> {
  const { purser, proxy } = bench;
  const wallet = await bench.openWallet(`${name} ${nth} ${moment}`);
  const id = phase.leased ? await bench.lease(wallet) : '';
  const dying = bench.server();
  proxy.watch({ nth, moment, strike: () => dying.kill('SIGKILL') });
  const lost = phase.order(dying, wallet, id).catch(() => undefined);
  assert.deepEqual(await waitFor(() => `request ${nth} of ${name} comes: ${proxy.asked}`, dying.ended), {
    code: null,
    signal: 'SIGKILL',
  });
  await lost;
  await bench.restart();

  const done = await until(`${name} is done`, async () => {
    const answer = await phase.order(bench.server(), wallet, id);
    return phase.isDone(answer) && answer;
  });
  const { resources } = await purser.json('resource', 'list');
  assert.equal(resources.length, phase.machines);
  assert.deepEqual(
    await bench.tags(),
    resources.map((it: { tag: string }) => it.tag),
    'exactly the machines that the rows know',
  );
  if (phase.machines) {
    const [{ tag, wallet_id: owner, expires_at: end }] = resources;
    assert.deepEqual([owner, done.body.expires_at], [wallet.id, end]);
    assert.equal(await bench.deadlineOf(tag), end, 'both deadlines are the same');
  }
  const closed = await until('the wallet is closed', async () => {
    const answer = await bench.closeWallet(wallet.id);
    return answer.status === 200 && answer.body;
  });
  assert.deepEqual([closed.used_cents, closed.returned_cents], [phase.cents, BUDGET_CENTS - phase.cents]);
  assert.deepEqual(await bench.tags(), []);
}

/** The phase without a kill: what it asks of the engine is where the kills are to be. */
async function undisturbed(bench: Bench, name: string, phase: Phase): Promise<string[]> {
  const wallet = await bench.openWallet(`${name}, undisturbed ${randomUUID()}`);
  const id = phase.leased ? await bench.lease(wallet) : '';
  bench.proxy.watch();
  // On a busy machine the first answer may come before it is done.
  await until(`${name} is done`, async () => phase.isDone(await phase.order(bench.server(), wallet, id)));
  const asked = [...bench.proxy.asked];
  await until('its wallet is closed', async () => (await bench.closeWallet(wallet.id)).status === 200);
  return asked;
}

/** Most of the time is waited for: a machine that is not found is looked for again after ten seconds. */
const AT_ONCE = 4;

test('kill -9 before and after every request of a lease’s life leaves exactly the right machines and money', {
  concurrency: AT_ONCE,
}, async (t) => {
  const engine = await openDocker(t);
  if (!engine) return;
  const killAll = async (t: TestContext, name: string, phase: Phase, moment: Moment) => {
    const bench = await openBench(t, engine);
    await undisturbed(bench, name, phase); // What a server asks once and then knows is asked now, as before each kill.
    const asked = await undisturbed(bench, name, phase);
    let spent = 2 * phase.cents;
    for (const [i, request] of asked.entries()) {
      // How often a command is asked about differs from time to time.
      if (request !== asked[i - 1]) {
        await t.test(`${request} (${i + 1} of ${asked.length})`, () => killAt(bench, name, phase, i + 1, moment));
        spent += phase.cents;
      }
    }
    const { available_cents: available, reserved_cents: reserved, spent_cents: gone } = await bench.account();
    assert.deepEqual([available, reserved, gone], [CREDIT_CENTS - spent, 0, spent]);
    await bench.server().stop();
    assert.deepEqual((await bench.purser.json('ledger', 'verify')).problems, []);
  };
  const places = Object.entries(PHASES).flatMap(([name, phase]) =>
    MOMENTS.map((moment) => [name, phase, moment] as const),
  );
  await Promise.all(
    places.map(([name, phase, moment]) => t.test(`${name}, killed ${moment}`, (t) => killAll(t, name, phase, moment))),
  );
});
