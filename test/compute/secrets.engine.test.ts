import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer as createPlainServer, type RequestListener } from 'node:http';
import { createServer } from 'node:https';
import { type AddressInfo, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { createSecureContext, type SecureContext } from 'node:tls';
import type Docker from 'dockerode';
import type { Backend, Ref } from '../../src/compute/backend.ts';
import { createAuthority } from '../../src/egress/authority.ts';
import { findResource } from '../../src/ledger/resource.ts';
import { PUBLIC } from '../egress/proxy-shared.ts';
import { openTestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { type Engine, IMAGE, importImage, openDocker, packBusybox } from './engines/docker.ts';
import { settingsOn, sharedKubernetes } from './engines/kubernetes-subject.ts';
import { LXD_IMAGE, openLxd } from './engines/lxd.ts';
import { openPodman } from './engines/podman.ts';
import { rentOne } from './rented.ts';
import { keysOf, shows } from './secrets-shared.ts';

const VALUE = 'canary-value-0123456789';
/** The authority of the servers outside, which Purser trusts, and an image with roots of its own. */
const WORLD = createAuthority(randomBytes(32), 'world', Math.floor(Date.now() / 1000));
const trusted = createSecureContext({ ca: [WORLD.certificate] });

const WITH_ROOTS = 'localhost/busybox-roots:1';
type Opened = {
  settings: object;
  hasRoots: boolean;
  /** Returns all that the engine keeps of its machines, as text. */
  kept?(): Promise<string>;
  stop?(): unknown;
};

/** Imports busybox with a bundle of roots, as Debian and Alpine have it. */
async function importWithRoots(docker: Docker): Promise<void> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-roots-'));
  const certificates = join(directory, 'rootfs/etc/ssl/certs');
  mkdirSync(certificates, { recursive: true });
  writeFileSync(join(certificates, 'ca-certificates.crt'), WORLD.certificate.trimEnd());
  await importImage(docker, packBusybox(directory), { repo: WITH_ROOTS });
  rmSync(directory, { recursive: true });
}

async function withRoots(engine: Engine | undefined): Promise<Opened | undefined> {
  if (!engine) return undefined;
  await importWithRoots(engine.docker);
  return {
    settings: { backend: 'container', socket: engine.socket, image: WITH_ROOTS },
    hasRoots: true,
    stop: engine.stop,
  };
}

const ENGINES: [name: string, open: (t: TestContext) => Promise<Opened | undefined>][] = [
  ['Docker', async (t) => withRoots(await openDocker(t, { shared: true }))],
  ['Podman', async (t) => withRoots(await openPodman(t))],
  [
    'Docker, an image without roots',
    async (t) => {
      const engine = await openDocker(t, { shared: true });
      if (!engine) return undefined;
      return {
        settings: { backend: 'container', socket: engine.socket, image: IMAGE },
        hasRoots: false,
        stop: engine.stop,
      };
    },
  ],
  [
    'Kubernetes',
    async (t) => {
      const shared = await sharedKubernetes(t);
      if (!shared) return undefined;
      const { cluster, kubeconfig } = shared;
      await importWithRoots(cluster.docker);
      const kinds = 'pods,jobs,configmaps,secrets,events,networkpolicies';
      return {
        settings: { ...settingsOn(cluster, kubeconfig), image: WITH_ROOTS },
        hasRoots: true,
        async kept() {
          const files = globSync(join(cluster.directory, '{*.log,etcd/**}')).filter((it) => statSync(it).isFile());
          const objects = await cluster.kubectl(['get', kinds, '--all-namespaces', '--output', 'json']);
          return [objects, ...files.map((it) => readFileSync(it, 'latin1'))].join('\n');
        },
      };
    },
  ],
  [
    'LXD',
    async (t) => {
      const lxd = await openLxd(t, WORLD.certificate);
      if (!lxd) return undefined;
      const settings = { backend: 'lxd', socket: lxd.socket, image: LXD_IMAGE, user: 0 };
      return { settings, hasRoots: true, stop: lxd.stop };
    },
  ],
];

/**
 * Servers of every host, which say what a request had, in a form that no search for the value finds. Returns the port of those
 * behind TLS, and of those that speak it in the clear.
 */
async function openWorld(t: TestContext): Promise<{ port: number; plainPort: number }> {
  const handle: RequestListener = ({ url, headers }, response) => {
    const seen = `${url} ${headers.authorization} ${headers['x-other']}`;
    response.end(`${seen.includes(VALUE) ? 'value' : 'none'} ${seen.replaceAll(VALUE, '')}\n`);
  };
  const SNICallback = (name: string, done: (fault: null, context: SecureContext) => void) =>
    done(null, WORLD.contextOf(name));
  const servers = [createServer({ SNICallback, ALPNProtocols: ['http/1.1'] }, handle), createPlainServer(handle)];
  const ports: number[] = [];
  for (const server of servers) {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    ports.push((server.address() as AddressInfo).port);
    t.after(() => {
      server.closeAllConnections();
      server.close();
    });
  }
  const [port, plainPort] = ports as [number, number];
  return { port, plainPort };
}

/** Puts this machine's curl into a lease, in a directory that its user may write. Returns the command that runs it. */
async function putCurl({ guest }: Backend, ref: Ref): Promise<string> {
  const program = execFileSync('sh', ['-c', 'readlink -f "$(command -v curl)"'], { encoding: 'utf8' }).trim();
  const libraries = execFileSync('ldd', [program], { encoding: 'utf8' }).match(/\/\S+/g) as string[];
  for (const path of [program, ...libraries]) await guest.upload(ref, `/tmp/c/${basename(path)}`, readFileSync(path));
  await guest.exec(ref, { command: 'chmod 755 /tmp/c/*', timeoutSeconds: 60, streamBytesMax: 1000 });
  const loader = libraries.find((it) => basename(it).startsWith('ld-linux')) as string;
  return `/tmp/c/${basename(loader)} --library-path /tmp/c /tmp/c/${basename(program)}`;
}

for (const [name, openEngine] of ENGINES)
  test(`${name}: the host gets the value, and the lease never has it`, async (t) => {
    const engine = await openEngine(t);
    if (!engine) return;
    t.after(() => engine.stop?.());
    const { port, plainPort } = await openWorld(t);
    const slot = {
      prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
      limits: { cpus: 4, memory_gib: 4 },
      egress: ['api.test', 'other.test'],
      ...engine.settings,
    };
    const secret = { name: 'API_TOKEN', host: 'api.test', header: 'Authorization', value: VALUE };
    const purser = await openTestServer(t, {
      settings: { compute: { provider_one: slot }, accounts: { default: { secrets: [secret] } } },
      outside: {
        lookUp: async () => [PUBLIC],
        dial: (_, asked) => connect({ host: '127.0.0.1', port: asked === 80 ? plainPort : port, allowHalfOpen: true }),
        isOwn: () => false,
        trust: () => trusted,
      },
    });
    const { id, token, sh } = await rentOne(purser, { cpus: 1, memory_gib: 0.5 });
    const { backend } = purser.app.slots.list[0] as { backend: Backend };
    const program = await putCurl(backend, findResource(purser.app.ledger.read, id)?.ref as Ref);

    const placeholder = (await sh('printf %s "$API_TOKEN"')).trim();
    assert.match(placeholder, /^purser_placeholder_[0-9a-f]{64}$/);
    const curl = (url: string, more = '') =>
      sh(`${program} -sS ${more} -H "Authorization: Bearer $API_TOKEN" -H "X-Other: $API_TOKEN" "${url}"`);
    assert.equal(await curl('https://api.test/?$API_TOKEN'), `value /?${placeholder} Bearer  ${placeholder}\n`);
    // curl offers HTTP/2 as well; two requests share its connection.
    assert.equal((await curl('https://api.test/a', 'https://api.test/b')).match(/value/g)?.length, 2);
    const trusting = engine.hasRoots ? '' : '-k';
    const asItIs = `none / Bearer ${placeholder} ${placeholder}\n`;
    assert.equal(await curl('https://other.test/', trusting), asItIs);
    assert.equal(await curl('http://api.test/'), asItIs);
    if (!engine.hasRoots) {
      assert.match(await curl('https://other.test/'), /certificate/i);
      assert(Number(await sh('grep -c BEGIN "$SSL_CERT_FILE"')) > 50);
    }

    if (engine.kept) {
      const kept = await engine.kept();
      assert.ok(shows(kept, Buffer.from(placeholder)), 'the search finds');
      const authority = await sh('cat "$NODE_EXTRA_CA_CERTS"');
      for (const it of [Buffer.from(VALUE), ...keysOf(purser, id, authority)]) assert.ok(!shows(kept, it));
    }
    assert.equal(await sh(`env | grep -c ${VALUE}`), '0\n');
    // The volumes of a pod are not on the disk of its image.
    const places = '/ /home/lease /tmp /run/purser /run/purser-trust';
    const files = `find ${places} -xdev -type f ! -path "/proc/*" ! -path "/sys/*" -exec grep -l ${VALUE} {} + 2>/dev/null; true`;
    assert.equal(await sh(files), '');
    // The searching processes themselves say what they look for, so it is put together from two parts.
    const [front, back] = [VALUE.slice(0, 9), VALUE.slice(9)];
    assert.equal(await sh(`a=${front}; b=${back}; cat /proc/*/environ 2>/dev/null | grep -c "$a$b" || true`), '0\n');
    assert(!purser.log.some((it) => it.includes(VALUE)));

    // A server that starts again makes the same authority and the same placeholder.
    await purser.reopen();
    await until('the way out is open again', async () =>
      (await curl('https://api.test/').catch(() => '')).startsWith('value'),
    );
    const stopped = await purser.ask('POST', '/v1/compute/stop', { token, body: { id } });
    assert.equal(stopped.status, 200, stopped.text);
    await until('it is gone', async () => {
      purser.clock.advance(1); // A pod takes longer than the answer.
      const { body } = await purser.ask('POST', '/v1/compute/status', { token, body: { id } });
      return body.status === 'stopped';
    });
  });
