import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import test from 'node:test';
import type ssh2 from 'ssh2';
import { until } from '../helper/waiting.ts';
import { type AnyLease, openClient, openLease, openLeaseInside, openLimited, type Ran } from './lease.ts';

const MIB = 1024 * 1024;

const execOf = (client: ssh2.Client, command: string) =>
  new Promise<ssh2.ClientChannel>((resolve, reject) =>
    client.exec(command, (error, channel) => (error ? reject(error) : resolve(channel))),
  );

/** Runs a command and resolves to its exit code. Its end may come with the answer to the request, in one piece. */
const codeOf = (client: ssh2.Client, command: string) =>
  new Promise<number>((resolve, reject) =>
    client.exec(command, (error, channel) => {
      if (error) return reject(error);
      let found: number;
      channel.on('exit', (code: number) => {
        found = code;
      });
      channel.resume().on('close', () => resolve(found));
    }),
  );

test('plain ssh runs a command in the lease: streams apart, input in, exit code out', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const said = await it.ssh([], 'read line; echo "got $line"; echo err >&2; exit 42', 'hello\n');
  assert.deepEqual(said, { code: 42, stdout: 'got hello\n', stderr: 'err\n' });
  const shell = await it.ssh([], undefined, 'echo in a shell; exit 3\n');
  assert.deepEqual([shell.code, shell.stdout], [3, 'in a shell\n']);
  for (const [signal, code] of [
    ['TERM', 143],
    ['KILL', 137],
  ] as const)
    assert.equal((await it.ssh([], `kill -${signal} $$`)).code, code, 'the shell’s own number of a signal');
});

test('a terminal is one as often as it is asked for, also without input', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  for (let round = 0; round < 10; round++) {
    const ran: Ran = await it.ssh(['-tt'], 'tty; stty size; echo "$TERM"; exit 7');
    assert.match(ran.stdout, /^\/dev\/pts\/\d\r\n/);
    assert.equal(ran.code, 7);
  }
});

test('a terminal has the size that the window has, and hears when that changes', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const client = await openClient(t, it);
  const channel = await new Promise<ssh2.ClientChannel>((resolve, reject) =>
    client.exec(
      'trap "stty size" WINCH; echo "$TERM"; stty size; while :; do sleep 0.1; done',
      { pty: { term: 'vt100', cols: 91, rows: 33 } as ssh2.PseudoTtyOptions },
      (error, it) => (error ? reject(error) : resolve(it)),
    ),
  );
  let said = '';
  channel.on('data', (chunk: Buffer) => {
    said += chunk;
  });
  await until('the first size is told', async () => /^vt100\r\n(.*\r\n)?33 91\r\n$/.test(said));
  channel.setWindow(50, 132, 0, 0);
  await until('the second is', async () => said.endsWith('\r\n50 132\r\n'));
});

test('megabytes go through, in and out, and on both streams at once', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const text = randomBytes(2 * MIB).toString('hex');
  const said = await it.ssh([], 'cat', text);
  assert.ok(said.stdout === text);
  assert.equal(said.code, 0);
  const both = await it.ssh([], 'for i in 1 2 3; do head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2; done');
  assert.deepEqual([both.code, both.stdout.length, both.stderr.length], [0, 15_000_000, 15_000_000]);
  const mixed = await it.ssh([], 'head -c 9000000 /dev/zero & head -c 9000000 /dev/zero >&2; wait; exit 4');
  assert.deepEqual([mixed.code, mixed.stdout.length, mixed.stderr.length], [4, 9_000_000, 9_000_000]);
});

test('nothing is lost of what a command said last, however late it is read', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const client = await openClient(t, it);
  // The window has room for 2 MiB: the rest waits where the command left it.
  const bytes = 2_580_000;
  const channel = await execOf(client, `head -c ${bytes} /dev/zero; echo over > /tmp/over`);
  await until('the command is over', async () => (await it.inside('sleep 1; cat /tmp/over || true')) === 'over\n');
  let length = 0;
  channel.on('data', (chunk: Buffer) => {
    length += chunk.length;
  });
  await once(channel, 'close');
  assert.equal(length, bytes);
});

test('what a client leaves behind does not run on, however it leaves', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const ways: [string, string[], Buffer | null][] = [
    ['sleep 3331', ['-tt'], null],
    ['sleep 3332', [], null],
    ['sleep 3333', [], Buffer.alloc(12 * MIB)], // More than anybody takes: the client waits with the rest.
  ];
  for (const [command, flags, input] of ways) {
    const left = it.run('ssh', [...flags, it.target, `setsid sh -c '${command}' & ${command}`], input);
    await it.runs(command, true);
    left.child.kill('SIGKILL');
    await it.runs(command, false);
  }
  const client = await openClient(t, it);
  for (const signal of ['TERM', 'INT', 'HUP', 'KILL']) {
    const channel = await execOf(client, 'sleep 3334');
    await it.runs('sleep 3334', true);
    channel.signal(signal);
    await it.runs('sleep 3334', false);
  }
  await execOf(client, 'sleep 3335').then((channel) => channel.close());
  await it.runs('sleep 3335', false);
});

test('a session that is silent for too long ends, and nothing is left of it', async (t) => {
  const it = await openLeaseInside(t);
  if (!it) return;
  const port = await openLimited(t, it, { idleMilliseconds: 5000 });
  const busy = it.run('ssh', [`-oPort=${port}`, it.target, 'for i in 1 2 3 4 5 6 7; do sleep 1; echo $i; done']);
  const idle = await it.run('ssh', [`-oPort=${port}`, it.target, 'echo begun; sleep 3336'], null);
  assert.notEqual(idle.code, 0);
  assert.deepEqual([idle.stdout, idle.stderr], ['begun\n', 'purser: the session was silent for too long\n']);
  await it.runs('sleep 3336', false);
  assert.deepEqual((await busy).stdout, '1\n2\n3\n4\n5\n6\n7\n', 'who says something now and then goes on');
  // It waits for its next command, and would wait for ever.
  const silent = it.run('sftp', [`-oPort=${port}`, it.target], null);
  await it.runs('LC_ALL', true);
  await it.runs('LC_ALL', false);
  silent.child.stdin?.end('ls /\n');
  assert.notEqual((await silent).code, 0);
});

test('a resource has so many sessions at a time, and any number one after the other', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const client = await openClient(t, it);
  const sleeping = await Promise.all(Array.from({ length: 16 }, () => execOf(client, 'sleep 3337')));
  await assert.rejects(execOf(client, 'true'), /Channel open failure/);
  assert.equal((await it.ssh([], 'true')).code, 255, 'another connection has no more of them');
  sleeping[0]?.close();
  await until('there is room again', () =>
    execOf(client, 'true')
      .then(() => true)
      .catch(() => false),
  );
  client.end();
  await it.runs('sleep 3337', false);
  const another = await openClient(t, it);
  for (let round = 0; round < 20; round++) assert.equal(await codeOf(another, 'exit 9'), 9);
});

test('who takes nothing of what is sent, or sends more than there is room for, costs no memory', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const before = it.resident();
  const greedy = await openClient(t, it);
  const endless = (await execOf(greedy, 'cat /dev/zero')) as any;
  const inner = greedy as any;
  inner._protocol.channelWindowAdjust(endless.outgoing.id, 2 ** 31 - 1);
  inner._sock.pause();
  let written = '';
  await until('the command has to wait for the client', async () => {
    const kept = Math.round((it.resident() - before) / MIB);
    assert.ok(kept < 128, `${kept} MiB wait for a client that does not read`);
    const last = written;
    written = await it.inside('sleep 1; grep wchar /proc/$(pidof cat)/io');
    return written === last;
  });
  greedy.destroy();
  await it.runs('cat /dev/zero', false);

  const rude = await openClient(t, it);
  const deaf = (await execOf(rude, 'sleep 3338')) as any;
  const piece = Buffer.alloc(30_001); // What ends where the window ends would be thrown away.
  let sent = 0;
  let isClosed = false;
  rude.on('close', () => {
    isClosed = true;
  });
  while (!isClosed && sent < 256 * MIB) {
    (rude as any)._protocol.channelData(deaf.outgoing.id, piece);
    sent += piece.length;
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.ok(isClosed, 'whoever ignores the window is sent away');
  await it.runs('sleep 3338', false);
});

test('access ends with the lease, live sessions included: at its deadline, by stop, with its wallet', async (t) => {
  const ask = async (it: AnyLease | undefined, path: string, body: object) =>
    it && { it, end: () => it.landlord.ask('POST', path, { token: it.token, body }) };
  const ends = {
    async deadline() {
      const it = await openLeaseInside(t);
      return it && { it, end: async () => it.landlord.clock.advance(601) };
    },
    async stop() {
      const it = await openLease(t);
      return it && ask(it, '/v1/compute/stop', { id: it.id });
    },
    close: async () => ask(await openLease(t), '/v1/run/close', {}),
  };
  for (const [how, open] of Object.entries(ends)) {
    const opened = await open();
    if (!opened) return;
    const { it, end } = opened;
    const shell = it.run('ssh', ['-tt', it.target], null);
    const command = it.run('ssh', [it.target, 'sleep 3339'], null);
    const sftp = it.run('sftp', [it.target], null);
    await it.runs('sleep 3339', true);
    await it.runs('LC_ALL', true);
    const began = performance.now();
    await end();
    for (const session of [shell, command]) {
      const { code, stderr } = await session;
      assert.notEqual(code, 0, how);
      assert.match(stderr, /^purser: the lease is over \((lease_expired|requested|wallet_closed)\)\r?$/m, how);
    }
    t.diagnostic(`${how}: ${Math.round(performance.now() - began)} ms`);
    sftp.child.stdin?.end('ls /\n');
    assert.notEqual((await sftp).code, 0, how);
    assert.match((await it.ssh([], 'true')).stderr, /Permission denied/, how);
  }
});

test('access ends at the deadline also where the machine goes on because its engine hangs', async (t) => {
  const it = await openLeaseInside(t);
  if (!it) return;
  const command = it.run('ssh', [it.target, 'sleep 3340'], null);
  await it.runs('sleep 3340', true);
  it.engine.pause();
  try {
    const beginning = it.run('ssh', ['-v', it.target, 'true'], null);
    let said = '';
    beginning.child.stderr?.on('data', (text) => {
      said += text;
    });
    await until('a second session was asked for', async () => said.includes('Sending command'));
    it.landlord.clock.advance(601);
    for (const session of [command, beginning]) {
      const { code, stderr } = await session;
      assert.notEqual(code, 0);
      assert.match(stderr, /^purser: the lease is over \(lease_expired\)$/m);
    }
    assert.match((await it.ssh([], 'true')).stderr, /Permission denied/);
  } finally {
    it.engine.proceed();
  }
});

test('a session that cannot begin because its machine is gone says so, and the lease has ended', async (t) => {
  const it = await openLeaseInside(t);
  if (!it) return;
  const status = async () =>
    (await it.landlord.ask('POST', '/v1/compute/status', { token: it.token, body: { id: it.id } })).body;
  await it.engine.docker.getContainer((await status()).provider_id).kill();
  const { code, stderr } = await it.ssh([], 'true');
  assert.equal(code, 255);
  assert.match(stderr, /^purser: the lease is over \(provider_ended\)$/m);
  await until('the lease has ended', async () => (await status()).status === 'stopped');
  assert.equal((await status()).end_reason, 'provider_ended');
});
