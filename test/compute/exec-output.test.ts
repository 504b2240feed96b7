import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { EventEmitter } from 'node:events';
import { PassThrough, Readable, Writable } from 'node:stream';
import test from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import type { GuestSession } from '../../src/compute/backend.ts';
import { partOutput } from '../../src/compute/engines/container/exec-output.ts';
import { createStreams } from '../../src/compute/engines/kubernetes/stream.ts';
import { attach } from '../../src/compute/machine/attached.ts';
import { collect } from '../../src/compute/machine/collect.ts';
import { runCommand } from '../../src/compute/machine/command.ts';
import { startRun } from '../../src/compute/machine/run.ts';
import { createRandom, SEED } from '../helper/random.ts';
import { frame } from './engines/frame.ts';

const [STDOUT, STDERR] = [1, 2];
const MIB = 1024 * 1024;

test(`two streams in one are parted, wherever the pieces are cut (seed ${SEED})`, async () => {
  const { whole: number, pick } = createRandom(SEED);
  const pieces = Array.from({ length: 200 }, () => ({
    stream: pick([STDOUT, STDERR]),
    content: randomBytes(number(0, 40_000)),
  }));
  const source = new PassThrough();
  const { stdout, stderr } = partOutput(source, { terminal: false });
  const said = [collect(stdout, 100 * MIB), collect(stderr, 100 * MIB)];
  const whole = Buffer.concat(pieces.map(({ stream, content }) => frame(stream, content)));
  for (let at = 0; at < whole.length; ) {
    const length = number(0, 3) ? number(1, 20) : number(1, 60_000);
    if (!source.write(whole.subarray(at, at + length))) await new Promise((resolve) => source.once('drain', resolve));
    at += length;
  }
  source.end();
  for (const [index, stream] of [STDOUT, STDERR].entries()) {
    const expected = Buffer.concat(pieces.filter((it) => it.stream === stream).map((it) => it.content));
    assert.ok((await said[index])?.bytes.equals(expected));
  }
});

test('what nobody reads is not taken, is waited for, and is there when it is read', async () => {
  const source = new PassThrough();
  const { stdout, stderr, quiet, end } = partOutput(source, { terminal: false });
  let sent = 0;
  const piece = Buffer.alloc(32_768, 'x');
  for (; sent < MIB; sent += piece.length) source.write(frame(STDOUT, piece));
  await new Promise((resolve) => setImmediate(resolve));
  assert.ok(source.readableLength + source.writableLength > MIB / 2, 'it waits in the source');
  let isQuiet = false;
  const over = quiet().then(() => {
    isQuiet = true;
  });
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.equal(isQuiet, false, 'somebody who reads slowly is no end');
  let length = 0;
  stdout.on('data', (chunk: Buffer) => {
    length += chunk.length;
  });
  await over;
  assert.equal(length, sent);
  // Something in the background keeps the source open: what came before is still whole.
  source.write(frame(STDERR, Buffer.from('last words')));
  await new Promise((resolve) => setImmediate(resolve));
  end();
  assert.equal((await collect(stderr, MIB)).bytes.toString(), 'last words');
});

test('a terminal is passed on as it is, and a source that is gone keeps nobody waiting', async () => {
  const source = new PassThrough();
  const { stdout, stderr, quiet } = partOutput(source, { terminal: true });
  const said = [collect(stdout, MIB), collect(stderr, MIB)];
  source.write('plain\r\n');
  await new Promise((resolve) => setImmediate(resolve));
  source.end();
  assert.equal((await said[0])?.bytes.toString(), 'plain\r\n');
  assert.equal((await said[1])?.bytes.length, 0);
  source.destroy();
  await quiet();
});

test('what comes in frames of one byte waits in few pieces', async () => {
  const crumb = frame(STDOUT, Buffer.from('x'));
  const source = new PassThrough();
  const { stdout } = partOutput(source, { terminal: false });
  source.end(Buffer.concat(Array(3000).fill(crumb)));
  const pieces: Buffer[] = await stdout.toArray();
  assert.deepEqual([pieces.length, Buffer.concat(pieces).length], [1, 3000]);

  const slow = new PassThrough();
  const unread = partOutput(slow, { terminal: false }).stdout;
  for (let i = 0; i < 20_000; i++) {
    slow.write(crumb);
    if (i % 100 === 0) await new Promise(setImmediate);
  }
  const waiting = unread.readableLength + unread.writableLength;
  assert(waiting <= 16 * 1024, `${waiting} pieces wait`);
});

test('what a text in a machine says a byte at a time waits in few pieces', async () => {
  const source = { stdin: new PassThrough(), stdout: new PassThrough(), stderr: new PassThrough() };
  const session: GuestSession = { ...source, ended: new Promise(() => {}), resize() {}, kill() {} };
  const backend = { guest: { session: async () => session } as never };
  const run = await startRun(backend, 'ref', { text: 'true', timeoutSeconds: 60 });
  const [token] = String(source.stdin.read()).split(' ');
  source.stdout.write(`${token} ok\n`);
  await run.word;
  for (const [from, unread] of [
    [source.stdout, run.stdout as PassThrough],
    [source.stderr, run.stderr as PassThrough],
  ] as const) {
    for (let i = 0; i < 20_000; i++) {
      from.write('x');
      if (i % 100 === 0) await new Promise(setImmediate);
    }
    const waiting = unread.readableLength + unread.writableLength;
    assert(waiting <= 16 * 1024, `${waiting} pieces wait`);
  }
});

test('a session that is lost before its first word was lost: what it ran is not known', async () => {
  const lost = new Error('the connection was lost');
  /** The first `whole` sessions say where they have stored a text; the one after them is lost. */
  const backendOf = (whole: number) => {
    const session = async (): Promise<GuestSession> => {
      const source = { stdin: new PassThrough(), stdout: new PassThrough(), stderr: new PassThrough() };
      source.stderr.end();
      if (whole-- > 0) {
        source.stdin.once('data', (text) => source.stdout.end(`${String(text).split(' ')[0]} at /tmp/text\n`));
        return { ...source, ended: Promise.resolve({ code: 0 }), resize() {}, kill() {} };
      }
      return { ...source, ended: Promise.reject(lost), resize() {}, kill() {} };
    };
    return { guest: { session, exec: async () => {} } } as never;
  };
  const order = { argv: ['true'] as [string], env: {}, cwd: undefined, hasInput: false, seconds: 60 };
  const terminal = { term: 'xterm', columns: 80, rows: 24 };
  const limits = { timeoutSeconds: 60, streamBytesMax: 100 };
  await assert.rejects(runCommand(backendOf(0), 'ref', { command: 'true', cwd: '/', ...limits }), lost);
  await assert.rejects(attach(backendOf(0), 'ref', { ...order, terminal: undefined }), lost);
  await assert.rejects(attach(backendOf(1), 'ref', { ...order, terminal }), lost);
});

/** Begins a program on a terminal whose session is these streams, which is over at once. */
async function attachTo({ stdin, stdout }: { stdin: Writable; stdout: Readable }) {
  let count = 0;
  const session = async (_: string, { command }: { command: string }): Promise<GuestSession> => {
    const source = { stdin: new PassThrough(), stdout: new PassThrough(), stderr: new PassThrough() };
    source.stderr.end();
    const rest = { ended: Promise.resolve({ code: 0 }), resize() {}, kill() {} };
    if (count++ === 0) {
      source.stdin.once('data', (text) => source.stdout.end(`${String(text).split(' ')[0]} at /tmp/text\n`));
      return { ...source, ...rest };
    }
    const [, token] = /printf '%s %s\\n' (\w+)/.exec(command) ?? [];
    stdout.unshift(`${token} pid 7\n`);
    return { stdin, stdout, stderr: undefined, ...rest };
  };
  const terminal = { term: 'xterm', columns: 80, rows: 24 };
  const order = { argv: ['true'] as [string], env: {}, cwd: undefined, hasInput: true, seconds: 60, terminal };
  return attach({ guest: { session, exec: async () => {} } } as never, 'ref', order);
}

test('what a terminal has said is passed on whole after its end, however slowly it is read', async () => {
  const source = new PassThrough();
  const pieces = Array.from({ length: 300 }, (_, i) => `${i} ${'x'.repeat(1000)}\n`);
  Readable.from(pieces).pipe(source);
  const { stdout, ended } = await attachTo({ stdin: new PassThrough(), stdout: source });
  let text = '';
  for await (const piece of stdout) {
    if (!text) await pause(2500); // Longer than an end without output is awaited.
    text += piece;
  }
  assert.equal(text, pieces.join(''));
  assert.equal(await ended, 0);
});

test('input that a terminal takes no more cuts nothing of its output', async () => {
  const source = new PassThrough();
  const broken = () => Object.assign(new Error('write EPIPE'), { code: 'EPIPE' });
  const stdin = new Writable({ write: (_piece, _, done) => done(broken()) });
  const { stdout, ended, stdin: input } = await attachTo({ stdin, stdout: source });
  input.write('too late');
  await new Promise((resolve) => stdin.once('close', resolve));
  source.end('last words');
  assert.equal(String(Buffer.concat(await stdout.toArray())), 'last words');
  assert.equal(await ended, 0);
});

test('what comes from a pod in messages of one byte waits in few pieces', async () => {
  class Socket extends EventEmitter {
    readonly OPEN = 1;
    readonly readyState = 1;
    readonly protocol = 'v5.channel.k8s.io';
    isPaused = false;
    pause() {
      this.isPaused = true;
    }
    send() {}
  }
  const socket = new Socket();
  const streams = createStreams({ connect: async () => socket } as never, 'pods');
  await streams.begin('pod', ['true'], { term: 'xterm', columns: 80, rows: 24 });
  let count = 0;
  for (; !socket.isPaused && count < 20_000; count++) {
    socket.emit('message', Buffer.from([STDOUT, 0x78]));
    if (count % 100 === 0) await new Promise(setImmediate);
  }
  assert(socket.isPaused, `${count} pieces wait`);
});
