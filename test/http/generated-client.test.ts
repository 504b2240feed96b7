import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { copyFileSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';
import openapiTS from 'openapi-typescript';
import { openMemoryServer } from '../lease/leases.ts';
import { documentOf } from './documented.ts';

const run = promisify(execFile);
const STRICT = {
  strict: true,
  exactOptionalPropertyTypes: true,
  noUncheckedIndexedAccess: true,
  module: 'nodenext',
  target: 'es2024',
  allowImportingTsExtensions: true,
  noEmit: true,
  types: [],
  lib: ['es2024', 'dom', 'dom.iterable'],
};

test('types that a generator makes of the document compile for a whole life of a wallet, and the life succeeds', async (t) => {
  const purser = await openMemoryServer(t, { creditCents: 10_000 });
  const directory = mkdtempSync(join(tmpdir(), 'purser-types-'));
  t.after(() => rmSync(directory, { recursive: true }));
  const types = await openapiTS((await documentOf(purser)) as unknown as Parameters<typeof openapiTS>[0]);
  writeFileSync(join(directory, 'purser.ts'), types);
  writeFileSync(join(directory, 'package.json'), '{"type":"module"}');
  writeFileSync(join(directory, 'tsconfig.json'), JSON.stringify({ compilerOptions: STRICT, include: ['*.ts'] }));
  symlinkSync(resolve('node_modules'), join(directory, 'node_modules'));
  const program = join(directory, 'wallet-life.ts');
  copyFileSync('test/fixtures/wallet-life.ts', program);

  const tsc = resolve('node_modules/.bin/tsc');
  await run(tsc, ['-p', directory]).catch(({ stdout }) => assert.fail(String(stdout)));
  // In a process of its own, whose fetch and Request are those of Node.
  const env = { ...process.env, PURSER_URL: purser.url, PURSER_KEY: purser.operatorKey };
  const { stdout } = await run(process.execPath, ['--disable-warning=ExperimentalWarning', program], { env });
  assert.deepEqual(JSON.parse(stdout), [
    '500 cents reserved',
    'one token',
    'a chat with words',
    'invalid_request',
    'something used',
    'exit 0, settled',
    '1 resource of provider_one',
    'closed',
    'wallet_closed',
  ]);
  assert.deepEqual(purser.problems(), []);
});
