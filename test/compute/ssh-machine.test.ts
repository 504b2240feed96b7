import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import test, { type TestContext } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import ssh2, { type Algorithms, type Connection } from 'ssh2';
import { sshKeyFromSeed } from '../../src/base/ssh-key.ts';
import { ChannelRefused, channelsOf, NeverSent, openChannel } from '../../src/compute/kit/channel.ts';
import { connectSsh } from '../../src/compute/kit/connect.ts';
import { beginOnChannel, runOnChannel } from '../../src/compute/kit/ssh-program.ts';
import { finish } from '../../src/compute/machine/program.ts';

const key = () => sshKeyFromSeed(randomBytes(32), 'test').privateKey;
const ORDER = { input: Buffer.alloc(0), streamBytesMax: 1000, milliseconds: 10_000 };

/** A machine that lets everybody in, and says `hello` to every command. `meet` may change what it does. */
async function openMachine(
  t: TestContext,
  {
    algorithms,
    meet = () => {},
    serve = (_, channel) => {
      channel.write('hello');
      channel.exit(0);
      channel.end();
    },
  }: {
    algorithms?: Algorithms;
    meet?: (connection: Connection) => void;
    serve?: (command: string, channel: ssh2.ServerChannel) => void;
  } = {},
) {
  const server = new ssh2.Server({ hostKeys: [key()], ...(algorithms ? { algorithms } : {}) }, (connection) => {
    meet(connection);
    connection.on('error', () => {});
    connection.on('authentication', (context) => context.accept());
    connection.on('session', (accept) => accept().on('exec', (begin, _reject, { command }) => serve(command, begin())));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  return async () => {
    const client = await connectSsh({ host: '127.0.0.1', port, username: 'root', privateKey: key() }, () => true);
    t.after(() => client.destroy());
    return client;
  };
}

test('a machine is reached by curve25519 or nistp256, and by macs of the ciphertext, and in no other way', async (t) => {
  const good: Algorithms[] = [
    {},
    { kex: ['curve25519-sha256@libssh.org'] },
    { kex: ['ecdh-sha2-nistp256'], cipher: ['aes128-ctr'], hmac: ['hmac-sha2-512-etm@openssh.com'] },
  ];
  for (const algorithms of good) {
    const client = await (await openMachine(t, { algorithms }))();
    assert.equal((await runOnChannel(channelsOf(client), 'true', ORDER)).stdout.toString(), 'hello');
  }
  const bad: [Algorithms, RegExp][] = [
    [{ kex: ['diffie-hellman-group18-sha512', 'diffie-hellman-group14-sha256'] }, /no matching key exchange algorithm/],
    [{ kex: ['ecdh-sha2-nistp521'] }, /no matching key exchange algorithm/],
    [
      { cipher: ['aes128-ctr'], hmac: ['hmac-sha1', 'hmac-sha1-etm@openssh.com', 'hmac-sha2-256'] },
      /no matching .*MAC/,
    ],
  ];
  for (const [algorithms, said] of bad) await assert.rejects((await openMachine(t, { algorithms }))(), said);
});

test('a machine that takes no packets of a usable size is not spoken to', async (t) => {
  for (const packetBytes of [0, 1]) {
    const connect = await openMachine(t, {
      meet(connection) {
        const { _protocol: protocol } = connection as unknown as {
          _protocol: Record<string, (...args: any[]) => void>;
        };
        const confirm = protocol.channelOpenConfirm as (...args: any[]) => void;
        protocol.channelOpenConfirm = (to, from, window) => confirm.call(protocol, to, from, window, packetBytes);
      },
    });
    const order = { ...ORDER, input: Buffer.from('input') };
    await assert.rejects(runOnChannel(channelsOf(await connect()), 'true', order), /no packets of a usable size/);
  }
});

test('an exception of the SSH library on a connection to a machine loses that connection only', async (t) => {
  const connect = await openMachine(t, { meet: (it) => it.on('ready', () => void it.on('session', () => it.end())) });
  const client = await connect();
  const inner = client as unknown as { _chanMgr: { cleanup(): void } };
  inner._chanMgr.cleanup = () => {
    throw new TypeError('a fault of the library');
  };
  await assert.rejects(
    runOnChannel(channelsOf(client), 'true', ORDER),
    /the connection to the machine was lost|No response from server/,
  );
});

/** A machine that runs each command, and tells its end before it passes on the output, in pieces, the second long after the first. */
async function openSlowMachine(t: TestContext, { staysOpen = false, loses = false } = {}) {
  return openMachine(t, {
    serve(command, channel) {
      const child = spawn('sh', ['-c', command], { stdio: ['pipe', 'pipe', 'pipe'] });
      channel.pipe(child.stdin);
      const [stdout, stderr] = [buffer(child.stdout), buffer(child.stderr)];
      child.on('close', async (code) => {
        channel.exit(code as number);
        const [said, alsoSaid] = [await stdout, await stderr];
        channel.write(said.subarray(0, said.length / 2));
        await pause(1200);
        if (!loses) channel.write(said.subarray(said.length / 2));
        channel.stderr.write(alsoSaid);
        if (!staysOpen) channel.end();
      });
    },
  });
}
const run = async (client: ssh2.Client, script: string) => {
  const program = await beginOnChannel(channelsOf(client), { purpose: 'exec', script, args: [] });
  return finish(program, undefined, { streamBytesMax: 1_000_000, milliseconds: 60_000 });
};

test('the output of a command that comes long after its end is whole, whether or not the channel is closed', async (t) => {
  for (const staysOpen of [false, true]) {
    const client = await (await openSlowMachine(t, { staysOpen }))();
    const { exitCode, stdout, stderr } = await run(client, 'head -c 100000 /dev/zero; echo more >&2; exit 3');
    assert.deepEqual([exitCode, stdout.length, stderr.toString()], [3, 100_000, 'more\n']);
  }
});

test('a command whose output does not come to its end has no result', async (t) => {
  const client = await (await openSlowMachine(t, { staysOpen: true, loses: true }))();
  await assert.rejects(run(client, 'head -c 100000 /dev/zero'), /lost the end of what the command said/);
});

test('what a machine never received is told from what it may have', async (t) => {
  const heard: string[] = [];
  const run = (session: ssh2.Session) =>
    session.on('exec', (_accept, _reject, { command }) => {
      heard.push(command);
    });
  type Meet = (connection: Connection) => void;
  const onSession = (serve: (accept: () => ssh2.Session, reject: () => void, connection: Connection) => void): Meet => {
    return (connection) =>
      connection.on('ready', () => {
        connection.removeAllListeners('session');
        connection.on('session', (accept, reject) => serve(accept, reject as () => void, connection));
      });
  };
  const begin = async (meet: Meet, milliseconds = 5000) => {
    const client = await (await openMachine(t, { meet }))();
    return openChannel(client, 'rm -r all', { milliseconds }).then(
      () => assert.fail('it began'),
      (error: Error) => error,
    );
  };
  const refused = await begin(onSession((_, reject) => reject()));
  assert.ok(refused instanceof ChannelRefused, String(refused));
  const dropped = await begin(onSession((_accept, _reject, connection) => connection.end()));
  assert.ok(dropped instanceof NeverSent && !(dropped instanceof ChannelRefused), String(dropped));
  assert.deepEqual(heard, []);
  const taken = await begin(
    onSession((accept, _, connection) =>
      run(accept()).on('exec', () => {
        connection.end();
      }),
    ),
  );
  assert.ok(!(taken instanceof NeverSent) && /was lost/.test(taken.message), String(taken));
  const silent = await begin(
    onSession((accept) => run(accept())),
    300,
  );
  assert.ok(!(silent instanceof NeverSent) && /did not answer/.test(silent.message), String(silent));
  assert.deepEqual(heard, ['rm -r all', 'rm -r all']);

  const opened = Promise.withResolvers<() => ssh2.Session>();
  const late = await begin(
    onSession((accept) => opened.resolve(accept)),
    300,
  );
  assert.ok(late instanceof NeverSent, String(late));
  const ran = Promise.withResolvers<string>();
  run((await opened.promise)()).on('exec', (_accept, _reject, { command }) => ran.resolve(command));
  assert.match(await ran.promise, /^ +$/, 'what was given up does nothing when its channel opens after all');
});
