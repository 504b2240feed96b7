import { once } from 'node:events';
import { resolve } from 'node:path';
import { Readable } from 'node:stream';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { inspect } from 'node:util';
import { missingComponents, openTally, type TestEvent } from './helper/closing.ts';
import { openRunDirectory, processorSeconds } from './helper/run-directory.ts';
import { endStuck } from './helper/stuck.ts';
import { allFiles, engineGroups, grouped, isFast, layerOf, soakFiles } from './layers.ts';

const filesOf = (layer: string) => allFiles().filter((it) => layerOf(it) === layer);

/** The files of a layer, with their number at a time. `directory` may take files that import others. */
type Layer = {
  files(directory: string): string[];
  concurrency: number;
  /** The time limit of a file: far above what any takes, even on a busy machine. */
  minutesMax: number;
  env?: Record<string, string>;
  isInMemory?: boolean;
};
const LAYERS: Record<string, Layer> = {
  gate: {
    isInMemory: true,
    files(directory) {
      const files = filesOf('gate');
      const of = (kind: 'fast' | 'other') => files.filter((it) => isFast(it) === (kind === 'fast'));
      return (['other', 'fast'] as const).flatMap((kind) => grouped(of(kind), kind, directory));
    },
    concurrency: 4, // Suits two cores, and 4 GB of memory: a group takes up to 1 GB.
    minutesMax: 40,
  },
  engines: {
    files: (directory) => engineGroups(filesOf('engine'), directory),
    concurrency: 5, // Most of them wait, for an engine or a real deadline.
    minutesMax: 40,
  },
  soak: {
    files: soakFiles,
    concurrency: 5,
    minutesMax: 240,
    env: { PURSER_TEST_SOAK: '1' },
  },
};

/** Runs a layer of the tests. The exit code is 1 if a test fails, or if the gate leaves a process, a mount or a file behind. */
export async function runLayer(name: string): Promise<void> {
  const layer = LAYERS[name];
  if (!layer) throw new Error(`There is no layer ${name}. Layers: ${Object.keys(LAYERS).join(', ')}.`);
  const began = performance.now();
  const directory = openRunDirectory(layer);
  const files = layer.files(directory.path);
  Object.assign(process.env, layer.env, {
    TMPDIR: directory.temporary,
    PURSER_TEST_DISK: directory.onDisk,
    PURSER_TEST_LAYER: name,
    PURSER_TEST_RUN: directory.path,
    PURSER_TEST_MINUTES_MAX: String(layer.minutesMax),
    // Otherwise Node's programs that tests start leave their compiled modules in the temporary directory.
    NODE_COMPILE_CACHE: resolve('node_modules/.cache/purser-tests'),
  });
  const tally = openTally();
  async function* noted(events: AsyncIterable<TestEvent>) {
    for await (const event of events) {
      tally.note(event);
      yield event;
      // The reporter tells why a test failed at the end of the run, which one that is cut off does not reach.
      if (event.type === 'test:fail') {
        const { cause, exitCode, signal } = event.data.details.error as {
          cause: unknown;
          exitCode?: number;
          signal?: string;
        };
        console.log(inspect(cause), ...(exitCode || signal ? [`Its process ended with ${signal ?? exitCode}.`] : []));
      }
    }
  }
  endStuck(layer.minutesMax);
  // Most of what tests run, they run a few times: without Maglev a gate takes a tenth less of a processor.
  const execArgv = ['--no-maglev', '--import=./test/helper/loading.mjs'];
  const events = run({ files, concurrency: layer.concurrency, execArgv });
  const shown = Readable.from(noted(events as AsyncIterable<TestEvent>)).compose(new spec());
  shown.pipe(process.stdout, { end: false });
  await once(shown, 'end');

  const slowest = tally.slowest(directory.processorSeconds());
  const left = await directory.close();
  const { passed, failed, skipped } = tally.counts();
  const say = (title: string, lines: readonly string[]) =>
    lines.length && console.log(`\n${title}\n${lines.map((it) => `  ${it}\n`).join('')}`.trimEnd());
  say('The slowest files:', slowest);
  if (name === 'gate') say('Not on this machine, so `npm run test:all` would leave out:', missingComponents());
  say('Skipped, because a component is missing (PURSER_TEST_REQUIRE=all makes that a failure):', tally.missing());
  // Not every engine removes all of its own at once, and its tools leave caches.
  const isClean = name !== 'gate' || left.length === 0;
  say(isClean ? 'Left behind:' : 'LEFT BEHIND, which is a failure:', left);
  const wall = (performance.now() - began) / 1000;
  console.log(`\n${wall.toFixed(0)} s, ${processorSeconds().toFixed(0)} s of a processor`);
  console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`);
  if (failed > 0 || !isClean) process.exitCode = 1;
}
