// Trees and files through Purser, beside tar over the same road.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { median } from '../rounds.ts';
import { figure } from '../table.ts';
import type { Row } from './main.ts';
import { openPurser } from './rented.ts';
import type { Subject } from './subjects.ts';

const FILE_COUNT = 1000;
const FILE_BYTES = 2048;
const BIG_BYTES = 64 * 1024 ** 2;
/** Requests in flight. */
const REQUEST_COUNT = 64;
/** OpenSSH's own server, of Debian's package. */
const SFTP_SERVER = '/usr/lib/openssh/sftp-server';
const LOADER = 'ld.so';

/** Runs a program with this input, to its end. Returns its standard output. */
async function through([program, ...args]: readonly [string, ...string[]], input: Buffer | '' = ''): Promise<Buffer> {
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'] });
  child.stdin.on('error', () => {}); // Its exit code tells why it did not read all.
  child.stdin.end(input);
  const closed = once(child, 'close');
  const [output, errors] = await Promise.all([child.stdout.toArray(), child.stderr.toArray()]);
  const [code] = await closed;
  assert.equal(code, 0, `${program} ${args.join(' ').slice(0, 200)}: ${Buffer.concat(errors).toString().slice(-1000)}`);
  return Buffer.concat(output);
}

/** A way to move the files, and what it is compared with. */
type Way = { what: string; take(round: string): Promise<unknown>; base(round: string): Promise<unknown> };

/** Copies OpenSSH's own server to a directory with all that it needs to run, as the image of a lease may have another C library. */
function copyServer(directory: string): void {
  copyFileSync(SFTP_SERVER, join(directory, 'sftp-server'));
  for (const line of execFileSync('ldd', [SFTP_SERVER], { encoding: 'utf8' }).split('\n')) {
    const [, path] = /(\/\S+) \(0x/.exec(line) ?? [];
    if (path) copyFileSync(path, join(directory, line.includes('=>') ? basename(path) : LOADER));
  }
}

/** Moves a thousand small files and a large one in and out of a lease by each way, in turn with tar over the same road. */
export async function measureTrees(
  subject: Subject,
  { rounds, word }: { rounds: number; word: string },
  stack: AsyncDisposableStack,
): Promise<Row[]> {
  const local = mkdtempSync(join(tmpdir(), 'purser-trees-'));
  stack.defer(() => rmSync(local, { recursive: true, force: true }));
  const place = (name: string) => join(local, name);
  for (const name of ['tree', 'big', 'server']) mkdirSync(place(name));
  for (let i = 0; i < FILE_COUNT; i++) writeFileSync(join(place('tree'), `file-${i}`), randomBytes(FILE_BYTES));
  writeFileSync(join(place('big'), 'file'), randomBytes(BIG_BYTES));
  const pack = (name: string) =>
    execFileSync('tar', ['-C', place(name), '-cf', '-', '.'], { maxBuffer: 2 * BIG_BYTES });
  if (existsSync(SFTP_SERVER)) copyServer(place('server'));
  const archives = { tree: pack('tree'), big: pack('big'), server: pack('server') };

  // With a tenth of a processor tar is as slow as all the rest.
  const spec = 'cpus' in subject.spec ? { ...subject.spec, cpus: 1 } : subject.spec;
  const purser = await openPurser({ ...subject, spec }, stack);
  const [ours, theirs] = [await purser.create(), await subject.bare.create()];
  stack.defer(async () => void (await Promise.all([purser.stop(ours), subject.bare.stop(theirs)])));
  const { options, port, address } = await purser.access(ours);
  const ssh = (line: string, input?: Buffer) => through(['ssh', ...options, '-p', String(port), address, line], input);
  const bare = (line: string, input?: Buffer) =>
    through([...subject.bare.road(theirs), 'sh', '-c', quote(line)], input);
  // OpenSSH gives one line to a shell, other roads an argument to a program.
  const quote = (line: string) => (subject.bare.road(theirs)[0] === 'ssh' ? `'${line}'` : line);
  const sftp = (line: string, ...server: string[]) =>
    through(
      ['sftp', ...options, ...server, '-R', String(REQUEST_COUNT), '-P', String(port), '-b', '-', address],
      Buffer.from(line),
    );
  const scp = (...paths: string[]) => through(['scp', ...options, '-r', '-P', String(port), ...paths]);

  // Both machines of some backends are this one, and its directory is then the same.
  const [at, bareAt] = [`/tmp/${basename(local)}-purser`, `/tmp/${basename(local)}-bare`];
  const into = (directory: string) => `mkdir -p ${directory} && tar xf - -C ${directory}`;
  // The output of a Slurm step is a terminal, to which tar writes nothing.
  const out = (directory: string) => `tar cf - -C ${directory} . | cat`;
  await bare(into(`${bareAt}/tree`), archives.tree);
  for (const name of ['tree', 'big', 'server'] as const) await ssh(into(`${at}/${name}`), archives[name]);

  const [tree, big] = ['1,000 files of 2 KB', 'one of 64 MB'];
  const overSsh = {
    in: (name: 'tree' | 'big') => (n: string) => ssh(into(`${at}/${n}`), archives[name]),
    out: (name: string) => () => ssh(out(`${at}/${name}`)),
  };
  const ways: Way[] = [
    {
      what: `${tree}: upload`,
      take: (n) => purser.uploadTree(ours, `${at}/${n}`, archives.tree),
      base: (n) => bare(into(`${bareAt}/${n}`), archives.tree),
    },
    {
      what: `${tree}: download`,
      take: () => purser.downloadTree(ours, `${at}/tree`),
      base: () => bare(out(`${bareAt}/tree`)),
    },
    { what: `${tree}: sftp put`, take: (n) => sftp(`put -r ${place('tree')} ${at}/${n}`), base: overSsh.in('tree') },
    { what: `${tree}: sftp get`, take: (n) => sftp(`get -r ${at}/tree ${place(n)}`), base: overSsh.out('tree') },
    { what: `${tree}: scp in`, take: (n) => scp(place('tree'), `${address}:${at}/${n}`), base: overSsh.in('tree') },
    { what: `${tree}: scp out`, take: (n) => scp(`${address}:${at}/tree`, place(n)), base: overSsh.out('tree') },
    { what: `${big}: sftp put`, take: (n) => sftp(`put ${place('big')}/file ${at}/${n}`), base: overSsh.in('big') },
    { what: `${big}: sftp get`, take: (n) => sftp(`get ${at}/big/file ${place(n)}`), base: overSsh.out('big') },
  ];
  // What a client of one request after another takes over this road, whoever answers it inside. It asks who its user is.
  const server = ['-s', `${at}/server/${LOADER} --library-path ${at}/server ${at}/server/sftp-server`];
  await ssh(`grep -qs "^[^:]*:[^:]*:$(id -u):" /etc/passwd || echo "user:x:$(id -u):0::/:/bin/sh" >>/etc/passwd || :`);
  const serves = await sftp('pwd', ...server).then(
    () => true,
    () => false,
  );
  if (serves) {
    const what = `${tree}: OpenSSH's own sftp-server`;
    const put = (n: string) => sftp(`put -r ${place('tree')} ${at}/${n}`, ...server);
    const get = (n: string) => sftp(`get -r ${at}/tree ${place(n)}`, ...server);
    ways.push({ what: `${what}, put`, take: put, base: overSsh.in('tree') });
    ways.push({ what: `${what}, get`, take: get, base: overSsh.out('tree') });
  }
  const clean = async () => {
    await Promise.all([ssh(`rm -rf ${at}/round-*`), bare(`rm -rf ${bareAt}/round-*`)]);
    execFileSync('sh', ['-c', 'rm -rf "$0"/round-*', local]);
  };
  const rows: Row[] = [];
  for (const way of ways.filter((it) => word === 'all' || it.what.includes(word)))
    rows.push(await measureWay(way, rounds, clean));
  await Promise.all([ssh(`rm -rf ${at}`), bare(`rm -rf ${bareAt}`)]);
  return rows;
}

/** Takes a way and what it is compared with in turn. */
async function measureWay({ what, take, base }: Way, rounds: number, clean: () => Promise<void>): Promise<Row> {
  const taken: [take: number, base: number][] = [];
  for (let round = 0; round < rounds; round++) {
    const both: [number, number] = [0, 0];
    for (const which of round % 2 ? ([1, 0] as const) : ([0, 1] as const)) {
      const from = performance.now();
      await [take, base][which]?.(`round-${round}-${which}`);
      both[which] = performance.now() - from;
    }
    taken.push(both);
    await clean();
  }
  const ratios = taken.map(([one, other]) => one / other);
  const [least, most] = [Math.min(...ratios), Math.max(...ratios)];
  const cell = `${figure(median(ratios))} × (${figure(least)}–${figure(most)}), ${figure(median(taken.map(([it]) => it)))} ms`;
  process.stderr.write(`${what}: ${cell}\n`);
  return [what, cell];
}
