import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { hostSession, WATCHDOG } from '../compute/engines/host-session.ts';
import { hasComponent } from '../helper/component.ts';
import { freePort } from '../helper/free-port.ts';
import { until } from '../helper/waiting.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';

/** Two proxies of Debian. Each gets a secret of its own, which an answer that it proxies might order it to send. */
const PROXIES = {
  nginx: {
    program: '/usr/sbin/nginx',
    begin(directory: string, port: number, to: string) {
      const file = join(directory, 'nginx.conf');
      const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
        (it) => `${it}_temp_path ${directory}/${it};`,
      );
      // Without the line of docs/proxy.md that has it obey nothing: Purser alone has to hold.
      const location = `proxy_pass ${to}; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;`;
      const http = `${paths.join(' ')} access_log off; server { listen 127.0.0.1:${port}; root ${directory}; location / { ${location} } location /secret { internal; } }`;
      writeFileSync(
        file,
        `daemon off; pid ${directory}/pid; error_log ${directory}/error.log; events {} http { ${http} }`,
      );
      return ['-p', directory, '-c', file, '-e', join(directory, 'error.log')];
    },
  },
  caddy: {
    program: 'caddy',
    begin(directory: string, port: number, to: string) {
      const file = join(directory, 'Caddyfile');
      writeFileSync(
        file,
        `{\n admin off\n auto_https off\n}\nhttp://127.0.0.1:${port} {\n bind 127.0.0.1\n reverse_proxy ${to}\n}\n`,
      );
      return ['run', '--config', file, '--adapter', 'caddyfile'];
    },
  },
};

const ORDERS = {
  'x-accel-redirect': '/secret/file',
  'x-sendfile': '/etc/hostname',
  'x-lighttpd-send-file': '/etc/hostname',
  'x-accel-limit-rate': '1',
  'x-accel-buffering': 'yes',
  'set-login': 'logged-out',
  'speculation-rules': '"/x"',
};

async function beginProxy(t: TestContext, name: keyof typeof PROXIES, to: string) {
  const { program, begin } = PROXIES[name];
  if (!hasComponent(t, name)) return undefined;
  const directory = mkdtempSync(join(tmpdir(), `purser-${name}-`));
  mkdirSync(join(directory, 'secret'), { mode: 0o755 });
  writeFileSync(join(directory, 'secret', 'file'), 'the secret of the proxy');
  const port = await freePort();
  const child = spawn(program, begin(directory, port, to), {
    stdio: 'ignore',
    env: { HOME: directory, PATH: process.env.PATH },
  });
  t.after(async () => {
    child.kill('SIGTERM');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'close');
    rmSync(directory, { recursive: true, force: true });
  });
  await until(`${name} listens`, async () => {
    assert.equal(child.exitCode, null, `${name} has ended`);
    const socket = connect(port, '127.0.0.1');
    const isOpen = await Promise.race([
      once(socket, 'connect').then(() => true),
      once(socket, 'close').then(() => false),
    ]).catch(() => false);
    socket.destroy();
    return isOpen;
  });
  return `http://127.0.0.1:${port}`;
}

for (const name of Object.keys(PROXIES) as (keyof typeof PROXIES)[])
  test(`behind ${name}, a server inside a lease orders it nothing, and its events come one by one`, async (t) => {
    const purser = await openMemoryServer(t);
    Object.assign(purser.backend.guest, { session: hostSession(), relay: WATCHDOG });
    const proxy = await beginProxy(t, name, purser.url);
    if (!proxy) return;
    const { token } = await purser.openWallet(LONG);
    const { id } = (await purser.lease(token)).body;
    const seen = Promise.withResolvers<void>();
    const tenant = createServer(async ({ url }, response) => {
      if (url !== '/events') return response.writeHead(200, ORDERS).end('from inside');
      response.writeHead(200, { 'content-type': 'text/event-stream', 'x-accel-buffering': 'yes' });
      response.write('data: 1\n\n');
      await seen.promise; // Not before the client has the first.
      response.end('data: 2\n\n');
    }).listen(0, '127.0.0.1');
    await once(tenant, 'listening');
    t.after(() => {
      tenant.closeAllConnections();
      tenant.close();
    });
    const { port } = tenant.address() as { port: number };
    const ask = (path: string) =>
      fetch(`${proxy}/v1/compute/${id}/port/${port}${path}`, { headers: { authorization: `Bearer ${token}` } });

    const answer = await ask('/');
    assert.equal(await answer.text(), 'from inside');
    for (const order of Object.keys(ORDERS)) assert.equal(answer.headers.get(order), null, order);
    let text = '';
    for await (const piece of (await ask('/events')).body as AsyncIterable<Uint8Array>) {
      text += Buffer.from(piece).toString();
      if (text === 'data: 1\n\n') seen.resolve();
    }
    assert.equal(text, 'data: 1\n\ndata: 2\n\n');
  });
