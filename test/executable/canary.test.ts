import assert from 'node:assert/strict';
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { deriveToken, mintToken, TOKEN_PREFIX } from '../../src/access/token.ts';
import { AUDIENCE, type FakeIssuer, openIssuer } from '../access/issuer.ts';
import { type FakeStripe, openStripe, signatureOf } from '../billing/fake-stripe.ts';
import { type Installation, installation, run, type Serving } from '../helper/executable.ts';
import { filesOf } from '../helper/files.ts';
import { freePort } from '../helper/free-port.ts';
import { openReceiver } from '../helper/receiver.ts';
import { completionStream, DONE, event, said, streaming } from '../helper/sse.ts';
import { completion, failure, openUpstream, reset } from '../helper/upstream.ts';
import { walletWith } from './cli-shared.ts';

/** A leak of so many characters in a row is a leak; fewer of a 256-bit secret are not. */
const PIECE_LENGTH = 16;
const PIECE_STEP = 4;

/** Where a secret might lie, and what is there. */
type Places = Map<string, Buffer>;

function findIn(places: Places, needle: string | Buffer): string[] {
  return [...places].filter(([, bytes]) => bytes.includes(needle)).map(([name]) => name);
}

/** The pieces of a secret that are looked for, less the prefix of a token, which is none. */
function piecesOf(secret: string): Buffer[] {
  const prefix = Object.values(TOKEN_PREFIX).find((it) => secret.startsWith(it)) ?? '';
  const body = Buffer.from(secret.slice(prefix.length));
  const count = Math.floor((body.length - PIECE_LENGTH) / PIECE_STEP) + 1;
  return Array.from({ length: count }, (_, i) => body.subarray(i * PIECE_STEP, i * PIECE_STEP + PIECE_LENGTH));
}

/** Every place that holds a piece of a secret, with the secret's name. All are looked for in one pass over the bytes. */
function findPieces(places: Places, secrets: Record<string, string>): string[] {
  const byBeginning = new Map<number, { name: string; piece: Buffer }[]>();
  for (const [name, secret] of Object.entries(secrets))
    for (const piece of piecesOf(secret)) {
      const beginning = piece.readUInt16BE();
      byBeginning.set(beginning, [...(byBeginning.get(beginning) ?? []), { name, piece }]);
    }
  const isBeginning = new Uint8Array(2 ** 16);
  for (const beginning of byBeginning.keys()) isBeginning[beginning] = 1;
  const found = new Set<string>();
  for (const [place, bytes] of places)
    for (let i = 0; i + PIECE_LENGTH <= bytes.length; i++) {
      const beginning = ((bytes[i] as number) << 8) | (bytes[i + 1] as number);
      if (!isBeginning[beginning]) continue;
      for (const { name, piece } of byBeginning.get(beginning) as { name: string; piece: Buffer }[])
        if (bytes.compare(piece, 0, PIECE_LENGTH, i, i + PIECE_LENGTH) === 0) found.add(`${name}: ${place}`);
    }
  return [...found];
}

/** Every file of the data directory, without the addon that was unpacked there. */
function placesOf(purser: Installation, moment: string): Places {
  return new Map([...filesOf(purser.directory)].map(([name, { bytes }]) => [`${name} (${moment})`, bytes]));
}

/** Sends bytes that are no HTTP, and waits for the end of the connection. */
function sendRaw(url: string, text: string): Promise<string> {
  const { hostname, port } = new URL(url);
  return new Promise((resolve, reject) => {
    let answer = '';
    const socket = net.connect(Number(port), hostname, () => socket.write(text));
    socket.setEncoding('utf8').on('data', (it) => {
      answer += it;
    });
    socket.once('close', () => resolve(answer)).once('error', reject);
  });
}

async function live(t: TestContext, env: Record<string, string>) {
  const upstream = await openUpstream(t);
  const upstreamKey = `sk-proj-${randomBytes(30).toString('base64url')}`;
  const metricsPort = await freePort();
  const now = () => Math.floor(Date.now() / 1000);
  const issuer = await openIssuer(t, now);
  const services = {
    STRIPE_KEY: `sk_test_${randomBytes(30).toString('hex')}`,
    STRIPE_WEBHOOK: `whsec_${randomBytes(30).toString('hex')}`,
    S3_ID: `AKIA${randomBytes(20).toString('hex').toUpperCase()}`,
    S3_SECRET: randomBytes(30).toString('hex'),
    HOOK: randomBytes(30).toString('hex'),
    EVENTS_SECRET: randomBytes(30).toString('hex'),
    COLLECTOR_KEY: randomBytes(30).toString('hex'),
  };
  const variable = (name: keyof typeof services) => `\${${name}}`;
  const stripe = await openStripe(t, now, services.STRIPE_KEY);
  const receiver = await openReceiver(t);
  // One that does not take what it is told, and says what it should not.
  receiver.reply = (_, response) => response.writeHead(400).end(JSON.stringify(services));
  // The spans that it gets are a place to search; it repeats the key that it was sent.
  const collector = await openReceiver(t);
  collector.reply = (_, response) => response.writeHead(200).end(JSON.stringify(services));
  const settings = {
    opentelemetry: { endpoint: collector.url, headers: { authorization: `Bearer ${variable('COLLECTOR_KEY')}` } },
    events: {
      receivers: [
        { url: `${receiver.url}/${variable('HOOK')}`, secret: variable('EVENTS_SECRET') },
        { url: `http://127.0.0.1:1/${variable('HOOK')}`, secret: variable('EVENTS_SECRET') },
      ],
    },
    limits: { released_per_minute: 0 }, // Every sentence of the model server is to be heard.
    log_level: 'debug',
    metrics: { listen: `127.0.0.1:${metricsPort}` },
    identity: { issuer: issuer.url, audience: AUDIENCE },
    billing: {
      stripe: {
        secret_key: variable('STRIPE_KEY'),
        webhook_secrets: [variable('STRIPE_WEBHOOK')],
        success_url: 'https://agents.example/',
        api_base: stripe.url,
      },
    },
    transfer: {
      endpoint: 'http://127.0.0.1:1',
      bucket: 'agents',
      access_key_id: variable('S3_ID'),
      secret_access_key: variable('S3_SECRET'),
    },
  };
  const variables = { ...env, ...services };
  const purser = installation(t, { upstream: { url: upstream.url, key: upstreamKey }, settings, env: variables });
  const server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 5000 });
  const { key: operator } = await purser.operate('operator-key.mint', {});
  const { key: account } = await purser.operate('key.create', { account: 'default', name: 'ci' });
  const body = { name: 'agent', budget_cents: 1000 };
  const wallet = (await server.ask('POST', '/v1/wallets', { token: account, key: 'w', body })).body;
  const spare = (await server.ask('POST', '/v1/wallets', { token: operator, key: 's', body })).body;
  const minted = await server.ask('POST', '/v1/keys', { token: operator, body: { name: 'by http' } });
  assert.equal(minted.status, 201);
  const secrets: Record<string, string> = {
    upstreamKey,
    operator,
    account,
    'minted by HTTP': minted.body.key,
    wallet: wallet.agent_token,
    'closed wallet': spare.agent_token,
    'unknown account key': mintToken('account'),
    'unknown operator key': mintToken('operator'),
    'unknown wallet token': deriveToken('wallet', randomBytes(32), 'wal_x'),
    'unknown router token': deriveToken('router', randomBytes(32), 'key_x'),
    'malformed token': `svc_agent_${randomBytes(30).toString('hex')}`,
    'access token': `eyJhbGciOiJFZERTQSJ9.${randomBytes(120).toString('base64url')}.${randomBytes(64).toString('base64url')}`,
  };
  const keyOf = async (body: object) =>
    (await server.ask('POST', '/v1/router/key', { token: wallet.agent_token, body })).body.api_key as string;
  const router = await keyOf({});
  secrets['router key'] = router;
  secrets['revoked router key'] = await keyOf({ models: ['chat'] });
  const { keys } = await purser.json('key', 'list', '--wallet', wallet.id);
  const { id: revoked } = keys.find((it: { last4: string }) => secrets['revoked router key']?.endsWith(it.last4));
  await purser.json('key', 'revoke', revoked);
  secrets.session = await issuer.token();
  secrets['ended session'] = await issuer.token({ exp: 1 });

  const errors: string[] = [];
  const refused = async (method: string, path: string, asked: Parameters<Serving['ask']>[2], status?: number) => {
    const answer = await server.ask(method, path, asked);
    assert(answer.status >= 400, `${method} ${path}: ${answer.status}`);
    if (status !== undefined) assert.equal(answer.status, status, answer.text);
    errors.push(answer.text, JSON.stringify(answer.headers));
  };
  const chat = (messages: string, more: object = {}) => ({
    model: 'chat',
    messages: [{ role: 'user', content: messages }],
    max_tokens: 50,
    ...more,
  });

  // Good requests, so that everything is stored that ever is.
  const good = { token: secrets.wallet, key: 'good', body: chat(`my token is ${secrets.wallet}`) };
  assert.equal((await server.ask('POST', '/v1/chat/completions', good)).status, 200);
  assert.equal((await server.ask('POST', '/v1/chat/completions', good)).headers['idempotent-replayed'], 'true');
  assert.equal(
    (await server.ask('GET', `/v1/wallets/${wallet.id}/token`, { token: account })).body.agent_token,
    secrets.wallet,
  );
  assert.equal((await server.ask('POST', `/v1/wallets/${spare.id}/close`, { token: account })).status, 200);
  const streamed = (more: object = {}) => ({
    token: router,
    body: chat(`my key is ${router}`, { stream: true, ...more }),
  });
  upstream.handle = completionStream();
  for (const key of ['streamed', 'streamed', undefined]) {
    const answer = await server.ask('POST', '/v1/router/chat/completions', { ...streamed(), key });
    assert(answer.text.endsWith(DONE), answer.text);
  }
  upstream.handle = completion();

  // Each secret in each wrong place.
  for (const [name, secret] of Object.entries(secrets)) {
    if (name === 'upstreamKey') continue; // No caller has it; what the upstream itself says of it comes below.
    await refused('GET', '/v1/no/such/path', { token: secret });
    await refused('GET', `/v1/wallets/${secret}`, { token: account }, 404);
    await refused('GET', `/v1/resources?wallet_id=${secret}`, { token: account });
    await refused('POST', '/v1/wallets', { token: account, key: randomUUID(), body: { name: 'n', [secret]: 1 } }, 400);
    await refused(
      'POST',
      '/v1/chat/completions',
      { token: secrets.wallet, key: randomUUID(), body: chat('hi', { model: secret }) },
      404,
    );
    await refused(
      'POST',
      '/v1/chat/completions',
      { token: secrets.wallet, key: randomUUID(), body: `{"model": "${secret}` },
      400,
    );
    await refused('GET', '/v1/account', { headers: { authorization: `Basic ${secret}` } }, 401);
    await refused('GET', '/v1/account', { headers: { authorization: `Bearer ${secret} ${secret}` } }, 401);
    errors.push(await sendRaw(server.url, `GET /v1/account HTTP/1.1\r\nauthorization Bearer ${secret}\r\n\r\n`));
  }
  for (const [name, secret] of Object.entries(secrets).filter(([it]) => /unknown|malformed|access/.test(it)))
    for (const path of ['/v1/account', '/v1/budget', '/v1/keys'])
      await refused('GET', path, { token: secret }, 401).catch((error) => assert.fail(`${name}: ${error}`));
  for (const secret of Object.values(secrets)) {
    if (secret === upstreamKey) continue;
    await refused('GET', `/v1/router/models/${secret}`, { token: router }, 404);
    await refused('GET', `/v1/router/${secret}`, { token: router }, 404);
    await refused('POST', '/v1/router/key', { token: secrets.wallet, body: { max_price_usd: secret } }, 400);
    await refused('POST', '/v1/router/key', { token: secrets.wallet, body: { models: [secret] } });
    await refused('POST', '/v1/router/chat/completions', streamed({ model: secret }), 404);
    await refused('POST', '/v1/router/chat/completions', streamed({ [secret]: 1 }), 400);
    await refused('POST', '/v1/router/embeddings', { token: router, body: { model: secret, input: secret } }, 404);
    if (secret !== router) await refused('GET', '/v1/router/models', { token: secret });
  }
  await refused('GET', '/v1/account', { token: secrets.wallet }, 403);
  await refused('GET', '/v1/budget', { token: account }, 403);
  await refused('POST', '/v1/chat/completions', { token: secrets['closed wallet'], key: 'x', body: chat('hi') }, 409);

  // An upstream that says what it should not, and one whose words are cut in the middle of a secret.
  const told = [upstreamKey, secrets.wallet, secrets.account, router];
  const sentence = told.map((it) => `Incorrect API key provided: ${it}. Bearer ${it}`).join(' ');
  const cut = (secret: string) => `${'x'.repeat(500 - 30)} ${secret}`;
  for (const status of [400, 401, 403, 404, 413, 422, 429, 500, 502, 503])
    for (const message of [sentence, ...told.map((it) => cut(it as string))]) {
      upstream.handle = failure(status, { error: { message, type: 'x' }, detail: message });
      await refused('POST', '/v1/chat/completions', { token: secrets.wallet, key: randomUUID(), body: chat('hi') });
    }
  for (const message of [sentence, ...told.map((it) => cut(it as string))]) {
    for (const code of [400, 404, 429, 502, undefined]) {
      upstream.handle = streaming(event({ error: { message, code } }));
      await refused('POST', '/v1/router/chat/completions', streamed());
    }
    upstream.handle = streaming(said('a'), event({ error: { message } }));
    const broken = await server.ask('POST', '/v1/router/chat/completions', streamed());
    assert.match(broken.text, /answer_lost/);
    errors.push(broken.text);
  }
  errors.push(...(await payAndSign(server, { issuer, stripe, now, keys: services, session: secrets.session, wallet })));
  Object.assign(secrets, services);

  upstream.handle = reset;
  await refused('POST', '/v1/chat/completions', { token: secrets.wallet, key: 'lost', body: chat('hi') }, 503);
  upstream.handle = completion();

  const { statusCode, text } = await metrics(metricsPort);
  assert.equal(statusCode, 200);
  // The last write before the files are read: an earlier one may have left the log, which begins anew after so many pages.
  const planted = `planted-${randomUUID()}`;
  const last = { token: account, key: 'planted', body: { name: planted, budget_cents: 100 } };
  assert.equal((await server.ask('POST', '/v1/wallets', last)).status, 201);
  const places: Places = placesOf(purser, 'while it runs');
  places.set('error bodies', Buffer.from(errors.join('\n')));
  places.set('/metrics', Buffer.from(text));
  places.set('cmdline', readFileSync(`/proc/${server.pid}/cmdline`));
  return { purser, server, places, secrets, planted, wallet, collector };
}

/** People sign in and pay; the payment provider says what it should not, and somebody lies about its signature. */
async function payAndSign(server: Serving, it: ServiceKeys): Promise<string[]> {
  const { issuer, stripe, now, keys, session } = it;
  const errors: string[] = [];
  const checkout = (token: string) =>
    server.ask('POST', '/v1/billing/checkout', { token, key: randomUUID(), body: { amount_cents: 500 } });
  const paid = await checkout(session);
  assert.equal(paid.status, 200, paid.text);
  const body = JSON.stringify(stripe.pay(paid.body.id));
  const webhook = (secret: string) =>
    server.ask('POST', '/webhooks/stripe', {
      body,
      headers: { 'stripe-signature': signatureOf(body, secret, now()) },
    });
  assert.equal((await webhook(keys.STRIPE_WEBHOOK)).status, 200);
  errors.push((await webhook(keys.STRIPE_KEY)).text);
  const known = [keys.STRIPE_KEY, keys.STRIPE_WEBHOOK, session];
  const sentences = known.map((secret) => `Invalid API Key provided: ${secret}. Bearer ${secret}`);
  const cut = known.map((secret) => `${'x'.repeat(270)} ${secret}`);
  for (const status of [400, 401, 403, 404, 409, 429, 500, 503])
    for (const message of [...sentences, ...cut]) {
      stripe.faults = [{ kind: 'status', status, error: { type: 'invalid_request_error', code: 'x', message } }];
      const answer = await checkout(await issuer.token({ sub: randomUUID() }));
      assert.equal(answer.status, 503, answer.text);
      errors.push(answer.text, JSON.stringify(answer.headers));
    }
  const asked = { object: 'a', operation: 'put' };
  const signed = await server.ask('POST', '/v1/transfer/sign', { token: it.wallet.agent_token, body: asked });
  assert.equal(signed.status, 200);
  assert(signed.body.url.includes(keys.S3_ID), 'the id of the key is in every signed URL');
  assert(!signed.body.url.includes(keys.S3_SECRET));
  return errors;
}
type ServiceKeys = {
  issuer: FakeIssuer;
  stripe: FakeStripe;
  now: () => number;
  keys: Record<'STRIPE_KEY' | 'STRIPE_WEBHOOK' | 'S3_ID' | 'S3_SECRET', string>;
  session: string;
  wallet: { agent_token: string };
};

async function metrics(port: number): Promise<{ statusCode: number; text: string }> {
  const answer = await fetch(`http://127.0.0.1:${port}/metrics`);
  return { statusCode: answer.status, text: await answer.text() };
}

/** Ends the life in both ways, and adds what it left behind. */
async function end({ purser, server, places, wallet, collector }: Awaited<ReturnType<typeof live>>): Promise<void> {
  const add = (more: Places) => {
    for (const [name, bytes] of more) places.set(name, bytes);
  };
  await collector.until(() => collector.got.some(({ text }) => text.includes(wallet.id))); // Spans are collected for a second.
  await server.stop('SIGKILL');
  add(placesOf(purser, 'after kill -9'));
  const next = await purser.serve();
  for (const args of [
    ['operation', 'list'],
    ['key', 'list', '--wallet', wallet.id],
    ['wallet', 'list'],
    ['operator-key', 'list'],
    ['passkey', 'list'],
    ['checkout', 'list'],
    ['config', 'print'],
    ['--json', 'config', 'print'],
    ['ledger', 'export'],
    ['events', 'list'],
  ])
    places.set(args.join(' '), Buffer.from(Object.values(await purser.cli(...args)).join('\n')));
  await next.stop();
  places.set('spans', Buffer.from(collector.got.map(({ text }) => text).join('\n')));
  add(placesOf(purser, 'after SIGTERM'));
  places.set('stdout', Buffer.from(server.output.stdout + next.output.stdout));
  places.set('stderr', Buffer.from(server.output.stderr + next.output.stderr));
}

test('no secret is found in clear on disk, in a log, in an error, in the metrics or on the command line', async (t) => {
  const master = randomBytes(32);
  const life = await live(t, { PURSER_MASTER_KEY: master.toString('hex') });
  await end(life);
  const { places, secrets, planted, wallet, purser } = life;

  // The search itself: what is known to be in a place is found there.
  const database = findIn(places, planted);
  for (const name of ['purser.db-wal (while it runs)', 'purser.db (after SIGTERM)', 'wallet list'])
    assert(database.includes(name), name);
  const byId = findIn(places, wallet.id);
  for (const name of ['stderr', 'spans', 'purser.db-wal (after kill -9)']) assert(byId.includes(name), name);
  assert(!places.get('spans')?.includes('my token is'), 'no prompt');
  assert(findIn(places, 'wrong_token_scope').includes('error bodies'));
  assert(findIn(places, 'purser_refusals_total').includes('/metrics'));
  assert(findIn(places, purser.directory).includes('cmdline'));
  assert.deepEqual(findPieces(new Map([['here', Buffer.from(`…${secrets.wallet?.slice(14, 40)}…`)]]), secrets), [
    'wallet: here',
  ]);
  assert(
    findIn(
      places,
      createHash('sha256')
        .update(secrets.wallet as string)
        .digest(),
    ).length,
    'its hash is what is stored',
  );

  secrets['master key, hex'] = master.toString('hex');
  secrets['master key, HEX'] = master.toString('hex').toUpperCase();
  secrets['master key, base64'] = master.toString('base64');
  assert.deepEqual(findPieces(places, secrets), []);
  assert.deepEqual(findIn(places, master), []);
});

test('a generated master key is in its own file and nowhere else', async (t) => {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, settings: { log_level: 'debug' } });
  const server = await purser.serve();
  const { agent_token: token } = await walletWith(purser);
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 50 };
  assert.equal((await server.ask('POST', '/v1/chat/completions', { token, key: 'one', body })).status, 200);
  const places = placesOf(purser, 'while it runs');
  const add = (moment: string) => {
    for (const [name, bytes] of placesOf(purser, moment)) places.set(name, bytes);
  };
  await server.stop('SIGKILL');
  add('after kill -9');
  const next = await purser.serve();
  await next.stop();
  add('after SIGTERM');
  for (const { stdout, stderr } of [server.output, next.output])
    places.set(`output ${places.size}`, Buffer.from(stdout + stderr));
  const hex = readFileSync(join(purser.directory, 'master.key'), 'utf8').trim();
  assert.deepEqual(
    findPieces(places, { key: hex }),
    ['while it runs', 'after kill -9', 'after SIGTERM'].map((it) => `key: master.key (${it})`),
  );
  assert.deepEqual(findIn(places, Buffer.from(hex, 'hex')), []);
});

test('a fault of the configuration does not quote what it found: it may be a secret in the wrong place', async (t) => {
  const purser = installation(t);
  const secret = `sk-${randomBytes(24).toString('hex')}`;
  const places = [
    'listen: ',
    'public_url: ',
    'log_level: ',
    'drain_seconds: ',
    'router: ',
    'trusted_proxies: [',
    'nonsense: ',
  ];
  for (const before of places) {
    writeFileSync(join(purser.directory, 'purser.yaml'), `${before}$` + `{SECRET}${before.endsWith('[') ? ']' : ''}\n`);
    const said = await run(['--data', purser.directory, 'config', 'check'], { env: { SECRET: secret } });
    assert.equal(said.code, 1, said.stdout + said.stderr);
    assert(!`${said.stdout}${said.stderr}`.includes(secret), said.stderr);
  }
});
