import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { constants, tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { cachedDataVersionTag } from 'node:v8';
import { setEnvironmentData, Worker } from 'node:worker_threads';
import { builtFiles, installation } from '../helper/executable.ts';

const { SIGUSR1 } = constants.signals;
const ROOT = join(import.meta.dirname, '../..');

/**
 * Names that code in the bundles compares with a `constructor.name`, and whose they are. All but the first two are classes of
 * the runtime, or of browsers, which a bundle cannot rename: undici's fetch (Error, DOMException and a scope),
 * drizzle (Object), hono (TimeoutError).
 */
const COMPARED = [
  'Session',
  'Sequence',
  'DOMException',
  'EnvironmentSettingsObject',
  'Error',
  'Object',
  'TimeoutError',
];

test('no class that the bundle recognises by its name has another name in the bundle', () => {
  // A line may break after any dot.
  const bundle = builtFiles(/\.cjs$/)
    .map(({ text }) => text.replace(/\.\n\s*/g, '.'))
    .join('\n');
  const compared = [...bundle.matchAll(/constructor\??\.\s*name\s*[!=]==?\s*("?[\w.]+"?)/g)].map(
    (it) => it[1] as string,
  );
  // Typed arrays, in undici's fetch: the runtime's own on both sides.
  const names = new Set(compared.filter((it) => it !== 'T.name').map((it) => it.replaceAll('"', '')));
  assert.deepEqual(
    [...names].sort(),
    [...COMPARED].sort(),
    'look at who compares, and whether the bundle has that class',
  );

  const classes = [...bundle.matchAll(/\b(?:class (\w+)|(\w+)=class(?: \w+)?)(?: extends [^{]+)?\{\s*(.{0,80})/g)];
  assert.ok(classes.length > 500, `${classes.length} classes`);
  const renamed = classes.filter(([, declared, assigned, start]) => {
    const name = (declared ?? assigned) as string;
    const plain = name.replace(/\d+$/, '');
    return name !== plain && names.has(plain) && !start?.startsWith('static{');
  });
  assert.deepEqual(renamed, []);
  assert.match(bundle, /var Session\d*=class extends \w+\{\s*static\{\s*__name\(this,"Session"\)/);
});

test('another runtime than the pinned one is not built in', (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-build-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const name = `node-${process.platform}-${process.arch}`;
  const bin = join(directory, 'node_modules', name, 'bin');
  mkdirSync(bin, { recursive: true });
  writeFileSync(join(bin, 'node'), 'another');
  cpSync(join(ROOT, 'package.json'), join(directory, 'package.json'));
  const { status, stderr } = spawnSync(process.execPath, [join(ROOT, 'build.mjs')], {
    cwd: directory,
    encoding: 'utf8',
  });
  assert.equal(status, 1);
  assert.match(stderr, /bin\/node is not the pinned runtime: its SHA-256 is [0-9a-f]{64}, not [0-9a-f]{64}/);
  assert.equal(existsSync(join(directory, 'dist')), false, 'nothing was begun');
});

test('what was compiled when it was built is taken, by every thread', async (t) => {
  const server = await installation(t).serve();
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  assert.doesNotMatch(server.output.stderr, /this start takes longer/);
});

test('with the flags of a start V8 takes what was compiled of Node’s modules; it knows those that a server sets later', () => {
  const [, flags] = /^const V8_FLAGS = \[(.+)\];$/m.exec(readFileSync(join(ROOT, 'build.mjs'), 'utf8')) ?? [];
  assert(flags);
  const tag = 'require("node:v8").cachedDataVersionTag()';
  const said = (...args: string[]) => execFileSync(process.execPath, args, { cwd: ROOT, encoding: 'utf8' });
  assert.equal(said(...flags.split(', ').map((it) => it.slice(1, -1)), '--print', tag), said('--print', tag));
  const program = `const before = ${tag}; require('./src/base/heap-flags.ts').setHeapFlags(); before !== ${tag}`;
  const set = spawnSync(process.execPath, ['--print', program], { cwd: ROOT, encoding: 'utf8' });
  assert.deepEqual([set.stdout, set.stderr], ['true\n', '']); // V8 reports a flag that it does not know, and goes on.
});

/** Inodes of the TCP sockets on which a process listens. */
function listening(pid: number): string[] {
  const sockets = readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    try {
      return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1] ?? [];
    } catch {
      return []; // It was closed meanwhile.
    }
  });
  const LISTEN = '0A'; // proc_net_tcp
  const lines = ['tcp', 'tcp6'].flatMap((it) => readFileSync(`/proc/${pid}/net/${it}`, 'utf8').split('\n').slice(1));
  const fields = lines.map((line) => line.trim().split(/\s+/));
  return fields.filter((it) => it[3] === LISTEN && sockets.includes(it[9] as string)).map((it) => it[9] as string);
}

test('SIGUSR1 neither ends the server nor opens an inspector', async (t) => {
  const server = await installation(t).serve();
  const before = listening(server.pid);
  assert.equal(before.length, 1);
  server.kill('SIGUSR1');
  // It waits, blocked by every thread and caught by nobody (proc_pid_status).
  for (const thread of readdirSync(`/proc/${server.pid}/task`)) {
    const status = readFileSync(`/proc/${server.pid}/task/${thread}/status`, 'utf8');
    const has = (set: string) =>
      (BigInt(`0x${new RegExp(`^${set}:\\s+(\\w+)`, 'm').exec(status)?.[1]}`) >> BigInt(SIGUSR1 - 1)) & 1n;
    assert.deepEqual([has('ShdPnd'), has('SigBlk'), has('SigCgt')], [1n, 1n, 0n], status);
  }
  assert.equal((await server.ask('GET', '/healthz')).status, 200);
  assert.deepEqual(listening(server.pid), before);
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  assert.doesNotMatch(server.output.stderr, /Debugger listening/);
});

test('a thread that begins after the flags of a server were set says nothing beside its log', async (t) => {
  // As in the executable: with the name of a thread, its bundle, and compiled code that V8 does not take.
  const start = new URL('../../src/files/start.ts', import.meta.url);
  const code = `const sea = require('node:sea');
    const { parentPort } = require('node:worker_threads');
    const assets = { 'write.cjs': '(require, module) => module.exports()', 'write.cache': 'of other flags' };
    sea.isSea = () => true;
    sea.getAssetKeys = () => Object.keys(assets);
    sea.getRawAsset = (name) => Uint8Array.from(Buffer.from(assets[name])).buffer;
    const said = [];
    process.on('warning', ({ message }) => said.push(message));
    const exports = () => setImmediate(() => parentPort.postMessage(said));
    Object.assign(globalThis, { require, module: { exports }, exports: {}, __filename: 'start', __dirname: '.' });
    import(${JSON.stringify(start.href)});`;
  const said = async () => (await once(new Worker(code, { eval: true, name: 'write' }), 'message'))[0];
  t.after(() => setEnvironmentData('purser.start-tag', undefined));
  setEnvironmentData('purser.start-tag', cachedDataVersionTag() + 1);
  assert.deepEqual(await said(), []);
  setEnvironmentData('purser.start-tag', cachedDataVersionTag());
  assert.match(
    (await said()).join(),
    /this start takes longer/,
    'with the flags of the start it is a fault of the build',
  );
});
