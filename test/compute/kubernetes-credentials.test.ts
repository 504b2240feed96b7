import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { readCluster } from '../../src/compute/engines/kubernetes/credentials.ts';

const now = () => Math.floor(Date.now() / 1000);
const SECRET = 'very-secret-word';

function openFolder(t: TestContext) {
  const folder = mkdtempSync(join(tmpdir(), 'purser-kubeconfig-'));
  t.after(() => rmSync(folder, { recursive: true }));
  return (user: object, cluster: object = {}) => {
    const kubeconfig = join(folder, 'config');
    const config = {
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'c', cluster: { server: 'https://10.0.0.1:6443/', ...cluster } }],
      users: [{ name: 'u', user }],
      contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
      'current-context': 'x',
    };
    writeFileSync(kubeconfig, JSON.stringify(config));
    return { folder, kubeconfig };
  };
}

test('a token, files beside the kubeconfig and a name of the server are read', async (t) => {
  const write = openFolder(t);
  const { folder, kubeconfig } = write(
    { tokenFile: 'token' },
    { 'certificate-authority': 'ca.pem', 'tls-server-name': 'kubernetes.internal' },
  );
  writeFileSync(join(folder, 'token'), `${SECRET}\n`);
  writeFileSync(join(folder, 'ca.pem'), 'an authority');
  const cluster = await readCluster({ kubeconfig }, now);
  assert.equal(cluster.server, 'https://10.0.0.1:6443');
  assert.deepEqual(await cluster.credentials(), {
    token: SECRET,
    tls: { ca: Buffer.from('an authority'), servername: 'kubernetes.internal' },
  });
  writeFileSync(join(folder, 'token'), 'rotated');
  assert.equal((await cluster.credentials()).token, SECRET, 'it is kept for a minute');
  cluster.renew();
  assert.equal((await cluster.credentials()).token, 'rotated');
});

test('client certificates are read, from the file itself as well', async (t) => {
  const data = (text: string) => Buffer.from(text).toString('base64');
  const { kubeconfig } = openFolder(t)({ 'client-certificate-data': data('cert'), 'client-key-data': data('key') });
  const { token, tls } = await (await readCluster({ kubeconfig }, now)).credentials();
  assert.deepEqual([token, String(tls.cert), String(tls.key)], [undefined, 'cert', 'key']);
});

test('an exec plugin gets what the kubeconfig names, and nothing of the environment beside', async (t) => {
  process.env.PURSER_TEST_PLUGIN_SECRET = SECRET;
  t.after(() => delete process.env.PURSER_TEST_PLUGIN_SECRET);
  const write = openFolder(t);
  const script = (expires: string) =>
    `env > seen; echo x >> calls; echo '{"kind":"ExecCredential","status":{"token":"of-plugin","expirationTimestamp":"${expires}"}}'`;
  const plugin = (expires: string, folder: string) => ({
    exec: {
      apiVersion: 'client.authentication.k8s.io/v1',
      command: '/bin/sh',
      args: ['-c', `cd ${folder}; ${script(expires)}`],
      env: [{ name: 'REGION', value: 'north' }],
    },
  });
  const { folder } = write({});
  const calls = () => readFileSync(join(folder, 'calls'), 'utf8').length / 2;
  const { kubeconfig } = write(plugin('2999-01-01T00:00:00Z', folder));
  const cluster = await readCluster({ kubeconfig }, now);
  const both = await Promise.all([cluster.credentials(), cluster.credentials()]);
  assert.deepEqual(
    both.map(({ token }) => token),
    ['of-plugin', 'of-plugin'],
  );
  await cluster.credentials();
  assert.equal(calls(), 1, 'it is asked once until its credentials expire');
  const seen = readFileSync(join(folder, 'seen'), 'utf8');
  assert.match(seen, /^REGION=north$/m);
  assert.match(seen, /^KUBERNETES_EXEC_INFO=.*"interactive":false/m);
  assert.ok(!seen.includes(SECRET));

  write(plugin('2001-01-01T00:00:00Z', folder));
  const expired = await readCluster({ kubeconfig }, now);
  await expired.credentials();
  await expired.credentials();
  assert.equal(calls(), 3, 'what has expired is asked for again');
});

test('what is wrong is said, without a secret', async (t) => {
  const write = openFolder(t);
  const { folder } = write({});
  const faults: [user: object, cluster: object, says: RegExp][] = [
    [{ tokenFile: 'missing' }, {}, /missing cannot be read \(ENOENT\)/],
    [{ token: SECRET }, { 'proxy-url': 'http://proxy' }, /proxy-url is not supported/],
    [{ token: SECRET }, { server: 'tcp://10.0.0.1' }, /is not a kubeconfig file: clusters\.0\.cluster\.server/],
    [{ exec: { command: 'no-such-plugin' } }, {}, /no-such-plugin, which the kubeconfig names, failed \(ENOENT\)/],
    [{ exec: { command: '/bin/sh', args: ['-c', `echo ${SECRET}; exit 3`] } }, {}, /failed \(3\)/],
    [{ exec: { command: '/bin/sh', args: ['-c', `echo ${SECRET}`] } }, {}, /printed no ExecCredential/],
  ];
  for (const [user, cluster, says] of faults) {
    const { kubeconfig } = write(user, cluster);
    const error = await readCluster({ kubeconfig }, now)
      .then((it) => it.credentials())
      .then(
        () => assert.fail('it was accepted'),
        (it: Error) => it,
      );
    assert.match(error.message, says);
    assert.ok(!error.message.includes(SECRET), error.message);
  }
  const kubeconfig = join(folder, 'config');
  writeFileSync(kubeconfig, `token: [${SECRET}\n`);
  await assert.rejects(readCluster({ kubeconfig }, now), (error: Error) => !error.message.includes(SECRET));
  await assert.rejects(readCluster({ kubeconfig: join(folder, 'none') }, now), /cannot be read \(ENOENT\)/);
  const { kubeconfig: fine } = write({ token: SECRET });
  await assert.rejects(readCluster({ kubeconfig: fine, context: 'other' }, now), /has no context "other"/);
});
