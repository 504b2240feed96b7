import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdirSync, readFileSync, renameSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls';
import { parse, stringify } from 'yaml';
import { makePair, type Pair, placePair } from '../helper/certificate.ts';
import { openLine, requestText } from '../helper/line.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';

const PAIR = makePair();
const OTHER = makePair();
const DAY = 86_400;

/** Opens a connection, and returns it after the handshake. */
async function shake(t: TestContext, purser: TestServer, options: ConnectionOptions = {}): Promise<TLSSocket> {
  const { hostname: host, port } = new URL(purser.url);
  const socket = connect({ host, port: Number(port), rejectUnauthorized: false, ...options });
  t.after(() => socket.destroy());
  await once(socket, 'secureConnect');
  return socket;
}

/** Returns which of the pairs is served. */
async function served(t: TestContext, purser: TestServer): Promise<Pair | undefined> {
  const { raw } = (await shake(t, purser)).getPeerCertificate();
  const pem = raw.toString('base64');
  return [PAIR, OTHER].find(({ cert }) => cert.replace(/-----.*-----|\n/g, '') === pem);
}

const events = (purser: TestServer) =>
  purser.log.map((line) => JSON.parse(line)).filter((it) => /^tls\./.test(it.event));

function rewrite(purser: TestServer, change: (settings: Record<string, any>) => void): void {
  const file = join(purser.directory, 'purser.yaml');
  const settings = parse(readFileSync(file, 'utf8'));
  change(settings);
  writeFileSync(file, stringify(settings));
}

test('with a certificate every address that Purser gives is https, and a chat works', async (t) => {
  const purser = await openTestServer(t, { tls: PAIR });
  assert.match(purser.app.state.baseUrl, /^https:\/\/127\.0\.0\.1:\d+$/);
  const made = await purser.run('wallet.create', { account: purser.accountId, name: 'a', budget_cents: 500 } as never);
  assert.equal((made as { env: Record<string, string> }).env.SVC_BROKER_URL, purser.url);
  const { token } = await purser.openWallet();
  assert.equal((await purser.chat(token)).status, 200);
  assert.equal((await purser.ask('GET', '/openapi.json')).body.servers[0].url, purser.url);
  assert.ok(purser.log.some((line) => line.includes(`"listen":"${purser.url}"`)));
});

test('http on the port of https is refused in words, and does nothing', async (t) => {
  const purser = await openTestServer(t, { tls: PAIR });
  const { token } = await purser.openWallet();
  const body = JSON.stringify({ model: 'chat', messages: [{ role: 'user', content: 'hi' }] });
  const authorization = `Bearer ${token}`;
  for (const text of [
    requestText('GET', '/', {}),
    requestText('GET', '/v1/budget', { authorization }),
    requestText('POST', '/v1/chat/completions', { authorization, 'content-type': 'application/json' }, body),
    requestText('GET', '/v1/compute/res_1/port/80/', { connection: 'Upgrade', upgrade: 'websocket', authorization }),
    requestText('POST', '/v1/chat/completions', { authorization, expect: '100-continue', 'content-length': '10' }),
  ]) {
    const line = await openLine(purser.url.replace('https:', 'http:'));
    line.write(text);
    await line.ended;
    assert.deepEqual(line.statuses(), [400], text);
    assert.ok(line.text().includes(`This port speaks https, not http. Purser's address is ${purser.url}`), line.text());
  }
  assert.equal(purser.upstream.calls.length, 0);
  for (const text of ['HELO there\r\n\r\n', `GET /${'x'.repeat(100_000)} HTTP/1.1\r\n\r\n`]) {
    const line = await openLine(purser.url.replace('https:', 'http:'));
    line.write(text);
    await line.ended;
    assert.match(line.text(), /^HTTP\/1\.1 4\d\d /);
  }
});

test('TLS 1.2 and 1.3 are spoken, and nothing older; of protocols HTTP/1.1 alone', async (t) => {
  const purser = await openTestServer(t, { tls: PAIR });
  const h1 = { ALPNProtocols: ['h2', 'http/1.1'] };
  for (const version of ['TLSv1.2', 'TLSv1.3'] as const) {
    const socket = await shake(t, purser, { minVersion: version, maxVersion: version, ...h1 });
    assert.deepEqual([socket.getProtocol(), socket.alpnProtocol], [version, 'http/1.1']);
  }
  const old = { minVersion: 'TLSv1', maxVersion: 'TLSv1.1', ciphers: 'DEFAULT@SECLEVEL=0' } as const;
  await assert.rejects(shake(t, purser, old), { code: 'ERR_SSL_TLSV1_ALERT_PROTOCOL_VERSION' });
  await assert.rejects(shake(t, purser, { ALPNProtocols: ['h2'] }), {
    code: 'ERR_SSL_TLSV1_ALERT_NO_APPLICATION_PROTOCOL',
  });
  const socket = await shake(t, purser, { maxVersion: 'TLSv1.2' });
  const answer = Promise.withResolvers<Error | null>();
  socket.on('error', answer.resolve);
  socket.renegotiate({}, answer.resolve);
  assert.ok(await answer.promise, 'a client cannot ask for another handshake');
});

test('changed files are served, symbolic links included; what cannot be served is not, and the one of before is', async (t) => {
  const purser = await openTestServer(t, { tls: PAIR });
  const { directory, app } = purser;
  const open = await shake(t, purser);
  placePair(directory, OTHER);
  assert.equal(await served(t, purser), PAIR, 'until it looks');
  app.certificateWatch?.runOnce();
  assert.equal(await served(t, purser), OTHER);
  open.write(requestText('GET', '/healthz', {}));
  assert.match(String((await once(open, 'data'))[0]), /200 OK/, 'an open connection goes on');

  // As Kubernetes does it: the name is a link through a directory, which is a link that is replaced.
  for (const [name, pair] of Object.entries({ one: OTHER, two: PAIR })) {
    mkdirSync(join(directory, name));
    placePair(join(directory, name), pair);
  }
  symlinkSync('one', join(directory, 'now'));
  rewrite(purser, (it) => {
    it.tls = { cert: join(directory, 'now/tls.crt'), key: join(directory, 'now/tls.key') };
  });
  assert.deepEqual((await purser.run('reload', {})).settings, ['tls']);
  symlinkSync('two', join(directory, 'next'));
  renameSync(join(directory, 'next'), join(directory, 'now'));
  app.certificateWatch?.runOnce();
  assert.equal(await served(t, purser), PAIR);

  const key = join(directory, 'now/tls.key');
  const before = events(purser).length;
  for (const content of [OTHER.key, 'not a key', '', PAIR.key.slice(0, 60)]) {
    writeFileSync(key, content);
    app.certificateWatch?.runOnce();
    app.certificateWatch?.runOnce();
    assert.equal(await served(t, purser), PAIR);
  }
  const refused = events(purser).slice(before);
  assert.deepEqual([...new Set(refused.map((it) => it.event))], ['tls.refused']);
  assert.equal(refused.length, 2, 'each reason is told once');
  assert.match(refused[0].reason, /^tls\.key: .*tls\.key is not the key of the first certificate in .*tls\.crt\./);
  assert.match(refused[1].reason, /^tls\.key: .* contains no private key in PEM/);
  writeFileSync(key, PAIR.key);
  app.certificateWatch?.runOnce();
  assert.equal(events(purser).length, before + 2, 'it is the one that is served');
  const secrets = [PAIR, OTHER].flatMap((it) => it.key.split('\n').filter((line) => /^[^-]/.test(line)));
  for (const line of purser.log) assert.ok(!secrets.some((it) => line.includes(it.slice(0, 16))), line);
});

test('a reload serves what the files contain and may name others; it refuses a pair that cannot be served', async (t) => {
  const purser = await openTestServer(t, { tls: PAIR });
  const { directory } = purser;
  placePair(directory, OTHER);
  assert.deepEqual((await purser.run('reload', {})).settings, ['tls']);
  assert.equal(await served(t, purser), OTHER);
  assert.deepEqual((await purser.run('reload', {})).settings, []);

  mkdirSync(join(directory, 'b'));
  const files = placePair(join(directory, 'b'), PAIR);
  rewrite(purser, (it) => {
    it.tls = { ...files, key: join(directory, 'tls.key') };
    it.log_level = 'warn';
  });
  await assert.rejects(purser.run('reload', {}), {
    code: 'conflict',
    message: /is not the key of the first certificate/,
  });
  rewrite(purser, (it) => {
    it.tls = { ...files, cert: join(directory, 'none') };
  });
  await assert.rejects(purser.run('reload', {}), { code: 'conflict', message: /tls\.cert: there is no file .*none\./ });
  rewrite(purser, (it) => {
    it.tls = files;
  });
  placePair(join(directory, 'b'), makePair({ to: purser.app.clock.now() - 5 }));
  await assert.rejects(purser.run('reload', {}), { code: 'conflict', message: /The certificate expired on / });
  assert.equal(purser.app.log.level, 'debug', 'nothing else was changed either');
  assert.equal(await served(t, purser), OTHER);
  rewrite(purser, (it) => {
    delete it.tls;
  });
  await assert.rejects(purser.run('reload', {}), { code: 'conflict', message: /whether tls is set needs a restart/ });

  rewrite(purser, (it) => {
    it.tls = files;
  });
  placePair(join(directory, 'b'), PAIR);
  assert.deepEqual((await purser.run('reload', {})).settings, ['log_level', 'tls']);
  assert.equal(await served(t, purser), PAIR);
  placePair(directory, makePair());
  purser.app.certificateWatch?.runOnce();
  assert.equal(await served(t, purser), PAIR, 'the files of before are not looked at any more');
  placePair(join(directory, 'b'), OTHER);
  purser.app.certificateWatch?.runOnce();
  assert.equal(await served(t, purser), OTHER);
});

test('a pair that cannot be served ends the start with a sentence; an expired one is served, and said', async (t) => {
  const purser = await openTestServer(t, { tls: PAIR });
  const { directory } = purser;
  const now = purser.app.clock.now();
  await assert.rejects(
    purser.reopen(() => placePair(directory, { ...PAIR, key: OTHER.key })),
    {
      name: 'ConfigurationFault',
      message:
        /^The configuration cannot be used:\n {2}tls\.key: .*tls\.key is not the key of the first certificate in .*tls\.crt\. Put /,
    },
  );
  await purser.reopen(() => placePair(directory, makePair({ from: now - 9 * DAY, to: now - DAY })));
  assert.deepEqual(
    events(purser).map((it) => [it.event, it.reason]),
    [['tls.invalid', `The certificate expired on ${new Date((now - DAY) * 1000).toISOString().slice(0, 10)}.`]],
  );
  assert.equal((await openLine(purser.url)).socket.destroyed, false);
  assert.deepEqual((await purser.run('reload', {})).settings, [], 'it does not stand in the way of other settings');
});

test('the files are read every quarter of a minute', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] });
  const purser = await openTestServer(t, { tls: PAIR });
  placePair(purser.directory, OTHER);
  t.mock.timers.tick(15_000);
  assert.equal(await served(t, purser), OTHER);
});
