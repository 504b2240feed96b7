import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import { partOutput } from '../../src/compute/engines/container/exec-output.ts';
import { openKubernetesApi } from '../../src/compute/engines/kubernetes/api.ts';
import { createStreams } from '../../src/compute/engines/kubernetes/stream.ts';
import { MessageStream } from '../../src/compute/engines/lxd/websocket.ts';
import { assertLinear } from '../helper/cpu.ts';
import { until } from '../helper/waiting.ts';
import { frame } from './engines/frame.ts';

/** So much a socket gives at once. */
const CHUNK_BYTES = 64 * 1024;

/** What a command says a byte at a time comes in frames as short, as many as a socket holds: by engine, one of them, and what reads them. */
const READERS: Record<string, [frame: Buffer, open: () => (chunk: Buffer) => void]> = {
  Docker: [
    frame(1, Buffer.from('x')),
    () => {
      const source = new PassThrough();
      const { stdout } = partOutput(source, { terminal: false });
      return (chunk) => {
        source.emit('data', chunk);
        stdout.read(); // Nothing is to grow from one time to the next: all are in one turn.
      };
    },
  ],
  LXD: [
    Buffer.from([0x82, 1, 0x78]),
    () => {
      const socket = new PassThrough();
      new MessageStream(socket).resume();
      return (chunk) => void socket.emit('data', chunk);
    },
  ],
  'LXD, without content': [
    Buffer.from([0x82, 0]),
    () => {
      const socket = new PassThrough();
      new MessageStream(socket).resume();
      return (chunk) => void socket.emit('data', chunk);
    },
  ],
};

for (const [name, [crumb, open]] of Object.entries(READERS))
  test(`${name}: short frames take time in proportion to their number`, () =>
    assertLinear(name, CHUNK_BYTES, (length) => {
      const chunk = Buffer.alloc(length - (length % crumb.length), crumb);
      return () => open()(chunk);
    }));

test('Kubernetes: of messages that come at once, others have a turn between them', async (t) => {
  const server = createServer();
  t.after(() => server.close());
  server.on('upgrade', ({ headers }, socket) => {
    const accept = createHash('sha1').update(`${headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`);
    const head = ['Connection: Upgrade', 'Upgrade: websocket', `Sec-WebSocket-Accept: ${accept.digest('base64')}`];
    socket.write(
      `HTTP/1.1 101 x\r\n${head.join('\r\n')}\r\nSec-WebSocket-Protocol: ${headers['sec-websocket-protocol']}\r\n\r\n`,
    );
    socket.end(Buffer.alloc(CHUNK_BYTES / 16, Buffer.from([0x82, 2, 1, 0x78])));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const cluster = { server: `http://127.0.0.1:${port}`, credentials: async () => ({ tls: {} }), renew() {} };
  const api = openKubernetesApi(async () => cluster as never);
  t.after(() => api.close());
  const socket = await api.connect('/', 'v5.channel.k8s.io');
  let [inTurn, most, all] = [0, 0, 0];
  socket.on('message', () => {
    all++;
    if (++inTurn === 1)
      setImmediate(() => {
        inTurn = 0;
      });
    most = Math.max(most, inTurn);
  });
  await once(socket, 'close');
  assert.equal(all, CHUNK_BYTES / 64);
  assert(most <= 4, `${most} messages in one turn`);
});

/** A socket to the server of a cluster, which the test speaks for. */
class Socket extends EventEmitter {
  readonly OPEN = 1;
  readonly protocol = 'v5.channel.k8s.io';
  readonly readyState: number;
  isPaused = false;
  constructor(readyState: number) {
    super();
    this.readyState = readyState;
  }
  send(_: Buffer, done?: () => void) {
    done?.();
  }
  terminate() {}
  pause() {
    this.isPaused = true;
  }
  resume() {
    this.isPaused = false;
  }
}

test('Kubernetes: however many messages come before the pause takes effect, one listener waits for the reader', async () => {
  const socket = new Socket(1);
  const streams = createStreams({ connect: async () => socket } as never, 'pods');
  const { stdout } = await streams.begin('pod', ['true'], { term: 'xterm', columns: 80, rows: 24 });
  const count = CHUNK_BYTES / 4;
  for (let i = 0; i < count; i++) socket.emit('message', Buffer.from('\x01x'));
  assert.equal(socket.isPaused, true);
  assert.deepEqual([stdout.listenerCount('drain'), stdout.listenerCount('close')], [1, 1]);
  let read = 0;
  stdout.on('data', (bytes: Buffer) => {
    read += bytes.length;
  });
  await until(
    () => `${read} bytes have been read`,
    () => read === count && !socket.isPaused,
  );
  assert.deepEqual([stdout.listenerCount('drain'), stdout.listenerCount('close')], [0, 0]);
});

/** Begins a command in a pod whose server then says this as its status, and is gone. */
async function endOf(status: string): Promise<number> {
  const socket = new Socket(3);
  const streams = createStreams({ connect: async () => socket } as never, 'pods');
  const { stdout, stderr, ended } = await streams.begin('pod', ['true'], { term: 'xterm', columns: 80, rows: 24 });
  stdout.resume();
  stderr.resume();
  for (let at = 0; at < status.length; at += CHUNK_BYTES)
    socket.emit('message', Buffer.from(`\x03${status.slice(at, at + CHUNK_BYTES)}`));
  socket.emit('close');
  const end = await ended;
  assert('code' in end);
  return end.code;
}

test('Kubernetes: whatever a server says as the status of a command, that has ended', async () => {
  const causes = ['{}', '"x"', '[null]', '[[]]', '[{"message":{}}]'].map((it) => `{"details":{"causes":${it}}}`);
  const texts = ['null', '1', '[]', '{', '{"message":{"toString":1}}', '{"details":[]}', ...causes];
  const endless = `{"status":"Success","message":"${'x'.repeat(1024 * 1024)}"}`;
  for (const text of [...texts, endless, '['.repeat(1024 * 1024)])
    await assert.rejects(endOf(text), /nobody knows how it ended/, text.slice(0, 100));
  const exit = { reason: 'NonZeroExitCode', details: { causes: [{ reason: 'ExitCode', message: '3' }] } };
  assert.equal(await endOf(JSON.stringify({ ...exit, message: null, metadata: {} })), 3);
  assert.equal(await endOf('{"status":"Success"}'), 0);
});
