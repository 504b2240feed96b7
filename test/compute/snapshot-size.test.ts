import assert from 'node:assert/strict';
import test from 'node:test';
import type { Containers } from '../../src/compute/engines/container/containers.ts';
import type { Engine } from '../../src/compute/engines/container/engine.ts';
import type { ContainerSettings } from '../../src/compute/engines/container/settings.ts';
import { createContainerSnapshots } from '../../src/compute/engines/container/snapshots.ts';
import type { Signals } from '../../src/compute/kit/pausing.ts';
import { createRandom, length, SEED } from '../helper/random.ts';

const MEBIBYTE = 1024 ** 2;
const TEMPLATE = { Size: 50 * MEBIBYTE, labels: {} };

type Image = { Size: number; labels: Record<string, string> };

/** An engine that keeps images, and a container that has written so much upon one of them. */
function openEngine() {
  const images = new Map<string, Image>([['template', TEMPLATE]]);
  const calls: string[] = [];
  const state = { below: 'template', written: 0, stopped: false, faults: 0 };
  const notFound = () =>
    Object.assign(new Error('no such image'), { statusCode: 404, json: { message: 'No such image: x' } });
  const docker = {
    getContainer: () => ({
      inspect: async () => ({ SizeRw: state.written }),
      async commit({ repo, tag }: { repo: string; tag: string }) {
        calls.push('commit');
        const { Size, labels } = images.get(state.below) as Image;
        images.set(`${repo}:${tag}`, { Size: Size + state.written, labels });
      },
    }),
    getImage: (name: string) => ({
      async remove() {
        if (!images.delete(name)) throw notFound();
      },
    }),
    async loadImage(archive: Buffer) {
      const text = archive.toString('latin1');
      const name = /"RepoTags":\["([^"]+)"/.exec(text)?.[1] as string;
      const length = Number.parseInt(archive.toString('latin1', 124, 135), 8); // Of its first file, the settings.
      const { config } = JSON.parse(archive.toString('utf8', 512, 512 + length));
      images.set(name, { Size: (images.get(`${name}.raw`) as Image).Size, labels: config.Labels });
    },
    modem: { followProgress: (_: unknown, done: (error: null) => void) => done(null) },
  };
  const engine = {
    docker,
    ask: (_: string, call: (signal: AbortSignal) => unknown) => call(new AbortController().signal),
    async request(_: string, path: string) {
      const image = images.get(path.slice('/images/'.length, -'/json'.length));
      if (!image) throw notFound();
      return {
        Size: image.Size,
        Architecture: 'amd64',
        Os: 'linux',
        RootFS: { Layers: [] },
        Config: { Labels: image.labels },
      };
    },
    diskFree: async () => undefined,
    isPodman: async () => false,
  } as unknown as Engine;
  const containers = { inspect: async () => ({ Image: state.below, HostConfig: {} }) } as unknown as Containers;
  const signals: Signals = {
    async signal(_, what) {
      if (what === 'continue' && state.faults-- > 0)
        throw Object.assign(new Error('the engine is busy'), { statusCode: 500 });
      state.stopped = what === 'stop';
      return 0;
    },
    look: async () => 0,
  };
  const parts = { containers, signals, gibMax: () => 1, now: () => 0 };
  return { images, calls, state, snapshots: createContainerSnapshots(engine, {} as ContainerSettings, parts) };
}

const COUNT = length(5, 50);
for (let walk = 0; walk < COUNT; walk++)
  test(`a chain of snapshots is as large as all that was written, whatever goes (PURSER_TEST_SEED=${SEED + walk})`, async () => {
    const random = createRandom(SEED + walk);
    const { calls, state, snapshots } = openEngine();
    const bytesMax = 20 * MEBIBYTE;
    let expected = 0;
    for (let depth = 0; depth < 8; depth++) {
      state.written = random.whole(0, 5 * MEBIBYTE);
      calls.length = 0;
      const tag = `snap-${depth}`;
      const taken = await snapshots.take({ ref: 'it', tag, isRunning: false, bytesMax });
      expected += state.written;
      if (expected > bytesMax) {
        assert.deepEqual([taken.kind, 'code' in taken && taken.code, calls], ['refused', 'lease_limit_exceeded', []]);
        return;
      }
      assert.deepEqual(taken, { kind: 'taken', bytes: expected });
      assert.equal(await snapshots.find(tag), expected);
      state.below = `localhost/purser-snapshot:${tag}`;
      // Its image stays where a machine needs it, so only those further below go.
      if (depth > 0 && random.whole(0, 1)) await snapshots.remove(`snap-${depth - 1}`);
    }
  });

test('a snapshot whose image below has a size that is none is not taken', async () => {
  for (const size of ['-1', 'NaN', '1.5', '9007199254740993', '']) {
    const { images, calls, state, snapshots } = openEngine();
    images.set('template', { ...TEMPLATE, labels: { 'purser.snapshot_bytes': size } });
    state.written = MEBIBYTE;
    const { kind } = await snapshots.take({ ref: 'it', tag: 'snap', isRunning: false, bytesMax: 20 * MEBIBYTE });
    if (size === '') assert.equal(kind, 'taken', 'nothing is said');
    else assert.deepEqual([kind, calls], ['refused', []], size);
  }
});

test('no snapshot is refused while what it has stopped may stand still: then its outcome is unknown, and the caller asks again', async () => {
  const order = { ref: 'it', tag: 'snap', isRunning: true, bytesMax: MEBIBYTE };
  for (const faults of [0, 1, 2, 3]) {
    const { images, state, snapshots } = openEngine();
    state.faults = faults;
    const kind = await snapshots.take(order).then(
      (it) => it.kind,
      () => 'unknown',
    );
    assert.deepEqual([kind, state.stopped], [['taken', 'refused', 'unknown', 'unknown'][faults], faults > 1]);
    if (kind === 'refused') assert.equal(images.size, 1);
  }
});
