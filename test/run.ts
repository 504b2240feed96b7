import { once } from 'node:events';
import { resolve } from 'node:path';
import { Readable } from 'node:stream';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { missingComponents, openTally, type TestEvent } from './helper/closing.ts';
import { openRunDirectory, processorSeconds } from './helper/run-directory.ts';
import { allFiles, grouped, hasLength, isFast, layerOf, opensCluster } from './layers.ts';

/** The slowest files start first, so that none of them runs alone at the end. A run prints its slowest files when it ends. */
const SLOWEST: string[] = [
  'test/compute/kubernetes.engine.test.ts',
  'test/lease/kubernetes-death.engine.test.ts',
  'test/executable/kubernetes.engine.test.ts',
  'test/packaging/release.engine.test.ts',
  'test/executable/image-fetched.engine.test.ts',
  'test/e2b/code-interpreter.engine.test.ts',
  'test/executable/rent.engine.test.ts',
  'test/compute/container.engine.test.ts',
  'test/compute/slurm.engine.test.ts',
  'test/packaging/deb.engine.test.ts', // It waits for the release that release.engine.test.ts makes.
  'test/compute/lxd.engine.test.ts',
  'test/executable/image.engine.test.ts',
  'test/compute/slurm-controller.engine.test.ts',
  'test/compute/container-network.engine.test.ts',
  'test/executable/page.engine.test.ts',
  'test/compute/slurm-users.engine.test.ts',
  'test/compute/container-deadline.engine.test.ts',
];
const slowestFirst = (files: readonly string[]) => [
  ...SLOWEST.filter((it) => files.includes(it)),
  ...files.filter((it) => !SLOWEST.includes(it)),
];
const filesOf = (layer: string) => allFiles().filter((it) => layerOf(it) === layer);

/** Files that run beside those of the other lanes, with their number at a time. */
type Lane = { files: string[]; concurrency: number };
type Layer = { lanes(directory: string): Lane[]; env?: Record<string, string>; isInMemory?: boolean };
const LAYERS: Record<string, Layer> = {
  gate: {
    isInMemory: true,
    lanes(directory) {
      const files = filesOf('gate');
      const of = (kind: 'fast' | 'other') => files.filter((it) => isFast(it) === (kind === 'fast'));
      const all = (['other', 'fast'] as const).flatMap((kind) => grouped(of(kind), kind, directory));
      return [{ files: all, concurrency: 4 }]; // Suits two cores: with three at a time, these were idle for a quarter of the time.
    },
  },
  engines: {
    lanes() {
      const files = slowestFirst(filesOf('engine'));
      // A cluster takes a third of a core while its tests wait: two run at a time, and none is left to the end. Most of the others
      // wait as well, for real deadlines.
      return [
        { files: files.filter(opensCluster), concurrency: 2 },
        { files: files.filter((it) => !opensCluster(it)), concurrency: 4 },
      ];
    },
  },
  soak: {
    lanes: () => [{ files: slowestFirst([...filesOf('soak'), ...filesOf('gate').filter(hasLength)]), concurrency: 4 }],
    env: { PURSER_TEST_SOAK: '1' },
  },
};

/** Runs a layer of the tests. The exit code is 1 if a test fails, or if the gate leaves a process, a mount or a file behind. */
export async function runLayer(name: string): Promise<void> {
  const layer = LAYERS[name];
  if (!layer) throw new Error(`There is no layer ${name}. Layers: ${Object.keys(LAYERS).join(', ')}.`);
  const began = performance.now();
  const directory = openRunDirectory(layer);
  const lanes = layer.lanes(directory.path);
  Object.assign(process.env, layer.env, {
    TMPDIR: directory.temporary,
    PURSER_TEST_DISK: directory.onDisk,
    PURSER_TEST_LAYER: name,
    PURSER_TEST_RUN: directory.path,
    // Otherwise Node's programs that tests start leave their compiled modules in the temporary directory.
    NODE_COMPILE_CACHE: resolve('node_modules/.cache/purser-tests'),
  });
  const tally = openTally();
  async function* noted(events: AsyncIterable<TestEvent>) {
    for await (const event of events) {
      tally.note(event);
      yield event;
    }
  }
  const runLane = async (lane: Lane) => {
    const events = run({ ...lane, execArgv: ['--import=./test/helper/loading.mjs'] });
    const shown = Readable.from(noted(events as AsyncIterable<TestEvent>)).compose(new spec());
    shown.pipe(process.stdout, { end: false });
    await once(shown, 'end');
  };
  await Promise.all(lanes.map(runLane));

  const left = await directory.close();
  const { passed, failed, skipped } = tally.counts();
  const say = (title: string, lines: readonly string[]) =>
    lines.length && console.log(`\n${title}\n${lines.map((it) => `  ${it}\n`).join('')}`.trimEnd());
  say('The slowest files:', tally.slowest(directory.processorSeconds()));
  if (name === 'gate') say('Not on this machine, so `npm run test:engines` would leave out:', missingComponents());
  say('Skipped, because a component is missing (PURSER_TEST_REQUIRE=all makes that a failure):', tally.missing());
  // Not every engine removes all of its own at once, and its tools leave caches.
  const isClean = name !== 'gate' || left.length === 0;
  say(isClean ? 'Left behind:' : 'LEFT BEHIND, which is a failure:', left);
  const wall = (performance.now() - began) / 1000;
  console.log(`\n${wall.toFixed(0)} s, ${processorSeconds().toFixed(0)} s of a processor`);
  console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`);
  if (failed > 0 || !isClean) process.exitCode = 1;
}
