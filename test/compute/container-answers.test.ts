import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { followFaults } from '../../src/base/fault.ts';
import { openEngine, textOf } from '../../src/compute/engines/container/engine.ts';
import { beginIn } from '../../src/compute/engines/container/program.ts';
import { whyEnded } from '../../src/compute/engines/container/why-ended.ts';
import { createGuest } from '../../src/compute/machine/guest.ts';
import { waitFor } from '../helper/waiting.ts';
import { frame } from './engines/frame.ts';

/** What an engine may answer: every call ends, and what cannot be read is nothing that is known. */

/** An engine that answers each request with the bytes that fit its path, and closes the connection then. */
async function open(t: TestContext, answers: (path: string) => string) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-answers-'));
  const server = createServer((socket) => {
    socket.on('error', () => {});
    socket.once('data', (head) => socket.end(answers(head.toString().split(' ', 2)[1] as string)));
  });
  server.listen(join(directory, 'socket'));
  await once(server, 'listening');
  const engine = openEngine({ socket: `unix://${directory}/socket` });
  t.after(() => {
    engine.close();
    server.close();
    rmSync(directory, { recursive: true });
  });
  return engine;
}

const json = (value: unknown, status = 200) => {
  const body = JSON.stringify(value);
  return `HTTP/1.1 ${status} X\r\nConnection: close\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
};

/** That it fails as the answer comes, not at the limit of a call: that is above what a test waits for willingly. */
const ask = (engine: Awaited<ReturnType<typeof open>>) =>
  waitFor('the call has ended', engine.request('GET', '/x', undefined, 1e9));

for (const [name, answer] of Object.entries({
  'breaks off': 'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"x":',
  'is an upgrade nobody has asked for': 'HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n',
  'is none': '',
}))
  test(`an answer of the engine that ${name} fails its call`, async (t) => {
    await assert.rejects(ask(await open(t, () => answer)), /the engine closed the connection|socket hang up/);
  });

test('an answer at which the library throws is a fault, and fails its call', async (t) => {
  const faults: string[] = [];
  using _ = followFaults((where) => void faults.push(where));
  const engine = await open(t, () => json({ toString: 1 }, 500));
  const start = { hijack: true, stdin: true };
  await assert.rejects(
    waitFor(
      'it has ended',
      engine.ask('start', () => engine.docker.getExec('x').start(start)),
    ),
    TypeError,
  );
  assert.deepEqual(faults, ['backend']);
});

test('an endless answer in place of a connection fails its call', async (t) => {
  const engine = await open(t, () => json('x'.repeat(1_000_000), 500));
  const start = { hijack: true, stdin: true };
  await assert.rejects(
    waitFor(
      'it has ended',
      engine.ask('start', () => engine.docker.getExec('x').start(start)),
    ),
    /longer/,
  );
});

test('what an engine says of an error is told, whatever it is', async (t) => {
  for (const [said, told] of [
    [{ message: 'no space' }, /no space/],
    [{ message: { toString: 1 } }, /HTTP code 409/],
    ['<html>', /<html>/],
    [null, /HTTP code 409/],
  ] as const)
    await assert.rejects(ask(await open(t, () => json(said, 409))), told);
});

test('the limit of a call holds also when the library has lost the call', async (t) => {
  const engine = await open(t, () => '');
  const lost = engine.ask('the list', () => new Promise(() => {}), 1);
  await assert.rejects(waitFor('the call has ended', lost), /the list took longer than 0.001 s/);
});

test('a message of the engine that is no text is not taken for one', () => {
  const error = Object.assign(new Error('plain '), { json: { message: { toString: 1 }, cause: 5 } });
  assert.equal(textOf(error), 'plain');
});

test('what an engine says it is, and how large, is not believed for ever when it says nothing', async (t) => {
  let said: object = {};
  const engine = await open(t, () => json(said));
  await assert.rejects(engine.architecture(), /does not say what it is/);
  await assert.rejects(engine.capacity(), /does not say how large/);
  said = { Arch: 'arm64', NCPU: 2, MemTotal: 1024 ** 3 };
  assert.equal(await engine.architecture(), 'arm64');
  assert.deepEqual(await engine.capacity(), { cpus: 2, memory_gib: 1 });
});

test('a log that can be read as JSON is no log', async (t) => {
  const engine = await open(t, () => json({}));
  const inspected = { Id: 'x', State: { ExitCode: 0 }, HostConfig: {} } as never;
  assert.match(await waitFor('it is said', whyEnded(engine, inspected)), /^its deadline has passed [^;]*$/);
});

test('of a log, whose first line Podman may return in part, the last five lines are told', async (t) => {
  const engine = await open(t, (path) => {
    const count = Number(/tail=(\d+)/.exec(path)?.[1]);
    const lines = Array.from({ length: count - 1 }, (_, i) => frame(1, `${i ? 'line' : 'ne'} ${i + 1 - count}\n`));
    const log = Buffer.concat([...lines, frame(2, 'the fault\n')]).toString('latin1');
    return `HTTP/1.1 200 OK\r\ncontent-length: ${log.length}\r\n\r\n${log}`;
  });
  const inspected = { Id: 'x', State: { ExitCode: 38 }, HostConfig: {} } as never;
  const words = await waitFor('it is said', whyEnded(engine, inspected));
  assert.match(words, /the last of its output: the fault \| line -4 \| line -3 \| line -2 \| line -1$/);
});

test('a command that the engine says runs for ever is given up after its limit', async (t) => {
  const upgrade = 'HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n';
  const engine = await open(t, (path) =>
    path.endsWith('/start') ? upgrade : json({ Id: 'x', Image: 'x', Config: {}, Running: true, ExitCode: null }),
  );
  const guest = createGuest((ref, order) => beginIn(engine, ref, order), { graceMilliseconds: 1 });
  const order = { command: 'true', timeoutSeconds: 0, streamBytesMax: 100 };
  await assert.rejects(waitFor('it is given up', guest.exec('x', order)), { name: 'TimeoutError' });
});

test('the disk of an engine on another machine is not looked for on this one', async (t) => {
  let said: object = {};
  const freeBy = async (name: string, directory: string) => {
    said = { Name: name, DockerRootDir: directory };
    return (await open(t, () => json(said))).diskFree();
  };
  assert.ok(((await freeBy(hostname(), tmpdir())) as number) > 0);
  assert.equal(await freeBy('elsewhere', tmpdir()), undefined);
  assert.equal(await freeBy(hostname(), join(tmpdir(), 'no-such-directory')), undefined);
  const proxied = await open(t, () => json({ message: 'forbidden' }, 403));
  assert.equal(await proxied.diskFree(), undefined, 'a proxy before the engine may forbid the question');
});
