import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, rmSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import test, { type TestContext } from 'node:test';
import ssh2 from 'ssh2';
import { hasComponent } from '../helper/component.ts';
import { freePort } from '../helper/free-port.ts';
import { until } from '../helper/waiting.ts';
import { type Lease, openClient, openLease, openLeaseInside, openLimited, reachLease } from './lease.ts';

/** What somebody hears who connects there, says this and waits. */
async function heard(port: number | string, words: Buffer | string = ''): Promise<string> {
  const socket = typeof port === 'string' ? connect(port) : connect(port, '127.0.0.1');
  let said = '';
  socket.on('data', (chunk) => {
    said += chunk.toString('latin1');
  });
  const closed = new Promise((resolve) => socket.once('close', resolve));
  socket.on('error', () => {});
  if (words.length) socket.write(words);
  await closed;
  return said;
}

/** Raw connections from an address; each that is closed comes back, up to so many in all. */
function flood(
  t: TestContext,
  it: Lease,
  { from, sockets, max, words }: { from: string; sockets: number; max: number; words: string },
) {
  const open = new Set<Socket>();
  let made = 0;
  let arrived = 0;
  const one = () => {
    if (made++ >= max) return;
    const socket = connect({ host: '127.0.0.1', port: it.access.port, localAddress: from });
    open.add(socket);
    socket
      .on('error', () => {})
      .on('connect', () => {
        arrived += 1;
      })
      .on('close', () => {
        open.delete(socket);
        setTimeout(one, 5);
      });
    socket.on('data', () => {});
    if (words) socket.write(words);
  };
  for (let count = 0; count < sockets; count++) one();
  const stop = () => {
    made = max;
    for (const socket of open) socket.destroy();
  };
  t.after(stop);
  // One that is only asked for may come after a client that is started later.
  return { open, arrived: () => arrived, stop };
}

test('a key opens its own resource, and nobody else’s key opens it', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const other = await it.landlord.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const spec = { cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
  const there = await reachLease(t, it.landlord, other, { provider: 'provider_one', spec });
  t.after(there.stop);
  assert.equal((await there.ssh([], 'true')).code, 0);
  assert.equal((await it.ssh([], 'true')).code, 0);
  for (const user of [there.id, 'root', 'res_00000000000000000000000000', `${it.id} `, '']) {
    const wrong = await it.run('ssh', ['-l', user, it.access.host, 'true']);
    assert.equal(wrong.code, 255, user);
    assert.match(wrong.stderr, /Permission denied|Invalid|remote username/i);
  }
  execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', it.at('fresh')]);
  const { host, port, username } = it.access;
  const refused = new ssh2.Client();
  const failed = once(refused, 'error');
  refused.connect({ host, port, username, privateKey: execFileSync('cat', [it.at('fresh')]) });
  assert.match(((await failed)[0] as Error).message, /authentication methods failed/);
  const password = new ssh2.Client();
  const denied = once(password, 'error');
  password.connect({ host, port, username, password: it.token, tryKeyboard: true });
  assert.match(((await denied)[0] as Error).message, /authentication methods failed/);
});

test('a handshake is made by curve25519 or nistp256, with macs of the ciphertext, and in no other way', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const refused = async (...options: string[]) => {
    const { code, stderr } = await it.ssh(options, 'true');
    assert.equal(code, 255);
    return /no matching (.*) found\. Their offer: (\S+)/.exec(stderr)?.slice(1);
  };
  const kex = 'curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,kex-strict-s-v00@openssh.com';
  for (const name of ['diffie-hellman-group18-sha512', 'diffie-hellman-group14-sha1', 'ecdh-sha2-nistp521'])
    assert.deepEqual(await refused(`-oKexAlgorithms=${name}`), ['key exchange method', kex]);
  const macs = 'hmac-sha2-256-etm@openssh.com,hmac-sha2-512-etm@openssh.com';
  for (const name of ['hmac-sha1', 'hmac-sha1-etm@openssh.com', 'hmac-sha2-256'])
    assert.deepEqual(await refused('-oCiphers=aes128-ctr', `-oMACs=${name}`), ['MAC', macs]);
  for (const name of ['curve25519-sha256', 'curve25519-sha256@libssh.org', 'ecdh-sha2-nistp256'])
    assert.equal((await it.ssh([`-oKexAlgorithms=${name}`, '-oCiphers=aes128-ctr'], 'true')).code, 0, name);
});

test('a host key other than the one that was returned is seen', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', it.at('other')]);
  const other = execFileSync('cat', [it.at('other.pub')], { encoding: 'utf8' })
    .split(' ')
    .slice(0, 2)
    .join(' ');
  rmSync(it.at('known'));
  it.know(it.access.port, other);
  const { code, stderr } = await it.ssh([], 'true');
  assert.equal(code, 255);
  assert.match(stderr, /REMOTE HOST IDENTIFICATION HAS CHANGED/);
});

test('nothing is forwarded: ports, sockets, tunnels, the agent, the display', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  // Somebody who must not be reached: a service of the machine that Purser runs on.
  const secret = createServer((socket) => socket.end('secret')).listen(0, '127.0.0.1');
  await once(secret, 'listening');
  t.after(() => secret.close());
  const { port } = secret.address() as AddressInfo;

  const direct = await it.ssh(['-W', `127.0.0.1:${port}`]);
  assert.notEqual(direct.code, 0);
  assert.equal(direct.stdout, '');

  const [local, socks] = [await freePort(), await freePort()];
  const flags = ['-N', '-L', `${local}:127.0.0.1:${port}`, '-D', `${socks}`, '-L', `${it.at('in.sock')}:/run/x.sock`];
  const forwarding = it.run('ssh', [...flags, it.target], null);
  await until('the client listens', async () => existsSync(it.at('in.sock')));
  assert.equal(await heard(local), '');
  const greeting = Buffer.from([5, 1, 0]);
  const request = Buffer.from([5, 1, 0, 1, 127, 0, 0, 1, port >> 8, port & 255]);
  assert.doesNotMatch(await heard(socks, Buffer.concat([greeting, request])), /secret/);
  assert.equal(await heard(it.at('in.sock')), '');
  forwarding.child.kill();
  assert.match((await forwarding).stderr, /open failed/);

  const back = ['-N', '-oExitOnForwardFailure=yes'];
  for (const remote of [`127.0.0.1:0:127.0.0.1:${port}`, `/tmp/back.sock:127.0.0.1:${port}`, '127.0.0.1:0']) {
    const refused = await it.ssh([...back, '-R', remote]);
    assert.equal(refused.code, 255, remote);
    assert.match(refused.stderr, /remote (port )?forwarding failed|forwarding request failed/i);
  }

  const agent = execFileSync('ssh-agent', ['-s'], { encoding: 'utf8' });
  const [, socket = '', pid = ''] = /SSH_AUTH_SOCK=([^;]+);[\s\S]*SSH_AGENT_PID=(\d+)/.exec(agent) ?? [];
  t.after(() => process.kill(Number(pid)));
  const environment = { SSH_AUTH_SOCK: socket, DISPLAY: '127.0.0.1:99', LC_SECRET: 'secret' };
  const flagsOfAll = ['-A', '-Y', '-oSendEnv=LC_SECRET', it.target];
  const said = await it.run('ssh', [...flagsOfAll, 'env'], '', environment);
  assert.equal(said.code, 0);
  assert.doesNotMatch(said.stdout, /SSH_AUTH_SOCK|DISPLAY|LC_SECRET/);

  if (hasComponent(t, 'tun')) {
    const tunnel = await it.ssh(['-w', 'any:any', '-oExitOnForwardFailure=yes'], 'true');
    assert.match(tunnel.stderr, /open failed|Tunnel forwarding failed/i);
  }
});

test('only what a session is asked for here: no other subsystem', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const netconf = await it.run('ssh', ['-s', it.target, 'netconf']);
  assert.equal(netconf.code, 255);
  assert.match(netconf.stderr, /subsystem request failed/);
});

test('whoever shows no key is sent away in time', async (t) => {
  const it = await openLeaseInside(t);
  if (!it) return;
  const port = await openLimited(t, it, { authenticationMilliseconds: 4000 });
  for (const words of ['', 'SSH-2.0-slow', 'SSH-2.0-slow\r\n'])
    assert.match(await heard(port, words), /^SSH-2\.0-Purser/);
  const waiting = new ssh2.Client();
  const closed = once(waiting, 'close');
  waiting.on('error', () => {});
  waiting.connect({ host: '127.0.0.1', port, username: it.id, authHandler: () => {} });
  await closed;
  assert.equal((await it.run('ssh', [`-oPort=${port}`, it.target, 'sleep 5; echo stays'])).stdout, 'stays\n');
});

test('whoever shows no key is sent away after so many attempts', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  let attempts = 0;
  const key = ssh2.utils.generateKeyPairSync('ecdsa', { bits: 256 }).private;
  const trying = new ssh2.Client();
  const ended = once(trying, 'close');
  trying.on('error', () => {});
  trying.connect({
    host: '127.0.0.1',
    port: it.access.port,
    username: it.id,
    authHandler: (_methods, _partial, next) => {
      attempts += 1;
      next({ type: 'publickey', username: it.id, key });
    },
  } as ssh2.ConnectConfig);
  await ended;
  assert.ok(attempts > 3 && attempts <= 12, `${attempts} attempts`);
});

test('a flood of unauthenticated clients keeps nobody out, neither the silent nor the busy, from afar or from the same address', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const floods = [
    { from: '127.0.0.2', sockets: 300, max: 300, words: '' },
    { from: '127.0.0.3', sockets: 300, max: 3000, words: 'SSH-2.0-flood\r\n' },
    { from: '127.0.0.1', sockets: 100, max: 100, words: '' },
  ];
  for (const one of floods) {
    const { open, arrived, stop } = flood(t, it, one);
    await until('the flood is there', async () => arrived() >= one.sockets);
    for (let round = 0; round < 3; round++) {
      const { code, stderr } = await it.ssh([], 'true');
      assert.equal(code, 0, `${one.from}: ${stderr}`);
    }
    assert.ok(open.size <= 64 + one.sockets, 'and no more of them stay than may');
    stop();
  }
  const waiting = flood(t, it, { from: '127.0.0.2', sockets: 200, max: 200, words: '' });
  // Sooner than they would be for saying nothing.
  await until('all but so many are sent away', async () => waiting.arrived() === 200 && waiting.open.size <= 64);
});

test('one resource has so many connections, and takes none of another’s', async (t) => {
  const it = await openLease(t);
  if (!it) return;
  const clients = await Promise.all(Array.from({ length: 16 }, () => openClient(t, it)));
  const { code } = await it.ssh([], 'true');
  assert.equal(code, 255);
  const other = await it.landlord.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const spec = { cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
  const there = await reachLease(t, it.landlord, other, { provider: 'provider_one', spec });
  t.after(there.stop);
  assert.equal((await there.ssh([], 'true')).code, 0);
  clients[0]?.end();
  await until('there is room again', async () => (await it.ssh([], 'true')).code === 0);
});
