import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { openLocalLease } from '../http/trees-shared.ts';
import { ROOT, run } from './examples.ts';

export type Language = 'python' | 'js';

/** Opens a machine, and a directory in which programs have the client as `purser` and the machine as `m`. */
export async function openClient(t: TestContext, language: Language, program: string) {
  const { purser, token, id, sh } = await openLocalLease(t);
  const directory = mkdtempSync(join(tmpdir(), 'purser-sdk-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const head =
    language === 'js'
      ? `import * as purser from ${JSON.stringify(join(ROOT, 'sdk/javascript/purser.mjs'))};
const m = await purser.wallet({ patience: 0 }).machine(${JSON.stringify(id)});`
      : `import sys
sys.path.insert(0, ${JSON.stringify(join(ROOT, 'sdk/python'))})
import purser
m = purser.wallet(patience=0).machine(${JSON.stringify(id)})`;
  const args = language === 'js' ? ['--input-type=module', '-e'] : ['-c'];
  const env = { PATH: process.env.PATH, SVC_BROKER_URL: purser.url, SVC_BROKER_TOKEN: token };
  return {
    /** Runs a command in the machine. */
    there: sh,
    /** Runs a command in the directory. */
    here: (command: string) => execFileSync('sh', ['-c', command], { cwd: directory, encoding: 'utf8' }),
    runs: async (code: string) => (await run(program, [...args, `${head}\n${code}`], { cwd: directory, env })).stdout,
  };
}

/** Names that begin as the way out of a directory does: Kubernetes keeps the files of a volume in `..data`. */
const MAKE =
  'mkdir -p tree/..data/...; echo a > tree/..data/.../..a; echo b > tree/..b; ln -s ..data/.../..a tree/link';
const SHOW = 'find . -type f -o -type l | sort; cat link ..b';
const SHOWN = './..b\n./..data/.../..a\n./link\na\nb\n';

/** Checks that names with two dots go there and back. */
export async function assertDottedNames(t: TestContext, language: Language, program: string) {
  const { there, here, runs } = await openClient(t, language, program);
  await there(MAKE);
  const wait = language === 'js' ? 'await ' : '';
  await runs(`${wait}m.fetch('tree', 'fetched'); ${wait}m.copy('fetched', 'copied')`);
  assert.deepEqual([here(`cd fetched; ${SHOW}`), await there(`cd copied; ${SHOW}`)], [SHOWN, SHOWN]);
}

/** Checks that a tree is fetched into directories that are not there yet, however their path ends. */
export async function assertNewDirectories(t: TestContext, language: Language, program: string) {
  const { there, here, runs } = await openClient(t, language, program);
  await there('mkdir tree; echo a > tree/a');
  const wait = language === 'js' ? 'await ' : '';
  await runs(['new/', 'one/two', 'three/four/'].map((it) => `${wait}m.fetch('tree', '${it}')`).join('; '));
  assert.equal(
    here('cat new/a one/two/a three/four/a; ls -A . new one three'),
    'a\na\na\n.:\nnew\none\nthree\n\nnew:\na\n\none:\ntwo\n\nthree:\nfour\n',
  );
}
