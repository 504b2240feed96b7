import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { PassThrough, Readable } from 'node:stream';
import test from 'node:test';
import type { Guest, GuestSession } from '../../src/compute/backend.ts';
import { collectGarbage } from '../helper/garbage.ts';
import { longestTurn } from '../helper/turns.ts';
import { until } from '../helper/waiting.ts';
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

/** A session of a machine whose answers `answer` writes, once it has the token and the text of the script. */
function answeringSession(answer: (it: { token: string; text: string; stdout: PassThrough }) => Promise<void>) {
  const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
  stderr.end();
  const ended = Promise.withResolvers<{ code: number }>();
  let isOver = false;
  const end = () => {
    isOver = true;
    stdout.end();
    ended.resolve({ code: 0 });
  };
  stdin.once('data', (bytes: Buffer) => {
    const text = bytes.toString('latin1');
    const [token = ''] = text.split(/[ \n]/);
    void answer({ token, text, stdout });
  });
  const session: GuestSession = { stdin, stdout, stderr, resize() {}, ended: ended.promise, kill: end };
  return { session, end, isOver: () => isOver };
}

const ENTRY_COUNT = 80_000;
/** Far longer than a turn takes with others between the entries. */
const TURN_MILLISECONDS_MAX = 250;

test('a directory of very many entries leaves others their turn while it is read and listed', async (t) => {
  const { purser, create } = await openE2b(t);
  const { headers } = inside(purser, (await create()).body);
  const session = async (): Promise<GuestSession> => {
    const it = answeringSession(async ({ token, text, stdout }) => {
      const mark = /mark=([0-9a-f]{32})/.exec(text)?.[1];
      stdout.write(`${token} ok\n`);
      for (let i = 0; i < ENTRY_COUNT; ) {
        let piece = '';
        for (; piece.length < PIECE_BYTES && i < ENTRY_COUNT; i++) piece += `${mark}/81a4 0 1 0:0:a:a//${i}\n`;
        if (!stdout.write(piece)) await once(stdout, 'drain');
        await new Promise((resolve) => setImmediate(resolve)); // In a turn of its own, as from a socket.
      }
      stdout.write(`${mark}!`);
      it.end();
    });
    return it.session;
  };
  for (const { backend } of purser.app.slots.list) Object.assign(backend.guest, { session });
  let answer: Buffer[] = [];
  const turn = await longestTurn(async () => {
    const asked = request(`${purser.url}/v1/e2b/envd/filesystem.Filesystem/ListDir`, {
      method: 'POST',
      agent: false,
      headers: { ...headers, 'content-type': 'application/json' },
    });
    asked.end(JSON.stringify({ path: '/', depth: 1 }));
    const [it] = (await once(asked, 'response')) as [IncomingMessage];
    answer = await it.toArray();
  });
  const { entries } = JSON.parse(Buffer.concat(answer).toString());
  assert.deepEqual([entries.length, entries.at(-1).path], [ENTRY_COUNT, `/${ENTRY_COUNT - 1}`]);
  assert.ok(turn < TURN_MILLISECONDS_MAX, `a turn of ${turn.toFixed(0)} ms`);
});

/** The limits of what opens the session of a form: its own, and that of its caller. */
const OPENING_MILLISECONDS = [60_000, 75_000];

test('a session for small files that opens too late, or says its first word too late, is closed', async (t) => {
  const { purser, create } = await openE2b(t);
  const { headers } = inside(purser, (await create()).body);
  const real = setTimeout;
  let expire: (() => void)[] = [];
  t.mock.method(globalThis, 'setTimeout', (call: () => void, milliseconds: number) => {
    if (OPENING_MILLISECONDS.includes(milliseconds)) expire.push(call);
    return real(call, milliseconds);
  });
  for (const isSilent of [true, false]) {
    expire = [];
    const late = Promise.withResolvers<void>();
    const it = answeringSession(async ({ token, stdout }) => {
      if (isSilent) await late.promise;
      stdout.write(`${token} ok\n`);
    });
    let isAsked = false;
    const session = async (): Promise<GuestSession> => {
      isAsked = true;
      if (!isSilent) await late.promise;
      return it.session;
    };
    for (const { backend } of purser.app.slots.list) Object.assign(backend.guest, { session });
    const sent = purser.ask('POST', '/v1/e2b/envd/files', {
      headers: { ...headers, 'content-type': 'multipart/form-data; boundary=b' },
      body: '--b\r\nContent-Disposition: form-data; name="file"; filename="/tmp/x"\r\n\r\nhi\r\n--b--\r\n',
    });
    await until('a session is asked for', () => isAsked);
    for (const call of expire) call();
    assert.equal((await sent).status, 504);
    late.resolve();
    await until('the session is closed', it.isOver);
  }
});
