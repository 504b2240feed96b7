// Writes dist/NAME.cache for each bundle: the code that V8 has compiled of it once a server is ready (docs/decisions/0062).
// build.mjs runs it with the runtime and the flags of the executable, as V8 accepts a cache only from the same ones. The threads
// of that server begin with it as well, in place of the asset `start.cjs`.
const diagnostics = require('node:diagnostics_channel');
const { mkdtempSync, readFileSync, rmSync, writeFileSync } = require('node:fs');
const http = require('node:http');
const { tmpdir } = require('node:os');
const { join, resolve } = require('node:path');
const sea = require('node:sea');
const v8 = require('node:v8');
const vm = require('node:vm');
const { isMainThread, threadName } = require('node:worker_threads');

const READY_MILLISECONDS_MAX = 60_000;
const TRY_MILLISECONDS = 20;

// The bundles take this process for the executable. Its assets are still the files that will go into it.
const { assets } = JSON.parse(readFileSync('dist/sea.json', 'utf8'));
const bytesOf = (name) => readFileSync(name === 'start.cjs' ? 'src/files/build-cache.cjs' : assets[name]);
sea.isSea = () => true;
sea.getAsset = (name, encoding) => bytesOf(name).toString(encoding);
sea.getRawAsset = (name) => Uint8Array.from(bytesOf(name)).buffer;
sea.getAssetKeys = () => Object.keys(assets).filter((name) => !name.endsWith('.cache'));

// V8 takes a cache only where its flags are those with which it was made: those of a start, before a server sets others.
v8.setFlagsFromString = () => {};

const { Script } = vm;
const cache = assets[isMainThread ? 'purser.cache' : `${threadName}.cache`];
vm.Script = class extends Script {
  constructor(code, options) {
    super(code, options);
    vm.Script = Script;
    process.on('exit', () => writeFileSync(cache, this.createCachedData()));
  }
};

/** The port of the server once it listens: one that is chosen before could be another program's by then. */
let port;
diagnostics.subscribe('tracing:net.server.listen:asyncEnd', ({ server }) => {
  port ??= server.address().port; // The operator’s socket has none.
});

function isReady() {
  return new Promise((resolve) => {
    if (port === undefined) return resolve(false);
    const request = http.get({ port, host: '127.0.0.1', path: '/readyz', agent: false }, (response) => {
      response.resume().on('close', () => resolve(response.statusCode === 200));
    });
    request.on('error', () => resolve(false));
  });
}

async function serveOnce() {
  const directory = mkdtempSync(join(tmpdir(), 'purser-build-'));
  process.on('exit', () => rmSync(directory, { recursive: true, force: true }));
  writeFileSync(join(directory, 'purser.yaml'), JSON.stringify({ listen: '127.0.0.1:0' })); // JSON is YAML.
  process.argv = [process.execPath, 'purser', '--data', directory, 'serve'];
  require(resolve(assets['start.cjs']));
  for (const until = Date.now() + READY_MILLISECONDS_MAX; !(await isReady()); ) {
    if (Date.now() > until) throw new Error('the server that is to be compiled does not get ready');
    await new Promise((resolve) => setTimeout(resolve, TRY_MILLISECONDS));
  }
  if (process.moduleLoadList.includes('NativeModule internal/deps/undici/undici'))
    throw new Error("a start loads Node's own fetch, a tenth of its time: see src/net/web-classes.ts");
  process.kill(process.pid, 'SIGTERM');
}

if (isMainThread) void serveOnce();
else require(resolve(assets['start.cjs']));
