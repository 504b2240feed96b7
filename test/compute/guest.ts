import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { hash, randomBytes, randomInt } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type CommandOrder, runInSession } from '../../src/compute/machine/command.ts';
import { listFiles, readPart } from '../../src/compute/machine/files.ts';
import { killProcess, listProcesses, readLog, startProcess } from '../../src/compute/machine/process.ts';
import { readTree, storeFile, storeTree } from '../../src/compute/machine/streamed.ts';
import fc from '../helper/property.ts';
import { SEED } from '../helper/random.ts';
import { until } from '../helper/waiting.ts';
import { archive, treeOf } from '../http/trees-shared.ts';
import { type Inside, type InsideTests, inOneMachine, newFolder, type Open } from './conformance.ts';

const take = () => true;
/** What upload takes in a name: all but slashes and control characters. */
const NAMES = fc.string({
  minLength: 1,
  maxLength: 40,
  unit: fc.constantFrom(...(`'"\\\`$*?[]{}()<>|&;!#~%^=+-_. aZ9ü😀`.match(/./gu) as string[])),
});

/** The command lines on this machine that have a text, for as long as they are there. */
const commandLinesWith = (text: string) =>
  readdirSync('/proc').filter((it) => {
    try {
      return /^\d+$/.test(it) && readFileSync(`/proc/${it}/cmdline`, 'utf8').includes(text);
    } catch {
      return false; // It has just ended.
    }
  });

/** What a test needs of the machine: a directory of its own, what `sh` says, and how `run` ended. */
async function guestOf({ t, backend, ref, sh }: Inside) {
  const folder = newFolder();
  await sh(`mkdir ${folder}`);
  t.after(() => sh(`rm -rf ${folder}`));
  return {
    ...{ t, backend, ref, folder },
    sh: async (command: string) => (await sh(command)).stdout.toString(),
    async run(command: string, order: Partial<CommandOrder> = {}) {
      const limits = { timeoutSeconds: 60, streamBytesMax: 1024 * 1024 };
      const said = await runInSession(backend, ref, { command, ...limits, ...order });
      return { ...said, stdout: said.stdout.toString(), stderr: said.stderr.toString() };
    },
  };
}

/** How often a command leaves its input unread: an engine that cuts output then does so most of the time. */
const UNREAD_RUNS = 4;

const IN_GUEST: InsideTests = {
  async 'a command is given input, a directory and variables, and says all as it comes'(inside) {
    const { run, folder, sh } = await guestOf(inside);
    const secret = `canary-${randomBytes(8).toString('hex')}`;
    const env = { SECRET: secret, QUOTED: `it's "$HOME"\nü`, PATH: '/nowhere:/usr/bin:/bin' };
    const input = randomBytes(200_000);
    const pieces: string[] = [];
    const tell = (stream: string) => async (piece: Buffer) => void pieces.push(`${stream}: ${piece}`);
    const sum = '$(($(wc -c)))';
    const command = `echo first; sleep 1; echo second >&2; echo "${sum} $PWD $SECRET $QUOTED"; exit 7`;
    const running = run(command, { cwd: folder, env, input, onOutput: { stdout: tell('out'), stderr: tell('err') } });
    await until('the first piece has come', async () => pieces.length > 0);
    assert.deepEqual(commandLinesWith(secret), [], 'no list of processes has the value of a variable');
    const said = await running;
    const output = `first\n200000 ${folder} ${secret} ${env.QUOTED}\n`;
    assert.deepEqual([said.exitCode, said.stdout, said.stderr], [7, output, 'second\n']);
    assert.equal(pieces[0], 'out: first\n');
    assert.deepEqual(
      pieces
        .filter((it) => it.startsWith('out: '))
        .map((it) => it.slice(5))
        .join(''),
      output,
    );

    assert.equal((await run('cat', { input: Buffer.alloc(0) })).stdout, '');
    assert.equal((await run('cat; pwd', { cwd: '/' })).stdout, '/\n', 'without input there is none');
    assert.equal((await run('true', { input: Buffer.alloc(500_000) })).exitCode, 0, 'nobody has to read it');
    for (let i = 0; i < UNREAD_RUNS; i++) {
      const unread = await run('head -c 1 >/dev/null; head -c 300000 /dev/zero; exit 7', { input: Buffer.alloc(2e6) });
      const said = [unread.exitCode, unread.stdout.length, unread.stderr];
      assert.deepEqual(said, [7, 300_000, ''], 'input that is left unread costs no output');
    }
    for (const cwd of [`${folder}/none`, '-', '--help'])
      await assert.rejects(run('true', { cwd }), { code: 'invalid_request', message: /^cwd: / }, cwd);

    const marker = `4${randomInt(1e6)}`;
    const left = `for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep '^sleep ${marker}'; done; true`;
    assert.equal((await run(`setsid sleep ${marker} & sleep ${marker}`, { timeoutSeconds: 1 })).timedOut, true);
    await until('the tree is dead', async () => (await sh(left)) === '');
    const gone = new AbortController();
    const begun = Promise.withResolvers<void>();
    const killed = run(`setsid sleep ${marker} & sleep ${marker}`, { signal: gone.signal, onBegin: begun.resolve });
    await begun.promise;
    gone.abort();
    await killed.catch(() => {}); // Some lines break with what is killed.
    await until('the tree of one that is not wanted any more is dead', async () => (await sh(left)) === '');
    const background = await run(`sleep ${marker} & echo begun`);
    assert.deepEqual([background.stdout, background.exitCode], ['begun\n', 0], 'nobody waits for the background');
  },

  async 'what was uploaded is listed and downloaded, whatever its name'(inside) {
    const { backend, ref, folder, sh, run } = await guestOf(inside);
    const random = fc.sample(NAMES, { numRuns: 6 }).filter((it) => it !== '.' && it !== '..');
    const names = [...new Set(['-rf', "it's", '"quoted" \\ $x', 'ünïcode 😀', ...random])];
    const contents = new Map(names.map((it) => [it, randomBytes(randomInt(200_000))]));
    for (const [it, content] of contents) await backend.guest.upload(ref, `${folder}/${it}`, content);
    // Upload refuses control characters. A tenant may use them.
    const other = 'two\nlines\n';
    await run(`cat >"$NAME"`, { cwd: folder, env: { NAME: other }, input: Buffer.from('x') });
    contents.set(other, Buffer.from('x'));
    const { entries, facts } = await listFiles(backend, ref, { path: folder, take });
    assert.equal(facts.type, 'directory');
    const listed = entries?.map((it) => [it.name.toString(), it.type, it.size]);
    const written = [...contents].map(([it, { length }]) => [it, 'file', length]);
    const order = ([a]: unknown[], [b]: unknown[]) =>
      Buffer.compare(Buffer.from(a as string), Buffer.from(b as string));
    assert.deepEqual(listed, written.sort(order as never), `seed ${SEED}`);
    for (const [it, content] of contents) {
      const order = { path: `${folder}/${it}`, offset: 0, bytesMax: 8 * 1024 * 1024, take };
      const { bytes, size } = await readPart(backend, ref, order);
      assert.ok(bytes.equals(content) && size === content.length, `${JSON.stringify(it)}, seed ${SEED}`);
    }

    const big = randomBytes(3_000_000);
    await backend.guest.upload(ref, `${folder}/big`, big);
    const part = (offset: number, length: number) =>
      readPart(backend, ref, { path: `${folder}/big`, offset, length, bytesMax: 1_000_000, take });
    for (const [offset, length] of [
      [0, 1],
      [1_500_000, 1_000_000],
      [2_999_999, 100],
      [3_000_000, 1],
    ] as const)
      assert.ok((await part(offset, length)).bytes.equals(big.subarray(offset, offset + length)), `${offset}`);
    const whole = { path: `${folder}/big`, offset: 0, bytesMax: 1_000_000, take };
    await assert.rejects(readPart(backend, ref, whole), { code: 'invalid_request', message: /^length: .*3000000/ });
    await assert.rejects(readPart(backend, ref, { ...whole, path: folder }), { code: 'invalid_request' });
    await assert.rejects(readPart(backend, ref, { ...whole, path: `${folder}/none` }), { code: 'not_found' });

    await sh(`ln -s ${folder} ${folder}/link; chmod 640 ${folder}/big; touch -d @1700000000 ${folder}/big`);
    const about = async (path: string) => (await listFiles(backend, ref, { path, take })).facts;
    assert.deepEqual(await about(`${folder}/big`), { type: 'file', size: 3e6, mode: 0o640, modified: 1_700_000_000 });
    assert.equal((await about(`${folder}/link`)).type, 'link');
    assert.equal((await listFiles(backend, ref, { path: `${folder}/link`, take })).entries?.length, contents.size + 2);
  },

  async 'files and trees of any length pass through as they come'(inside) {
    const { backend, ref, folder, sh, t } = await guestOf(inside);
    /** Bytes in pieces of 60,000, as a connection brings them. */
    const contentOf = (bytes: Buffer, breaksOffAt = Number.POSITIVE_INFINITY) => {
      let at = 0;
      return {
        async next() {
          if (at > breaksOffAt) throw new Error('the client has gone');
          const piece = bytes.subarray(at, at + 60_000);
          at += piece.length;
          return piece.length ? piece : undefined;
        },
      };
    };
    const file = randomBytes(3_000_000);
    const path = `${folder}/it's -x`;
    const order = { path, confirm: () => {} };
    const stored = await storeFile(backend, ref, { ...order, content: contentOf(file) });
    const sum = hash('sha256', file, 'hex');
    assert.deepEqual(stored, { bytes: file.length, sha256: sum });
    const replacement = { ...order, content: contentOf(file.subarray(1000), 1_000_000) };
    await assert.rejects(storeFile(backend, ref, replacement), /has gone/);
    assert.equal((await sh(`sha256sum < "${path}"; cd ${folder} && echo *`)).trim(), `${sum}  -\nit's -x`);

    const files = Object.fromEntries(
      Array.from({ length: 300 }, (_, index) => [
        `${index % 7}/${'d'.repeat(index % 150)}/${index}`,
        randomBytes(2000),
      ]),
    );
    const { root, pack } = treeOf(t, files);
    const packed = pack();
    const tree = { path: `${folder}/tree/`, confirm: () => {}, take };
    const { entries } = await storeTree(backend, ref, { ...tree, content: contentOf(packed) });
    assert.ok(entries > 300, `${entries}`);
    const sums = 'find . -type f | sort | xargs sha256sum';
    const own = execFileSync('sh', ['-c', sums], { cwd: root, encoding: 'utf8', env: { ...process.env, LC_ALL: 'C' } });
    assert.equal(await sh(`export LC_ALL=C; cd ${folder}/tree && ${sums}`), own);
    assert.equal(await sh(`ls -A ${folder}/tree | grep purser; true`), '', 'nothing of Purser is left');

    await sh(`ln -s /etc ${folder}/tree/link`);
    for (const [content, words] of [
      [contentOf(packed.subarray(0, 100_000)), /is cut.* written/],
      [contentOf(archive({ name: 'link/x' })), /leads through the symbolic link "link"/],
      [contentOf(archive({ name: 'a', content: 'a' }, { name: '/x' })), /absolute.*1 entry was written/],
    ] as const)
      await assert.rejects(storeTree(backend, ref, { ...tree, content }), { code: 'invalid_request', message: words });
    await assert.rejects(storeTree(backend, ref, { ...tree, content: contentOf(packed, 100_000) }), /has gone/);

    const pieces: Buffer[] = [];
    const reading = {
      ...{ path: `${folder}/tree`, bytesMax: 1e8, signal: t.signal },
      begin() {},
      send: async (it: Buffer) => void pieces.push(it),
    };
    await readTree(backend, ref, reading);
    const back = mkdtempSync(join(tmpdir(), 'purser-tree-'));
    t.after(() => rmSync(back, { recursive: true, force: true }));
    execFileSync('tar', ['-xf', '-', '--exclude=./a'], { cwd: back, input: Buffer.concat(pieces) });
    const again = execFileSync('sh', ['-c', sums], {
      cwd: back,
      encoding: 'utf8',
      env: { ...process.env, LC_ALL: 'C' },
    });
    assert.equal(again, own);
    for (const [over, code] of [
      [{ path: `${folder}/none` }, 'not_found'],
      [{ path }, 'invalid_request'],
      [{ path: folder, bytesMax: 100_000 }, 'payload_too_large'],
    ] as const)
      await assert.rejects(readTree(backend, ref, { ...reading, ...over }), { code });
  },

  async 'a process in the background keeps its log and its exit code, and is killed with all of it'(inside) {
    const { backend, ref, folder, sh, run } = await guestOf(inside);
    const start = (command: string, setting = {}) => startProcess(backend, ref, { command, ...setting });
    const secret = `canary-${randomBytes(8).toString('hex')}`;
    const command = 'echo "$PWD $WORD"; echo err >&2; sleep 2; printf last; exit 9';
    const first = await start(command, { cwd: folder, env: { WORD: secret } });
    assert.deepEqual(
      [first.isRunning, first.exitCode, first.endedAt, first.command],
      [true, null, null, command],
      'a start does not wait',
    );
    assert.deepEqual(commandLinesWith(secret), []);
    let heard = '';
    const log = await readLog(backend, ref, {
      id: first.id,
      offset: 0,
      bytesMax: 0,
      follow: { timeoutSeconds: 60 },
      onOutput: async (piece) => {
        heard += piece;
      },
    });
    assert.equal(heard, `${folder} ${secret}\nerr\nlast`, 'a log that is followed ends with its process');
    assert.deepEqual([log.process?.isRunning, log.process?.exitCode], [false, 9]);
    const part = async (offset: number, bytesMax: number) =>
      (await readLog(backend, ref, { id: first.id, offset, bytesMax })).bytes.toString();
    assert.deepEqual([await part(-4, 100), await part(1, 3)], ['last', folder.slice(1, 4)]);

    const marker = `5${randomInt(1e6)}`;
    const second = await start(`setsid sleep ${marker} & env -i sleep ${marker} & echo begun; sleep ${marker}`);
    const left = `for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep '^sleep ${marker}'; done; true`;
    await until('all of it runs', async () => (await sh(left)).split('\n').length === 4);
    const list = async () => (await listProcesses(backend, ref)).map((it) => [it.id, it.isRunning, it.exitCode]);
    assert.deepEqual(await list(), [
      [second.id, true, null],
      [first.id, false, 9],
    ]);
    const killed = await killProcess(backend, ref, second.id);
    assert.deepEqual([killed.isRunning, killed.exitCode], [false, 137]);
    await until('what it started is dead', async () => (await sh(left)) === '');
    assert.equal((await killProcess(backend, ref, first.id)).exitCode, 9, 'a kill changes no end');

    for (const id of ['proc_01k9v3c2mq8r5t7w1x4z6b0d2f', '../x', '$(id)'])
      await assert.rejects(killProcess(backend, ref, id), { code: 'not_found' });
    await assert.rejects(start('true', { cwd: `${folder}/none` }), { code: 'invalid_request', message: /^cwd: / });
    await run(`rm -rf '${first.logPath.slice(0, -'/log'.length)}'`);
    assert.deepEqual(await list(), [[second.id, false, 137]]);
  },
};

/** What can be done inside a machine of every backend, by the same generic code: a new one has to let it. */
export const workInGuest = (name: string, open: Open): void => inOneMachine(name, open, IN_GUEST);
