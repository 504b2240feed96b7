import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough, type Transform } from 'node:stream';
import test, { type TestContext } from 'node:test';
import { killAll } from '../../src/compute/engines/local/kill.ts';
import { beginIn } from '../../src/compute/engines/local/process.ts';
import { ENTRY_COUNT_MAX, listFiles, readPart } from '../../src/compute/machine/files.ts';
import {
  LOG_BYTES_MAX,
  listProcesses,
  PROCESS_COUNT_MAX,
  readLog,
  startProcess,
} from '../../src/compute/machine/process.ts';
import { startRun } from '../../src/compute/machine/run.ts';
import { until } from '../helper/waiting.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { conform, type Subject } from './conformance.ts';
import { workInGuest } from './guest.ts';
import { freshTag, open, openLease, processesWith, SPEC } from './local-shared.ts';

const suite = async (t: TestContext): Promise<Subject> => ({
  backend: open(t).backend,
  spec: SPEC,
  unknownSpec: { ...SPEC, chip: 'constructor' },
  room: 2,
  extends: true,
  deadlineMinSeconds: 2,
  isNameless: true,
});

conform('local', suite);

workInGuest('local', suite);

test('a program that is killed while nobody reads its output ends', async (t) => {
  const { backend, tag } = await openLease(t);
  for (const stream of ['stdout', 'stderr'] as const) {
    const text = `say ok\n${stream === 'stdout' ? 'yes' : 'yes >&2'}`;
    const run = await startRun(backend, tag, { text, timeoutSeconds: 600 });
    await run.word;
    // As a download is refused by its size when the archive has begun already.
    await until('its output waits', () => (run[stream] as Transform).writableNeedDrain);
    run.kill();
    await run.ended.catch(() => {});
  }
});

test('a directory of any size is listed up to a number of entries, what begins with a dot first', async (t) => {
  const { backend, tag, run } = await openLease(t);
  await run(`mkdir d; cd d; seq -f 'sample-%06.0f-of-the-training-set.jpeg' 1 36000 | xargs touch; touch .a -- -b ..c`);
  const { entries = [], isTruncated } = await listFiles(backend, tag, { path: 'd', take: () => true });
  assert.deepEqual([entries.length, isTruncated], [ENTRY_COUNT_MAX, true]);
  assert.deepEqual(
    entries.slice(0, 4).map(({ name }) => name.toString()),
    ['-b', '..c', '.a', 'sample-000001-of-the-training-set.jpeg'],
  );
  await run(`rm -r d; mkdir d; cd d; seq 1 ${ENTRY_COUNT_MAX} | xargs touch`);
  const whole = await listFiles(backend, tag, { path: 'd', take: () => true });
  assert.deepEqual([whole.entries?.length, whole.isTruncated], [ENTRY_COUNT_MAX, false]);
  await assert.rejects(listFiles(backend, tag, { path: 'd', take: () => false }), { code: 'rate_limited' });
});

test('a file that says no size, and comes a page at a time, is read to its end, or refused where that is too far', async (t) => {
  const { backend, tag, run } = await openLease(t);
  const path = '/proc/kallsyms';
  const count = async () => Number((await run(`cat ${path} | wc -c`)).stdout);
  const size = await count();
  assert(size > 100_000, `${size} bytes`);
  const read = (bytesMax: number, part: object = {}) =>
    readPart(backend, tag, { path, offset: 0, bytesMax, take: () => true, ...part });
  const { length } = (await read(2 * size)).bytes;
  assert([size, await count()].includes(length), `${length} of ${size} bytes`); // A module may have come or gone.
  await assert.rejects(read(100_000), { code: 'invalid_request', message: /has more bytes.*at most 100000/ });
  assert.equal((await read(100_000, { length: 100_000 })).bytes.length, 100_000);
});

test('a command has an environment of its own, and its home', async (t) => {
  const canary = `canary-${randomBytes(8).toString('hex')}`;
  process.env.PURSER_MASTER_KEY = canary;
  t.after(() => delete process.env.PURSER_MASTER_KEY);
  const { run, home, tag } = await openLease(t);
  const { stdout } = await run('env; echo --; pwd');
  const [variables = '', folder] = stdout.split('--\n');
  const own = Object.fromEntries(variables.split('\n').map((it) => it.split(/=(.*)/s)));
  const { PURSER_EXEC: _, PWD: __, OLDPWD: ___, '': ____, ...rest } = own;
  assert.deepEqual(rest, {
    PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
    HOME: home,
    TMPDIR: `${home}/tmp`,
    LANG: 'C.UTF-8',
    TERM: 'dumb',
    PURSER_LEASE: tag,
  });
  assert.equal(folder, `${home}\n`);
});

test('an end is the end of every process of the lease, whatever session it made for itself', async (t) => {
  const { backend, run, tag, directory } = await openLease(t);
  const neighbour = await openLease(t);
  await neighbour.run('sleep 4444 &');
  await run(
    'setsid sleep 4444 & nohup sleep 4444 >/dev/null 2>&1 & (setsid sh -c "sleep 4444; sleep 4444" &) & sleep 0.1',
  );
  await run('mkdir -p a/b/c; chmod 0 a/b; chmod 500 a ..'); // Folders that not even the tenant could remove.
  const session = await backend.guest.session(tag, { command: 'exec sleep 4444', terminal: undefined });
  const command = run('sleep 4444');
  await until('all of them run', async () => processesWith(`PURSER_LEASE=${tag}`).length >= 6);
  await backend.destroy(tag);
  assert.deepEqual(processesWith(tag), [], 'nor its keeper');
  assert.equal(existsSync(directory), false);
  assert.deepEqual(await session.ended, { signal: 'KILL' });
  assert.deepEqual([(await command).exitCode, (await command).timedOut], [137, false]);
  assert.equal((await neighbour.run('true')).exitCode, 0, 'a neighbour lives on');
  await assert.rejects(run('true'), { code: 'resource_not_active' });
  await assert.rejects(backend.guest.upload(tag, '/x', Buffer.from('x')), { code: 'resource_not_active' });
});

test('what a command leaves in the background is not waited for, and lives as long as the lease', async (t) => {
  const { run } = await openLease(t);
  const said = await run('sleep 4445 & echo begun; echo $! > pid');
  assert.deepEqual([said.exitCode, said.stdout, said.timedOut], [0, 'begun\n', false]);
  assert.equal((await run('kill -0 "$(cat pid)"')).exitCode, 0);
});

/** Purser as another process: it makes one lease with a long command in it, and says its tag. */
async function startPurser(t: TestContext, seconds: number) {
  const leases = join(temporaryDirectory(t), 'leases');
  const tag = freshTag();
  const code = `
    import { openLocalBackend } from ${JSON.stringify(new URL('../../src/compute/engines/local/local.ts', import.meta.url).href)};
    const backend = openLocalBackend({ backend: 'local' }, { leases: ${JSON.stringify(leases)}, now: () => 0 });
    await backend.create({ tag: '${tag}', deadline: Math.floor(Date.now() / 1000) + ${seconds} });
    void backend.guest.exec('${tag}', { command: 'setsid sleep 4446 & exec sleep 4446', timeoutSeconds: 600, streamBytesMax: 1 });
    console.log('made');`;
  const purser = spawn(process.execPath, ['--input-type=module', '-e', code], { stdio: ['ignore', 'pipe', 'inherit'] });
  t.after(() => purser.kill('SIGKILL'));
  await once(purser.stdout, 'data');
  await until('its command runs', async () => processesWith(`PURSER_LEASE=${tag}`).length >= 3);
  const isGone = async () => processesWith(tag).length === 0 && !existsSync(join(leases, tag));
  return { purser, isGone };
}

test('the deadline ends a lease while Purser does nothing', async (t) => {
  const { purser, isGone } = await startPurser(t, 10);
  purser.kill('SIGSTOP');
  assert.equal(await isGone(), false);
  await until('the lease is gone', isGone);
});

test('a lease ends with a Purser that was killed, long before its deadline', async (t) => {
  const { purser, isGone } = await startPurser(t, 600);
  purser.kill('SIGKILL');
  await until('the lease is gone', isGone);
});

test('an upload is written as a command of the lease would write it', async (t) => {
  const { backend, run, home, directory, tag } = await openLease(t);
  const elsewhere = temporaryDirectory(t);
  writeFileSync(join(elsewhere, 'file'), 'mine');
  const upload = (path: string) => backend.guest.upload(tag, path, Buffer.from('theirs'));
  await upload('work/a/b');
  await upload(`${home}/work/c`);
  await upload(join(elsewhere, 'd'));
  assert.equal(
    (await run(`cat work/a/b ~/work/c ${elsewhere}/d; ls -A work`)).stdout,
    'theirstheirstheirsa\nc\n',
    'nothing unfinished is left',
  );
  await run(`ln -s ${elsewhere}/file file`);
  await upload('file');
  assert.equal(readFileSync(join(elsewhere, 'file'), 'utf8'), 'mine', 'a link is replaced, not followed');
  assert.equal((await run('cat file; test -L file')).stdout, 'theirs');
  for (const path of ['work/a/b/x', `work/${'n'.repeat(300)}`])
    await assert.rejects(upload(path), { code: 'invalid_request' }, path);
  assert.deepEqual(readdirSync(directory).sort(), ['created', 'deadline', 'home', 'keeper']);
});

test('a log has an end, which its command does not notice', async (t) => {
  const { backend, tag } = await openLease(t);
  const command = 'head -c 70000000 /dev/zero; echo more; exit 4';
  const { id } = await startProcess(backend, tag, { command });
  const order = { id, offset: -4, bytesMax: 0, follow: { timeoutSeconds: 60 } };
  const { process } = await readLog(backend, tag, order);
  assert.deepEqual([process?.exitCode, process?.logBytes, process?.logTruncated], [4, LOG_BYTES_MAX, true]);
});

test('a log whose following ends before it has begun is read from there later', async (t) => {
  const { backend, tag } = await openLease(t);
  const { id } = await startProcess(backend, tag, { command: 'sleep 4449' });
  const session = backend.guest.session.bind(backend.guest);
  // The machine is never sent what to do.
  t.mock.method(backend.guest, 'session', async (...args: Parameters<typeof session>) =>
    Object.create(await session(...args), { stdin: { value: new PassThrough() } }),
  );
  const aborted = { timeoutSeconds: 600, signal: AbortSignal.abort() };
  for (const [offset, follow] of [
    [7, aborted],
    [-7, aborted],
    [7, { timeoutSeconds: 1 }],
  ] as const) {
    const begun: number[] = [];
    const order = { id, offset, bytesMax: 0, follow, onBegin: (it: number) => void begun.push(it) };
    assert.deepEqual(await readLog(backend, tag, order), { offset, bytes: Buffer.alloc(0), process: null });
    assert.deepEqual(begun, [offset]);
  }
  const lost = t.mock.method(backend.guest, 'session', async (...args: Parameters<typeof session>) => {
    const it = await session(...args);
    it.kill();
    return it;
  });
  await assert.rejects(readLog(backend, tag, { id, offset: 7, bytesMax: 0, follow: { timeoutSeconds: 600 } }));
  lost.mock.restore();
});

test('the oldest processes that have ended make room, and those that run do not', async (t) => {
  const { backend, tag, run } = await openLease(t);
  const { id } = await startProcess(backend, tag, { command: 'true' });
  await until('it has ended', async () => (await listProcesses(backend, tag))[0]?.isRunning === false);
  const earlier = (letter: string) => `proc_${letter.repeat(24)}`;
  const copy = (letter: string, what: string) =>
    `cd .purser-processes; for i in $(seq 10 72); do cp -r ${id} ${earlier(letter)}$i; ${what}; done`;
  await run(copy('0', 'true'));
  const next = await startProcess(backend, tag, { command: 'sleep 4448' });
  const kept = (await listProcesses(backend, tag)).map((it) => it.id);
  assert.deepEqual([kept.length, kept.at(0), kept.includes(id)], [PROCESS_COUNT_MAX, next.id, true]);
  assert.deepEqual(kept.at(-1), `${earlier('0')}11`, 'the oldest is gone');
  await run(
    `rm -rf .purser-processes/${earlier('0')}*; ${copy('1', `rm ${earlier('1')}$i/exit ${earlier('1')}$i/pid`)}`,
  );
  await assert.rejects(startProcess(backend, tag, { command: 'true' }), { code: 'lease_limit_exceeded' });
});

test('a start that was cut short is a process that has ended, after a while', async (t) => {
  const { backend, tag, run } = await openLease(t);
  const { id } = await startProcess(backend, tag, { command: 'true' });
  await until('it has ended', async () => (await listProcesses(backend, tag))[0]?.isRunning === false);
  await run(`cd .purser-processes/${id}; rm exit pid; date +%s >started`);
  assert.equal((await listProcesses(backend, tag))[0]?.isRunning, true);
  await run(`echo $(($(date +%s) - 600)) >.purser-processes/${id}/started`);
  const [process] = await listProcesses(backend, tag);
  assert.deepEqual([process?.isRunning, process?.exitCode], [false, null]);
});

test('a terminal is refused in a sentence where the machine has no `script`', (t) => {
  const home = temporaryDirectory(t);
  const terminal = { term: 'xterm', columns: 80, rows: 24 };
  assert.throws(
    () => beginIn({ home, env: { PATH: home } }, { purpose: 'session', script: '', args: [], terminal }),
    /no `script`.*ssh -T/,
  );
});

test('looking for processes may take long on a busy machine, and finding none is no fault', async (t) => {
  let milliseconds = 0;
  t.mock.method(performance, 'now', () => (milliseconds += 60_000));
  await killAll([`PURSER_EXEC=${randomBytes(12).toString('hex')}`]);
});
