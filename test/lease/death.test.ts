import assert from 'node:assert/strict';
import { X509Certificate } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { type SecretsOrder, tagOf } from '../../src/compute/backend.ts';
import { allLiveResources } from '../../src/ledger/resource.ts';
import { length } from '../helper/random.ts';
import { until } from '../helper/waiting.ts';
import { openWorld } from './egress-shared.ts';
import { dieEverywhere, type Mortal, type Story, type Wallet } from './mortal.ts';
import { openMortal, type Remembering } from './mortal-memory.ts';
import { close, done, fill, HOUR, keepingWarm, lease, STORIES, stop, WARM } from './stories.ts';

/** Whether the server dies before and after every step; else only where that leaves something else. */
const IS_EVERY = length(1, 2) > 1;

/** The machines of the pool. */
const idle = ({ app, memory }: Remembering) => {
  const tags = app.warm.ids().map((id) => tagOf(app.installationId, id));
  return [...memory.machines.values()].filter(({ tag }) => tags.includes(tag));
};

const POOL: Record<string, Story<Remembering>> = {
  ...WARM,
  'a lease is to take a warm machine that has ended': {
    async before(purser) {
      await fill(purser);
      for (const it of idle(purser)) it.state = 'ended';
    },
    act: lease,
  },
  'a warm machine gets another deadline': {
    async before(purser) {
      await fill(purser);
      purser.clock.advance(2000);
    },
    act: ({ app }) => app.warm.tend(),
  },
  'a warm machine that has reached its deadline is replaced': {
    async before(purser) {
      await fill(purser);
      purser.clock.advance(3700);
    },
    async act({ app, clock }) {
      await app.warm.tend();
      clock.advance(60);
      await app.warm.tend();
    },
  },
  'a warm machine gives way': {
    async before(purser) {
      await fill(purser);
      purser.memory.room = purser.memory.machines.size;
    },
    act: async (purser, { token }) => done(await purser.lease(token, 'lease', { ...HOUR, cpus: 1 })),
    async check({ memory }) {
      memory.room = Number.POSITIVE_INFINITY;
    },
  },
  'the pool ends': {
    before: fill,
    act: ({ app }) => app.warm.close(),
    async check(purser) {
      assert.equal(purser.memory.machines.size, 0);
      await purser.reopen();
    },
  },
};

/** A server that keeps one machine made. What it needs is free once that has gone. */
const openWarm = (t: TestContext) =>
  openMortal(t, { change: keepingWarm }, (backend) => {
    backend.freeFor = async () => 1;
  });

type World = Awaited<ReturnType<typeof openWorld>>;
type Reaching = Remembering & {
  world: World;
  /** What each machine was given, by its tag. */
  given: Map<string, SecretsOrder | undefined>;
};
/** A server whose leases have ways out, and secrets that they use. */
async function openReaching(t: TestContext): Promise<Reaching> {
  const world = await openWorld(t);
  const settings = {
    ...world.options.settings,
    accounts: {
      default: { secrets: [{ name: 'TOKEN', host: 'a.test', header: 'Authorization', value: 'canary-of-a-death' }] },
    },
  };
  const given = new Map<string, SecretsOrder | undefined>();
  const purser = await openMortal(t, { ...world.options, settings }, (backend, life) => {
    const { create } = backend;
    backend.create = (order) => {
      given.set(order.tag, order.secrets);
      return create(order);
    };
    assert(backend.guest.egress);
    backend.guest.egress.begin = async () => {
      const program = world.start();
      // With a process the kernel closes the inputs of the programs that it has started.
      void life.died.then(() => program.stdin.end());
      return program;
    };
  });
  return Object.assign(purser, { world, given });
}

const narrow = async (purser: Mortal, { token }: Wallet, id: string) =>
  done(await purser.ask('POST', '/v1/compute/egress', { token, body: { id, allow: ['x.b.test'] } }));
const keyOf = ({ authority }: SecretsOrder) => new X509Certificate(authority).publicKey.export({ format: 'jwk' });

/** The one lease has one way out, which still speaks for the authority that its machine trusts. */
const reaches = async ({ world, given, app, backend }: Reaching, host: string) => {
  await until(`${host} is reached`, async () => (await world.get(host).catch(() => '')) === '200');
  assert.equal(world.programs.size, 1);
  const [row] = allLiveResources(app.ledger.read);
  assert(row);
  const [now, then] = [app.egress.secretsFor(row, backend, JSON.parse(row.spec)), given.get(row.tag)];
  assert(now && then);
  assert.deepEqual([now.variables, keyOf(now)], [then.variables, keyOf(then)]);
};
const isShut = async ({ world }: Reaching) =>
  void (await until('its program has ended', () => world.programs.size === 0));

const EGRESS: Record<string, Story<Reaching>> = {
  'a lease with a way out is made': { act: lease, check: (purser) => reaches(purser, 'a.test') },
  'an agent narrows what its lease reaches': {
    before: lease,
    act: narrow,
    async check(purser) {
      await reaches(purser, 'x.b.test');
      assert.equal(await purser.world.get('a.test'), '403');
    },
  },
  'a lease with a way out is stopped': {
    before: lease,
    act: stop,
    check: isShut,
  },
  'the wallet of a lease with a way out is closed': { before: lease, act: close, check: isShut },
};

/** Told in the soak alone: most steps of these are those of others. */
const SOAKED = [
  'a snapshot of a paused lease is taken',
  'a lease is to take a warm machine that has ended',
  'a warm machine gives way',
  'the wallet of a lease with a way out is closed',
];

function tellAll<P extends Mortal>(open: (t: TestContext) => Promise<P>, stories: Record<string, Story<P>>): void {
  for (const [name, story] of Object.entries(stories).filter(([name]) => IS_EVERY || !SOAKED.includes(name)))
    test(`${name}, and the server dies at any step of that`, async (t) => {
      const purser = await open(t);
      t.diagnostic(`${await dieEverywhere(purser, story, { isEvery: IS_EVERY })} deaths`);
    });
}
tellAll(openMortal, STORIES);
tellAll(openWarm, POOL);
tellAll(openReaching, EGRESS);
