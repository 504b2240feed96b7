import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'node:test';
import { openIssuer } from '../access/issuer.ts';
import { KEY, openStripe, signatureOf, WEBHOOK_SECRET } from '../billing/fake-stripe.ts';
import { type Installation, installation } from '../helper/executable.ts';
import { KEYS, openObjectStore, REGION } from '../transfer/object-store.ts';

const now = () => Math.floor(Date.now() / 1000);
const NAMES = ['identity provider', 'payment provider', 'payment webhook', 'transfer storage'];

/** What doctor says of other people's services, and its exit code. */
async function doctor(purser: Installation) {
  const said = await purser.cli('--json', 'doctor');
  assert.ok(!/canary/i.test(said.stdout + said.stderr), said.stdout);
  const { checks } = JSON.parse(said.stdout) as { checks: { name: string; ok: boolean; detail: string }[] };
  return { code: said.code, services: checks.filter(({ name }) => NAMES.includes(name)), checks };
}

test('doctor tries the services that are configured: the issuer’s keys, the payment provider’s word, an object', async (t) => {
  const [issuer, stripe, store] = [await openIssuer(t, now), await openStripe(t, now), await openObjectStore(t, now)];
  const settings = {
    identity: { issuer: issuer.url, audience: 'purser' },
    billing: {
      stripe: {
        secret_key: KEY,
        webhook_secrets: [WEBHOOK_SECRET],
        success_url: 'https://agents.example/',
        api_base: stripe.url,
      },
    },
    transfer: { endpoint: store.url, region: REGION, bucket: 'agents', ...KEYS },
  };
  const purser = installation(t, { settings });
  const server = await purser.serve();
  const good = await doctor(purser);
  assert.deepEqual(
    good.services.map(({ name, ok }) => [name, ok]),
    NAMES.map((name) => [name, true]),
    JSON.stringify(good.services),
  );
  assert.deepEqual(
    good.services.map(({ detail }) => detail),
    [
      `${issuer.url}/jwks publishes 1 key`,
      'the key is accepted (test mode: nobody pays real money, and what is paid is credited); webhooks and polling',
      'not tried: public_url is not set, so its public address is unknown',
      'PUT, GET and DELETE of an object in agents work, and nobody reads it unsigned',
    ],
  );
  assert.equal(store.objects.size, 0);

  issuer.discovery = { issuer: `${issuer.url}/` };
  stripe.down = { kind: 'status', status: 401, error: { message: `Invalid API Key provided: ${KEY}` } };
  store.isPublic = true;
  const bad = await doctor(purser);
  assert.equal(bad.code, 1);
  for (const [i, said] of [
    /names another issuer/,
    /does not let us read checkouts: 401 .*Invalid API Key.*Check billing\.stripe\.secret_key/,
    /Anybody may read agents/,
  ].entries()) {
    const found = bad.services.filter(({ name }) => name !== 'payment webhook')[i];
    assert.equal(found?.ok, false);
    assert.match(found?.detail as string, said);
  }
  await server.stop();
});

test('doctor sees whether the public address leads to the webhook endpoint', async (t) => {
  let answer: http.RequestListener = (_, response) => response.writeHead(404).end('no such site');
  const proxy = http.createServer((request, response) => answer(request, response)).listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  t.after(() => proxy.close());
  const publicUrl = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  const stripe = await openStripe(t, now);
  const secrets = { secret_key: KEY, webhook_secrets: [WEBHOOK_SECRET] };
  const billing = { stripe: { ...secrets, success_url: 'https://agents.example/', api_base: stripe.url } };
  const purser = installation(t, { settings: { billing, public_url: publicUrl } });
  const find = async () => (await doctor(purser)).services.find(({ name }) => name === 'payment webhook');
  const server = await purser.serve();

  const lost = await find();
  assert.equal(lost?.ok, false);
  assert.match(lost?.detail as string, /\/webhooks\/stripe answers 404, .* Check public_url, the proxy/);

  answer = (request, response) => {
    const onward = http.request(`${server.url}${request.url}`, { method: request.method }, (said) => {
      response.writeHead(said.statusCode as number, said.headers);
      said.pipe(response);
    });
    onward.end();
  };
  assert.deepEqual(await find(), {
    name: 'payment webhook',
    ok: true,
    detail: `${publicUrl}/webhooks/stripe leads here`,
  });
  assert.ok(!server.output.stderr.includes('webhook.refused'), 'nothing was sent that looks like a forged message');

  answer = (request) => request.destroy();
  assert.match((await find())?.detail as string, /cannot be reached from here/);
  await server.stop();
  assert.match((await find())?.detail as string, /not tried: the server .* is not running/);
});

test('doctor names a checkout that was paid otherwise than asked for', async (t) => {
  const stripe = await openStripe(t, now);
  const secrets = { secret_key: KEY, webhook_secrets: [WEBHOOK_SECRET] };
  const billing = { stripe: { ...secrets, success_url: 'https://agents.example/', api_base: stripe.url } };
  const purser = installation(t, { settings: { billing } });
  const server = await purser.serve();
  const { key: token } = await purser.json('operator-key', 'mint');
  const asked = { token, key: 'k', body: { amount_cents: 500 } };
  const { id } = (await server.ask('POST', '/v1/billing/checkout', asked)).body;
  const find = async () => (await doctor(purser)).checks.find(({ name }) => name === 'checkouts');
  assert.equal((await find())?.ok, true);
  const body = JSON.stringify(stripe.pay(id, { currency: 'eur' }));
  const headers = { 'stripe-signature': signatureOf(body, WEBHOOK_SECRET, now()) };
  assert.equal((await server.ask('POST', '/webhooks/stripe', { body, headers })).status, 200);
  const found = await find();
  assert.equal(found?.ok, false);
  assert.match(found?.detail as string, new RegExp(`${id} is mismatch \\(paid 500 eur, not 500 usd\\)`));
  const { checkouts } = await purser.json('checkout', 'list', '--trouble');
  assert.deepEqual(
    checkouts.map((it: { id: string }) => it.id),
    [id],
  );
  assert.equal((await purser.json('checkout', 'show', id)).status, 'mismatch');
  await server.stop();
});
