import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { until } from '../helper/waiting.ts';
import { FOLDER } from './watchdog-shared.ts';

const now = () => Math.floor(Date.now() / 1000);

const ARGV_PROBLEMS = [[], ['abc'], ['-1'], ['12x'], [''], ['12345678901'], ['1', '2'], ['/tmp'], ['1', '2', '/tmp']];

/** Starts a program as process 1 of a process namespace of its own. */
function startFirst(t: TestContext, ...argv: string[]): { child: ChildProcess; ended: Promise<number | null> } {
  const child = spawn('unshare', ['--pid', '--fork', '--kill-child', '--mount-proc', ...argv], { stdio: 'ignore' });
  t.after(() => child.kill('SIGKILL'));
  return { child, ended: once(child, 'exit').then(([code]) => code) };
}

/** The process in the namespace that `unshare` made. */
const firstOf = ({ pid }: ChildProcess) =>
  until('it has begun', async () => readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim() || undefined);

/** Tries all that it does as process 1 and beside it; `directory` is its own, where it has one. */
async function behaves(t: TestContext, program: readonly string[], ...directory: string[]): Promise<void> {
  for (const argv of ARGV_PROBLEMS)
    assert.equal(await startFirst(t, ...program, ...argv).ended, 64, `process 1 with ${JSON.stringify(argv)}`);
  assert.equal(await startFirst(t, ...program, String(now() - 1), ...directory).ended, 0, 'a deadline that has passed');

  const deadline = now() + 2;
  assert.equal(await startFirst(t, ...program, String(deadline), ...directory).ended, 0);
  assert.ok(Date.now() / 1000 >= deadline, 'not before its deadline');

  const far = now() + 600;
  const { child, ended } = startFirst(t, ...program, String(far), ...directory);
  const first = await firstOf(child);
  const tellTo = (first: string, ...argv: string[]) => {
    const all = [...program, ...argv, ...directory];
    const { status, stdout } = spawnSync('nsenter', ['--target', first, '--pid', '--mount', ...all]);
    return [status, stdout.toString()];
  };
  const tell = (...argv: string[]) => tellTo(first, ...argv);
  // A directory still has the deadline of the process before: only its own says that this one has begun to wait.
  const waits = (first: string, deadline: number) =>
    until('it waits for its deadline', async () => tellTo(first)[1] === `${deadline}\n`);
  await waits(first, far);
  const moved = String(now() + 86_400);
  assert.deepEqual(tell(moved), [0, `${moved}\n`]);
  assert.deepEqual(tell(), [0, `${moved}\n`], 'it is told without being moved');
  assert.equal(tell('later')[0], 64);
  const soon = now() + 8;
  assert.deepEqual(tell(String(soon)), [0, `${soon}\n`]);
  assert.equal(await ended, 0);
  assert.ok(Date.now() / 1000 >= soon, 'at the deadline it was given last: the one before is a day away');

  const farther = far + 600;
  const stopped = startFirst(t, ...program, String(farther), ...directory);
  const begun = await firstOf(stopped.child);
  await waits(begun, farther); // From then on it hears signals.
  process.kill(Number(begun), 'SIGTERM');
  assert.ok([143, 137].includes((await stopped.ended) ?? 137), 'an engine that stops it does not wait');
}

/** As many as pass the number of the descriptor that the deadline has. */
const MOUNTED_COUNT = 12;

/**
 * Grows files that are mounted into a machine, in a directory that has been moved there, and then moves its deadline `seconds` ahead,
 * if they are given. Returns how the machine ends.
 */
async function endOfGrowth(t: TestContext, program: readonly string[], growth: readonly string[], seconds?: number) {
  const place = mkdtempSync(join(tmpdir(), 'purser-mounted-'));
  t.after(() => rmSync(place, { recursive: true, force: true }));
  const etc = join(place, 'etc');
  mkdirSync(etc);
  const names = Array.from({ length: MOUNTED_COUNT }, (_, i) => `file${i}`);
  for (const it of names.flatMap((name) => [join(place, name), join(etc, name)]))
    execFileSync('fallocate', ['--length', '64K', it]);
  const mount = `cd "$0" && for it in ${names.join(' ')}; do mount --bind $it etc/$it || exit; done && exec "$@"`;
  const { child, ended } = startFirst(t, 'sh', '-c', mount, place, ...program, String(now() + 600));
  const first = await firstOf(child);
  const inside = (...argv: string[]) => spawnSync('nsenter', ['--target', first, '--pid', '--mount', ...argv]).status;
  await until('it has its deadline', async () => inside(...program) === 0);
  assert.equal(inside('mv', etc, join(place, 'moved')), 0);
  for (const name of names) execFileSync('fallocate', [...growth, join(place, name)]);
  if (seconds !== undefined) assert.equal(inside(...program, String(now() + seconds)), 0);
  return ended;
}

/** What an engine mounts into a machine may grow by 16 MiB in all, blocks beyond its end included. */
async function endsForGrowth(t: TestContext, ...program: string[]): Promise<void> {
  assert.equal(await endOfGrowth(t, program, ['--length', '1300K'], 4), 0, 'at its deadline');
  assert.equal(await endOfGrowth(t, program, ['--length', '1450K']), 153);
  assert.equal(await endOfGrowth(t, program, ['--keep-size', '--length', '1450K']), 153);
}

/** Tries the stop of a tenant's processes, by a program that is the watchdog of a machine and beside it. */
async function stops(t: TestContext, ...program: string[]): Promise<void> {
  const as = (user: number, ...argv: string[]) => ['setpriv', '--reuid', String(user), '--clear-groups', ...argv];
  const { child } = startFirst(t, ...as(63541, ...program, String(now() + 600)));
  const first = await firstOf(child);
  t.after(() => process.kill(Number(first), 'SIGKILL')); // `unshare` no longer does it, as it has changed its user.
  const enter = ['--target', first, '--pid', '--mount'];
  const tell = (user: number, what: string) => spawnSync('nsenter', [...enter, ...as(user, ...program, what)]).status;
  await until('nothing of a tenant runs', async () => tell(63541, 'stopped') === 0);
  const work = spawn('nsenter', [...enter, ...as(1000, 'sh', '-c', 'echo begun; exec >&-; while :; do (:); done')], {
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  t.after(() => work.kill('SIGKILL'));
  await once(work.stdout, 'data');
  assert.equal(tell(63541, 'stopped'), 16);
  assert.equal(tell(1001, 'stop'), 0);
  assert.equal(tell(63541, 'stopped'), 16, 'another user stops nothing');
  assert.equal(tell(1000, 'stop'), 0);
  assert.equal(tell(63541, 'stopped'), 0);
  assert.equal(tell(1000, 'continue'), 0);
  assert.equal(tell(63541, 'stopped'), 16);
}

/** What a relay says that is given this as its input, and how it ends. */
function relayed(program: readonly string[], port: number | string, input: Buffer): Promise<[number | null, Buffer]> {
  const [command = '', ...args] = program;
  const child = spawn(command, [...args, 'relay', String(port)], { stdio: ['pipe', 'pipe', 'inherit'] });
  child.stdin.on('error', () => {}); // It need not read what it is given.
  child.stdin.end(input);
  const said = child.stdout.toArray();
  return once(child, 'close').then(async ([code]) => [code, Buffer.concat(await said)]);
}

async function relays(t: TestContext, ...program: string[]): Promise<void> {
  const input = randomBytes(10 * 1024 * 1024);
  for (const host of ['127.0.0.1', '::1', '0.0.0.0']) {
    // It reads to the end before it answers: both directions are full in between.
    const server = createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket)).listen(0, host);
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const [code, said] = await relayed(program, port, input);
    server.close();
    await once(server, 'close');
    assert.deepEqual([code, said.subarray(0, 10).toString()], [0, 'connected\n'], host);
    assert(said.subarray(10).equals(input), host);
    assert.deepEqual(await relayed(program, port, Buffer.alloc(0)), [111, Buffer.alloc(0)], 'nobody listens any more');
  }
  const greeting = createServer((socket) => socket.end('bye')).listen(0, '127.0.0.1');
  await once(greeting, 'listening');
  t.after(() => greeting.close());
  const { port } = greeting.address() as AddressInfo;
  assert.equal((await relayed(program, port, input))[1].toString(), 'connected\nbye', 'the server ends it');

  const silent = createServer(() => {}).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  t.after(() => silent.close());
  const [command = '', ...args] = program;
  const relay = [...args, 'relay', String((silent.address() as AddressInfo).port)];
  const child = spawn(command, relay, { stdio: ['pipe', 'pipe', 'inherit'] });
  await once(child.stdout, 'data');
  child.stdout.destroy();
  assert.deepEqual(await once(child, 'exit'), [0, null], 'nobody reads what it says');

  for (const wrong of ['0', '65536', 'x', '', '99999999999'])
    assert.equal((await relayed(program, wrong, Buffer.alloc(0)))[0], 64, wrong);
  const bare = spawnSync(command, [...args, 'relay']);
  assert.deepEqual([bare.status, bare.stdout.length], [0, 0], 'it says that it is one that relays');
}

/** Tries the keeper of a virtual machine, whose power this test lends in the place of QEMU. */
async function keeps(t: TestContext, ...program: string[]): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'purser-keeper-'));
  mkdirSync(join(root, 'proc'));
  const inside = program.map((it) => `/${basename(it)}`);
  for (const it of program) copyFileSync(it.startsWith('/') ? it : findProgram(it), join(root, basename(it)));
  const said: Buffer[] = [];
  const connections: Socket[] = [];
  const server = createServer((socket) => {
    connections.push(socket.on('data', (chunk: Buffer) => said.push(chunk)).on('error', () => {}));
    socket.write('greeting');
  });
  await once(server.listen(join(root, 'power')), 'listening');
  const script = `mount -t proc proc ${root}/proc && exec chroot ${root} "$@"`;
  const deadline = now() + 600;
  const first = spawn(
    'unshare',
    ['--pid', '--fork', '--kill-child', '--mount', 'sh', '-c', script, 'sh', ...inside, 'keep', String(deadline)],
    { stdio: 'ignore' },
  );
  t.after(async () => {
    first.kill('SIGKILL');
    for (const it of connections) it.destroy();
    server.close();
    rmSync(root, { recursive: true });
  });
  const process1 = await firstOf(first);
  const tell = (...argv: string[]) =>
    spawnSync('nsenter', [
      '--target',
      process1,
      '--pid',
      '--mount',
      `--root=/proc/${process1}/root`,
      ...inside,
      ...argv,
    ]);
  await until('it holds the power', async () => tell('held').status === 0);
  connections.at(-1)?.destroy();
  await until('it holds the power again', async () => connections.length === 2 && tell('held').status === 0);
  assert.equal(said.length, 0, 'it says nothing before its deadline');
  assert.equal(tell().stdout.toString(), `${deadline}\n`);
  assert.ok(Number(tell('boot').stdout) > 0);
  assert.equal(tell(String(now())).status, 0);
  await until('it switches off, and goes on', async () => Buffer.concat(said).length >= 4);
  assert.match(Buffer.concat(said).toString('hex'), /^(03a1)+$/);
  server.close();
  connections.at(-1)?.destroy();
  await until('it holds nothing', async () => tell('held').status === 111);
}

const findProgram = (name: string) => execFileSync('which', [name], { encoding: 'utf8' }).trim();

for (const [architecture, emulator] of [
  ['amd64', process.arch === 'x64' ? undefined : 'qemu-x86_64-static'],
  ['arm64', process.arch === 'arm64' ? undefined : 'qemu-aarch64-static'],
] as const)
  test(`the watchdog of ${architecture} ends at its deadline, moves it, relays, and stops others`, async (t) => {
    if (!hasComponent(t, 'root')) return;
    // Of the foreign one only a machine with an emulator can tell.
    if (emulator !== undefined && !hasComponent(t, emulator)) return;
    const prefix = emulator === undefined ? [] : [emulator];
    const file = join(FOLDER, `watchdog-${architecture}`);
    await behaves(t, [...prefix, file]);
    await relays(t, ...prefix, file);
    await stops(t, ...prefix, file);
    await endsForGrowth(t, ...prefix, file);
    await keeps(t, ...prefix, file);
    const directory = mkdtempSync(join(tmpdir(), 'purser-watchdog-'));
    t.after(() => rmSync(directory, { recursive: true }));
    await behaves(t, [...prefix, file], directory);
    assert.deepEqual(readdirSync(directory).sort(), ['deadline', 'watchdog']);
    const mode = (name: string) => statSync(join(directory, name)).mode & 0o777;
    assert.deepEqual([mode('deadline'), mode('watchdog')], [0o600, 0o500]);
    assert(readFileSync(join(directory, 'watchdog')).equals(readFileSync(file)), 'what is there is what runs');
  });

test('what its source makes today behaves the same', async (t) => {
  if (!hasComponent(t, 'root')) return;
  if (!hasComponent(t, 'gcc')) return;
  if (process.arch !== 'x64') return t.diagnostic('its build is tried on amd64 alone');
  const directory = mkdtempSync(join(tmpdir(), 'purser-watchdog-'));
  t.after(() => rmSync(directory, { recursive: true }));
  execFileSync(join(FOLDER, 'build.sh'), [directory, 'amd64']);
  await behaves(t, [join(directory, 'watchdog-amd64')]);
  await relays(t, join(directory, 'watchdog-amd64'));
  await stops(t, join(directory, 'watchdog-amd64'));
  await endsForGrowth(t, join(directory, 'watchdog-amd64'));
  await keeps(t, join(directory, 'watchdog-amd64'));
});
