import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { Agent, request } from 'undici';
import { makePair, placePair } from '../helper/certificate.ts';
import { hasComponent } from '../helper/component.ts';
import { freePort } from '../helper/free-port.ts';
import { openLine, requestText } from '../helper/line.ts';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { until } from '../helper/waiting.ts';
import { MIB, openPort } from './ports-shared.ts';
import { answersIn } from './raw.ts';

const NAME = 'purser.example.org';
const PORTS = 'ports.example.org';
const PAGE = readFileSync(new URL('../../docs/proxy.md', import.meta.url), 'utf8');
const blockOf = (language: string) => {
  const [, block, ...others] = new RegExp(`\`\`\`${language}\n([^\`]*)\`\`\``).exec(PAGE) ?? [];
  assert.ok(block && !others.length, `the page has one block of ${language}`);
  return block;
};
/** Replaces what is on the page exactly once. */
function replaced(text: string, ...pairs: [from: string, to: string][]): string {
  for (const [from, to] of pairs) {
    assert.equal(text.split(from).length, 2, from);
    text = text.replace(from, () => to);
  }
  return text;
}

/** What the page does not have: where a test's proxy keeps its files, and where it listens. */
const PROXIES = {
  nginx: (directory: string, port: number, to: string) => {
    const { cert, key } = placePair(directory, makePair({ names: [NAME, `*.${PORTS}`] }));
    const block = replaced(
      blockOf('nginx'),
      ['listen 443 ssl;', `listen 127.0.0.1:${port} ssl;`],
      ['127.0.0.1:7420', to],
      [`/etc/letsencrypt/live/${NAME}/fullchain.pem`, cert],
      [`/etc/letsencrypt/live/${NAME}/privkey.pem`, key],
    );
    const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
      (it) => `${it}_temp_path ${directory}/${it};`,
    );
    const main = `daemon off; pid ${directory}/pid; error_log ${directory}/error.log; events {}`;
    const file = join(directory, 'nginx.conf');
    writeFileSync(file, `${main} http { access_log off; ${paths.join(' ')}\n${block}}`);
    return ['/usr/sbin/nginx', '-p', directory, '-c', file, '-e', join(directory, 'error.log')];
  },
  caddy: (directory: string, port: number, to: string) => {
    const block = replaced(blockOf('caddyfile'), ['127.0.0.1:7420', to]);
    const ports = block.replace(NAME, `*.${PORTS}`);
    const main = `{\n admin off\n local_certs\n skip_install_trust\n auto_https disable_redirects\n https_port ${port}\n default_bind 127.0.0.1\n}\n`;
    const file = join(directory, 'Caddyfile');
    writeFileSync(file, `${main}${block}\n${ports}`);
    return ['caddy', 'run', '--config', file, '--adapter', 'caddyfile'];
  },
};

/** Starts a proxy with the block of the page. `ask` asks it under a name of the page; `open` opens a line to it. */
async function begin(t: TestContext, name: keyof typeof PROXIES, to: string) {
  const directory = mkdtempSync(join(tmpdir(), `purser-${name}-`));
  const port = await freePort();
  const [program, ...args] = PROXIES[name](directory, port, to) as [string, ...string[]];
  const child = spawn(program, args, { stdio: 'ignore', env: { HOME: directory, PATH: process.env.PATH } });
  const agents = new Map<string, Agent>();
  t.after(async () => {
    for (const agent of agents.values()) await agent.destroy();
    child.kill('SIGTERM');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'close');
    rmSync(directory, { recursive: true, force: true });
  });
  const open = (host = NAME, localAddress = '127.0.0.1') =>
    openLine(`https://127.0.0.1:${port}`, { servername: host, localAddress } as object);
  const ask = (method: string, path: string, { host = NAME, headers = {}, body }: Asked = {}) => {
    const connect = { rejectUnauthorized: false, servername: host };
    if (!agents.has(host)) agents.set(host, new Agent({ connect, bodyTimeout: 0, headersTimeout: 0 }));
    const options = { dispatcher: agents.get(host) as Agent, method: method as 'GET', headers: { host, ...headers } };
    return request(`https://127.0.0.1:${port}${path}`, { ...options, body: body ?? null });
  };
  await until(`${name} serves`, async () => {
    assert.equal(child.exitCode, null, `${name} has ended`);
    return ask('GET', '/healthz').then(
      (it) => it.body.dump().then(() => it.statusCode === 200),
      () => false,
    );
  });
  return { ask, open };
}
type Asked = { host?: string; headers?: Record<string, string>; body?: string };

for (const name of Object.keys(PROXIES) as (keyof typeof PROXIES)[])
  test(`behind ${name} with the block of the page everything of Purser works`, async (t) => {
    if (!hasComponent(t, name)) return;
    const seen = Promise.withResolvers<void>();
    const { purser, wallet, token, id, port, base } = await openPort(
      t,
      async ({ url }, response) => {
        if (url !== '/slow')
          return response.writeHead(200, { 'x-accel-redirect': '/x', 'x-accel-limit-rate': '1' }).end(url);
        response.writeHead(200, { 'content-type': 'application/octet-stream' });
        response.write('one');
        await seen.promise; // Not before the client has the first.
        response.end('two');
      },
      {
        settings: {
          public_url: `https://${NAME}`,
          trusted_proxies: ['127.0.0.1'],
          ports: { host: `*.${PORTS}` },
          limits: { failed_auth_per_minute: 1, funds_wait_seconds: 0 },
        },
      },
    );
    const uploaded: Buffer[] = [];
    purser.backend.guest.upload = async (_, __, content) => void uploaded.push(content);
    const { ask, open } = await begin(t, name, new URL(purser.url).host);
    const authorization = `Bearer ${token}`;
    const json = { authorization, 'content-type': 'application/json' };

    // A stream arrives piece by piece, of a model and of a server in a lease.
    const first = Promise.withResolvers<void>();
    purser.upstream.handle = streaming(said('hel'), () => first.promise, said('lo'), FINISHED, counted(), DONE);
    const body = JSON.stringify({ model: 'chat', messages: [{ role: 'user', content: 'hi' }], stream: true });
    const { api_key } = await purser.run('wallet.gateway-key', { id: wallet.id });
    const gateway = { ...json, authorization: `Bearer ${api_key}` };
    const chat = await ask('POST', '/v1/router/chat/completions', { headers: gateway, body });
    let text = '';
    for await (const piece of chat.body) {
      text += piece;
      if (text.includes('hel')) first.resolve();
    }
    assert.ok(text.includes('lo') && text.endsWith(DONE), text);
    text = '';
    for await (const piece of (await ask('GET', `${base}/slow`, { headers: { authorization } })).body) {
      text += piece;
      if (text === 'one') seen.resolve();
    }
    assert.equal(text, 'onetwo');

    // 8 MiB are uploaded.
    const content = Buffer.alloc(8 * MIB, 'abcdefg');
    const upload = { id, path: '/a', content_base64: content.toString('base64') };
    const put = await ask('POST', '/v1/compute/upload', { headers: json, body: JSON.stringify(upload) });
    assert.equal(put.statusCode, 200, await put.body.text());
    assert.ok(uploaded[0]?.equals(content));

    // A WebSocket, by the token and at the port's own host name, which a link opens.
    const key = { 'sec-websocket-key': 'dGhlIHNhbXBsZSBub25jZQ==', 'sec-websocket-version': '13' };
    const upgrade = { connection: 'Upgrade', upgrade: 'websocket', ...key };
    const minted = await ask('POST', '/v1/compute/port', { headers: json, body: JSON.stringify({ id, port }) });
    const link = new URL(((await minted.body.json()) as { url: string }).url);
    assert.equal(link.host, `${port}-${id.slice(4)}.${PORTS}`);
    const opened = await ask('GET', link.pathname + link.search, { host: link.host });
    const cookie = String(opened.headers['set-cookie']).split(';')[0] as string;
    assert.match(cookie, /^__Host-purser-port=/);
    for (const [host, path, headers] of [
      [NAME, `${base}/ws`, { authorization }],
      [link.host, '/ws', { cookie, origin: link.origin }],
    ] as const) {
      const line = await open(host);
      line.write(requestText('GET', path, { host, ...headers, ...upgrade }));
      await line.until((it) => /^HTTP\/1\.1 101 /.test(it));
      line.socket.write(Buffer.from([0x81, 0x82, 0, 0, 0, 0, 0x68, 0x69]));
      await line.until((it) => it.endsWith('hi'));
      line.socket.destroy();
    }
    const plain = await ask('GET', '/x?y', { host: link.host, headers: { cookie } });
    assert.equal(await plain.body.text(), '/x?y', 'the proxy obeys no header of a lease');

    // Each client has its own address, whatever it says.
    const guess = async (from: string, said?: string) => {
      const line = await open(NAME, from);
      const forwarded = said ? { 'x-forwarded-for': said } : {};
      line.write(
        requestText('GET', '/v1/account', {
          host: NAME,
          authorization: 'Bearer guess',
          connection: 'close',
          ...forwarded,
        }),
      );
      await line.ended;
      return answersIn(line.text())[0]?.status;
    };
    assert.deepEqual(
      [
        await guess('127.0.0.2'),
        await guess('127.0.0.2'),
        await guess('127.0.0.2', '127.0.0.3'),
        await guess('127.0.0.3'),
      ],
      [401, 429, 429, 401],
    );

    // The page: a session bound to TLS, and its stream.
    const form = { 'content-type': 'application/x-www-form-urlencoded', origin: `https://${NAME}` };
    const signedIn = await ask('POST', '/sign-in/key', { headers: form, body: `key=${purser.accountKey}` });
    const session = String(signedIn.headers['set-cookie']);
    assert.match(session, /^__Host-purser-session=.*; Secure$/);
    const live = await ask('GET', `/live?wallet=${wallet.id}`, {
      headers: { cookie: session.split(';')[0] as string },
    });
    assert.equal(live.statusCode, 200);
    const [event] = (await once(live.body, 'data')) as [Buffer];
    assert.match(String(event), /^(:|data:|event:|retry:)/);
    live.body.on('error', () => {}).destroy();
  });
