import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { run } from '../helper/executable.ts';

/** The commands of design section 4 that are there today, with arguments that each would accept. */
const COMMANDS: Record<string, string[]> = {
  'account create': ['research'],
  'account list': [],
  'account show': ['acct_1'],
  'account credit': ['acct_1', '500'],
  'account debit': ['acct_1', '500', '--reason', 'credited twice'],
  'account suspend': ['acct_1'],
  'account resume': ['acct_1'],
  backup: ['copy.db'],
  'config check': [],
  'config print': [],
  'key create': ['--account', 'acct_1', '--name', 'ci'],
  'key list': ['--account', 'acct_1'],
  'key revoke': ['key_1'],
  'ledger export': [],
  'ledger head': [],
  'ledger verify': [],
  'master-key rotate': [],
  'models check': [],
  'models list': [],
  'operation list': [],
  'operation show': ['op_1'],
  'operation resolve': ['op_1', '--release', '--reason', 'never sent'],
  'operator-key list': [],
  'operator-key mint': [],
  'operator-key revoke': ['key_1'],
  'resource abandon': ['res_1', '--reason', 'its host is gone'],
  'resource list': [],
  'resource reconcile': [],
  'resource stop': ['res_1'],
  'wallet close': ['wal_1'],
  'wallet create': ['--account', 'acct_1', '--name', 'agent', '--budget-cents', '500'],
  'wallet list': [],
  'wallet show': ['wal_1'],
  'wallet timeline': ['wal_1'],
  'wallet token': ['wal_1'],
  freeze: [],
  unfreeze: [],
  version: [],
};
/** These answer without a database, and change nothing. */
const WITHOUT_DATABASE = ['config check', 'config print', 'models check', 'version'];

/** The names that a help text lists under "Commands:". */
function commandsIn(help: string): string[] {
  const list = /\nCommands:\n((?: .*\n)*)/.exec(help)?.[1] ?? '';
  return [...list.matchAll(/^ {2}([a-z][a-z-]*)/gm)].map((it) => it[1] as string).filter((name) => name !== 'help');
}

test('every command explains itself with an example, and every documented one is there', async () => {
  const leaves: string[] = [];
  for (const queue: string[][] = [[]]; queue.length; ) {
    const path = queue.shift() as string[];
    assert(path.length <= 2, path.join(' '));
    const { code, stdout, stderr } = await run([...path, '--help']);
    assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
    assert.match(stdout, /^Usage: purser /);
    assert.match(stdout, /\nExample:\n {2}purser /, `purser ${path.join(' ')} --help shows no example`);
    const below = commandsIn(stdout);
    if (!below.length) leaves.push(path.join(' '));
    queue.push(...below.map((name) => [...path, name]));
  }
  for (const name of Object.keys(COMMANDS)) assert(leaves.includes(name), `there is no command ${name}`);
});

test('no command but serve creates a database: what needs one says that there is none and leaves no trace', async (t) => {
  const empty = mkdtempSync(join(tmpdir(), 'purser-empty-'));
  t.after(() => rmSync(empty, { recursive: true, force: true }));
  const asked = Object.entries(COMMANDS).map(([name, args]) => [...name.split(' '), ...args]);
  const elsewhere = [empty, join(empty, 'not', 'there')].map((data) => ['--data', data, 'account', 'list']);
  for (const args of [...asked, ...elsewhere]) {
    const { code, stdout, stderr } = await run(args, { cwd: empty });
    const line = `purser ${args.join(' ')}`;
    assert.deepEqual(readdirSync(empty), [], `${line} left something behind`);
    if (WITHOUT_DATABASE.some((name) => line.startsWith(`purser ${name}`))) assert.equal(code, 0, `${line}: ${stderr}`);
    else {
      assert.deepEqual({ code, stdout }, { code: 3, stdout: '' }, `${line}: ${stderr}`);
      assert.match(stderr, /^There is no database in .*`purser serve` creates one on its first start\.\n$/);
    }
  }
});

test('what cannot be understood exits 2, says why on stderr, and points to the help', async (t) => {
  const empty = mkdtempSync(join(tmpdir(), 'purser-empty-'));
  t.after(() => rmSync(empty, { recursive: true, force: true }));
  const wrong: [string, RegExp][] = [
    ['', /^Usage: purser /],
    ['account', /^Usage: purser account /],
    ['teleport', /unknown command 'teleport'/],
    ['account teleport', /unknown command 'teleport'/],
    ['account list --colour', /unknown option '--colour'/],
    ['account show', /missing required argument 'id'/],
    ['account list twice', /too many arguments/],
    ['account credit acct_1 1.5', /It must be a whole number/],
    ['account credit acct_1 5e3', /It must be a whole number/],
    ['account debit acct_1 500', /required option '--reason <text>'/],
    ['key create --account acct_1', /required option '--name <name>'/],
    ['wallet create --account acct_1 --name n --budget-cents all', /It must be a whole number/],
    ['wallet create --account acct_1 --name', /argument missing/],
    ['operation resolve op_1 --reason r', /give either --charge or --release/],
    ['operation resolve op_1 --charge --release --reason r', /give either --charge or --release/],
    ['operation resolve op_1 --charge', /required option '--reason <text>'/],
    ['ledger export --format xml', /--format is jsonl or csv/],
  ];
  for (const [line, said] of wrong) {
    const { code, stdout, stderr } = await run(line.split(' ').filter(Boolean), { cwd: empty });
    assert.deepEqual({ code, stdout }, { code: 2, stdout: '' }, `purser ${line}: ${stderr}`);
    assert.match(stderr, said);
    assert.doesNotMatch(stderr, /\n\s+at /, 'no stack trace');
  }
  assert.deepEqual(readdirSync(empty), []);
});

test('version prints the version of package.json, and with --json the runtime beside it', async () => {
  const { version } = (await import('../../package.json', { with: { type: 'json' } })).default;
  assert.deepEqual(await run(['version']), { code: 0, signal: null, stdout: `${version}\n`, stderr: '' });
  assert.deepEqual(await run(['--version']), { code: 0, signal: null, stdout: `${version}\n`, stderr: '' });
  const { stdout } = await run(['--json', 'version']);
  assert.deepEqual(JSON.parse(stdout), { version, node: '24.21.0' });
});
