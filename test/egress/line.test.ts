import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { type Duplex, PassThrough, Writable } from 'node:stream';
import test, { type TestContext } from 'node:test';
import { setImmediate as immediate, setTimeout as pause } from 'node:timers/promises';
import {
  createFrameReader,
  LineBroken,
  openLine,
  PIECE_COST,
  STREAM_COUNT_MAX,
  WINDOW,
} from '../../src/egress/line.ts';
import { resetConnection } from '../../src/net/reset.ts';
import { freePort } from '../helper/free-port.ts';
import { until } from '../helper/waiting.ts';

const ARCHITECTURE = process.arch === 'x64' ? 'amd64' : process.arch;
const PROGRAM = join(import.meta.dirname, `../../src/compute/kit/watchdog/watchdog-${ARCHITECTURE}`);

/** The program itself on this machine's loopback, with its streams here. */
async function openProgram(t: TestContext, accept: (stream: Duplex) => void) {
  const port = await freePort();
  const child = spawn(PROGRAM, ['egress', String(port)], { stdio: ['pipe', 'pipe', 'inherit'] });
  t.after(() => child.kill('SIGKILL'));
  const ended = once(child, 'exit').then(([code]) => ({ code: code as number }));
  const line = openLine({ stdin: child.stdin, stdout: child.stdout, ended, kill: () => child.stdin.destroy() }, accept);
  await line.ready;
  const dial = () => {
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    t.after(() => socket.destroy());
    return socket.on('error', () => {});
  };
  return { port, child, ended, line, dial };
}

/** Reads a stream to its end. */
async function lengthOf(stream: Socket): Promise<number> {
  let length = 0;
  for await (const piece of stream) length += piece.length;
  return length;
}

const LENGTH = 3 * 1024 * 1024 + 1;
const bytes = Buffer.alloc(LENGTH, 'abcdefg');

test('connections pass through the program whole, both ways, more of them than there are numbers', async (t) => {
  const { line, dial } = await openProgram(t, (stream) => stream.pipe(stream));
  for (let round = 0; round < 3; round++) {
    const sockets = Array.from({ length: 30 }, dial);
    const lengths = sockets.map(async (socket) => {
      let at = 0;
      for await (const piece of socket) {
        assert(piece.equals(bytes.subarray(at, at + piece.length)));
        at += piece.length;
      }
      return at;
    });
    for (const it of sockets) it.end(bytes);
    assert.deepEqual([...new Set(await Promise.all(lengths))], [LENGTH]);
  }
  await until('no stream is left', async () => line.streamCount() === 0);
  // One that waits for a number gets the first that is free.
  const many = Array.from({ length: STREAM_COUNT_MAX + 1 }, dial);
  await until('all numbers are taken', async () => line.streamCount() === STREAM_COUNT_MAX);
  const last = lengthOf(many.at(-1) as Socket);
  many[0]?.end();
  many.at(-1)?.end('x');
  assert.equal(await last, 1);
});

test('a connection that is cut ends on the other side, whichever side cuts it', async (t) => {
  const streams: Duplex[] = [];
  const { line, dial } = await openProgram(t, (stream) => streams.push(stream.on('error', () => {})));
  const one = dial();
  await until('it is there', async () => streams.length === 1);
  streams[0]?.destroy();
  assert.equal(await lengthOf(one), 0);
  one.destroy();
  const other = dial();
  other.write('x');
  await until('it is there', async () => streams.length === 2);
  await once(streams[1] as Duplex, 'readable');
  resetConnection(other);
  await until('its end is there', async () => streams[1]?.destroyed ?? false);
  await until('no stream is left', async () => line.streamCount() === 0);
});

test('the program ends with its input, and takes its port with it', async (t) => {
  const { ended, child, port } = await openProgram(t, () => {});
  child.stdin.end();
  assert.deepEqual(await ended, { code: 0 });
  const again = spawn(PROGRAM, ['egress', String(port)], { stdio: ['pipe', 'pipe', 'inherit'] });
  t.after(() => again.kill('SIGKILL'));
  await once(again.stdout, 'readable');
  // A second one on the port says so (EADDRINUSE).
  const second = spawn(PROGRAM, ['egress', String(port)], { stdio: ['pipe', 'pipe', 'inherit'] });
  assert.deepEqual((await once(second, 'exit'))[0], 98);
});

test('what is neither read nor sent stays in bounds on both sides', async (t) => {
  const streams: Duplex[] = [];
  const { line, dial } = await openProgram(t, (stream) => streams.push(stream));
  const socket = dial();
  // Unread by the proxy: the program stops reading.
  socket.write(Buffer.alloc(8 * 1024 * 1024));
  await until('a window has come', async () => line.keptBytes() > WINDOW - 2 * 16_384);
  assert(line.keptBytes() <= WINDOW, String(line.keptBytes()));
  assert(socket.bytesWritten > 0);
  // Unread by the lease: the stream takes no more.
  let taken = 0;
  const stream = streams[0] as Duplex;
  const piece = Buffer.alloc(16_384);
  while (stream.write(piece)) taken += piece.length;
  assert(taken <= WINDOW + piece.length, String(taken));
});

test('what a slow reader has taken is not kept, however much comes', async (t) => {
  const streams: Duplex[] = [];
  const { line, dial } = await openProgram(t, (stream) => streams.push(stream));
  dial().end(bytes);
  await until('it is there', async () => streams.length === 1);
  const stream = streams[0] as Duplex;
  for (let length = 0; length < LENGTH; ) {
    const isThere = () => line.keptBytes() > WINDOW / 2 || length + line.keptBytes() >= LENGTH;
    await until('more is there', async () => isThere());
    // A window that was passed on and not yet read, and the one that may come after it.
    assert(line.keptBytes() <= 2 * WINDOW, `${line.keptBytes()} bytes are kept after ${length}`);
    length += stream.read()?.length ?? 0;
  }
});

const numbers = Array.from({ length: STREAM_COUNT_MAX }, (_, number) => number);

/** A line whose program is the test's. */
function openFake() {
  const [stdin, stdout] = [new PassThrough(), new PassThrough()];
  const streams: Duplex[] = [];
  const ended = Promise.withResolvers<void>();
  const line = openLine({ stdin, stdout, ended: ended.promise, kill: () => ended.resolve() }, (it) => streams.push(it));
  return { stdin, stdout, streams, line };
}
const frame = (kind: number, stream: number, content = Buffer.alloc(0)) =>
  Buffer.concat([Buffer.from([kind, stream, content.length >> 8, content.length & 255]), content]);

test('a program that sends more than it may, or what no program sends, ends its line', async () => {
  const tiny = frame(2, 0, Buffer.from('x'));
  const allowed = Math.floor(WINDOW / (1 + PIECE_COST));
  const sound = openFake();
  sound.stdout.write(Buffer.concat([frame(1, 0), ...Array<Buffer>(allowed).fill(tiny)]));
  await until('they have come', async () => sound.line.keptBytes() === allowed);
  const broken = [
    Buffer.concat([frame(1, 0), ...Array<Buffer>(allowed + 2).fill(tiny)]),
    Buffer.concat([frame(1, 0), frame(1, 0)]),
    frame(1, STREAM_COUNT_MAX),
    frame(2, 3, Buffer.from('x')),
    frame(7, 0),
    frame(0, 0),
    frame(3, 0),
    Buffer.concat([frame(1, 0), frame(2, 0)]),
    Buffer.concat([frame(1, 0), Buffer.from([2, 0, 0xff, 0xff])]),
    Buffer.concat([frame(1, 0), frame(3, 0), tiny]),
    Buffer.concat([frame(1, 0), frame(5, 0, Buffer.from([255, 255, 255, 255]))]),
    Buffer.concat([frame(1, 0), frame(4, 0), frame(4, 0)]),
    // It cannot know yet that its number is free.
    Buffer.concat([frame(1, 0), frame(4, 0), frame(1, 0)]),
  ];
  for (const it of broken) {
    const fake = openFake();
    fake.stdout.write(it);
    assert((await fake.line.ended) instanceof LineBroken, it.subarray(0, 40).toString('hex'));
    assert(fake.streams.every((stream) => stream.destroyed));
  }
});

test('pieces of one byte that come at once are one write and one credit for each stream', async () => {
  const { stdin, stdout, streams } = openFake();
  let [credits, pieces, length] = [0, 0, 0];
  stdin.on(
    'data',
    createFrameReader(({ kind }) => {
      if (kind === 5) credits += 1;
    }),
  );
  stdout.write(Buffer.concat(numbers.map((number) => frame(1, number))));
  await until('all are open', async () => streams.length === STREAM_COUNT_MAX);
  for (const it of streams)
    it.on('data', (piece: Buffer) => {
      pieces += 1;
      length += piece.length;
    });
  const each = Buffer.concat(numbers.map((number) => frame(2, number, Buffer.from('x'))));
  stdout.write(Buffer.concat(Array<Buffer>(200).fill(each)));
  await until('all have come', async () => length === 200 * STREAM_COUNT_MAX);
  assert(pieces <= 2 * STREAM_COUNT_MAX && credits <= 2 * STREAM_COUNT_MAX, `${pieces} pieces, ${credits} credits`);
});

/** A line whose program is the test's, and reads only while `reads` says so. */
function openDeaf(accept: (stream: Duplex) => void) {
  const held: (() => void)[] = [];
  const said: Buffer[] = [];
  const stdin = new Writable({
    highWaterMark: 32 * 1024,
    write(piece: Buffer, _, done) {
      said.push(piece);
      held.push(done);
    },
  });
  const stdout = new PassThrough();
  const ended = Promise.withResolvers<void>();
  const line = openLine({ stdin, stdout, ended: ended.promise, kill: () => ended.resolve() }, accept);
  let isOver = false;
  void line.ended.then(() => {
    isOver = true;
  });
  return { stdin, stdout, line, said, isOver: () => isOver, take: () => held.shift()?.() };
}

test('what a program that reads nothing is to be told stays in bounds: it can open and send no more', async () => {
  const opening = openDeaf(() => {});
  let rounds = 0;
  for (; rounds < 20 && !opening.isOver(); rounds++) {
    opening.stdout.write(Buffer.concat(numbers.flatMap((number) => [frame(1, number), frame(4, number)])));
    await pause(50); // However long it waits.
  }
  assert(rounds < 10, String(rounds));
  assert((await opening.line.ended) instanceof LineBroken);
  assert(opening.stdin.writableLength < 2048, String(opening.stdin.writableLength));

  const sending = openDeaf((stream) => stream.resume());
  sending.stdout.write(frame(1, 0));
  const piece = frame(2, 0, Buffer.alloc(10_000));
  let count = 0;
  for (; count < 600 && !sending.isOver(); count++) {
    sending.stdout.write(piece);
    await immediate();
  }
  assert(count < 600, String(count));
  assert((await sending.line.ended) instanceof LineBroken);
  assert(sending.stdin.writableLength < 4096, `${sending.stdin.writableLength} after ${count} pieces`);
});

test('a program that reads slowly is told everything, and so is one that gives its credit byte by byte', async () => {
  const length = WINDOW + 4096;
  const { line, said, stdout, take, isOver } = openDeaf((stream) => stream.resume().end(Buffer.alloc(length, 'x')));
  const got = new Map<number, number>();
  const over: number[] = [];
  const read = createFrameReader(({ kind, stream, content }) => {
    if (kind === 2) {
      got.set(stream, (got.get(stream) ?? 0) + content.length);
      const amount = Buffer.alloc(4);
      amount.writeUInt32BE(stream % 2 ? 1 : content.length);
      stdout.write(Buffer.alloc(8 * (stream % 2 ? content.length : 1), frame(5, stream, amount)));
    }
    if (kind === 3) stdout.write(frame(3, stream));
    if (kind === 4) over.push(stream);
  });
  stdout.write(Buffer.concat(numbers.slice(0, 4).map((number) => frame(1, number))));
  let frames = 0;
  while (over.length < 4 && !isOver()) {
    for (const it of said.splice(0)) {
      frames += 1;
      read(it);
    }
    take();
    await immediate();
  }
  assert.deepEqual([...got.values()], Array<number>(4).fill(length));
  assert(frames < 4 * (length / 1024 + 10), `${frames} frames`);
  line.close();
});

test('frames are the same however they are cut, and a million of one byte take time in proportion', () => {
  const frames = Array.from({ length: 40 }, (_, at) => frame(2, at % 64, Buffer.alloc(1 + ((at * 7919) % 16_384), at)));
  const whole = Buffer.concat(frames);
  for (const step of [1, 2, 3, 5, 1000, 65_536, whole.length]) {
    let at = 0;
    const read = createFrameReader(({ stream, content }) => {
      assert(frame(2, stream, Buffer.from(content)).equals(frames[at++] as Buffer));
    });
    for (let from = 0; from < whole.length; from += step) read(Buffer.from(whole.subarray(from, from + step)));
    assert.equal(at, frames.length);
  }
  let count = 0;
  const read = createFrameReader(() => {
    count += 1;
  });
  const tiny = Buffer.concat(Array<Buffer>(1000).fill(frame(2, 0, Buffer.from('x'))));
  for (let at = 0; at < 1000; at++) read(tiny);
  assert.equal(count, 1_000_000);
});
