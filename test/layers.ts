// The layers of the tests. A file's name says its layer; there is no list to add a new file to.
//   x.test.ts         the gate, `npm test`: needs nothing but the project, and does the same on every machine
//   x.engine.test.ts  `npm run test:engines`: needs a component of the machine (test/components.ts), or root
//   x.soak.test.ts    `npm run test:soak`: long or random by nature
// The soak also runs the files of the other layers whose walks have a length (test/helper/random.ts), at their whole length.
import assert from 'node:assert/strict';
import { existsSync, globSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';

/** Every test file, by name. */
export const allFiles = () => globSync('test/**/*.test.ts', { exclude: ['**/node_modules'] }).sort();

/** Returns the layer that a test file's name gives. */
export const layerOf = (file: string) => /\.(engine|soak)\.test\.ts$/.exec(file)?.[1] ?? 'gate';

const importsOf = new Map<string, string[]>();
function imports(file: string): string[] {
  if (!importsOf.has(file)) {
    const found = readFileSync(file, 'utf8').matchAll(/(?:from|import\()\s*'(\.[^']+)'/g);
    importsOf.set(
      file,
      [...found].map(([, it]) => join(dirname(file), it as string)),
    );
  }
  return importsOf.get(file) as string[];
}

/** Returns whether a test file imports one of `wanted`, directly or indirectly. */
function reaches(file: string, wanted: ReadonlySet<string>, seen = new Set<string>()): boolean {
  if (wanted.has(file)) return true;
  if (seen.has(file)) return false;
  seen.add(file);
  // A program in the text of a test may import files from elsewhere.
  return imports(file).some((it) => it.startsWith('test/') && existsSync(it) && reaches(it, wanted, seen));
}

/** The helpers that start the executable and ask for components. */
const NEEDS_MORE = new Set(['test/helper/executable.ts', 'test/helper/component.ts']);

/** Returns whether a file of the gate needs no build and starts at once: `npm run test:fast`. */
export const isFast = (file: string): boolean => layerOf(file) === 'gate' && !reaches(file, NEEDS_MORE);

/** Returns whether a file has walks, lists or properties that the soak makes longer. */
const hasLength = (file: string): boolean =>
  layerOf(file) !== 'soak' &&
  (imports(file).includes('test/helper/property.ts') ||
    (imports(file).includes('test/helper/random.ts') && /\blength\(\d/.test(readFileSync(file, 'utf8'))));

/** More groups than concurrent processes, so that no group runs alone for long. */
const GROUP_COUNTS = { fast: 10, other: 5 };

/** The slowest files: each begins one of the first groups, so that none is left to the end. */
const FIRST = [
  'test/ledger/serving.test.ts',
  'test/recovery/restore.test.ts',
  'test/lease/death.test.ts',
  'test/wallet/children.test.ts',
  'test/chat/stream-faults.test.ts',
  'test/compute/local.test.ts',
  'test/billing/payment-poller.test.ts',
  'test/lease/many.test.ts',
  'test/tracing/tracing.test.ts',
  'test/lease/snapshot.test.ts',
  'test/http/ports-deaf.test.ts',
  'test/compute/kubernetes-faults.test.ts',
  'test/compute/ssh-machine.test.ts',
  'test/ledger/missing-rows.test.ts',
  'test/db/lock.test.ts',
  'test/ui/older.test.ts',
  'test/executable/wallet-env.test.ts',
  'test/executable/canary.test.ts',
  'test/executable/data-directory.test.ts',
  'test/executable/terminal.test.ts',
  'test/executable/kill.test.ts',
];

const importOf = (file: string) => `import '${pathToFileURL(file)}';\n`;

/**
 * Groups files to share processes, as loading Purser for each of them would take a quarter of their time: writes one file per
 * group, which imports its tests, into `directory`. Neighbours, which are similar, go to different groups.
 */
export function grouped(all: readonly string[], kind: keyof typeof GROUP_COUNTS, directory: string): string[] {
  for (const file of FIRST) assert(existsSync(file), `${file} is missing`);
  const files = [...new Set([...FIRST.filter((it) => all.includes(it)), ...all])];
  const groups = Array.from({ length: Math.min(GROUP_COUNTS[kind], files.length) }, (): string[] => []);
  for (const [i, file] of files.entries()) groups[i % groups.length]?.push(importOf(file));
  return writeGroups(groups, kind, directory);
}

/** Writes a file per group, of the lines that import its tests. */
const writeGroups = (groups: readonly (readonly string[])[], kind: string, directory: string): string[] =>
  groups.map((imports, i) => {
    const group = join(directory, `${kind}-${String(i + 1).padStart(2, '0')}.mjs`);
    writeFileSync(group, imports.join(''));
    return group;
  });

/** The slowest files of the engines' layer. Each has a process of its own, and they start early: none is left to the end. */
const ALONE = [
  'test/compute/kubernetes.engine.test.ts',
  'test/compute/lxd.engine.test.ts',
  'test/compute/container.engine.test.ts',
  'test/executable/rent.engine.test.ts',
  'test/ui/keyboard.engine.test.ts',
  'test/compute/slurm.engine.test.ts',
  'test/ui/phone.engine.test.ts',
  'test/executable/page.engine.test.ts',
];

/** What opens an engine for all files of a process: the groups of those that import it take longest, and start first. */
const SHARED = ['test/compute/engines/kubernetes-subject.ts', 'test/lease/docker-leases.ts'];

/** So that no group takes much longer than the slowest file. */
const ENGINE_GROUP_MAX = 6;

/**
 * Groups files of the engines' layer: those of one folder, or that share an engine, share a process, as to load Purser and to start
 * an engine is a large part of what most of them take. Writes a file per group into `directory`, the slowest first.
 */
export function engineGroups(all: readonly string[], directory: string): string[] {
  for (const file of ALONE) assert(existsSync(file), `${file} is missing`);
  const groups = new Map<string, string[]>([...SHARED, ...ALONE].map((it) => [it, []]));
  for (const file of all) {
    const key = ALONE.includes(file) ? file : (SHARED.find((it) => reaches(file, new Set([it]))) ?? dirname(file));
    groups.set(key, [...(groups.get(key) ?? []), file]);
  }
  const parts = [...groups.values()].flatMap((files) => {
    const count = Math.ceil(files.length / ENGINE_GROUP_MAX);
    return Array.from({ length: count }, (_, part) => files.filter((_, i) => i % count === part).map(importOf));
  });
  return writeGroups(parts, 'engines', directory);
}

/** The slowest files of the soak: they start first, so that none is left to the end. */
const LONG = [
  'test/executable/walk.soak.test.ts',
  'test/agents/agents.soak.test.ts',
  'test/executable/abuse.soak.test.ts',
  'test/http/long-turns.soak.test.ts',
  'test/http/long-answers.soak.test.ts',
  'test/executable/image-fetched.soak.test.ts',
  'test/torture/torture.soak.test.ts',
  'test/power/power-cut.soak.test.ts',
  'test/executable/kill-leases.soak.test.ts',
  'test/executable/every-step.soak.test.ts',
  'test/lease/death.soak.test.ts',
];

/** Returns the files of the soak: its own, and those of the other layers that it makes longer. */
export function soakFiles(): string[] {
  const all = allFiles();
  for (const file of LONG) assert(all.includes(file), `${file} is missing`);
  return [...new Set([...LONG, ...all.filter((it) => layerOf(it) === 'soak' || hasLength(it))])];
}
