import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  copyFileSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Database from 'better-sqlite3';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { EXECUTABLE, type Installation, type InstallationOptions, installation } from '../helper/executable.ts';

/** Nobody is there: a backend that doctor must find fault with. */
const compute = {
  provider_three: { backend: 'vast', api_key: 'vast-canary-0123456789', base_url: 'http://127.0.0.1:9' },
};
const VAST = 'provider_three vast: key';

type Check = { name: string; ok: boolean; detail: string };

/** What doctor says as JSON and in words; the two must agree, and the exit code with them. */
async function doctor(purser: Installation) {
  const [said, words] = [await purser.cli('--json', 'doctor'), await purser.cli('doctor')];
  const { ok, checks, ...rest } = JSON.parse(said.stdout);
  assert.deepEqual(rest, {});
  for (const check of checks) assert.deepEqual(Object.keys(check), ['name', 'ok', 'detail']);
  assert.equal(
    ok,
    checks.every((it: { ok: boolean }) => it.ok),
  );
  assert.deepEqual([said.code, words.code], ok ? [0, 0] : [1, 1]);
  assert.deepEqual([said.stderr, words.stderr], ['', '']);
  for (const { name, ok, detail } of checks) {
    const word = !ok ? 'BAD ' : detail.startsWith('Warning: ') ? 'warn' : 'ok  ';
    assert.ok(words.stdout.includes(`${word} ${name}: `), name);
  }
  assert.ok(!`${said.stdout}${words.stdout}`.includes('canary'));
  const advised = checks.filter((it: Check) => !it.ok || it.detail.startsWith('Warning: '));
  for (const { name, detail } of advised)
    assert.match(detail, /[.:)] \S/, `${name}: what is, and what to do: ${detail}`);
  return new Map<string, { ok: boolean; detail: string }>(checks.map((it: { name: string }) => [it.name, it]));
}

test('doctor answers one shape, whether the server runs, does not run, or never has', async (t) => {
  const purser = installation(t, { settings: { compute } });
  const before = await doctor(purser);
  assert.match(before.get('data directory')?.detail ?? '', /There is no database/);
  assert.match(before.get(VAST)?.detail ?? '', /vast cannot be reached/, 'a backend needs no database to be looked at');
  assert.deepEqual(readdirSync(purser.directory), ['purser.yaml'], 'it creates nothing');

  const server = await purser.serve();
  const during = await doctor(purser);
  assert.match(during.get('server')?.detail ?? '', /^running/);
  await server.stop();
  const after = await doctor(purser);
  assert.deepEqual([after.get('server')?.detail, after.get('database')?.ok], ['not running', true]);
  assert.deepEqual([...during.keys()], [...after.keys()], 'names are stable');
  assert.equal(after.get(VAST)?.ok, false);
});

/** Books with some entries, and nobody who serves them. */
async function books(t: TestContext, options: InstallationOptions = {}) {
  const purser = installation(t, options);
  await (await purser.serve()).stop();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000');
  const findingOf = async (name: string, by = purser) => {
    const { checks } = JSON.parse((await by.cli('--json', 'doctor')).stdout) as { checks: Check[] };
    return checks.find((it) => it.name === name) as Check;
  };
  return {
    purser,
    findingOf,
    at: (name: string) => join(purser.directory, name),
    /** The same installation, run in another way. */
    by: (over: InstallationOptions) =>
      installation({ after() {} }, { ...options, directory: purser.directory, ...over }),
    async is(name: string, ok: boolean, what: RegExp, by = purser) {
      const found = await findingOf(name, by);
      assert.deepEqual([found.ok, what.test(found.detail)], [ok, true], `${name}: ${JSON.stringify(found)}`);
    },
  };
}

const isRoot = (t: TestContext) => hasComponent(t, 'root', () => process.getuid?.() === 0);

test('who owns the files and who can read them is looked at, one by one', async (t) => {
  const { is, at, purser } = await books(t);
  await is('data directory', true, /purser-executable/);
  await is('files', true, /files, all owned by user/);
  await is('secrets', true, /master\.key: closed to others/);

  chmodSync(purser.directory, 0o755);
  await is('data directory', false, /open to other users \(mode 755\)\. Run: chmod 700/);
  await is('database', true, /whole; every commit is synced/); // And the rest is looked at all the same.
  chmodSync(purser.directory, 0o700);

  chmodSync(at('master.key'), 0o640);
  await is('secrets', false, /master\.key holds a secret .*mode 640\)\. Run: chmod 600/);
  await is('files', false, /master\.key: can be read or changed by others.* Run: chmod go-rwx/);
  chmodSync(at('master.key'), 0o600);

  linkSync(at('purser.db'), at('a-copy'));
  await is('files', true, /^Warning: .*purser\.db has 2 names.* find .*-samefile/);
  rmSync(at('a-copy'));

  if (!isRoot(t)) return;
  chownSync(at('ledger.head'), 12345, 12345);
  await is('files', false, /ledger\.head: not owned by user 0.* Run: chown -R 0 /);
  chownSync(at('ledger.head'), 0, 0);
  await is('files', true, /all owned by user 0/);
  chownSync(purser.directory, 12345, 12345);
  await is('data directory', false, /belongs to user 12345, this is user 0\. Run Purser as the owner/);
  chownSync(purser.directory, 0, 0);
});

test('a data directory that everybody could put another in the place of is found', async (t) => {
  const above = mkdtempSync(join(tmpdir(), 'purser-above-'));
  t.after(() => rmSync(above, { recursive: true, force: true }));
  mkdirSync(join(above, 'data'), { mode: 0o700 });
  const { is } = await books(t, { directory: join(above, 'data') });
  chmodSync(above, 0o777);
  await is('data directory', false, /can be written by everybody.* Run: chmod o-w /);
  chmodSync(above, 0o1777);
  await is('data directory', true, /data$/);
});

test('settings that everybody could put others in the place of are found, behind a link too', async (t) => {
  const above = mkdtempSync(join(tmpdir(), 'purser-above-'));
  t.after(() => rmSync(above, { recursive: true, force: true }));
  const { is, at, by } = await books(t, { settings: null });
  writeFileSync(join(above, 'it.yaml'), 'listen: 127.0.0.1:0\n', { mode: 0o600 });
  symlinkSync(join(above, 'it.yaml'), at('link.yaml'));
  for (const file of [join(above, 'it.yaml'), at('link.yaml')]) {
    const purser = by({ settings: null, env: { PURSER_CONFIG: file } });
    await is('secrets', true, /master\.key: closed/, purser);
    chmodSync(above, 0o777);
    await is('secrets', false, /can be written by everybody.* Run: chmod o-w \S+purser-above/, purser);
    chmodSync(above, 0o1777);
    await is('secrets', true, /master\.key: closed/, purser);
    chmodSync(above, 0o700);
  }
});

test('settings with a secret in them are closed to others; with a reference to one they need not be', async (t) => {
  const purser = (key: string) => ({ name: 'local', base_url: 'http://127.0.0.1:9/v1', api_key: key });
  const settings = (key: string) => ({ router: { upstreams: [purser(key)], models: [] } });
  const file = 'purser.yaml';
  const options = { env: { HOUSE_SECRET: 'canary-0123456789' } };
  const inline = await books(t, { ...options, settings: settings('canary-0123456789') });
  chmodSync(inline.at(file), 0o644);
  await inline.is('secrets', false, /purser\.yaml holds a secret .*mode 644/);
  chmodSync(inline.at(file), 0o600);
  await inline.is('secrets', true, /purser\.yaml: closed/);

  const referred = await books(t, { ...options, settings: settings(`\${HOUSE_SECRET}`) });
  chmodSync(referred.at(file), 0o644);
  await referred.is('secrets', true, /master\.key: closed/);
  chmodSync(referred.at(file), 0o666);
  await referred.is('secrets', false, /purser\.yaml can be changed by others.* Run: chmod go-w/);
});

test('a cut or damaged head, a lost commit and a changed row are each found, with the way out', async (t) => {
  const { is, at } = await books(t);
  const way = /Restore the newest good backup, or accept the loss: purser serve --accept-loss$/;
  await is('journal', true, /ledger\.head and ledger\.tip agree$/);
  await is('books', true, /all 1 entries are chained and add up, and every checksum fits/);
  const head = readFileSync(at('ledger.head'), 'utf8');

  writeFileSync(at('ledger.head'), head.slice(0, 30));
  await is('journal', false, /ledger\.head is damaged/);
  await is('journal', false, way);
  rmSync(at('ledger.head'));
  await is('journal', false, /ledger\.head is missing beside a journal of 1 entries/);
  writeFileSync(at('ledger.head'), head.replace(/^1 /, '3 '));
  await is('journal', false, /entries 2 to 3 are lost/);
  writeFileSync(at('ledger.head'), head);

  const tip = readFileSync(at('ledger.tip'), 'utf8');
  writeFileSync(at('ledger.tip'), tip.replace(/[0-9a-f]/, '9'));
  await is('journal', true, /^Warning: .*ledger\.tip is damaged.* The next commit writes it anew/);
  writeFileSync(at('ledger.tip'), tip);

  const database = new Database(at('purser.db'));
  database.exec("update account set name = 'another'");
  database.close();
  await is('journal', true, /agree$/);
  await is('books', false, /account acct_\w+ was changed: its checksum does not match/);
  await is('books', false, way);
});

test('old programs on the PATH that may destroy the database are named', async (t) => {
  const tools = mkdtempSync(join(tmpdir(), 'purser-tools-'));
  t.after(() => rmSync(tools, { recursive: true, force: true }));
  const { is, by } = await books(t);
  const program = (name: string, text: string) =>
    writeFileSync(join(tools, name), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
  const there = by({ env: { PATH: tools } });
  await is('tools', true, /^no sqlite3 and no litestream on the PATH$/, there);
  for (const old of ['3.7.0', '3.40.1', '3.44.5', '3.50.6', '3.51.2']) {
    program('sqlite3', `echo "${old} 2022-12-28 14:03:47 df5c253c0b3dd24916e4ec7cf77d3db5294cc9fd"`);
    await is('tools', true, RegExp(`^Warning: ${tools}/sqlite3 is ${old}: .*copy made by .purser backup`), there);
  }
  for (const fixed of ['3.44.6', '3.50.7', '3.51.3', '3.54.1']) {
    program('sqlite3', `echo "${fixed} 2026-03-13"`);
    await is('tools', true, RegExp(`^${tools}/sqlite3 is ${fixed}$`), there);
  }
  program('litestream', 'echo v0.5.16');
  await is('tools', true, /^Warning: .*litestream is 0\.5\.16: /, there);
  program('litestream', 'echo v0.5.17');
  await is('tools', true, /litestream is 0\.5\.17$/, there);
  program('sqlite3', 'exec /bin/sleep 60');
  await is('tools', true, /^Warning: .*sqlite3 is of an unknown version/, there);
});

test('a clock behind the journal, and one that the kernel does not hold for right', async (t) => {
  if (!hasComponent(t, 'faketime', () => hasProgram('faketime'))) return;
  if (!hasComponent(t, 'busybox', () => hasProgram('busybox'))) return;
  const { is, by } = await books(t);
  const yesterday = by({ command: ['faketime', '-f', '-1d', EXECUTABLE] });
  await is('clock', false, /is 24 hours behind the newest time.* If the clock is wrong, set it/, yesterday);

  const tools = mkdtempSync(join(tmpdir(), 'purser-tools-'));
  t.after(() => rmSync(tools, { recursive: true, force: true }));
  const there = by({ env: { PATH: tools } });
  const says = (answer: string) =>
    writeFileSync(join(tools, 'timedatectl'), `#!/bin/sh\necho ${answer}\n`, { mode: 0o755 });
  await is('clock', true, /^not ahead of the books and not behind them$/, there);
  says('no');
  await is('clock', true, /^Warning: .*it is not synchronized\. Run a time service/, there);
  says('yes');
  await is('clock', true, /a time service says that it is synchronized$/, there);
  rmSync(join(tools, 'timedatectl'));
  copyFileSync(execFileSync('sh', ['-c', 'command -v busybox'], { encoding: 'utf8' }).trim(), join(tools, 'busybox'));
  const isSynced = !/return value: +5/.test(execFileSync(join(tools, 'busybox'), ['adjtimex'], { encoding: 'utf8' }));
  await is('clock', true, isSynced ? /synchronized$/ : /^Warning: .*it is not synchronized/, there);
});

/** A file system of this type for the length of the test. */
function mounted(t: TestContext, type: string, options: string): string | undefined {
  if (!hasComponent(t, 'root', () => process.getuid?.() === 0 && hasProgram('mount'))) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-mount-'));
  execFileSync('mount', ['-t', type, '-o', options, type, directory]);
  t.after(() => {
    execFileSync('umount', ['--lazy', directory]);
    rmSync(directory, { recursive: true, force: true });
  });
  return directory;
}

test('memory is no disk, and one that is full has no room for settlements', async (t) => {
  const disk = mounted(t, 'tmpfs', 'size=64m,mode=755');
  if (!disk) return;
  mkdirSync(join(disk, 'data'), { mode: 0o700 });
  const { is } = await books(t, { directory: join(disk, 'data') });
  await is('file system', false, /on tmpfs \(tmpfs\), which is memory.* Move it to a disk\.$/);
  await is('durability', false, /no disk is that fast/);
  await is('disk space', true, /^Warning: \d+ MiB free/);
  const { bavail, bsize } = statfsSync(disk);
  writeFileSync(join(disk, 'filler'), Buffer.alloc(bavail * bsize - 4096 * 4));
  await is('disk space', false, /^0 MiB free: settlements need 10 MiB, so nothing new is begun\. Free some/);
  await is('durability', false, /Nothing can be written to .*it is full \(ENOSPC\)\. Free some space there\./);
});

test('a layer of a container is no place for books', async (t) => {
  const parts = mounted(t, 'tmpfs', 'size=64m,mode=755');
  if (!parts) return;
  for (const name of ['lower', 'upper', 'work']) mkdirSync(join(parts, name));
  const layer = mounted(
    t,
    'overlay',
    `lowerdir=${join(parts, 'lower')},upperdir=${join(parts, 'upper')},workdir=${join(parts, 'work')}`,
  );
  if (!layer) return;
  mkdirSync(join(layer, 'data'), { mode: 0o700 });
  const { is } = await books(t, { directory: join(layer, 'data') });
  await is('file system', true, /^Warning: .*on overlay .*Put the data directory on a volume\.$/);
});

test('a disk that refuses to sync is told from one that is slow', async (t) => {
  if (!hasComponent(t, 'strace', () => hasProgram('strace'))) return;
  const { is, by, purser } = await books(t);
  const strace = (inject: string) =>
    by({ command: ['strace', '-f', '-qq', '-o', '/dev/null', '-e', `inject=fsync:${inject}`, EXECUTABLE] });
  await is('durability', false, /does not take what is written \(EIO\)\. Check the kernel log/, strace('error=EIO'));
  await is('durability', true, /^Warning: fsync takes .*waits that long\./, strace('delay_enter=60000'));
  assert.deepEqual(
    readdirSync(purser.directory).filter((it) => it.startsWith('.')),
    [],
    'it leaves nothing behind',
  );
});

test('scheduled backups that cannot be made, or were not, are named', async (t) => {
  const directory = join(mkdtempSync(join(tmpdir(), 'purser-doctor-')), 'backups');
  const { purser } = await books(t, { settings: { backup: { every: '6h', directory } } });
  const found = async () => (await doctor(purser)).get('backups');
  assert.deepEqual(await found(), {
    name: 'backups',
    ok: false,
    detail: `${directory} cannot be read (ENOENT), so no backup is made. Is it mounted?`,
  });
  mkdirSync(directory);
  assert.match((await found())?.detail ?? '', /^Warning: there is none in .*backups\. A running server makes/);

  const database = new Database(join(purser.directory, 'purser.db'), { readonly: true });
  const id = database.prepare('select installation_id from installation').pluck().get();
  database.close();
  const madeBefore = (hours: number) => {
    const time = new Date(Date.now() - hours * 3_600_000).toISOString().replace(/[-:]|\.\d+/g, '');
    writeFileSync(join(directory, `purser-${id}-${time}.db`), '');
  };
  writeFileSync(join(directory, `purser-inst_other-20260101T000000Z.db`), '');
  madeBefore(-48); // The clock went back.
  madeBefore(30);
  assert.match(
    (await found())?.detail ?? '',
    /^Warning: the newest in .* is 30 h old, and one is due every 6 h\. .*\(backup\.failed\)/,
  );
  madeBefore(5);
  assert.deepEqual(await found(), { name: 'backups', ok: true, detail: `the newest in ${directory} is 5 h old` });
});

test('a server that was stopped in the middle does not stop doctor', async (t) => {
  const { is, purser } = await books(t);
  const server = await purser.serve();
  server.kill('SIGSTOP');
  await is('server', false, /does not answer.*kill -CONT.* end it \(kill -9\) and start it again/);
  server.kill('SIGCONT');
  await is('server', true, /^running/);
});
