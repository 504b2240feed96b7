import assert from 'node:assert/strict';
import test from 'node:test';
import type { Backend } from '../../src/compute/backend.ts';
import { openTestServer } from '../helper/server.ts';

/** No engine is there: what these backends answer is in the test's hand. */
const container = { backend: 'container', socket: 'unix:///nowhere.sock', image: 'none' };
const compute = {
  provider_one: {
    ...container,
    prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
    limits: { cpus: 2, memory_gib: 1 },
  },
  provider_three: {
    ...container,
    offers: [{ id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: '0.36' }],
  },
};

test('a slot whose backend cannot tell is left out of the offers, and the log and a counter say why', async (t) => {
  const purser = await openTestServer(t, { settings: { compute } });
  const { token } = await purser.openWallet();
  const list = () => purser.ask('GET', '/v1/compute/offers', { token });
  const slots = async () => (await list()).body.offers.map((it: { provider: string }) => it.provider);
  const [one, three] = purser.app.slots.list.map((it) => it.backend) as [Backend, Backend];
  const spec = { offer_id: 'small', disk_gb: 5, max_seconds: 3600 };
  const small = { offerId: 'small', description: 'small', spec, priceHourly: 1n, minSeconds: 60, maxSeconds: 3600 };
  three.offers = async () => [{ ...small, available: true }];
  one.offers = async () => {
    throw new Error('the provider is on fire');
  };
  assert.deepEqual(await slots(), ['provider_three']);
  const line = purser.log.map((it) => JSON.parse(it)).find((it) => it.event === 'offers.failed');
  assert.deepEqual([line?.slot, line?.backend], ['provider_one', 'container']);
  assert.match(JSON.stringify(line), /the provider is on fire/);
  assert.match(await purser.app.events.registry.metrics(), /purser_failures_total\{where="offers"\} 1/);

  three.offers = one.offers;
  const { status, headers, body } = await list();
  assert.deepEqual([status, body.error.code, headers['retry-after']], [503, 'provider_unavailable', '5']);
  assert.ok(!JSON.stringify(body).includes('fire'), 'what went wrong is for the operator');
});

test('an offer of several backends names a runtime only if it has that on all of them', async (t) => {
  const offers = [{ id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: '0.36' }];
  const backends = ['a', 'b'].map((name) => ({ name, ...container, offers }));
  const purser = await openTestServer(t, { settings: { compute: { provider_three: { backends } } } });
  const { token } = await purser.openWallet();
  const [a, b] = purser.app.slots.list.map((it) => it.backend) as [Backend, Backend];
  const spec = { offer_id: 'small', disk_gb: 5, max_seconds: 3600 };
  const small = { offerId: 'small', description: 'small', spec, priceHourly: 1n, minSeconds: 60, maxSeconds: 3600 };
  const listed = async (first: string | undefined, second: string | undefined) => {
    a.offers = async () => [{ ...small, runtime: first, available: false }];
    b.offers = async () => [{ ...small, runtime: second, available: true }];
    const { body } = await purser.ask('GET', '/v1/compute/offers', { token });
    return body.offers.map((it: { runtime?: string; available: boolean }) => [it.runtime, it.available]);
  };
  assert.deepEqual(await listed('runsc', 'runsc'), [['runsc', true]]);
  assert.deepEqual(await listed('runsc', undefined), [[undefined, true]]);
  assert.deepEqual(await listed(undefined, 'runsc'), [[undefined, true]]);
  assert.deepEqual(await listed('runsc', 'kata'), [[undefined, true]]);
});

test('an installation without any slot offers nothing, and that is no failure', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const { status, body } = await purser.ask('GET', '/v1/compute/offers', { token });
  assert.deepEqual([status, body.offers], [200, []]);
});
