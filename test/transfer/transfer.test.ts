import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import test, { type TestContext } from 'node:test';
import { request } from 'undici';
import { Secret } from '../../src/base/secret.ts';
import { tryTransfer } from '../../src/transfer/check.ts';
import { createSigner } from '../../src/transfer/object-url.ts';
import { handClock, openTestServer, type TestServer } from '../helper/server.ts';
import { KEYS, type ObjectStore, openObjectStore, REGION } from './object-store.ts';

const DAY = 86_400;
const settingsOf = (store: { url: string }, path_style = true) => ({
  endpoint: store.url,
  region: REGION,
  bucket: 'agents',
  path_style,
});

async function open(t: TestContext): Promise<{ purser: TestServer; store: ObjectStore }> {
  const time = handClock();
  const store = await openObjectStore(t, () => Math.floor(time.wall() / 1000));
  const purser = await openTestServer(t, { time, settings: { transfer: { ...settingsOf(store), ...KEYS } } });
  return { purser, store };
}

const sign = (purser: TestServer, token: string, object: string, operation: string, more: object = {}) =>
  purser.ask('POST', '/v1/transfer/sign', { token, body: { object, operation, ...more } });

async function send(method: string, url: string, body?: Buffer) {
  const answer = await request(url, { method: method as 'GET', body: body ?? null });
  return { status: answer.statusCode, body: Buffer.from(await answer.body.arrayBuffer()) };
}

test('the vector that AWS publishes for a signed URL comes out to the last digit', async () => {
  const signer = createSigner({
    endpoint: 'https://s3.amazonaws.com',
    region: 'us-east-1',
    bucket: 'examplebucket',
    path_style: false,
    access_key_id: new Secret('AKIAIOSFODNN7EXAMPLE'),
    secret_access_key: new Secret('wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY'),
  });
  const url = new URL(await signer.sign('GET', 'test.txt', Date.UTC(2013, 4, 24) / 1000, DAY));
  assert.equal(url.origin + url.pathname, 'https://examplebucket.s3.amazonaws.com/test.txt');
  assert.equal(
    url.searchParams.get('X-Amz-Signature'),
    'aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404',
  );
});

const NAMES = [
  'a.txt',
  'deep/er/still.tar.gz',
  'with space + plus & more?=#%25.bin',
  'ünïcode/ключ/鍵/🔑',
  "quotes'()*!~",
  'double//slash',
  '%2e%2e/percent',
  'trailing/',
];

for (const object of NAMES)
  test(`bytes go in and out of ${JSON.stringify(object)}, by a store that checks every signature itself`, async (t) => {
    const { purser, store } = await open(t);
    const { id, token } = await purser.openWallet();
    const content = randomBytes(100_000);
    const put = await sign(purser, token, object, 'put');
    assert.equal(put.status, 200, put.text);
    assert.deepEqual(
      { ...put.body, url: '' },
      {
        url: '',
        method: 'PUT',
        object,
        operation: 'put',
        headers: {},
        expires_at: Math.floor(purser.clock.wall() / 1000) + 900,
      },
    );
    assert.equal((await send('PUT', put.body.url, content)).status, 200, store.refused.join());
    assert.deepEqual([...store.objects.keys()], [`/agents/wallets/${id}/${object}`]);
    const get = await sign(purser, token, object, 'get', { expires_seconds: 60 });
    const read = await send('GET', get.body.url);
    assert.equal(read.status, 200, store.refused.join());
    assert.ok(read.body.equals(content));
  });

test('a URL that was tampered with moves nothing: another method, object, wallet, time or signature', async (t) => {
  const { purser, store } = await open(t);
  const [own, other] = [await purser.openWallet(), await purser.openWallet()];
  const { url } = (await sign(purser, own.token, 'a.txt', 'get')).body;
  store.objects.set(`/agents/wallets/${own.id}/a.txt`, Buffer.from('mine'));
  store.objects.set(`/agents/wallets/${other.id}/a.txt`, Buffer.from('theirs'));
  assert.equal((await send('GET', url)).status, 200);
  const last = url.at(-1);
  for (const [method, tampered] of [
    ['PUT', url],
    ['DELETE', url],
    ['GET', url.replace('a.txt', 'b.txt')],
    ['GET', url.replace(own.id, other.id)],
    ['GET', url.replace('X-Amz-Expires=900', 'X-Amz-Expires=90000')],
    ['GET', url.slice(0, -1) + (last === '0' ? '1' : '0')],
  ] as const)
    assert.equal((await send(method, tampered, method === 'PUT' ? Buffer.from('x') : undefined)).status, 403, tampered);
  assert.equal(store.objects.get(`/agents/wallets/${own.id}/a.txt`)?.toString(), 'mine');
  purser.clock.advance(900);
  assert.equal((await send('GET', url)).status, 403, 'its time is over');
});

test('a URL never outlives its wallet, and a wallet that has ended gets none', async (t) => {
  const { purser } = await open(t);
  const { id, token } = await purser.openWallet({ expires_in_seconds: 600 });
  const now = Math.floor(purser.clock.wall() / 1000);
  const long = (await sign(purser, token, 'a', 'put', { expires_seconds: 604_800 })).body;
  assert.equal(long.expires_at, now + 600);
  assert.equal(new URL(long.url).searchParams.get('X-Amz-Expires'), '600');
  const forever = await purser.openWallet({ expires_in_seconds: 0 });
  assert.equal(
    (await sign(purser, forever.token, 'a', 'put', { expires_seconds: 604_800 })).body.expires_at,
    now + 604_800,
  );
  await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  const late = await sign(purser, token, 'a', 'put');
  assert.deepEqual([late.status, late.body.error.code], [409, 'wallet_closed']);
});

test('a signed URL outlives a close, until its own end', async (t) => {
  const { purser, store } = await open(t);
  const { id, token } = await purser.openWallet();
  const [put, get] = [await sign(purser, token, 'a', 'put'), await sign(purser, token, 'a', 'get')];
  await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  assert.equal((await send('PUT', put.body.url, Buffer.from('late'))).status, 200, store.refused.join());
  assert.equal((await send('GET', get.body.url)).body.toString(), 'late');
  purser.clock.advance(899);
  assert.equal((await send('GET', get.body.url)).status, 200);
  purser.clock.advance(1);
  assert.equal((await send('GET', get.body.url)).status, 403);
});

test('in virtual-host style the bucket is in the name of the host, which is signed', async (t) => {
  const time = handClock();
  const store = await openObjectStore(t, () => Math.floor(time.wall() / 1000));
  const { port } = new URL(store.url);
  const transfer = { ...settingsOf(store, false), endpoint: `http://s3.lan:${port}`, ...KEYS };
  const purser = await openTestServer(t, { time, settings: { transfer } });
  const { id, token } = await purser.openWallet();
  const { url } = (await sign(purser, token, 'dir/a b', 'put')).body;
  const { host, pathname, search } = new URL(url);
  assert.deepEqual([host, pathname], [`agents.s3.lan:${port}`, `/wallets/${id}/dir/a%20b`]);
  const put = async (headers: Record<string, string>) =>
    (await request(store.url + pathname + search, { method: 'PUT', body: 'x', headers })).statusCode;
  assert.equal(await put({ host: `others.s3.lan:${port}` }), 403);
  assert.equal(await put({ host }), 200, store.refused.join());
  assert.deepEqual([...store.objects.keys()], [`/wallets/${id}/dir/a b`]);
});

const LONG = 'é'.repeat(512); // 1,024 bytes
const BAD: [what: string, body: object][] = [
  ['a leading slash', { object: '/etc/passwd', operation: 'get' }],
  ['two dots', { object: '../other/a', operation: 'get' }],
  ['two dots inside', { object: 'a/../b', operation: 'get' }],
  ['one dot', { object: './a', operation: 'get' }],
  ['a line feed', { object: 'a\nb', operation: 'get' }],
  ['a NUL', { object: 'a\0b', operation: 'get' }],
  ['a DEL', { object: 'a\x7fb', operation: 'get' }],
  ['a control character beyond ASCII', { object: 'a\u0085b', operation: 'get' }],
  ['nothing but two dots', { object: '..', operation: 'put' }],
  ['two dots at the end', { object: 'a/..', operation: 'put' }],
  ['half a character', { object: 'a\ud800', operation: 'get' }],
  ['1,025 bytes', { object: `${LONG}x`, operation: 'get' }],
  ['1,025 characters', { object: 'x'.repeat(1025), operation: 'get' }],
  ['no name', { object: '', operation: 'get' }],
  ['0 seconds', { object: 'a', operation: 'get', expires_seconds: 0 }],
  ['604801 seconds', { object: 'a', operation: 'get', expires_seconds: 604_801 }],
  ['half a second', { object: 'a', operation: 'get', expires_seconds: 0.5 }],
  ['another operation', { object: 'a', operation: 'delete' }],
];

test('object names that would leave the wallet, and times beyond the limits, are refused', async (t) => {
  const { purser } = await open(t);
  const { token } = await purser.openWallet();
  for (const [what, body] of BAD) {
    const answer = await purser.ask('POST', '/v1/transfer/sign', { token, body });
    assert.deepEqual([answer.status, answer.body.error.code], [400, 'invalid_request'], what);
  }
  const lengthMax = 1024 - `wallets/${(await purser.openWallet()).id}/`.length;
  assert.equal((await sign(purser, token, 'x'.repeat(lengthMax), 'put')).status, 200);
  assert.equal((await sign(purser, token, 'x'.repeat(lengthMax + 1), 'put')).status, 400);
});

test('doctor moves a real object, and says what is wrong', async (t) => {
  const now = Math.floor(Date.now() / 1000);
  const store = await openObjectStore(t, () => now);
  const { access_key_id, secret_access_key } = KEYS;
  const settings = {
    ...settingsOf(store),
    access_key_id: new Secret(access_key_id),
    secret_access_key: new Secret(secret_access_key),
  };
  assert.match(await tryTransfer(settings, createSigner(settings), now), /PUT, GET and DELETE.*agents work/);
  assert.equal(store.objects.size, 0, 'nothing is left');
  assert.deepEqual(store.refused, ['AuthorizationQueryParametersError'], 'the one that nobody signed');
  store.isPublic = true;
  await assert.rejects(tryTransfer(settings, createSigner(settings), now), /Anybody may read agents/);
  assert.equal(store.objects.size, 0);
  store.isPublic = false;
  const wrong = createSigner({ ...settings, secret_access_key: new Secret('wrong') });
  await assert.rejects(
    tryTransfer(settings, wrong, now),
    /PUT answered 403: SignatureDoesNotMatch.*Check access_key_id/,
  );
  const gone = { ...settings, endpoint: 'http://127.0.0.1:1' };
  await assert.rejects(tryTransfer(gone, createSigner(gone), now), /cannot be reached \(ECONNREFUSED\)/);
});

test('a wallet that was closed while its request came slowly gets no URL', async (t) => {
  const { purser } = await open(t);
  const { id, token } = await purser.openWallet();
  const body = JSON.stringify({ object: 'a', operation: 'put' });
  const slow = http.request(`${purser.url}/v1/transfer/sign`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      'content-length': body.length,
      expect: '100-continue',
    },
  });
  await once(slow, 'continue'); // Its token has been looked at, or will be before the close below is answered.
  slow.write(body.slice(0, 5));
  assert.equal((await sign(purser, token, 'a', 'put')).status, 200);
  await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  slow.end(body.slice(5));
  const [response] = (await once(slow, 'response')) as [http.IncomingMessage];
  assert.equal(response.statusCode, 409);
  response.resume();
});

test('no key reaches the log, the answer or the database', async (t) => {
  const { purser } = await open(t);
  const { token } = await purser.openWallet();
  const answer = await sign(purser, token, 'a', 'put');
  const written = purser.log.join('') + answer.text;
  assert.ok(!written.includes(KEYS.secret_access_key));
});
