import assert from 'node:assert/strict';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import type { EngineSettings } from '../../src/compute/engines/container/address.ts';
import { findDiskLimits } from '../../src/compute/engines/container/disk-advice.ts';
import { runCommand } from '../../src/compute/machine/command.ts';
import { freePort } from '../helper/free-port.ts';
import { until } from '../helper/waiting.ts';
import { LONG, openWith, PRICE } from '../lease/leases.ts';
import { IMAGE } from './engines/docker.ts';
import { openRemote, overSsh, overTls, type Remote } from './engines/docker-remote.ts';
import { type EngineProxy, openEngineProxy } from './engines/proxy.ts';
import { makeCertificates, openRelay, type Relay } from './engines/remote.ts';
import { containerSubject } from './engines/subject.ts';

test('whoever is not the engine, and what the engine does not accept, is named, and a create is a clear no', async (t) => {
  const opened = await openRemote(t);
  if (!opened) return;
  const { sshd, client, server, port, engine } = opened;
  const tls = overTls(opened);
  const ssh = overSsh(opened);
  const strange = makeCertificates(`${sshd.pool}/strange`).client;
  const otherKey = ssh.host_key?.replace(/(AAAA\S{40})(\S{4})/, (_, key: string) => `${key}AAAA`);
  const cases: [EngineSettings, RegExp][] = [
    [
      { ...tls, tls: { ...client, ca: strange.ca } },
      /unable to verify the first certificate\. tls\.ca is not the auth/,
    ],
    [{ ...tls, tls: { ...strange, ca: client.ca } }, /alert bad certificate.* The engine does not accept tls\.cert/],
    [{ ...tls, tls: server }, /alert bad certificate.* The engine does not accept tls\.cert/],
    [{ ...tls, socket: `tcp://localhost:${port}` }, /altnames.* Use the name or the address that the engine’s cert/],
    [{ ...tls, tls: { ...client, key: server.key } }, /tls\.key is not the key of tls\.cert\.$/],
    [{ ...tls, tls: { ...client, key: '/nothing' } }, /ENOENT.*'\/nothing'\. Correct the path of this file/],
    [{ socket: tls.socket }, /One side speaks TLS and the other does not/],
    [{ ...ssh, host_key: otherKey }, /shows another host key than the one that is pinned\. If the host was made anew/],
    [{ ...ssh, host_key: 'ecdsa-sha2-nistp256 AAAA' }, /The host has no key of the kind of host_key\.$/],
    [
      { ...ssh, identity_file: join(sshd.pool, '../hostkey') },
      /authentication methods failed\. Add the public half of identity_file/,
    ],
    [{ ...ssh, identity_file: client.cert }, /identity_file must be a private key without a passphrase\.$/],
    [{ ...ssh, socket: `${ssh.socket}x` }, /The host is reached\. Is the engine running at that path/],
    [{ ...tls, socket: `tcp://127.0.0.1:${await freePort()}` }, /ECONNREFUSED.*\. Is the engine running/],
  ];
  for (const [settings, said] of cases) {
    const { backend, spec } = containerSubject(settings);
    const [finding] = await backend.doctor.check();
    assert.deepEqual([finding?.name, finding?.ok], ['engine', false]);
    assert.match(finding?.detail ?? '', said);
    const order = { tag: 'purser-inst-conformance-res-no', quote: await backend.quote(spec), deadline: 1e10 };
    assert.equal((await backend.create(order)).kind, 'refused');
    await backend.close();
  }
  assert.deepEqual(await engine.docker.listContainers({ all: true }), []);
});

const LINES: [
  string,
  (t: TestContext, it: Remote) => Promise<{ proxy: EngineProxy; relay: Relay; settings: EngineSettings }>,
][] = [
  [
    'TLS',
    async (t, it) => {
      const proxy = await openEngineProxy(t, it.engine, it.server);
      const relay = await openRelay(t, Number(new URL(proxy.socket).port));
      return { proxy, relay, settings: overTls(it, relay.port) };
    },
  ],
  [
    'SSH',
    async (t, it) => {
      const proxy = await openEngineProxy(t, it.engine);
      const relay = await openRelay(t, it.sshd.host.port);
      return { proxy, relay, settings: overSsh(it, relay.port, proxy.socket) };
    },
  ],
];
for (const [name, open] of LINES) {
  test(`over ${name}, a connection lost in a create: its machine is found by the tag, and what was paid for runs once`, async (t) => {
    const remote = await openRemote(t);
    if (!remote) return;
    const { proxy, relay, settings } = await open(t, remote);
    const purser = await openWith(t, settings, IMAGE, {});
    await purser.app.reaper.stop(); // It would find the machine at once, and remove it.
    const { token } = await purser.openWallet(LONG);
    const machines = async () =>
      (await remote.engine.docker.listContainers({ all: true })).filter((it) =>
        it.Names[0]?.startsWith(`/${tagPrefix(purser.app.installationId)}`),
      );
    // An engine without quotas refuses the first request, which asks for one.
    const before = await purser.lease(token, 'before');
    await purser.stop(token, before.body.id);
    proxy.watch({ request: 'POST /containers/create', moment: 'before it is answered', strike: relay.cut });
    const lost = await purser.lease(token, 'k');
    assert.deepEqual([lost.status, lost.body.error.code], [503, 'operation_uncertain']);
    assert.equal((await machines()).length, 1, 'the engine had made it');
    // It was made and never started: it is found, removed and costs nothing, and the key is free again.
    const found = await purser.lease(token, 'k');
    assert.deepEqual([found.status, found.body.error.code], [503, 'provider_unavailable']);
    assert.deepEqual(await machines(), []);
    const made = await purser.lease(token, 'k');
    assert.deepEqual([made.status, made.body.status, made.body.charged_usd], [200, 'running', PRICE], made.text);
    assert.equal((await machines()).length, 1);
    assert.deepEqual(purser.problems(), []);
    await purser.stop(token, made.body.id);
    assert.deepEqual(await machines(), []);
  });

  test(`over ${name}, a command whose connection is lost is not answered with half of what it said`, async (t) => {
    const remote = await openRemote(t);
    if (!remote) return;
    const { relay, settings } = await open(t, remote);
    const { backend, spec } = containerSubject(settings);
    t.after(() => backend.close());
    const tag = `purser-inst-conformance-res-lost-${name.toLowerCase()}`;
    const deadline = Math.floor(Date.now() / 1000) + 600;
    assert.equal((await backend.create({ tag, quote: await backend.quote(spec), deadline })).kind, 'created');
    const limits = { timeoutSeconds: 60, streamBytesMax: 1000 };
    // What comes in the same moment as a cut may still be given an idle connection that was cut as well.
    const say = async (command: string) =>
      (await backend.guest.exec(tag, { command, ...limits }).catch(() => undefined))?.stdout.toString();
    for (const [way, run] of [
      ['plain', (command: string) => backend.guest.exec(tag, { command, ...limits })],
      ['in a directory', (command: string) => runCommand(backend, tag, { command, cwd: '/tmp', ...limits })],
    ] as const) {
      const ran = run('echo begun; : > /tmp/begun; sleep 60');
      ran.catch(() => {}); // It is looked at below.
      await until('it has begun', async () => (await say('rm /tmp/begun && echo yes')) === 'yes\n');
      relay.cut();
      await assert.rejects(ran, `${way}, long before it would end`);
      await until('a new connection is made', async () => (await say('echo works')) === 'works\n');
    }
    await backend.destroy(tag);
  });
}

test('what a command has asked an engine over SSH leaves no connection, nor does a key that is none', async (t) => {
  const remote = await openRemote(t);
  if (!remote) return;
  const relay = await openRelay(t, remote.sshd.host.port);
  const engine = overSsh(remote, relay.port);
  const offers = [{ id: 'small', cpus: 1, memory_gib: 1, max_disk_gb: 5, count: 1, price_hourly_usd: 1n }];
  const shared = { image: IMAGE, pull: 'never', network: 'none', pids: 64, provision_seconds: 60 } as const;
  const settings = { backend: 'container', ...shared, ...engine, limits: { max_seconds: 600 }, offers } as const;
  const [limit] = await findDiskLimits({ provider_three: settings });
  assert.match(limit?.detail ?? '', /disk_gb is not enforced: overlay2 on /);
  assert.equal(relay.count(), 1, 'one connection carried all requests');
  await until('it is closed', async () => relay.openCount() === 0);

  const unusable = containerSubject({ ...engine, identity_file: remote.client.cert });
  assert.match((await unusable.backend.doctor.check())[0]?.detail ?? '', /parse privateKey/);
  const usable = containerSubject(engine).backend; // The relay accepts its connection after the one before.
  await usable.listOwned('purser-');
  await usable.close();
  await until('nothing is left open', async () => relay.openCount() === 0);
});
