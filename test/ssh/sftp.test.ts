import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, readlinkSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import type { GuestSession } from '../../src/compute/backend.ts';
import { createScriptClient, ScriptLost } from '../../src/compute/machine/sftp-client.ts';
import { factsOf } from '../../src/compute/machine/sftp-facts.ts';
import { SftpFault, STATUS } from '../../src/compute/machine/sftp-fault.ts';
import { MalformedPacket, OPEN, REQUEST, string, uint32 } from '../../src/compute/machine/sftp-wire.ts';
import { longName } from '../../src/ssh/sftp-entry.ts';
import { openServer, testShell } from './sftp-suite.ts';
import { openDirectory, openLocalSession, openWireClient, withMode } from './wire-client.ts';

testShell('dash');

test('what is still to be closed when its session has ended is not sent', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const faults: Error[] = [];
  const stdin = new PassThrough().on('error', (error) => faults.push(error));
  const [stdout, stderr] = [new PassThrough(), new PassThrough()];
  const script = createScriptClient({ stdin, stdout, stderr, ended: new Promise(() => {}), resize() {}, kill() {} });
  script.close(3);
  stdin.end();
  t.mock.timers.tick(1000);
  await new Promise(setImmediate);
  assert.deepEqual(faults, []);
  script.close(4);
  t.mock.timers.tick(1000);
  await new Promise(setImmediate);
  assert.deepEqual(faults, []);
});

test('whoever does not speak the protocol is not spoken with', async (t) => {
  const packet = (...parts: Buffer[]) => Buffer.concat([uint32(Buffer.concat(parts).length), ...parts]);
  const open = [Buffer.of(REQUEST.open), uint32(1), string('/tmp/x')];
  const rude: [Buffer, boolean][] = [
    [packet(...open, uint32(1), uint32(0)), false], // No greeting first.
    [Buffer.from('GET / HTTP/1.1\r\n\r\n'), false],
    [uint32(0), true],
    [uint32(0xffffffff), true],
    [Buffer.concat([uint32(256 * 1024 + 1), Buffer.alloc(256 * 1024 + 1, REQUEST.write)]), true],
    [packet(Buffer.of(REQUEST.open)), true],
    [packet(...open), true],
    [packet(Buffer.of(REQUEST.stat), uint32(1), uint32(1000), Buffer.from('short')), true],
    [packet(Buffer.of(REQUEST.write), uint32(1), string('abcd'), Buffer.alloc(8), uint32(9), Buffer.from('x')), true],
    [packet(Buffer.of(REQUEST.setstat), uint32(1), string('/tmp'), uint32(0x80000000), uint32(0xffffffff)), true],
  ];
  for (const [index, [bytes, greet]] of rude.entries()) {
    const session = openLocalSession(t, { shell: ['dash'], directory: openDirectory(t) });
    const client = await openWireClient(t, session, { greet });
    client.source.write(bytes);
    await assert.rejects(client.served, MalformedPacket, `case ${index}`);
    session.kill();
  }
});

test('handles are few, and a name that was never given is none', async (t) => {
  const it = await openServer(t, 'dash');
  const { client, at, directory } = it;
  const made = await Promise.all(
    Array.from({ length: 7 }, (_, index) => client.open(at(`file ${index}`), OPEN.write | OPEN.create)),
  );
  assert.deepEqual(
    made.map(({ status }) => status),
    [...Array(6).fill(undefined), STATUS.failure],
  );
  assert.match(made[6]?.message ?? '', /at most 6 files/);
  for (const [index, { handle }] of made.slice(0, 6).entries())
    await client.write(handle as Buffer, 0, Buffer.from(`content ${index}`));
  await client.close(made[2]?.handle as Buffer);
  const again = (await client.open(at('file 6'), OPEN.write | OPEN.create)).handle as Buffer;
  await client.write(again, 0, Buffer.from('content 6'));
  for (let index = 0; index < 7; index++)
    assert.equal(readFileSync(at(`file ${index}`), 'utf8'), `content ${index}`, 'each has its own');
  for (const name of [Buffer.alloc(4), uint32(999), Buffer.from('x'), Buffer.alloc(256), made[2]?.handle as Buffer]) {
    assert.equal((await client.read(name, 0, 1)).status, STATUS.failure);
    assert.equal((await client.write(name, 0, Buffer.from('x'))).status, STATUS.failure);
    assert.equal((await client.close(name)).status, STATUS.failure);
    assert.equal((await client.ask(REQUEST.readdir, string(name))).status, STATUS.failure);
    assert.equal((await client.ask(REQUEST.fsetstat, string(name), withMode(0))).status, STATUS.failure);
  }
  const directories = await Promise.all(Array.from({ length: 17 }, () => client.path(REQUEST.opendir, directory)));
  assert.equal(directories[15]?.status, undefined);
  assert.equal(directories[16]?.status, STATUS.failure);
  assert.equal((await client.read(directories[0]?.handle as Buffer, 0, 1)).status, STATUS.failure);
});

test('a client that does not read is not worked for', async (t) => {
  const it = await openServer(t, 'dash');
  const { client, at } = it;
  writeFileSync(at('file'), Buffer.alloc(4 * 1024 * 1024, 'x'));
  const { handle } = await client.open(at('file'), OPEN.read);
  const release = client.hold();
  const answers = Array.from({ length: 100 }, (_, index) => client.read(handle as Buffer, index * 32_768, 32_768));
  // What it sends stays where it is felt: one request is in hand, the others wait.
  await new Promise((resolve) => setTimeout(resolve, 300));
  assert.ok(client.source.readableLength > 90 * 25, `${client.source.readableLength} bytes wait`);
  release();
  for (const answer of answers) assert.equal((await answer).data?.length, 32_768);
});

test('a write is not called done when the session inside ends before it is', async (t) => {
  const it = await openServer(t, 'dash');
  const { client, session, at } = it;
  const handle = (await client.open(at('file'), OPEN.write | OPEN.create)).handle as Buffer;
  process.kill(session.pid, 'SIGSTOP');
  let answered = false;
  void client.write(handle, 0, Buffer.alloc(100_000)).then(() => {
    answered = true;
  });
  process.kill(session.pid, 'SIGKILL');
  await assert.rejects(client.served, ScriptLost);
  assert.equal(answered, false);
});

test('a machine that does not answer is given up after two minutes', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let isKilled = false;
  const session: GuestSession = {
    stdin: new PassThrough(),
    stdout: new PassThrough(),
    stderr: new PassThrough(),
    resize: () => {},
    ended: new Promise(() => {}),
    kill: () => {
      isKilled = true;
    },
  };
  const client = await openWireClient(t, session);
  const failed = assert.rejects(client.served, { message: 'the machine was silent for 120 s' });
  t.mock.timers.tick(119_999);
  assert.equal(isKilled, false);
  t.mock.timers.tick(1);
  await failed;
  assert.equal(isKilled, true);
});

test('a machine without what is needed says what it lacks', async (t) => {
  const directory = openDirectory(t);
  for (const name of ['cat', 'chmod', 'chown', 'head', 'ln', 'mkdir', 'mv', 'readlink', 'rm', 'rmdir', 'stat', 'touch'])
    symlinkSync(execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim(), join(directory, name));
  const session = openLocalSession(t, { shell: ['env', `PATH=${directory}`, '/bin/dash'], directory });
  const client = await openWireClient(t, session);
  await assert.rejects(client.served, { message: 'this machine has no dd' });
});

test('a tool that does less than it says is found out', async (t) => {
  const tools = {
    head: '/usr/bin/head -c $(($2 - 1)); /usr/bin/head -c 1 >/dev/null',
    dd: 'case $* in *seek*) exit 0 ;; esac; exec /bin/dd "$@"',
  };
  for (const [name, body] of Object.entries(tools)) {
    const directory = openDirectory(t);
    mkdirSync(join(directory, 'bin'));
    writeFileSync(join(directory, 'bin', name), `#!/bin/sh\n${body}\n`, { mode: 0o755 });
    const path = `PATH=${directory}/bin:${process.env.PATH}`;
    const session = openLocalSession(t, { shell: ['env', path, 'dash'], directory });
    const client = await openWireClient(t, session);
    const { handle } = await client.open('file', OPEN.write | OPEN.create);
    const answers = [await client.write(handle as Buffer, 0, Buffer.from('first'))];
    answers.push(await client.write(handle as Buffer, 100, Buffer.from('second')));
    assert.equal(answers[1]?.status, STATUS.failure, name);
    assert.match(answers[1]?.message ?? '', /the file is at \d+ instead of \d+/);
    session.kill();
  }
});

test('what a shell says before it begins is not taken for an answer', async (t) => {
  const directory = openDirectory(t);
  const noise = 'echo "welcome 0"; echo "12345678/ 0022 /wrong"; echo problem >&2; exec dash "$@"';
  const session = openLocalSession(t, { shell: ['dash', '-c', noise, 'dash'], directory });
  const client = await openWireClient(t, session);
  const { names } = await client.path(REQUEST.realpath, '.');
  assert.equal(names?.[0]?.name.toString(), directory);
});

test('the two paths of a link are read in the order of whoever says them', async (t) => {
  for (const [software, first, second] of [
    ['OpenSSH_9.2p1 Debian-2', 'target', 'link'],
    ['paramiko_3.4.0', 'target', 'link'],
    ['Go', 'target', 'link'],
    ['libssh_0.10.5', 'link', 'target'],
    ['GoAnywhere', 'link', 'target'],
  ] as const) {
    const it = await openServer(t, 'dash', { software });
    assert.equal((await it.client.path(REQUEST.symlink, first, string(second))).status, STATUS.ok);
    assert.equal(readlinkSync(it.at('link')), 'target', software);
  }
});

test('a line of a directory looks as ls makes it', () => {
  const now = Date.UTC(2026, 10, 21, 12) / 1000;
  const line = (mode: number, modified: number) => {
    const facts = factsOf(`${mode.toString(16)} 1234 0 100 1 ${modified} 2:root:UNKNOWN\n`);
    return longName(facts, Buffer.from('a name'), now).toString();
  };
  assert.equal(line(0o100644, now - 60), '-rw-r--r--   2 root     100          1234 Nov 21 11:59 a name');
  assert.equal(line(0o041777, 0), 'drwxrwxrwt   2 root     100          1234 Jan  1  1970 a name');
  assert.equal(line(0o104750, now), '-rwsr-x---   2 root     100          1234 Nov 21 12:00 a name');
  assert.equal(line(0o102640, now), '-rw-r-S---   2 root     100          1234 Nov 21 12:00 a name');
  assert.equal(line(0o120777, now).slice(0, 10), 'lrwxrwxrwx');
  assert.throws(() => factsOf('81a4 12 nonsense'), SftpFault);
});
