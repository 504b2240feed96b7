import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { imageDefaults } from '../../src/compute/engines/container/user.ts';
import { type Engine, IMAGE, IMAGE_WITH_VOLUME, openDocker } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';

const PREFIX = 'purser-inst-images-';
const MISSING = 'localhost/no-such-image:1';

function openOffers(engine: Engine) {
  const size = { cpus: 0.2, memory_gib: 0.1, max_disk_gb: 5, price_hourly_usd: 1n, count: 2 };
  return openContainerBackend(
    {
      backend: 'container',
      socket: engine.socket,
      image: IMAGE,
      pull: 'never',
      network: 'none',
      pids: 64,
      shm_gib: 0.02,
      provision_seconds: 60,
      limits: { max_seconds: 3600 },
      offers: [
        { ...size, id: 'plain' },
        { ...size, id: 'other', image: IMAGE_WITH_VOLUME, shm_gib: 0.03, env: { MODEL: 'a b=$HOME', PATH: '/bin' } },
        { ...size, id: 'missing', image: MISSING },
      ],
    },
    { prefix: PREFIX, now: () => Math.floor(Date.now() / 1000) },
  );
}

const ENGINES: [name: string, open: (t: TestContext) => Promise<Engine | undefined>][] = [
  ['Docker', (t) => openDocker(t, { shared: true })],
  ['Podman', (t) => openPodman(t)],
];
for (const [name, open] of ENGINES)
  test(`${name}: an offer has its own image, variables and size of /dev/shm, else those of the backend`, async (t) => {
    const engine = await open(t);
    if (!engine) return;
    const backend = openOffers(engine);
    t.after(async () => {
      await backend.close();
      await engine.stop();
    });
    const rent = async (id: string) => {
      const tag = `${PREFIX}res-${id}`;
      const quote = await backend.quote({ offer_id: id, disk_gb: 1, max_seconds: 600 });
      return backend.create({ tag, quote, deadline: Math.floor(Date.now() / 1000) + 600 });
    };
    const say = async (ref: string) => {
      const command = 'echo "$MODEL"; df -k /dev/shm | tail -1 | awk \'{ print $2 }\'';
      return (await backend.guest.exec(ref, { command, timeoutSeconds: 60, streamBytesMax: 1000 })).stdout.toString();
    };
    const imageOf = async (ref: string) => (await engine.docker.getContainer(ref).inspect()).Config.Image;

    const kib = (gib: number) => String(Math.ceil((gib * 1024 * 1024) / 4) * 4);
    for (const [id, image, said] of [
      ['plain', IMAGE, `\n${kib(0.02)}\n`],
      ['other', IMAGE_WITH_VOLUME, `a b=$HOME\n${kib(0.03)}\n`],
    ] as const) {
      const made = await rent(id);
      assert.equal(made.kind, 'created', JSON.stringify(made));
      const { ref } = made as { ref: string };
      assert.deepEqual([await imageOf(ref), await say(ref)], [image, said]);
      assert.deepEqual(await backend.guest.prove(ref), undefined);
      await backend.destroy(ref);
    }
    const refused = await rent('missing');
    assert.deepEqual(refused, {
      kind: 'refused',
      code: 'provider_unavailable',
      reason: `The image ${MISSING} is not on the engine. Nothing was charged.`,
    });
    const checks = await backend.doctor.check();
    assert.deepEqual(
      checks.filter((it) => it.name.startsWith('image')).map((it) => [it.name, it.ok]),
      [
        ['image', true],
        [`image ${IMAGE_WITH_VOLUME}`, true],
        [`image ${MISSING}`, false],
      ],
    );
  });

for (const [name, open] of ENGINES)
  test(`${name}: a container that an image's user was looked up in is an orphan where it is left behind`, async (t) => {
    const engine = await open(t);
    if (!engine) return;
    const { docker } = engine;
    const backend = openOffers(engine);
    t.after(async () => {
      await backend.close();
      await engine.stop();
    });
    const made = await docker.createContainer({ Image: IMAGE, Cmd: ['/bin/sh'] });
    await made.commit({ repo: 'localhost/named', tag: '1', changes: 'USER root' });
    await made.remove();

    const ask: Calls['ask'] = async (what, call) => {
      if (what === 'remove') throw new Error('the process died');
      return call(new AbortController().signal);
    };
    const begun = Math.floor(Date.now() / 1000);
    await assert.rejects(imageDefaults({ ask, docker }, 'localhost/named:1', PREFIX), /died|not in its/);
    const [left, ...more] = await backend.listOwned(PREFIX);
    assert.deepEqual([left?.state, more], ['ended', []]);
    assert.ok((left?.createdAt ?? 0) >= begun);
    await backend.destroy(left?.ref as string);
    assert.deepEqual(await docker.listContainers({ all: true }), []);
  });

type Calls = Parameters<typeof imageDefaults>[0];
