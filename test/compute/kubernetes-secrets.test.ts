import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:https';
import { type AddressInfo, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { connect as connectTls, createSecureContext, rootCertificates } from 'node:tls';
import * as v from 'valibot';
import type { ExecResult, SecretsOrder } from '../../src/compute/backend.ts';
import { describePod } from '../../src/compute/engines/kubernetes/describe.ts';
import { type KubernetesSettings, slots } from '../../src/compute/engines/kubernetes/settings.ts';
import { putTrust } from '../../src/compute/engines/kubernetes/trust.ts';
import { quoteOf } from '../../src/compute/kit/priced.ts';
import { createAuthority } from '../../src/egress/authority.ts';
import { PUBLIC } from '../egress/proxy-shared.ts';
import { freePort } from '../helper/free-port.ts';
import { openTestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { type FakeKubernetes, type KubernetesExec, openFakeKubernetes, runHere } from './engines/fake-kubernetes.ts';
import { WATCHDOG } from './engines/host-session.ts';
import { rentOne } from './rented.ts';
import { keysOf, shows } from './secrets-shared.ts';

const TRUST = '/run/purser-trust';
const VALUE = 'sk-canary-value-0123456789';
const PROVIDER = {
  ...{ backend: 'kubernetes', namespace: 'leases', image: 'busybox', egress: ['api.test', 'other.test'] },
  prices: { cpu_hourly_usd: '0.02', memory_gib_hourly_usd: '0.005' },
  limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
};
const WORLD = createAuthority(randomBytes(32), 'world', Math.floor(Date.now() / 1000));
const trusted = createSecureContext({ ca: [WORLD.certificate] });

function directoryOf(t: TestContext): string {
  const directory = mkdtempSync(join(tmpdir(), 'purser-trust-'));
  t.after(() => rmSync(directory, { recursive: true }));
  chmodSync(directory, 0o777); // Commands of the fake run as nobody.
  return directory;
}

for (const runtime of [undefined, 'gvisor'])
  test(`a pod with secrets${runtime ? ' of another runtime' : ''} has placeholders, and names what it trusts`, () => {
    const settings = v.parse(slots.provider_one, { ...PROVIDER, runtime_class: runtime }) as KubernetesSettings;
    const quote = quoteOf(settings, { gpu: null, gpus: 0, cpus: 1, memory_gib: 1, max_seconds: 600 });
    const podOf = (secrets: SecretsOrder | undefined) => {
      const pod = describePod(settings, { tag: 'purser-a-b', quote, deadline: 2000, secrets }, 1000);
      const { env, volumeMounts } = pod.spec.containers[0] as (typeof pod.spec.containers)[0];
      return {
        authority: (pod.metadata.annotations as Record<string, string>)['purser.authority'],
        env: Object.fromEntries(env.map(({ name, value }) => [name, value])),
        mounted: volumeMounts.find(({ mountPath }) => mountPath === TRUST)?.name,
        volume: pod.spec.volumes.find(({ name }) => name === 'trust')?.emptyDir,
      };
    };
    const pod = podOf({ variables: { API_TOKEN: 'placeholder' }, authority: 'the certificate' });
    assert.deepEqual([pod.authority, pod.mounted, pod.volume], ['the certificate', 'trust', {}]);
    const { API_TOKEN, NODE_EXTRA_CA_CERTS, SSL_CERT_FILE, HTTPS_PROXY } = pod.env;
    assert.deepEqual([API_TOKEN, NODE_EXTRA_CA_CERTS], ['placeholder', `${TRUST}/.purser-ca.pem`]);
    assert.equal(SSL_CERT_FILE, `${TRUST}/.purser-roots.pem`);
    const plain = podOf(undefined);
    assert.deepEqual([plain.authority, plain.mounted, plain.volume], [undefined, undefined, undefined]);
    assert.deepEqual([plain.env.SSL_CERT_FILE, plain.env.HTTPS_PROXY], [undefined, HTTPS_PROXY]);
  });

/** Runs the commands of `putTrust` on this machine, with the files of an image in a directory. Returns what it uploads. */
async function trustOf(t: TestContext, image: Record<string, string>, bytesMax = Number.POSITIVE_INFINITY) {
  const root = directoryOf(t);
  for (const [path, content] of Object.entries(image)) {
    mkdirSync(join(root, dirname(path)), { recursive: true });
    writeFileSync(join(root, path), content);
  }
  const uploaded: Record<string, string> = {};
  const exec = async (_: string, { command, streamBytesMax }: { command: string; streamBytesMax: number }) => {
    const inside = command.replace(/(?<= )\/(etc|var)\//g, `${root}$&`);
    const { status, stdout, stderr } = spawnSync('/bin/sh', ['-c', inside], { maxBuffer: streamBytesMax });
    const stdoutTruncated = stdout.length > bytesMax;
    return { exitCode: status, stdout, stderr, stdoutTruncated, stderrTruncated: false, timedOut: false } as ExecResult;
  };
  const upload = async (_: string, path: string, content: Buffer) => {
    uploaded[path] = content.toString();
  };
  await putTrust({ exec, upload } as never, 'tag', 'AUTHORITY\n');
  return uploaded;
}

test('a pod trusts its authority beside the roots of its image, or those of Node', async (t) => {
  const [ca, all] = [`${TRUST}/.purser-ca.pem`, `${TRUST}/.purser-roots.pem`];
  const debian = 'etc/ssl/certs/ca-certificates.crt';
  const suse = 'var/lib/ca-certificates/ca-bundle.pem';
  assert.deepEqual(await trustOf(t, { [debian]: 'ROOTS' }), { [ca]: 'AUTHORITY\n', [all]: 'ROOTS\nAUTHORITY\n' });
  assert.equal((await trustOf(t, { [debian]: '', [suse]: 'SUSE' }))[all], 'SUSE\nAUTHORITY\n');
  assert.equal((await trustOf(t, {}))[all], `${rootCertificates.join('\n')}\nAUTHORITY\n`);
  await assert.rejects(trustOf(t, { [debian]: 'ROOTS' }, 1), /roots of the image are too large/);
  await assert.rejects(trustOf(t, { [`${debian}/x`]: '' }), /roots of the image cannot be read: .*directory/);
});

/** Lets the pods of a fake cluster run on this machine, with a way out and a directory of what they trust. Keeps what is sent to them. */
async function runPods(t: TestContext, fake: FakeKubernetes) {
  const port = await freePort();
  const trust = directoryOf(t);
  const sent: string[] = [];
  fake.exec = (exec: KubernetesExec) => {
    sent.push(exec.command.join('\n'));
    exec.stdin.on('data', (piece) => sent.push(piece.toString('latin1')));
    const command = exec.command.map((it) => it.replace(TRUST, trust));
    const at = command.indexOf('/proc/1/exe');
    if (command[at + 1] === 'egress') command.splice(at, 3, WATCHDOG, 'egress', String(port));
    runHere({ ...exec, command });
  };
  return { port, trust, sent };
}

/** A server whose leases are pods of a fake cluster, and a host outside, which says what it was told in a form that is not the value. */
async function openLeasing(t: TestContext) {
  const host = createServer(
    { SNICallback: (name, done) => done(null, WORLD.contextOf(name)), ALPNProtocols: ['http/1.1'] },
    ({ headers }, response) => {
      response.end(Buffer.from(`${headers.authorization} ${headers['x-other']}`).toString('hex'));
    },
  );
  host.listen(0, '127.0.0.1');
  await once(host, 'listening');
  t.after(() => host.close());
  t.after(() => host.closeAllConnections());
  const fake = await openFakeKubernetes(t);
  const kubeconfig = join(directoryOf(t), 'config');
  writeFileSync(kubeconfig, fake.kubeconfig);
  const secret = { name: 'API_TOKEN', host: 'api.test', header: 'Authorization', value: VALUE };
  const { port } = host.address() as AddressInfo;
  const purser = await openTestServer(t, {
    settings: {
      compute: { provider_one: { ...PROVIDER, kubeconfig } },
      accounts: { default: { secrets: [secret] } },
    },
    outside: {
      lookUp: async () => [PUBLIC],
      dial: () => connect({ host: '127.0.0.1', port, allowHalfOpen: true }),
      isOwn: () => false,
      trust: () => trusted,
    },
  });
  return { fake, purser, pods: await runPods(t, fake) };
}

/** Asks a host from a lease that trusts `ca`. Returns the two headers that it got. */
async function ask(port: number, ca: string, name: string, token: string): Promise<string> {
  const socket = connect({ port, host: '127.0.0.1' });
  socket.on('error', () => {});
  socket.write(`CONNECT ${name}:443 HTTP/1.1\r\n\r\n`);
  const [answer] = await once(socket, 'data');
  assert.match(String(answer), /^HTTP\/1.1 200/);
  const tls = connectTls({ socket, servername: name, ca });
  await once(tls, 'secureConnect');
  const headers = `Host: ${name}\r\nAuthorization: ${token}\r\nX-Other: ${token}\r\nConnection: close`;
  tls.write(`GET / HTTP/1.1\r\n${headers}\r\n\r\n`);
  let said = '';
  for await (const piece of tls) said += piece;
  return Buffer.from(said.split('\r\n\r\n')[1] ?? '', 'hex').toString();
}

test('the host gets the value, and the cluster gets neither that nor the key of the lease’s authority', async (t) => {
  const { fake, purser, pods } = await openLeasing(t);
  const { id, token, sh } = await rentOne(purser, { cpus: 0.5, memory_gib: 0.25 });
  const [pod] = fake.objects('pods');
  const authority = pod.metadata.annotations['purser.authority'] as string;
  const env: { name: string; value: string }[] = pod.spec.containers[0].env;
  const placeholder = env.find(({ name }) => name === 'API_TOKEN')?.value ?? '';
  assert.match(placeholder, /^purser_placeholder_[0-9a-f]{64}$/);
  assert.equal(readFileSync(join(pods.trust, '.purser-ca.pem'), 'utf8'), authority);
  assert.ok(readFileSync(join(pods.trust, '.purser-roots.pem'), 'utf8').endsWith(`\n${authority}`));

  assert.equal(await ask(pods.port, authority, 'api.test', placeholder), `${VALUE} ${placeholder}`);
  assert.equal(await ask(pods.port, WORLD.certificate, 'other.test', placeholder), `${placeholder} ${placeholder}`);
  await assert.rejects(ask(pods.port, WORLD.certificate, 'api.test', placeholder), /certificate/);

  // What is written when nobody has been in the pod is the tenant's from then on.
  for (const name of readdirSync(pods.trust)) rmSync(join(pods.trust, name));
  assert.equal(await sh('echo in'), 'in\n');
  await purser.reopen();
  await until(
    'the way out is open again',
    async () => (await ask(pods.port, authority, 'api.test', placeholder).catch(() => '')) !== '',
  );
  assert.deepEqual(readdirSync(pods.trust), []);

  const kept = ['jobs', 'pods'].map((it) => JSON.stringify(fake.objects(it)));
  const text = [JSON.stringify(fake.calls), ...kept, pods.sent.join('')].join('\n');
  assert.ok(shows(text, Buffer.from(placeholder)), 'the search finds');
  for (const it of [Buffer.from(VALUE), ...keysOf(purser, id, authority)]) assert.ok(!shows(text, it));
  for (const it of [VALUE, placeholder]) assert.ok(!purser.log.some((line) => line.includes(it)));

  const stopped = await purser.ask('POST', '/v1/compute/stop', { token, body: { id } });
  assert.equal(stopped.body.status, 'stopped', stopped.text);
  assert.deepEqual([...fake.objects('jobs'), ...fake.objects('pods')], []);
});

test('a pod of an account without secrets trusts nobody else, also when the account has some later', async (t) => {
  const { fake, purser, pods } = await openLeasing(t);
  const file = join(purser.directory, 'purser.yaml');
  const before = readFileSync(file, 'utf8');
  writeFileSync(file, before.replace('default:', 'nobody:'));
  await purser.run('reload', {});
  await rentOne(purser, { cpus: 0.5, memory_gib: 0.25 });
  const [pod] = fake.objects('pods');
  assert.ok(!/purser.authority|API_TOKEN|SSL_CERT_FILE/.test(JSON.stringify(pod)));
  assert.deepEqual(readdirSync(pods.trust), []);
  writeFileSync(file, before);
  await purser.run('reload', {});
  assert.equal(await ask(pods.port, WORLD.certificate, 'api.test', 'x'), 'x x');
});

test('a pod that cannot be told whom to trust has no way out, so it is not sold', async (t) => {
  const { fake, purser, pods } = await openLeasing(t);
  const run = fake.exec;
  let isBroken = true;
  let failureCount = 0;
  fake.exec = (exec) => {
    if (!isBroken || !exec.command.some((it) => it.startsWith(TRUST))) return run(exec);
    failureCount += 1;
    return exec.exit(1);
  };
  const { token } = await purser.openWallet({ budget_cents: 500 });
  const body = { provider: 'provider_one', spec: { cpus: 0.5, memory_gib: 0.25, max_seconds: 600 } };
  const creating = purser.ask('POST', '/v1/compute/create', { token, key: 'k', body });
  await until('it was tried twice', async () => {
    purser.clock.advance(1);
    return failureCount >= 2;
  });
  assert.equal((await purser.budget(token)).used_usd, '0.00');
  isBroken = false;
  await until('it is tried again', async () => {
    purser.clock.advance(1);
    return readdirSync(pods.trust).length === 2;
  });
  assert.equal((await creating).body.status, 'running');
});
