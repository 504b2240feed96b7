import assert from 'node:assert/strict';
import { request } from 'node:http';
import { PassThrough, Readable } from 'node:stream';
import test from 'node:test';
import type { Guest, GuestSession } from '../../src/compute/backend.ts';
import { collectGarbage } from '../helper/garbage.ts';
import { inside, openE2b } from './shared.ts';

const MIB = 1024 * 1024;
/** After so much a machine of these tests ends by itself: a call may read and drop all that one prints. */
const PRINTED_BYTES = 24 * MIB;
const PIECE_BYTES = 64 * 1024;
/** A call that keeps what it is told keeps about as much as is printed, one that does not keeps next to nothing. */
const KEPT_BYTES_MAX = 12 * MIB;

const used = () => {
  collectGarbage();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
};

/** Sessions of a machine that answers a script as it is expected, and then prints for as long as somebody reads. */
function floodingSessions() {
  const before = used();
  const flood = { kept: 0, opened: 0 };
  const over = Promise.withResolvers<void>();
  const session = async (): Promise<GuestSession> => {
    flood.opened += 1;
    const stdin = new PassThrough();
    const ended = Promise.withResolvers<{ code: number }>();
    let answer = '';
    let printed = 0;
    const stdout = new Readable({
      read() {
        if (!answer) return;
        if (printed === 0) this.push(answer);
        printed += PIECE_BYTES;
        const isLast = printed >= PRINTED_BYTES;
        if (isLast) flood.kept = used() - before;
        // In a turn of its own, as from a socket.
        setImmediate(() => this.push(isLast ? null : Buffer.alloc(PIECE_BYTES, 'x')));
      },
    });
    stdin.on('data', (chunk: Buffer) => {
      if (answer) return;
      answer = `${chunk.toString('latin1').split(/[ \n]/)[0]} ok\nyes\n`;
      stdout.read(0);
    });
    const end = () => {
      ended.resolve({ code: 0 });
      over.resolve();
    };
    stdout.once('close', end).once('end', end);
    const stderr = new PassThrough();
    stderr.end();
    return { stdin, stdout, stderr, resize() {}, ended: ended.promise, kill: () => void stdout.destroy() };
  };
  return { session, flood, over: over.promise };
}

const E2B_CALLS: [string, object][] = [
  ['filesystem.Filesystem/Stat', { path: '/tmp' }],
  ['filesystem.Filesystem/ListDir', { path: '/tmp', depth: 1 }],
  ['filesystem.Filesystem/MakeDir', { path: '/tmp/a' }],
  ['filesystem.Filesystem/Move', { source: '/tmp/a', destination: '/tmp/b' }],
  ['filesystem.Filesystem/Remove', { path: '/tmp/a' }],
  ['filesystem.Filesystem/CreateWatcher', { path: '/tmp' }],
];
const LEASE_CALLS: [string, object][] = [
  ['files', { path: '/tmp' }],
  ['download', { path: '/tmp/a' }],
  ['process/start', { command: 'true' }],
  ['process/list', {}],
  ['process/log', { process_id: 'proc_01k9v3c2mq8r5t7w1x4z6b0d2f' }],
  ['process/kill', { process_id: 'proc_01k9v3c2mq8r5t7w1x4z6b0d2f' }],
  ['exec', { command: 'true', cwd: 'work' }],
];

test('what a machine prints without end is kept by no call', async (t) => {
  const { purser, wallet, create } = await openE2b(t);
  const sandbox = (await create()).body;
  const { rpc, headers } = inside(purser, sandbox);
  const id = `res_${sandbox.sandboxID}`;
  const use = (session: Guest['session']) => {
    for (const { backend } of purser.app.slots.list) Object.assign(backend.guest, { session });
  };
  for (const [name, call] of [
    ...E2B_CALLS.map(([name, body]) => [name, () => rpc(name, body)] as const),
    ...LEASE_CALLS.map(
      ([name, body]) =>
        [
          name,
          () => purser.ask('POST', `/v1/compute/${name}`, { token: wallet.token, body: { id, ...body } }),
        ] as const,
    ),
  ]) {
    const { session, flood } = floodingSessions();
    use(session);
    await call();
    assert.equal(flood.opened, 1, name);
    assert.ok(flood.kept < KEPT_BYTES_MAX, `${name} keeps ${(flood.kept / MIB).toFixed(0)} MiB`);
  }

  // Its body does not end, so neither does the session in which its files are written.
  const { session, flood, over } = floodingSessions();
  use(session);
  const form = request(`${purser.url}/v1/e2b/envd/files`, {
    method: 'POST',
    agent: false,
    headers: { ...headers, 'content-type': 'multipart/form-data; boundary=b', 'transfer-encoding': 'chunked' },
  });
  form.on('error', () => {});
  form.write('--b\r\nContent-Disposition: form-data; name="file"; filename="/tmp/x"\r\n\r\nhi\r\n');
  form.write('--b\r\nContent-Disposition: form-data; name="file"; filename="/tmp/y"\r\n\r\nhi\r\n--b');
  await over;
  form.destroy();
  assert.ok(flood.kept < KEPT_BYTES_MAX, `a form keeps ${(flood.kept / MIB).toFixed(0)} MiB`);
});
