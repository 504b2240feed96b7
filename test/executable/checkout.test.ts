import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { KEY, openStripe, signatureOf, WEBHOOK_SECRET } from '../billing/fake-stripe.ts';
import { installation, type Serving } from '../helper/executable.ts';
import { createRandom, length, SEED } from '../helper/random.ts';

const CENTS = 500;
const now = () => Math.floor(Date.now() / 1000);

const rounds = length(3, 12);
test(`killed ${rounds} times around a payment, no acknowledged credit is lost and none is there twice (PURSER_TEST_SEED=${SEED})`, async (t) => {
  const random = createRandom(SEED);
  const stripe = await openStripe(t, now);
  const settings = {
    billing: {
      stripe: {
        secret_key: KEY,
        webhook_secrets: [WEBHOOK_SECRET],
        success_url: 'https://agents.example/',
        api_base: stripe.url,
      },
    },
  };
  const purser = installation(t, { settings });
  let serving = await purser.serve();
  const { key: token } = await purser.json('operator-key', 'mint');
  const body = { amount_cents: CENTS };
  const ask = (key: string) => serving.ask('POST', '/v1/billing/checkout', { token, key, body });
  const deliver = (to: Serving, event: object) => {
    const payload = JSON.stringify(event);
    const headers = { 'stripe-signature': signatureOf(payload, WEBHOOK_SECRET, now()) };
    return to.ask('POST', '/webhooks/stripe', { body: payload, headers });
  };
  const available = async () => (await serving.ask('GET', '/v1/account', { token })).body.available_cents;

  for (let round = 1; round <= rounds; round++) {
    const key = randomUUID();
    // While it asks for the session…
    const asking = ask(key).catch(() => undefined);
    await new Promise((resolve) => setTimeout(resolve, random.whole(0, 30)));
    await serving.stop('SIGKILL');
    await asking;
    serving = await purser.serve();
    const { status, body: checkout } = await ask(key);
    assert.equal(status, 200);
    // …and while it is told of the payment.
    const event = stripe.pay(checkout.id);
    const told = deliver(serving, event).then(
      (it) => it.status,
      () => undefined,
    );
    await new Promise((resolve) => setTimeout(resolve, random.whole(0, 15)));
    await serving.stop('SIGKILL');
    const acknowledged = (await told) === 200;
    serving = await purser.serve();
    if (acknowledged) assert.equal(await available(), round * CENTS, 'what was acknowledged is there');
    assert.equal((await deliver(serving, event)).status, 200);
    assert.equal(await available(), round * CENTS);
  }
  assert.equal(stripe.sessions.size, rounds, 'one session for each key');
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
  await serving.stop();
});
