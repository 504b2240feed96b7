import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import { chmodSync, cpSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { assertNamesChats } from './env-shared.ts';
import { blocks, openSandbox, PRINTS, ROOT, run, runBlocks } from './examples.ts';

test('the page has ten examples, and the first of them six lines', () => {
  assert.deepEqual(
    blocks.map((it) => it.language),
    PRINTS.map(([it]) => it),
  );
  assert.equal(blocks.length, 10);
  assert.ok((blocks[0]?.code.trim().split('\n').length ?? 0) <= 6);
});

test('the environment of a program names a model for chats', (t) => assertNamesChats(t, 'js', process.execPath));

test('the examples in JavaScript print what they say', async (t) => runBlocks(t, 'js', process.execPath));

test('the clients are served without a credential, and are laid out as packages', async (t) => {
  const { purser, directory } = await openSandbox(t);
  const head = await purser.ask('HEAD', '/sdk/purser.py');
  assert.deepEqual([head.status, head.headers['content-type']], [200, 'text/x-python; charset=utf-8']);
  assert.equal((await purser.ask('POST', '/sdk/purser.py')).status, 405);
  assert.equal((await purser.ask('GET', '/sdk/other.py')).status, 404);
  for (const [folder, name] of [
    ['python', 'purser.py'],
    ['javascript', 'purser.mjs'],
    ['javascript', 'purser.d.mts'],
  ])
    assert.equal(
      readFileSync(join(ROOT, 'sdk', folder as string, name as string), 'utf8'),
      readFileSync(join(directory, name as string), 'utf8'),
    );
  const packed = join(directory, 'node_modules/purser-wallet');
  cpSync(join(ROOT, 'sdk/javascript'), packed, { recursive: true });
  chmodSync(directory, 0o755);
  const { stdout } = await run(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      "import('purser-wallet').then((it) => console.log(Object.keys(it).sort().join(' ')))",
    ],
    { cwd: directory },
  );
  assert.equal(
    stdout,
    'ConnectionLost FundsHeld InsufficientFunds Machine OperationUncertain Process PurserError Wallet version wallet\n',
  );
});
