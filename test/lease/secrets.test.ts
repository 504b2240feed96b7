import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:https';
import { type AddressInfo, connect } from 'node:net';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { connect as connectTls, createSecureContext } from 'node:tls';
import type { SecretsOrder } from '../../src/compute/backend.ts';
import { createAuthority } from '../../src/egress/authority.ts';
import { WATCHDOG } from '../compute/engines/host-session.ts';
import { PUBLIC } from '../egress/proxy-shared.ts';
import { filesOf } from '../helper/files.ts';
import { freePort } from '../helper/free-port.ts';
import { until } from '../helper/waiting.ts';
import { LONG, openMemoryServer } from './leases.ts';

const VALUE = 'sk-canary-value-0123456789';
const OTHER = 'sk-canary-other-0123456789';
const HOST = 'api.test';
const WORLD = createAuthority(randomBytes(32), 'world', Math.floor(Date.now() / 1000));
const trusted = createSecureContext({ ca: [WORLD.certificate] });

const secretsOf = (value: string) => ({
  default: { secrets: [{ name: 'API_TOKEN', host: HOST, header: 'Authorization', value }] },
  nobody: { secrets: [{ name: 'OTHER_TOKEN', host: HOST, header: 'Authorization', value: OTHER }] },
});

/** A server whose leases have a way out, the program itself on this machine's loopback, to a host that says what it was told. */
async function openLeasing(t: TestContext) {
  const host = createServer(
    { SNICallback: (name, done) => done(null, WORLD.contextOf(name)), ALPNProtocols: ['http/1.1'] },
    (request, response) => {
      // Scrambled, so that the value is nowhere in what Purser passes on.
      response.end(Buffer.from(String(request.headers.authorization)).toString('hex'));
    },
  );
  host.listen(0, '127.0.0.1');
  await once(host, 'listening');
  t.after(() => host.close());
  t.after(() => host.closeAllConnections());
  const { port: hostPort } = host.address() as AddressInfo;
  const provider = {
    ...{ backend: 'container', socket: 'unix:///nowhere/docker.sock', image: 'nowhere:1', egress: [HOST, 'b.test'] },
    prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
    limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
  };
  const purser = await openMemoryServer(t, {
    settings: { compute: { provider_one: provider }, accounts: secretsOf(VALUE) },
    outside: {
      lookUp: async () => [PUBLIC],
      dial: () => connect({ host: '127.0.0.1', port: hostPort, allowHalfOpen: true }),
      isOwn: () => false,
      trust: () => trusted,
    },
  });
  /** The port of each machine's program, and the secrets that it was given, by its reference. */
  const machines: { port: number; secrets: SecretsOrder | undefined }[] = [];
  const ports = new Map<string, number>();
  function attach(hasSecrets: boolean) {
    const { backend } = purser;
    const { egress } = backend.guest;
    assert(egress);
    const create = backend.create.bind(backend);
    backend.create = async (order) => {
      const created = await create(order);
      assert.equal(created.kind, 'created');
      const port = await freePort();
      ports.set(created.ref, port);
      machines.push({ port, secrets: order.secrets });
      return created;
    };
    egress.begin = async (ref) => {
      const child: ChildProcess = spawn(WATCHDOG, ['egress', String(ports.get(ref))], {
        stdio: ['pipe', 'pipe', 'inherit'],
      });
      t.after(() => child.kill('SIGKILL'));
      const { stdin, stdout } = child as ChildProcess & { stdin: NodeJS.WritableStream; stdout: never };
      return { stdin, stdout, ended: once(child, 'exit'), kill: () => child.stdin?.destroy(), hasSecrets };
    };
  }
  attach(true);
  const { token } = await purser.openWallet(LONG);
  return { purser, token, machines, attach };
}

/** Asks `https://api.test` from a lease, and returns the header that the server got. */
async function ask({ port, secrets }: { port: number; secrets: SecretsOrder | undefined }, authorization: string) {
  const socket = connect({ port, host: '127.0.0.1' });
  socket.on('error', () => {});
  socket.write(`CONNECT ${HOST}:443 HTTP/1.1\r\n\r\n`);
  const [answer] = await once(socket, 'data');
  assert.match(String(answer), /^HTTP\/1.1 200/);
  const tls = connectTls({ socket, servername: HOST, ca: secrets?.authority });
  await once(tls, 'secureConnect');
  tls.write(`GET / HTTP/1.1\r\nHost: ${HOST}\r\nAuthorization: ${authorization}\r\nConnection: close\r\n\r\n`);
  let said = '';
  for await (const piece of tls) said += piece;
  return Buffer.from(said.split('\r\n\r\n')[1] ?? '', 'hex').toString();
}

test('a lease uses a secret that it never has: over restarts, a change of the value, and not another lease’s', async (t) => {
  const { purser, token, machines, attach } = await openLeasing(t);
  const created = await purser.lease(token);
  assert.equal(created.status, 200, created.text);
  await purser.lease(token);
  const [one, other] = machines as [(typeof machines)[0], (typeof machines)[0]];
  const placeholders = [one, other].map((it) => it.secrets?.variables.API_TOKEN ?? '') as [string, string];
  assert.deepEqual(Object.keys(one.secrets?.variables ?? {}), ['API_TOKEN']);
  for (const it of placeholders) assert.match(it, /^purser_placeholder_[0-9a-f]{64}$/);
  assert.notEqual(placeholders[0], placeholders[1]);
  assert.notEqual(one.secrets?.authority, other.secrets?.authority);

  assert.equal(await ask(one, `Bearer ${placeholders[0]}`), `Bearer ${VALUE}`);
  assert.equal(
    await ask(one, `Bearer ${placeholders[1]}`),
    `Bearer ${placeholders[1]}`,
    'it is worth nothing elsewhere',
  );
  await assert.rejects(ask({ ...one, secrets: other.secrets }, 'x'), /certificate/);

  await purser.reopen();
  attach(true);
  await until(
    'the way out is open again',
    async () => (await ask(one, `Bearer ${placeholders[0]}`).catch(() => '')) === `Bearer ${VALUE}`,
  );

  // The settings in force at a request count.
  const file = join(purser.directory, 'purser.yaml');
  const before = readFileSync(file, 'utf8');
  writeFileSync(file, before.replace(VALUE, 'sk-rotated-0123456789'));
  assert.deepEqual((await purser.run('reload', {})).settings, ['accounts']);
  assert.equal(await ask(one, `Bearer ${placeholders[0]}`), 'Bearer sk-rotated-0123456789');
  writeFileSync(file, before.replace(`host: ${HOST}`, 'host: c.test'));
  await purser.run('reload', {});
  // Its TLS is not ended any more.
  const askPlainly = (it: typeof one) =>
    ask({ ...it, secrets: { variables: {}, authority: WORLD.certificate } }, placeholders[0]);
  assert.equal(await askPlainly(one), placeholders[0]);

  // Nor is that of a machine that was made before its account had secrets.
  writeFileSync(file, before);
  await purser.reopen();
  attach(false);
  await until('the way out is open again', async () => (await askPlainly(one).catch(() => '')) === placeholders[0]);

  const { body } = await purser.ask('POST', '/v1/compute/status', { token, body: { id: created.body.id } });
  assert.equal(body.egress[0].host, HOST);
  const stored = [...filesOf(purser.directory, true)]
    .filter(([name]) => name !== 'purser.yaml')
    .map(([, { bytes }]) => bytes.toString('latin1'));
  for (const secret of [VALUE, placeholders[0], placeholders[1]])
    for (const text of [...stored, ...purser.log]) assert(!text.includes(secret));
  assert.deepEqual(purser.problems(), []);
});

test('a machine without egress, and one of another account, are given no secrets', async (t) => {
  const { purser, token, machines } = await openLeasing(t);
  const { guest } = purser.backend;
  const { nobody } = secretsOf(VALUE);
  const { egress } = guest;
  delete guest.egress;
  await purser.lease(token);
  guest.egress = egress as NonNullable<typeof egress>;
  Object.assign(purser.app, { config: { ...purser.app.config, accounts: { nobody } } });
  await purser.lease(token);
  assert.deepEqual(
    machines.map(({ secrets }) => secrets),
    [undefined, undefined],
  );
});
