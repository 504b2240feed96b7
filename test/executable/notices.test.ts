import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import test from 'node:test';
import { noticeOf, packagesOf } from '../../build-notices.mjs';
import { bundleSums, type Notice } from '../../src/files/bundle.ts';
import { builtFiles, EXECUTABLE, run } from '../helper/executable.ts';
import { temporaryDirectory } from '../ledger/books.ts';

test('every package of the bundle, and what else is inside, has the text of its licence', async () => {
  const { licenses } = JSON.parse((await run(['licenses', '--json'])).stdout) as { licenses: Notice[] };
  const names = licenses.map(({ name }) => name);
  for (const { name, license, text } of licenses) assert(license && text.length > 80, name);
  assert.deepEqual(names.slice(0, 3), ['purser', 'Node.js', 'SQLite']);
  for (const inside of ['V8', 'OpenSSL', 'ICU', 'libuv']) assert(licenses[1]?.text.includes(inside), inside);
  // The source maps name the files that were bundled, whoever collects the notices.
  const bundled = builtFiles(/\.cjs\.map$/)
    .flatMap(({ text }) => (JSON.parse(text) as { sources: string[] }).sources)
    .map((source) => /^\.\.\/(node_modules\/.*)$/.exec(source)?.[1])
    .filter((it) => it !== undefined);
  const packages = new Set(bundled.map((it) => /.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(it)?.[1] as string));
  assert(packages.size > 40, `${packages.size} packages`);
  assert.deepEqual(
    [...packages].filter((name) => !names.includes(name)).sort(),
    ['@modelcontextprotocol/core-internal', 'src'], // Paths in the source map of the SDK of MCP itself.
  );
  for (const name of ['better-sqlite3', 'content-type']) assert(names.includes(name), name);
  const { stdout } = await run(['licenses']);
  for (const { name, text } of licenses) assert(stdout.includes(text.trim()), name);
});

test('a package that is bundled without the text of its licence fails the build', (t) => {
  const folder = join(temporaryDirectory(t), 'node_modules', 'bare');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ name: 'bare', version: '1.0.0', license: 'MIT' }));
  assert.throws(() => noticeOf(folder), /bare \(MIT\) has no text of its licence/);
  writeFileSync(join(folder, 'NOTICE'), 'to be kept');
  assert.throws(() => noticeOf(folder), /has no text of its licence/);
  writeFileSync(join(folder, 'LICENCE.md'), 'may be used\r\nby all');
  assert.deepEqual(noticeOf(folder), {
    name: 'bare',
    version: '1.0.0',
    license: 'MIT',
    text: 'may be used\nby all\n\nto be kept\n',
  });
  const inputs = {
    'a.ts': 5,
    'node_modules/@x/y/node_modules/z/i.js': 5,
    'node_modules/@x/y/i.js': 1,
    'node_modules/no/i.js': 0,
  };
  const outputs = {
    'a.cjs': {
      inputs: Object.fromEntries(Object.entries(inputs).map(([name, bytesInOutput]) => [name, { bytesInOutput }])),
    },
  };
  assert.deepEqual(packagesOf([{ outputs }]), ['node_modules/@x/y/node_modules/z', 'node_modules/@x/y']);
});

test('the digest that an executable prints is that of the parts that its build wrote down', async () => {
  const sums = readFileSync(join(dirname(EXECUTABLE), 'purser.sha256'), 'utf8');
  const { bundle_sha256: digest } = JSON.parse((await run(['version', '--json'])).stdout);
  const own = { 'purser.sha256': Buffer.from(sums) };
  assert.equal(
    bundleSums(Object.keys(own), () => own['purser.sha256']),
    `${digest}  purser.sha256\n`,
  );
  for (const { name, text } of builtFiles(/\.cjs$/)) {
    const bundle = bundleSums([name], () => Buffer.from(text, 'latin1'));
    assert(sums.includes(bundle), `${name} beside the executable is the one in it`);
  }
  assert.doesNotMatch(sums, /\.cache$/m);
});
