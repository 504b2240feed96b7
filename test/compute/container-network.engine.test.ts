import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { until } from '../helper/waiting.ts';
import { type Engine, IMAGE, openDocker } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';

const PREFIX = 'purser-inst-network-';
const now = () => Math.floor(Date.now() / 1000);

function open(engine: Engine, network: string) {
  const backend = openContainerBackend(
    {
      backend: 'container',
      socket: engine.socket,
      image: IMAGE,
      pull: 'never',
      network,
      pids: 64,
      provision_seconds: 60,
      prices: { cpu_hourly_usd: 1n, memory_gib_hourly_usd: 1n, gpu_hourly_usd: {} },
      limits: { cpus: 1, memory_gib: 1, gpus: 0, disk_gb: 20, max_seconds: 3600 },
      gpu_mode: 'nvidia',
    },
    { prefix: PREFIX, now },
  );
  const rent = async (walletId?: string) => {
    const tag = `${PREFIX}res-${randomBytes(4).toString('hex')}`;
    const quote = await backend.quote({ gpu: null, gpus: 0, cpus: 0.1, memory_gib: 0.1, max_seconds: 600 });
    const wallet = walletId === undefined ? {} : { walletId };
    return { tag, created: await backend.create({ tag, quote, deadline: now() + 660, ...wallet }) };
  };
  /** A lease of a wallet, and what a test needs of it. */
  async function lease(walletId?: string) {
    const { tag, created } = await rent(walletId);
    assert.equal(created.kind, 'created', JSON.stringify(created));
    const sh = async (command: string) => {
      const said = await backend.guest.exec(tag, { command, timeoutSeconds: 20, streamBytesMax: 4000 });
      return said.stdout.toString().trim();
    };
    return {
      tag,
      sh,
      interfaces: async () => (await sh('ls /sys/class/net')).split('\n').sort(),
      address: () => sh("ip -4 -o addr show eth0 | awk '{print $4}' | cut -d/ -f1"),
      /** What a server at this address says, or nothing. */
      hear: (host: string) => sh(`nc -w 2 ${host} 9000 </dev/null`),
      /** Says `word` to whoever connects. */
      listen: (word: string) => sh(`(while :; do echo ${word} | nc -l -p 9000; done) >/dev/null 2>&1 &`),
      end: () => backend.destroy(tag),
    };
  }
  return { backend, rent, lease };
}

type Leased = Awaited<ReturnType<ReturnType<typeof open>['lease']>>;

/** A container of the operator's in his own network, which answers whoever connects. */
async function startService({ docker }: Engine, network: string): Promise<void> {
  const service = await docker.createContainer({
    name: 'service',
    Image: IMAGE,
    Cmd: ['sh', '-c', 'while :; do echo service | nc -l -p 9000; done'],
    HostConfig: { NetworkMode: network },
  });
  await service.start();
}

const addressOf = async ({ docker }: Engine, container: string, network: string) => {
  const { NetworkSettings } = await docker.getContainer(container).inspect();
  return NetworkSettings.Networks[network]?.IPAddress as string;
};

const networksOf = async ({ docker }: Engine) =>
  (await docker.listNetworks()).map(({ Name }) => Name).filter((name) => name.startsWith('purser-'));

const ENGINES: [name: string, open: (t: TestContext) => Promise<Engine | undefined>][] = [
  ['Docker', (t) => openDocker(t, { shared: true, apart: true, flags: ['--iptables=true', '--ip-forward=true'] })],
  ['Podman', (t) => openPodman(t, { apart: true })],
];

for (const [name, openEngine] of ENGINES)
  for (const Internal of [true, false])
    test(`${name}: leases of two wallets reach a service of their ${Internal ? 'internal ' : ''}network, and not each other`, async (t) => {
      const engine = await openEngine(t);
      if (!engine) return;
      t.after(() => engine.stop());
      await engine.docker.createNetwork({ Name: 'agents', Internal });
      await startService(engine, 'agents');
      const { backend, lease } = open(engine, 'agents');
      const [one, same, other] = [await lease('wal_one'), await lease('wal_one'), await lease('wal_other')];
      assert.deepEqual((await networksOf(engine)).sort(), [`${PREFIX}wal-one-agents`, `${PREFIX}wal-other-agents`]);
      assert.deepEqual(await one.interfaces(), ['eth0', 'lo']);

      await one.listen('mine');
      const address = await one.address();
      assert.match(address, /^\d+\.\d+\.\d+\.\d+$/);
      await until('it listens', async () => (await same.hear(address)) === 'mine');
      assert.equal(await other.hear(address), '', 'a lease of another wallet');
      for (const [it, wallet] of [
        [one, 'one'],
        [other, 'other'],
      ] as const)
        assert.equal(await it.hear(await addressOf(engine, 'service', `${PREFIX}wal-${wallet}-agents`)), 'service');

      await one.end();
      assert.deepEqual(
        (await networksOf(engine)).sort(),
        [`${PREFIX}wal-one-agents`, `${PREFIX}wal-other-agents`],
        'one is left',
      );
      await same.end();
      assert.deepEqual(await networksOf(engine), [`${PREFIX}wal-other-agents`]);
      await other.end();
      assert.deepEqual(await networksOf(engine), []);
      const [left, ...more] = await engine.docker.listContainers({ all: true });
      assert.deepEqual([left?.Names, more], [['/service'], []]);
      assert.deepEqual(await backend.listOwned(PREFIX), []);
    });

for (const [name, openEngine] of ENGINES)
  test(`${name}: leases and networks come and go at once, and one that is left behind is an orphan`, async (t) => {
    const engine = await openEngine(t);
    if (!engine) return;
    t.after(() => engine.stop());
    await engine.docker.createNetwork({ Name: 'agents' });
    const { backend, rent, lease } = open(engine, 'agents');
    const leases = await Promise.all(['wal_a', 'wal_a', 'wal_b', 'wal_b'].map((it) => lease(it)));
    // A wallet's network is not removed under a lease that is being made.
    const [again] = await Promise.all([lease('wal_a'), ...leases.map((it) => it.end())]);
    assert.deepEqual(await networksOf(engine), [`${PREFIX}wal-a-agents`]);

    // As after a crash between the two removals.
    await engine.docker.getContainer(again.tag).remove({ force: true });
    const [orphan, ...more] = await backend.listOwned(PREFIX);
    assert.deepEqual([orphan?.tag, orphan?.state, more], [`${PREFIX}wal-a-agents`, 'ended', []]);
    assert.ok(Math.abs((orphan?.createdAt ?? 0) - now()) < 120);
    assert.deepEqual(await backend.find(`${PREFIX}wal-a-agents`), []);
    assert.deepEqual(await backend.listOwned('purser-inst-other-'), []);
    await backend.destroy(orphan?.ref as string);
    assert.deepEqual([await networksOf(engine), await backend.listOwned(PREFIX)], [[], []]);

    const alone = await lease();
    assert.deepEqual(await networksOf(engine), [alone.tag], 'nobody’s machine has a network of its own');
    await alone.end();
    assert.deepEqual(await networksOf(engine), []);

    const none = await open(engine, 'none').lease('wal_a');
    assert.deepEqual(await none.interfaces(), ['lo']);
    await none.end();
    const { created } = await open(engine, 'nowhere').rent('wal_a');
    assert.equal(created.kind, 'refused', JSON.stringify(created));
    assert.match((created as { words: string }).words, /nowhere/);
    assert.deepEqual(await engine.docker.listContainers({ all: true }), []);
    assert.equal((await rent('wal_a')).created.kind, 'created');
  });

for (const [name, openEngine] of ENGINES)
  test(`${name}: two slots on one engine share the network of a wallet, also where both begin or end at once`, async (t) => {
    const engine = await openEngine(t);
    if (!engine) return;
    t.after(() => engine.stop());
    await engine.docker.createNetwork({ Name: 'agents' });
    const slots = [open(engine, 'agents'), open(engine, 'agents')] as const;
    for (const round of ['1', '2', '3']) {
      const leases = await Promise.all(slots.map((it) => it.lease(`wal_${round}`)));
      const [one, other] = leases as [Leased, Leased];
      // The last lease of one slot ends while the other slot makes one.
      await one.end();
      const [next] = await Promise.all([slots[0].lease(`wal_${round}`), other.end()]);
      assert.deepEqual(await networksOf(engine), [`${PREFIX}wal-${round}-agents`]);
      await next.end();
      assert.deepEqual(await networksOf(engine), []);
    }
  });

for (const [name, openEngine] of ENGINES)
  test(`${name}: slots with different networks on one engine have their own network of a wallet each`, async (t) => {
    const engine = await openEngine(t);
    if (!engine) return;
    t.after(() => engine.stop());
    for (const [Name, Internal] of [
      ['agents', false],
      ['inside', true],
    ] as const)
      await engine.docker.createNetwork({ Name, Internal });
    await startService(engine, 'agents');
    for (const order of [
      ['agents', 'inside'],
      ['inside', 'agents'],
    ]) {
      const slots = order.map((it) => open(engine, it));
      const leases: Leased[] = [];
      for (const it of slots) leases.push(await it.lease('wal_a'));
      const all: { Name: string; Internal: boolean }[] = await engine.docker.listNetworks();
      const networks = all.filter((it) => it.Name.startsWith('purser-'));
      assert.deepEqual(networks.map((it) => it.Internal).sort(), [false, true], 'each is like the one of its slot');
      const inside = leases[order.indexOf('inside')] as Leased;
      const container = await engine.docker.getContainer(inside.tag).inspect();
      const own: string[] = Object.keys(container.NetworkSettings.Networks);
      assert.deepEqual(
        networks.filter((it) => it.Internal).map((it) => it.Name),
        own,
      );
      for (const it of leases) await it.end();
      assert.deepEqual(await networksOf(engine), []);
    }
  });

test('Docker: where no subnet is left the lease is a clear no, and another one’s end makes room', async (t) => {
  const flags = ['--iptables=true', '--default-address-pool=base=10.99.0.0/24,size=26'];
  const engine = await openDocker(t, { shared: true, apart: true, flags });
  if (!engine) return;
  t.after(() => engine.stop());
  await engine.docker.createNetwork({ Name: 'agents' });
  const { rent, lease } = open(engine, 'agents');
  const first = await lease('wal_0');
  const made = await Promise.all(['wal_1', 'wal_2', 'wal_3', 'wal_4'].map((it) => rent(it)));
  const refusals = made.flatMap(({ created }) => (created.kind === 'refused' ? [created] : []));
  assert.ok(refusals.length > 0);
  for (const it of refusals) {
    assert.equal(it.code, 'capacity_unavailable');
    assert.equal(it.reason, 'No subnet is left for a network of this wallet. Nothing was charged.');
  }
  await first.end();
  assert.equal((await rent('wal_5')).created.kind, 'created');
});
