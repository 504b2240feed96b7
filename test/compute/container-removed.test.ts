import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { type Engine, openEngine } from '../../src/compute/engines/container/engine.ts';
import { beginIn } from '../../src/compute/engines/container/program.ts';
import { createGuest, type GuestOptions } from '../../src/compute/machine/guest.ts';
import { frame } from './engines/frame.ts';
import { containerSubject } from './engines/subject.ts';

const guestOf = (engine: Engine, options?: GuestOptions) =>
  createGuest((ref, order) => beginIn(engine, ref, order), options);

const ID = 'a4e0bc769d01b530c8e1ab636d4625e81b319aa7f6eeea6b632d1f6952de5b39';
const ORDER = { command: 'sleep 600', timeoutSeconds: 600, streamBytesMax: 1000 };
const podman = (cause: string, rest = '') => ({
  cause,
  message: `retrieving exec session e from container ${ID}: ${rest}${cause}`,
  response: 500,
});
/** What engines answer about a container that was removed while they answer, and about its commands. */
const REMOVED = {
  'Podman, whose container is no longer in its database': [
    500,
    podman('no such container', `container ${ID} does not exist in database: `),
  ],
  'Podman, whose container has no command any more': [500, podman('no such exec session')],
  Docker: [404, { message: 'No such exec instance: e' }],
} as const;

type Answer = readonly [status: number, body: object];

/**
 * An engine with one container, which runs one command. `inspect` answers about the command while its stream is open, knowing
 * its input, and `container` about the container and its removal.
 */
async function openFakeEngine(
  t: TestContext,
  { inspect, container }: { inspect?: (stream: Socket, input: string) => Answer; container?: Answer },
): Promise<string> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-engine-'));
  let stream: Socket;
  let input = '';
  const send = (response: ServerResponse, [status, body]: Answer) =>
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  const server = createServer((request, response) => {
    const asked = `${request.method} ${request.url?.replace(/\?.*/, '')}`;
    request.resume();
    if (asked === 'POST /containers/it/exec') return send(response, [201, { Id: 'e' }]);
    if (asked === 'GET /exec/e/json' && inspect) return send(response, inspect(stream, input));
    if (asked === 'GET /images/i/json') return send(response, [200, { Config: {} }]);
    if (asked === 'GET /version') return send(response, [200, { Version: '4.3.1', Arch: 'amd64' }]);
    if (asked.includes('/networks/')) return send(response, [404, { message: 'no such network' }]);
    return send(response, container ?? [200, { Image: 'i' }]);
  });
  server.on('upgrade', (_, socket: Socket) => {
    stream = socket;
    socket.on('data', (chunk) => {
      input += chunk;
    });
    socket.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n');
  });
  const path = join(directory, 'sock');
  await once(server.listen(path), 'listening');
  t.after(() => {
    stream?.destroy();
    server.close();
    server.closeAllConnections();
    rmSync(directory, { recursive: true, force: true });
  });
  return `unix://${path}`;
}

for (const [name, answer] of Object.entries(REMOVED)) {
  test(`${name}: the command was killed, and what it said before is whole`, async (t) => {
    const inspect = (stream: Socket) => {
      // The end of the stream comes after the answer, as on a busy machine.
      setTimeout(() => stream.end(frame(1, 'last\n')), 500);
      return answer;
    };
    const engine = openEngine({ socket: await openFakeEngine(t, { inspect }) });
    t.after(() => engine.close());
    const { exitCode, timedOut, stdout } = await guestOf(engine).exec('it', ORDER);
    assert.deepEqual([exitCode, timedOut, stdout.toString()], [137, false, 'last\n']);
  });

  test(`${name}: the machine is gone`, async (t) => {
    const { backend } = containerSubject({ socket: await openFakeEngine(t, { container: answer }) });
    t.after(() => backend.close());
    assert.equal(await backend.inspect('it'), undefined);
    await backend.destroy('it');
  });
}

/** Both outputs after the command, as the shell around it leaves them: with the mark of its input, and its exit code. */
const marked = (input: string, code: number) => [
  frame(1, `${input.trim()}${code}\n`),
  frame(2, `${input.trim()}${code}\n`),
];

test('what a command said is waited for, though the engine knows its exit code before', async (t) => {
  let isSent = false;
  const inspect = (stream: Socket, input: string): Answer => {
    if (input && !isSent)
      setTimeout(() => stream.write(Buffer.concat([frame(1, 'late\n'), ...marked(input, 3)])), 1000);
    isSent ||= input !== '';
    return [200, { Running: !isSent, ExitCode: isSent ? 3 : null }];
  };
  const engine = openEngine({ socket: await openFakeEngine(t, { inspect }) });
  t.after(() => engine.close());
  const { exitCode, stdout, stderr } = await guestOf(engine).exec('it', ORDER);
  assert.deepEqual([exitCode, stdout.toString(), stderr.toString()], [3, 'late\n', '']);
});

test('a command whose output the engine has lost is not answered with what is left', async (t) => {
  for (const part of [(input: string) => marked(input, 0).slice(0, 1), () => [frame(1, 'half')], () => []]) {
    const inspect = (stream: Socket, input: string): Answer => {
      if (input) stream.end(Buffer.concat(part(input)));
      return [200, { Running: !input, ExitCode: input ? 0 : null }];
    };
    const engine = openEngine({ socket: await openFakeEngine(t, { inspect }) });
    t.after(() => engine.close());
    await assert.rejects(guestOf(engine).exec('it', ORDER), /the engine lost the end of what the command said/);
  }
});

test('a command that Podman cannot start has its exit code and its words; without these, output was lost', async (t) => {
  const words = 'Error: runc: exec failed: unable to start container process: read init-p: reset: OCI runtime error\n';
  const run = async (output: (input: string) => Buffer[]) => {
    const inspect = (stream: Socket, input: string): Answer => {
      if (input) stream.end(Buffer.concat(output(input)));
      return [200, { Running: !input, ExitCode: input ? 125 : null }];
    };
    const engine = openEngine({ socket: await openFakeEngine(t, { inspect }) });
    t.after(() => engine.close());
    return guestOf(engine).exec('it', ORDER);
  };
  const { exitCode, stdout, stderr } = await run(() => [frame(2, words)]);
  assert.deepEqual([exitCode, stdout.toString(), stderr.toString()], [125, '', words]);
  for (const output of [
    () => [frame(2, 'half of an error: OCI runtime')],
    (input: string) => [frame(2, words), ...marked(input, 125).slice(0, 1)],
  ])
    await assert.rejects(run(output), /the engine lost the end of what the command said/);
});

test('another error of the engine is no end of a command, nor of a machine', async (t) => {
  const answer: Answer = [500, { cause: 'database is locked', message: 'database is locked', response: 500 }];
  const engine = openEngine({ socket: await openFakeEngine(t, { inspect: () => answer }) });
  t.after(() => engine.close());
  await assert.rejects(guestOf(engine).exec('it', ORDER), /database is locked/);
  const { backend } = containerSubject({ socket: await openFakeEngine(t, { container: answer }) });
  t.after(() => backend.close());
  await assert.rejects(backend.inspect('it'), /database is locked/);
  await assert.rejects(backend.destroy('it'), /database is locked/);
});

test('what a killed session left, and the killing does not find, is not waited for', async (t) => {
  const inspect = () => [200, { Running: true, ExitCode: null }] as const;
  const engine = openEngine({ socket: await openFakeEngine(t, { inspect }) });
  t.after(() => engine.close());
  const session = await guestOf(engine, { killMilliseconds: 200 }).session('it', {
    command: 'exec env -i sleep 600',
    terminal: undefined,
  });
  session.stdout.resume();
  session.kill();
  await assert.rejects(session.ended, /the session was killed/);
});
