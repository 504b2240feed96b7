import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize, relative } from 'node:path';
import test from 'node:test';

const ROOT = join(import.meta.dirname, '..');

const files = ['src', 'cli', 'test', 'bench', 'torture'].flatMap((folder) =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .map((name) => join(folder, name))
    .filter((name) => /\.(ts|mjs)$/.test(name) && !name.includes('node_modules')),
);
const read = (name: string) => readFileSync(join(ROOT, name), 'utf8');
const withoutComments = (source: string) => source.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$/gm, '');

/** A pattern, the only files where it may appear, and the reason, which a failure prints. */
const ONLY_IN: [what: RegExp, where: RegExp, why: string][] = [
  [
    /process\.env\b/,
    /^(src\/config\/config\.ts|src\/compute\/engines\/kubernetes\/credentials\.ts|test\/|bench\/)/,
    'the environment is read once; a pod is told in it where its cluster is',
  ],
  [
    /\.(insert|update|delete)\((accounts|wallets|operations|entries|fundings|answers|installation|epochs|masterKeys|checkouts|reversals|paymentEvents|paymentFeed|learnedBounds|resources|keeps|events|deliveries)\)/,
    /^src\/ledger\//,
    'only the ledger writes money',
  ],
  [/\.(insert|update|delete)\((keys|browserSessions)\)/, /^src\/access\//, 'only access writes keys and sessions'],
  [
    /\btx\s*\.delete\(/,
    /^src\/(db\/tally|access\/browser-sessions)\.ts$/,
    'deleteRows takes them off the count: a row that is gone otherwise is damage',
  ],
  [
    /\b(insert into|update|delete from) (account|wallet|operation|entry|funding|answer)\b/i,
    /^(src\/ledger\/(hold|journal|operation|wallet)\.ts$|test\/|bench\/)/,
    'money is written through the ledger’s own statements: in plain SQL those of holds and settlements',
  ],
  [
    /from 'better-sqlite3'/,
    /^(src\/db|src\/ledger|test|bench|torture)\//,
    'only the database layer opens databases; the ledger verifies them',
  ],
  [
    /^import (?!type ).*from 'undici'|import\('undici'\)/m,
    /^(src\/compute\/engines\/lxd\/|src\/(notify|telemetry\/spans)\/|src\/net\/(contained-connector|request|watched-pool|web-classes)\.ts|test\/|bench\/)/,
    'calls go over HTTP/1.1, and what they throw is contained',
  ],
  [/from 'fast-check'/, /^test\/helper\/property\.ts$/, 'properties are tried from the seed of the run'],
  [
    /\bseed\b.* = .*(randomInt|Math\.random)\(/i,
    /^(test\/helper\/random\.ts$|bench\/|torture\/)/,
    'only the soak draws a seed',
  ],
  [
    /\(resolve\) => (setTimeout|setImmediate)\(resolve/,
    /^(src\/base\/turn\.ts$|test\/|bench\/|torture\/)/,
    'a wait is `sleep` of node:timers/promises, and a turn `nextTurn`',
  ],
  [/\bfetch\(/, /^(src\/demo\/|test\/|bench\/)/, 'only the demo is a client of ours'],
  [
    /from 'hono|from '@hono/,
    /^(src\/(http|ui)\/|src\/main\/serve\.ts|bench\/bare-proxy\.ts)/,
    'only the HTTP layer and the page use the HTTP framework',
  ],
  [/status:\s*[45]\d\d\b/, /^(src\/base\/refusal\.ts|test\/|bench\/)/, 'error statuses are in one table'],
  [
    /process\.exit\(/,
    /^(cli\/serve\.ts|bench\/(load|main)\.ts|test\/helper\/pinned-node\.mjs)$/,
    'set process.exitCode and let the event loop empty; only a failed commit ends at once',
  ],
  [
    /console\.(log|error|warn)/,
    /^(cli\/main\.ts|test\/|bench\/|torture\/)/,
    'data goes through print, messages through say, events through the log',
  ],
  [
    /\binteger\(/,
    /^(src\/(config|compute|wire)\/|test\/)/,
    'a plain integer column reads a bigint as if it were a number',
  ],
  [/Date\.now\(\)/, /^(src\/base\/(clock|id)\.ts|src\/(doctor|demo)\/|test\/|bench\/|torture\/)/, 'time is handed in'],
  [
    /\btoISOString\(|\bDateTimeFormat\(|\.toLocale\w*String\(/,
    /^(src\/ui\/times\.ts|(?!src\/ui\/).*)$/,
    'one file of the page writes times, in the zone of the reader',
  ],
  [/\.(only|skip|todo)\(/, /^test\/helper\/component\.ts$/, 'no test is left out'],
  [
    /\.resetAndDestroy\(/,
    /^src\/net\/reset\.ts$/,
    'on a connection that was ended it leaves a process that never ends',
  ],
  [/@ts-ignore|@ts-nocheck/, /^$/, 'the compiler is not silenced'],
];

test('what may stand in one place only stands nowhere else', () => {
  const faults = files
    .filter((name) => name !== 'test/tidy.test.ts')
    .flatMap((name) => {
      const source = withoutComments(read(name));
      return ONLY_IN.filter(([what, where]) => what.test(source) && !where.test(name)).map(
        ([what, , why]) => `${name}: ${what}: ${why}`,
      );
    });
  assert.deepEqual(faults, []);
});

/** The layers, from the top down. An import points to a lower layer, or stays in its folder (design, section 5). */
const LAYERS: RegExp[][] = [
  [/^cli\//],
  [/^src\/demo\//],
  [/^src\/main\//],
  [/^src\/(doctor|service)\//],
  [/^src\/ui\//],
  [/^src\/(http|ssh|operator|reaper|recovery)\//],
  [/^src\/wire\//],
  [/^src\/billing\//],
  [/^src\/wallet\//],
  [/^src\/books\//],
  [/^src\/(chat|lease|notify)\//],
  [/^src\/spend\//],
  [/^src\/telemetry\//],
  [/^src\/(router|access|transfer)\//],
  [/^src\/config\//],
  [/^src\/(ledger|compute)\//],
  [/^src\/db\//],
  [/^src\/egress\//],
  [/^src\/(net|files)\//],
  [/^src\/base\//],
];
const layerOf = (name: string) => LAYERS.findIndex((folders) => folders.some((folder) => folder.test(name)));
const folderOf = (name: string) => name.split('/').slice(0, 2).join('/');
/** From this layer down, all files of a layer may import each other. */
const SHARED_LAYER = LAYERS.length - 2;

test('imports point to lower layers only', () => {
  const faults: string[] = [];
  for (const name of files.filter((it) => /^(src|cli)\//.test(it))) {
    const layer = layerOf(name);
    assert.notEqual(layer, -1, `${name} is in no layer: add it to LAYERS`);
    for (const [, target] of read(name).matchAll(/(?:from|import\()\s*'(\.[^']+)'/g)) {
      const imported = relative(ROOT, join(ROOT, normalize(join(dirname(name), target as string))));
      const importedLayer = layerOf(imported);
      const mayShare = layer === 0 || layer >= SHARED_LAYER || folderOf(name) === folderOf(imported);
      if (importedLayer < layer || (importedLayer === layer && !mayShare)) faults.push(`${name} imports ${imported}`);
    }
  }
  assert.deepEqual(faults, []);
});

/** The parts of compute, and what each may import of compute beside its own folder and the files that lie in compute itself. */
const PARTS_OF_COMPUTE: [part: RegExp, imports: RegExp][] = [
  [/^src\/compute\/engines\/(?!index)/, /^src\/compute\/(kit|machine)\//],
  [/^src\/compute\/kit\//, /^src\/compute\/machine\//],
  [/^src\/compute\/machine\//, /^$/],
];

test('an engine imports no sibling: what several of them share lies in the kit, or in what runs in any machine', () => {
  const faults: string[] = [];
  for (const name of files) {
    const [part, imports] = PARTS_OF_COMPUTE.find(([it]) => it.test(name)) ?? [];
    if (!part || !imports) continue;
    const own = /^src\/compute\/(engines\/[^/]+|kit|machine)\//.exec(name)?.[0] as string;
    for (const [, target] of read(name).matchAll(/(?:from|import\()\s*'(\.[^']+)'/g)) {
      const imported = normalize(join(dirname(name), target as string));
      const isShared = /^src\/compute\/[^/]+$/.test(imported) || !imported.startsWith('src/compute/');
      if (!isShared && !imported.startsWith(own) && !imports.test(imported)) faults.push(`${name} imports ${imported}`);
    }
  }
  assert.deepEqual(faults, []);
});

/** Returns the modules and packages that a module loads at its start; later imports, by `import()`, are not among them. */
function loadedBy(entry: string): { modules: Set<string>; packages: string[] } {
  const runtimeImports = (name: string) =>
    [...read(name).matchAll(/^import (?!type )(?:[^;]*?from )?'([^']+)'/gm)]
      .filter(([statement]) => !/^import \{(\s*type [^,}]+,?)+\s*\} from/.test(statement))
      .map(([, target]) => target as string);
  const modules = new Set<string>();
  const packages = new Set<string>();
  const visit = (name: string) => {
    if (modules.has(name)) return;
    modules.add(name);
    for (const target of runtimeImports(name)) {
      if (target.startsWith('.')) visit(normalize(join(dirname(name), target)));
      else if (!target.startsWith('node:')) packages.add(target.split('/')[0] as string);
    }
  };
  visit(entry);
  return { modules, packages: [...packages].sort() };
}

test('the thread that writes knows every write, and nothing that it has no use for', () => {
  const { modules, packages } = loadedBy('src/main/writer-thread.ts');
  const defining = files.filter(
    (it) => it.startsWith('src/') && /^(export )?const \w+ = define(Paid)?Write/m.test(read(it)),
  );
  assert(defining.length > 5);
  assert.deepEqual(
    defining.filter((it) => !modules.has(it)),
    [],
    'add them to src/main/writer-thread.ts',
  );
  assert.deepEqual(packages, ['better-sqlite3', 'drizzle-orm', 'temporal-polyfill']);
});

test('a command loads no package before it knows that it needs it: undici alone takes half as long as all the rest', () => {
  assert.deepEqual(loadedBy('cli/main.ts').packages, ['commander', 'get-east-asian-width', 'valibot', 'yaml']);
});

test('a server loads what it takes for passkeys when one is used', () => {
  assert(!loadedBy('src/main/serve.ts').packages.includes('@simplewebauthn'));
});

test('no file imports one that imports it back', () => {
  const imports = new Map<string, string[]>();
  for (const name of files.filter((it) => /^(src|cli)\//.test(it)))
    imports.set(
      name,
      [...read(name).matchAll(/^(?:import|export)(?! type)[^;]*?from\s*'(\.[^']+)'/gm)].map(([, target]) =>
        normalize(join(dirname(name), target as string)),
      ),
    );
  const faults: string[] = [];
  const done = new Set<string>();
  const visit = (name: string, path: string[]) => {
    if (path.includes(name)) return faults.push([...path.slice(path.indexOf(name)), name].join(' → '));
    if (done.has(name)) return;
    for (const next of imports.get(name) ?? []) visit(next, [...path, name]);
    done.add(name);
  };
  for (const name of imports.keys()) visit(name, []);
  assert.deepEqual(faults, []);
});

test('no two types of the product share a name', () => {
  const declaredIn = new Map<string, string[]>();
  for (const name of files.filter((it) => /^(src|cli)\//.test(it)))
    for (const [, type] of read(name).matchAll(
      /^ *(?:export )?(?:type|interface|(?:abstract )?class) (\w+)\b(?=[^'"]*[={])/gm,
    ))
      declaredIn.set(type as string, [...(declaredIn.get(type as string) ?? []), name]);
  assert(declaredIn.size > 500);
  const shared = [...declaredIn].filter(([, names]) => names.length > 1);
  assert.deepEqual(shared, []);
});

/** Exports that build.mjs and the packaging import. */
const IMPORTED_ELSEWHERE = ['src/files/read-bundle.ts readBundle', 'src/service/release-file.ts NAMESPACE'];

test('what a file of the product exports, another file imports', () => {
  const sources = files.filter((it) => it.endsWith('.ts')).map((name) => [name, read(name)] as const);
  const imported = new Set<string>();
  for (const [name, source] of sources) {
    const targetOf = (path: string) => normalize(join(dirname(name), path));
    for (const [, names = '', path = ''] of source.matchAll(
      /(?:import|export)(?: type)? \{([^}]*)\} from '(\.[^']+)'/g,
    ))
      for (const it of names.split(','))
        imported.add(
          `${targetOf(path)} ${
            it
              .replace(/^\s*type /, '')
              .trim()
              .split(' ')[0]
          }`,
        );
    // One that is imported as a whole, or when it is needed, may be used by any of its names.
    for (const [, path = ''] of source.matchAll(/(?:\* as \w+ from |import\(|new URL\()\s*'(\.[^']+)'/g))
      for (const [word] of source.matchAll(/\b\w+\b/g)) imported.add(`${targetOf(path)} ${word}`);
  }
  const schema = [...read('src/db/schema.ts').matchAll(/export \* from '\.\/(schema\/\w+\.ts)'/g)].map(([, it]) => it);
  for (const it of [...imported].filter((it) => it.startsWith('src/db/schema.ts ')))
    for (const part of schema) imported.add(it.replace('schema.ts', `${part}`));
  const exported = sources.flatMap(([name, source]) =>
    /^(src|cli)\//.test(name)
      ? [
          ...source.matchAll(
            /^export (?:declare )?(?:async )?(?:type|const|let|function\*?|class|abstract class) (\w+)/gm,
          ),
        ].map(([, it]) => `${name} ${it}`)
      : [],
  );
  assert(exported.length > 1500, `${exported.length} exports`);
  assert.deepEqual(exported.filter((it) => !imported.has(it)).sort(), IMPORTED_ELSEWHERE);
});

test('a mark in a comment has its reason', () => {
  const bare = files
    .filter((name) => name !== 'test/tidy.test.ts')
    .flatMap((name) =>
      [...read(name).matchAll(/(?<!@)\b(TODO|FIXME|XXX|HACK)\b|@(?:TODO|NOTE)\s*$/gm)].map(
        ([mark]) => `${name}: ${mark}`,
      ),
    );
  assert.deepEqual(bare, []);
});

const documents = ['README.md', 'CONTRIBUTING.md', 'CHANGELOG.md'].concat(
  readdirSync(join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => join('docs', name)),
);

test('the pages stay short enough to be read', () => {
  const pages = documents.filter((name) => name !== 'CONTRIBUTING.md');
  const words = pages.flatMap((name) => read(name).split(/\s+/)).filter(Boolean); // As `wc -w` counts.
  const decisions = documents.filter((name) => name.startsWith('docs/decisions/'));
  assert(words.length <= 45_000, `${words.length} words`);
  assert(decisions.length <= 30, `${decisions.length} decisions`);
  assert(read('README.md').split('\n').length <= 120);
});

/** Returns the numbers of a document's sections, and of the items of numbered lists in them: `2`, `2.7`. */
function sectionsOf(document: string): Set<string> {
  const numbers = new Set<string>();
  let section = '';
  for (const line of read(document).split('\n')) {
    section = /^## (\d+)\./.exec(line)?.[1] ?? section;
    const item = /^(\d+)\. /.exec(line)?.[1];
    numbers.add(item && section ? `${section}.${item}` : section);
  }
  return numbers;
}

/** Matches a document's name and the section numbers after it: `design, sections 4 and 8`, `design 2.7, 2.8`. */
const CITATION =
  /\b(design|interface)\b(?:\.md)?,?\s+(?:sections?\s+)?(\d+(?:\.\d+)?(?:(?:,\s*|\s+and\s+)\d+(?:\.\d+)?)*)\b/gi;
/** A section of another document has that document's name before it. */
const OTHER_DOCUMENT = /\bRFC \d+, $/;

test('every section that is cited exists', () => {
  const sections: Record<string, Set<string>> = {
    design: sectionsOf('docs/design.md'),
    interface: sectionsOf('docs/interface.md'),
  };
  const faults: string[] = [];
  let count = 0;
  for (const name of [...files, ...documents]) {
    // Joins the lines of a comment: a sentence may span them.
    const text = read(name).replace(/\n\s*(?:\*|\/\/)?\s*/g, ' ');
    for (const [citation, document, numbers] of text.matchAll(CITATION))
      for (const number of (numbers as string).split(/,\s*|\s+and\s+/)) {
        count++;
        if (!sections[(document as string).toLowerCase()]?.has(number)) faults.push(`${name}: ${citation}`);
      }
    if (documents.includes(name)) continue;
    for (const { index, 0: words } of text.matchAll(/\bsections? \d+/g)) {
      const before = text.slice(Math.max(0, index - 80), index);
      if (!/\b(design|interface)\b[^.]*$/i.test(before) && !OTHER_DOCUMENT.test(before))
        faults.push(`${name}: ${words} of what?`);
    }
  }
  assert.deepEqual(faults, []);
  assert.ok(count > 100, 'the citations are found');
});

test('every file of the project that a page or a comment names exists', () => {
  const faults: string[] = [];
  for (const name of documents)
    for (const [, target] of read(name).matchAll(/\]\((?!https?:|#|mailto:)([^)#\s]+)/g))
      if (!existsSync(join(ROOT, dirname(name), target as string))) faults.push(`${name}: ${target}`);
  const speakOfToday = documents.filter((name) => name !== 'CHANGELOG.md');
  for (const name of [...files, ...speakOfToday])
    for (const [path] of read(name).matchAll(
      /\b(?:docs|test|src|cli|bench|torture)\/[\w/.-]+\.(?:md|ts|mjs|sh|service)\b/g,
    ))
      if (!existsSync(join(ROOT, path))) faults.push(`${name}: ${path}`);
  assert.deepEqual(faults, []);
});

test('every file and function of a walk exists', () => {
  const faults: string[] = [];
  const page = read('docs/architecture.md');
  const sourceOf = (path: string) => ['', 'src/'].map((it) => it + path).find((it) => existsSync(join(ROOT, it)));
  const paths = [...page.matchAll(/`([\w-]+\/[\w/-]+\.ts)`/g)].map(([, path]) => path as string);
  assert(paths.length > 40);
  for (const path of paths) if (!sourceOf(path)) faults.push(`there is no ${path}`);
  const named = [...page.matchAll(/`(\w+)`\s+(?:in\s+|\()`([\w/-]+\.ts)`/g)];
  assert(named.length >= 6);
  for (const [, name, path] of named) {
    const source = sourceOf(path as string);
    if (source && !new RegExp(`\\b${name}\\b`).test(read(source))) faults.push(`there is no ${name} in ${path}`);
  }
  assert.deepEqual(faults, []);
});
