import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { CommanderError } from 'commander';
import { createProgram } from '../../cli/program.ts';
import { NoDatabaseError } from '../../src/files/data-directory.ts';
import { run } from '../helper/executable.ts';

/** The commands of design section 4 that are there today, with arguments that each would accept. */
const COMMANDS: Record<string, string[]> = {
  'account create': ['research'],
  'account list': [],
  'account show': ['acct_1'],
  'account statement': ['acct_1'],
  'account credit': ['acct_1', '5.00'],
  'account debit': ['acct_1', '5.00', '--reason', 'credited twice'],
  'account suspend': ['acct_1'],
  'account resume': ['acct_1'],
  backup: ['copy.db'],
  'config check': [],
  'config print': [],
  'events list': [],
  'events resend': ['msg_1'],
  'key create': ['--account', 'acct_1', '--name', 'ci'],
  'key list': ['--account', 'acct_1'],
  'key revoke': ['key_1'],
  'ledger export': [],
  'ledger head': [],
  'ledger verify': [],
  'master-key rotate': [],
  reload: [],
  'models check': [],
  'models forget': ['qwen3-8b'],
  'models list': [],
  'operation list': [],
  'operation show': ['op_1'],
  'operation resolve': ['op_1', '--release', '--reason', 'never sent'],
  'operator-key list': [],
  'operator-key mint': [],
  'operator-key revoke': ['key_1'],
  'passkey list': [],
  'passkey remove': ['pass_1'],
  'resource abandon': ['res_1', '--reason', 'its host is gone'],
  'resource list': [],
  'resource show': ['res_1'],
  spend: [],
  status: [],
  ui: [],
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
  licenses: [],
  version: [],
};
/** These answer without a database, and change nothing. */
const WITHOUT_DATABASE = ['completion bash', 'config check', 'config print', 'licenses', 'models check', 'version'];

/** What the command line `args` writes, and the error that ends it: in this process, by the program of the executable. */
async function attempt(args: string[]): Promise<{ error: unknown; stdout: string; stderr: string }> {
  const said = { stdout: '', stderr: '' };
  const program = createProgram({
    writeOut: (text) => {
      said.stdout += text;
    },
    writeErr: (text) => {
      said.stderr += text;
    },
  });
  const error = await program.parseAsync(args, { from: 'user' }).then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  return { error, ...said };
}

/** An empty working directory, for this process too. */
function emptyDirectory(t: TestContext): string {
  const empty = mkdtempSync(join(tmpdir(), 'purser-empty-'));
  const before = process.cwd();
  process.chdir(empty);
  t.after(() => {
    process.chdir(before);
    rmSync(empty, { recursive: true, force: true });
  });
  return empty;
}

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
    const { error, stdout, stderr } = await attempt([...path, '--help']);
    assert(error instanceof CommanderError);
    assert.deepEqual([error.exitCode, stderr], [0, '']);
    assert.match(stdout, /^Usage: purser /);
    assert.match(stdout, /\nExample:\n {2}purser /, `purser ${path.join(' ')} --help shows no example`);
    const below = commandsIn(stdout);
    if (!below.length) leaves.push(path.join(' '));
    queue.push(...below.map((name) => [...path, name]));
  }
  for (const name of Object.keys(COMMANDS)) assert(leaves.includes(name), `there is no command ${name}`);

  for (const path of [[], ['wallet', 'create']]) {
    const { stdout } = await attempt([...path, '--help']);
    assert.deepEqual(await run([...path, '--help']), { code: 0, signal: null, stdout, stderr: '' });
  }
});

test('every help fits a terminal of 80 columns', async () => {
  for (const path of ['', ...Object.keys(COMMANDS)]) {
    const { stdout } = await attempt([...path.split(' ').filter(Boolean), '--help']);
    const [text] = stdout.split('\nExample:'); // An example is typed as it stands.
    for (const line of (text as string).split('\n')) assert.ok(line.length <= 80, `${path}: ${line}`);
  }
});

test('the help and the operator guide name the same exit codes', async () => {
  const { stdout } = await attempt(['--help']);
  const told = /^Exit codes: (.*\n.*)$/m.exec(stdout)?.[1] ?? '';
  const page = readFileSync(join(import.meta.dirname, '../../docs/operator.md'), 'utf8');
  const codes = [...page.matchAll(/^\| (\d) \| /gm)].map((it) => it[1]);
  assert.deepEqual(codes, ['0', '1', '2', '3', '4', '5', '6']);
  assert.deepEqual(
    told.split(/,\s/).map((it) => it[0]),
    codes,
  );
});

test('no command but serve creates a database: what needs one says that there is none and leaves no trace', async (t) => {
  const empty = emptyDirectory(t);
  const asked = Object.entries(COMMANDS)
    .filter(([name]) => !WITHOUT_DATABASE.includes(name))
    .map(([name, args]) => [...name.split(' '), ...args]);
  const elsewhere = [empty, join(empty, 'not', 'there')].map((data) => ['--data', data, 'account', 'list']);
  for (const args of [...asked, ...elsewhere]) {
    const line = `purser ${args.join(' ')}`;
    const { error, stdout, stderr } = await attempt(args);
    assert(error instanceof NoDatabaseError, `${line}: ${error}`);
    assert.deepEqual([stdout, stderr], ['', ''], line);
    assert.deepEqual(readdirSync(empty), [], `${line} left something behind`);
  }

  for (const args of WITHOUT_DATABASE.map((name) => name.split(' '))) {
    const { code, stderr } = await run(args, { cwd: empty });
    assert.equal(code, 0, `purser ${args.join(' ')}: ${stderr}`);
    assert.deepEqual(readdirSync(empty), [], `purser ${args.join(' ')} left something behind`);
  }
  for (const args of [['freeze'], ['wallet', 'list'], ['ledger', 'verify'], ['backup', 'copy.db'], ...elsewhere]) {
    const { code, stdout, stderr } = await run(args, { cwd: empty });
    assert.deepEqual({ code, stdout }, { code: 3, stdout: '' }, `purser ${args.join(' ')}: ${stderr}`);
    assert.match(stderr, /^There is no database in .*`purser serve` creates one on its first start\.\n$/);
  }
  assert.deepEqual(readdirSync(empty), []);
});

test('what cannot be understood exits 2, says why on stderr, and points to the help', async (t) => {
  const empty = emptyDirectory(t);
  const wrong: [string, RegExp][] = [
    ['', /^Usage: purser /],
    ['account', /^Usage: purser account /],
    ['teleport', /unknown command 'teleport'/],
    ['account teleport', /unknown command 'teleport'/],
    ['account list --colour', /unknown option '--colour'/],
    ['account show', /missing required argument 'id'/],
    ['account list twice', /too many arguments/],
    ['account credit acct_1 1.5', /It must be an amount as 12\.50/],
    ['account credit acct_1 5e3', /It must be an amount as 12\.50/],
    ['account debit acct_1 5.00', /required option '--reason <text>'/],
    ['key create --account acct_1', /required option '--name <name>'/],
    ['wallet create --account acct_1 --name n --budget-cents all', /It must be a whole number of cents/],
    ['wallet create --account acct_1 --name n --budget-cents 5.00', /It must be a whole number of cents/],
    ['wallet create --account acct_1 --name n', /required option '--budget <amount>'/],
    ['wallet create --account acct_1 --name', /argument missing/],
    ['operation resolve op_1 --reason r', /give either --charge or --release/],
    ['operation resolve op_1 --charge --release --reason r', /give either --charge or --release/],
    ['operation resolve op_1 --charge', /required option '--reason <text>'/],
    ['ledger export --format xml', /--format is jsonl or csv/],
  ];
  for (const [line, said] of wrong) {
    const { error, stdout, stderr } = await attempt(line.split(' ').filter(Boolean));
    assert(error instanceof CommanderError, `purser ${line}: ${error}`);
    assert.notEqual(error.exitCode, 0, line);
    assert.equal(stdout, '', line);
    assert.match(stderr, said);
  }
  assert.deepEqual(readdirSync(empty), []);

  for (const line of ['', 'account', 'account list --colour', 'ledger export --format xml']) {
    const args = line.split(' ').filter(Boolean);
    const { stderr } = await attempt(args);
    assert.doesNotMatch(stderr, /\n\s+at /, 'no stack trace');
    assert.deepEqual(await run(args, { cwd: empty }), { code: 2, signal: null, stdout: '', stderr });
  }
});

test('version prints the version of package.json, and with --json the runtime beside it', async () => {
  const { version } = (await import('../../package.json', { with: { type: 'json' } })).default;
  assert.deepEqual(await run(['version']), { code: 0, signal: null, stdout: `${version}\n`, stderr: '' });
  assert.deepEqual(await run(['--version']), { code: 0, signal: null, stdout: `${version}\n`, stderr: '' });
  const { stdout } = await run(['--json', 'version']);
  const { bundle_sha256: digest, ...rest } = JSON.parse(stdout);
  assert.deepEqual(rest, { version, node: '24.21.0' });
  assert.match(digest, /^[0-9a-f]{64}$/);
});
