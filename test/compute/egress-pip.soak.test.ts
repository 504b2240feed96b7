import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { createServer } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { promisify } from 'node:util';
import { hasComponent } from '../helper/component.ts';
import { openTestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { importImage, openDocker, packBusybox } from './engines/docker.ts';
import { makeCertificates } from './engines/remote.ts';

/** The world of this test: every address is of a network namespace of its own. */
const INDEX = '93.184.216.34';
const FILES = '93.184.216.35';
const EVIL = '93.184.216.36';
const NAME_SERVER = '93.184.216.53';
const GATEWAY = '172.17.0.1';
const ADDRESSES: Record<string, string> = { 'pypi.org': INDEX, 'files.pythonhosted.org': FILES, 'evil.test': EVIL };
const BRIDGE = 'purser-bridge';

/**
 * Enters that namespace. Its public addresses belong to it without being those of an interface, as Purser's proxy opens no
 * address of its own machine.
 */
const ENTER = [
  'ip link set lo up',
  'ip route add local 93.184.216.0/24 dev lo',
  `ip link add ${BRIDGE} type bridge`,
  `ip address add ${GATEWAY}/16 dev ${BRIDGE}`,
  `ip link set ${BRIDGE} up`,
  'mount --bind "$0" /etc/resolv.conf',
  'exec "$@"',
].join('\n');
/** Set in the process that runs inside. */
const INSIDE = 'PURSER_TEST_INSIDE_NAMESPACE';

function directoryOf(t: TestContext): string {
  const directory = mkdtempSync(join(tmpdir(), 'purser-pip-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

const PYTHON = '/usr/bin/python3';
const IMAGE = 'localhost/pip:1';

/** Packs Debian's Python and curl with their libraries, and pip from its wheel, beside busybox. */
function packImage(directory: string): string {
  packBusybox(directory);
  const root = join(directory, 'rootfs');
  const ask = 'import os, sys, sysconfig; print(os.path.realpath(sys.executable), sysconfig.get_path("stdlib"))';
  const [python, library] = execFileSync(PYTHON, ['-c', ask], { encoding: 'utf8' }).trim().split(' ') as [
    string,
    string,
  ];
  const programs = ['/usr/bin/curl', python, ...globSync(`${library}/lib-dynload/*.so`)];
  const linked = execFileSync('ldd', programs, { encoding: 'utf8' }).matchAll(/(?:=> |^\t)(\/\S+) \(/gm);
  const libraries = new Set([...linked].map(([, it]) => it as string));
  execFileSync('cp', ['--parents', '--dereference', '/usr/bin/curl', python, ...libraries, root]);
  const [wheel] = globSync('/usr/share/python-wheels/pip-*.whl') as [string];
  const start = `import sys; sys.path.insert(0, "${wheel}"); from pip._internal.cli.main import main; sys.exit(main())`;
  writeFileSync(join(root, 'bin/pip'), `#!/bin/sh\nexec ${python} -c '${start}' "$@"\n`, { mode: 0o755 });
  writeFileSync(join(root, 'bin/python3'), `#!/bin/sh\nexec ${python} "$@"\n`, { mode: 0o755 });
  const archive = join(directory, 'pip.tar');
  const large = [library, wheel].map((it) => it.slice(1));
  execFileSync('tar', ['--create', `--file=${archive}`, '-C', root, '.', '-C', '/', ...large]);
  return archive;
}

/** Makes the wheel of a package with one module, which prints its name. */
function makeWheel(directory: string, name: string): Buffer {
  const file = join(directory, `${name}.whl`);
  const about = `${name}-1.0.dist-info`;
  const texts = {
    [`${name}.py`]: `print("${name} runs")\n`,
    [`${about}/METADATA`]: `Metadata-Version: 2.1\nName: ${name}\nVersion: 1.0\n`,
    [`${about}/WHEEL`]: 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    [`${about}/RECORD`]: '',
  };
  const script =
    'import json, sys, zipfile\nwith zipfile.ZipFile(sys.argv[1], "w") as it:\n  for name, text in json.loads(sys.argv[2]).items(): it.writestr(name, text)';
  execFileSync(PYTHON, ['-c', script, file, JSON.stringify(texts)]);
  return readFileSync(file);
}

/** A name server that knows the names of the test. Returns every name that it is asked for. */
async function openNameServer(t: TestContext): Promise<string[]> {
  const asked: string[] = [];
  const socket = createSocket('udp4', (query, from) => {
    const labels: string[] = [];
    let at = 12; // After the header.
    for (; query[at]; at += 1 + (query[at] as number))
      labels.push(query.toString('latin1', at + 1, at + 1 + (query[at] as number)));
    const name = labels.join('.').toLowerCase();
    asked.push(name);
    const address = ADDRESSES[name];
    const isFour = query.readUInt16BE(at + 1) === 1;
    const head = Buffer.from(query.subarray(0, 12));
    head.writeUInt16BE(address === undefined ? 0x8183 : 0x8180, 2); // NXDOMAIN, or no error.
    head.writeUInt32BE(0x1_0000 + (address !== undefined && isFour ? 1 : 0), 4);
    head.writeUInt32BE(0, 8);
    const answer =
      address !== undefined && isFour
        ? Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...address.split('.').map(Number)])
        : Buffer.alloc(0);
    socket.send(Buffer.concat([head, query.subarray(12, at + 5), answer]), from.port, from.address);
  });
  socket.bind(53, '0.0.0.0');
  await once(socket, 'listening');
  t.after(() => socket.close());
  return asked;
}

/**
 * The hosts of the test over TLS, and one without at the bridge. As on the real index, the wheel of `far` is on another host.
 * Returns who was asked for what.
 */
async function openHosts(t: TestContext, directory: string): Promise<{ ca: string; requests: string[] }> {
  const names = Object.keys(ADDRESSES).map((it) => `DNS:${it}`);
  const { server: pair } = makeCertificates(join(directory, 'certificates'), names);
  const wheels = Object.fromEntries(['near', 'far'].map((it) => [it, makeWheel(directory, it)]));
  const requests: string[] = [];
  const server = createServer({ cert: readFileSync(pair.cert), key: readFileSync(pair.key) }, (request, response) => {
    requests.push(`${request.headers.host}${request.url}`);
    const [, name = '', file] =
      /^\/(?:simple\/)?(near|far)(?:\/|(-1\.0-py3-none-any\.whl))$/.exec(request.url ?? '') ?? [];
    if (file !== undefined) return void response.end(wheels[name]);
    if (!name) return void response.writeHead(404).end();
    const host = name === 'far' ? 'files.pythonhosted.org' : 'pypi.org';
    const link = `${name}-1.0-py3-none-any.whl`;
    response.setHeader('content-type', 'text/html').end(`<a href="https://${host}/${link}">${link}</a>`);
  });
  const plain = createHttpServer((request, response) => {
    requests.push(`plain ${request.headers.host}`);
    response.end('reached\n');
  });
  for (const [it, port] of [
    [server, 443],
    [plain, 80],
  ] as const) {
    it.listen(port, '0.0.0.0');
    await once(it, 'listening');
    t.after(() => {
      it.closeAllConnections();
      it.close();
    });
  }
  return { ca: pair.ca, requests };
}

/** Tries to reach each target by a plain socket, and prints those that let it. */
const SOCKETS = `import socket, sys
for it in sys.argv[1:]:
    kind, host, port = it.split('/')
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == 'udp' else socket.SOCK_STREAM)
    s.settimeout(1)
    try:
        s.connect((host, int(port)))
        s.send(bytes.fromhex('abcd01000001000000000000046576696c047465737400' + '00010001'))
        s.recv(100)
        print('reached', it)
    except OSError as error:
        print('failed', it, error)
`;

if (process.env[INSIDE] === undefined)
  test('with pypi.org alone in the list, pip installs, and nothing else is reached', async (t) => {
    if (!['docker', 'pip', 'curl', 'openssl', 'namespaces'].every((it) => hasComponent(t, it as 'pip'))) return;
    const servers = join(directoryOf(t), 'resolv.conf');
    writeFileSync(servers, `nameserver ${NAME_SERVER}\n`);
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const self = [process.execPath, ...process.execArgv, '--test-reporter=spec', import.meta.filename];
    const inside = promisify(execFile)('unshare', ['--net', '--mount', 'sh', '-ec', ENTER, servers, ...self], {
      env: { ...env, [INSIDE]: '1' },
      maxBuffer: 2 ** 26,
    });
    const { stdout } = await inside.catch((error) => assert.fail(`${error.stdout}${error.stderr}`));
    assert.match(stdout, /pass 1\n/, stdout);
  });
else
  test('inside the namespace', async (t) => {
    const directory = directoryOf(t);
    mkdirSync(join(directory, 'image'));
    const asked = await openNameServer(t);
    const { ca, requests } = await openHosts(t, directory);
    const engine = await openDocker(t, { flags: [`--bridge=${BRIDGE}`] });
    assert(engine);
    await importImage(engine.docker, packImage(join(directory, 'image')), { repo: IMAGE });
    const slot = {
      ...{ backend: 'container', socket: engine.socket, image: IMAGE, egress: ['pypi.org'] },
      prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
      limits: { cpus: 4, memory_gib: 4 },
    };
    const purser = await openTestServer(t, { settings: { compute: { provider_one: slot } } });
    const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
    const call = async (verb: string, body: object) => {
      const answer = await purser.ask('POST', `/v1/compute/${verb}`, { token, key: verb, body });
      assert.equal(answer.status, 200, answer.text);
      return answer.body;
    };
    const spec = { cpus: 1, memory_gib: 0.5, max_seconds: 1200 };
    const { id } = await call('create', { provider: 'provider_one', spec });
    const sh = async (command: string) => {
      const { stdout, stderr } = await call('exec', { id, command, timeout: 600 });
      return `${stdout}${stderr}`;
    };
    await call('upload', { id, path: '/tmp/ca.pem', content_base64: readFileSync(ca).toString('base64') });
    const pip = (name: string) =>
      sh(`PIP_CERT=/tmp/ca.pem pip install --no-cache-dir --retries 0 --target /tmp/${name} ${name}`);
    const curl = (args: string) => sh(`curl -sS --max-time 60 --cacert /tmp/ca.pem ${args}`);

    const installed = await pip('near');
    assert.match(installed, /Successfully installed near-1\.0/, installed);
    assert.equal(await sh('PYTHONPATH=/tmp/near python3 -m near'), 'near runs\n');
    assert.match(await curl('https://pypi.org/simple/near/'), /near-1\.0/);
    // What the index says is elsewhere needs an entry of its own.
    const elsewhere = await pip('far');
    assert.match(elsewhere, /files\.pythonhosted\.org.*Tunnel connection failed: 403 Forbidden/s, elsewhere);

    assert.match(await curl('https://evil.test/simple/near/'), /403/);
    assert.match(await curl('http://pypi.org:8080/'), /not in the list/);
    assert.match(await curl(`--insecure https://${INDEX}/simple/near/`), /403/);
    assert.match(await curl(`http://${GATEWAY}/`), /not in the list/);
    assert.match(await curl(`--noproxy '' http://127.0.0.1:${new URL(purser.url).port}/health`), /not in the list/);
    // The tunnel is to the listed name, and TLS in it asks for another one.
    assert.match(await curl('--connect-to evil.test:443:pypi.org:443 https://evil.test/simple/near/'), /curl: \(35\)/);

    // What ignores the proxy: no name is found, and no address is reached, though each of them serves.
    assert.match(await curl("--noproxy '*' https://pypi.org/simple/near/"), /Could not resolve host/);
    assert.match(
      await curl(`--noproxy '*' --resolve pypi.org:443:${INDEX} https://pypi.org/simple/near/`),
      /curl: \(7\)/,
    );
    assert.deepEqual([...new Set(asked)], ['pypi.org'], 'a name that is not in the list reaches no name server');
    assert.deepEqual(new Set(requests.map((it) => it.split('/')[0])), new Set(['pypi.org']));

    const targets = [`tcp/${INDEX}/80`, `tcp/${GATEWAY}/80`, `udp/${NAME_SERVER}/53`, `udp/${GATEWAY}/53`];
    const servers = (await sh('cat /etc/resolv.conf')).matchAll(/^nameserver (\S+)/gm);
    const engines = ['127.0.0.11', ...[...servers].map(([, it]) => it)].map((it) => `udp/${it}/53`);
    writeFileSync(join(directory, 'sockets.py'), SOCKETS);
    const { stdout: tried } = await promisify(execFile)(PYTHON, [join(directory, 'sockets.py'), ...targets]);
    assert.doesNotMatch(tried, /failed/, 'outside of a lease each of them answers');
    asked.length = 0;
    requests.length = 0;
    const content_base64 = Buffer.from(SOCKETS).toString('base64');
    await call('upload', { id, path: '/tmp/sockets.py', content_base64 });
    const found = await sh(`python3 /tmp/sockets.py ${[...targets, ...engines].join(' ')}`);
    assert.equal(found.match(/^failed /gm)?.length, targets.length + engines.length, found);
    assert.deepEqual({ asked, requests }, { asked: [], requests: [] });

    const { egress } = await call('status', { id });
    assert.ok(egress[0].bytes > 2000, 'what pip and curl took is counted');
    assert.deepEqual(
      egress.map(({ host, bytes, refused }: Record<string, unknown>) => [host, bytes !== 0, refused]),
      [
        ['pypi.org', true, 2], // Another port, and another name in TLS.
        ...['files.pythonhosted.org', 'evil.test', INDEX, GATEWAY, '127.0.0.1'].map((it) => [it, false, 1]),
      ],
    );

    await purser.reopen(() => {
      const file = join(purser.directory, 'purser.yaml');
      const settings = readFileSync(file, 'utf8');
      writeFileSync(file, settings.replace(/( *- )pypi\.org\n/, '$&$1files.pythonhosted.org\n'));
    });
    await until('the way out is open again', async () => /near-1\.0/.test(await curl('https://pypi.org/simple/near/')));
    const listed = await pip('far');
    assert.match(listed, /Successfully installed far-1\.0/, listed);
    // The agent's own list narrows the operator's.
    await call('egress', { id, allow: ['files.pythonhosted.org'] });
    assert.match(await curl('https://pypi.org/simple/near/'), /403/);
  });
