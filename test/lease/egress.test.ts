import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { PassThrough } from 'node:stream';
import test, { type TestContext } from 'node:test';
import type { LineSession } from '../../src/egress/line.ts';
import { until, waitFor } from '../helper/waiting.ts';
import { asAccount, asOperator } from '../ui/sample.ts';
import { OPERATORS, openWorld } from './egress-shared.ts';
import { hold, LONG, openMemoryServer, PRICE, SPEC } from './leases.ts';

const LONG_NAME = `${'a'.repeat(60)}.b.test`;

/** A server whose leases have a way out. */
async function openReaching(t: TestContext) {
  const world = await openWorld(t);
  const purser = await openMemoryServer(t, world.options);
  let begin = async () => world.start();
  /** Gives the machines of the server that runs now ways out; one that has died starts no program any more. */
  const giveWaysOut = () => {
    const { egress } = purser.backend.guest;
    const { app } = purser;
    assert(egress);
    egress.begin = async () => (purser.app === app ? begin() : Promise.reject(new Error('it is dead')));
  };
  giveWaysOut();
  const { id: walletId, token } = await purser.openWallet(LONG);
  return {
    ...{ ...world, purser, walletId, token, giveWaysOut },
    beginBy(how: () => Promise<LineSession>) {
      begin = how;
    },
  };
}

/** The same with a lease that runs. */
async function openLease(t: TestContext) {
  const it = await openReaching(t);
  const created = await it.purser.lease(it.token);
  assert.equal(created.status, 200, created.text);
  const id = created.body.id as string;
  return {
    ...it,
    id,
    narrow: (allow: unknown, token = it.token, lease = id) =>
      it.purser.ask('POST', '/v1/compute/egress', { token, body: { id: lease, allow } }),
  };
}

const over = async (socket: Socket) => socket.readableEnded || once(socket, 'end');

test('an agent narrows what its lease reaches within the operator’s list, at once and over a restart', async (t) => {
  const it = await openLease(t);
  const tunnel = await it.tunnel();
  assert.deepEqual([await it.get('a.test'), await it.get('x.b.test'), await it.get('c.test')], ['200', '200', '403']);

  const narrowed = await it.narrow(['*.b.test', '10.1.0.0/16:80']);
  assert.deepEqual([narrowed.status, narrowed.body], [200, { id: it.id, allow: ['*.b.test', '10.1.0.0/16:80'] }]);
  assert.deepEqual([await it.get('a.test'), await it.get('x.b.test'), await it.get('10.1.2.3')], ['403', '200', '200']);
  assert(!tunnel.readableEnded);
  await it.narrow(['a.test']);
  assert.equal(await it.get('a.test'), '200');
  await over(tunnel); // It was cut at once; the program is told of that within 20 ms.
  assert.deepEqual([await it.get('x.b.test'), await it.get('10.1.2.3')], ['403', '403']);

  // An entry beside the operator's list is named, and nothing changes.
  for (const [allow, at] of [
    [['a.test', 'c.test'], 1],
    [['public'], 0],
    [['*.b.test', '*.test'], 1],
    [['a.test:22'], 0],
    [['10.0.0.0/7:80'], 0],
    [['a.test', 'a b'], 1],
    [[''], 0],
  ] as const) {
    const refused = await it.narrow(allow);
    assert.deepEqual([refused.status, refused.body.error.code], [400, 'invalid_request'], refused.text);
    assert(refused.body.error.message.includes(`allow.${at}: `), refused.text);
    assert(refused.body.error.message.includes(JSON.stringify(allow[at])) || !allow[at], refused.text);
  }
  for (const allow of [undefined, 'a.test', [1], Array(101).fill('a.test'), Array(64).fill(LONG_NAME)])
    assert.equal((await it.narrow(allow)).body.error?.code, 'invalid_request');
  assert.deepEqual([await it.get('a.test'), await it.get('x.b.test')], ['200', '403']);

  await it.purser.reopen();
  it.giveWaysOut();
  await until('the way out is open again', async () => (await it.get('a.test').catch(() => '')) === '200');
  assert.deepEqual([await it.get('x.b.test'), it.programs.size], ['403', 1]);

  await it.narrow([]);
  assert.equal(await it.get('a.test'), '403');
  await it.narrow(OPERATORS);
  assert.deepEqual([await it.get('a.test'), await it.get('x.b.test')], ['200', '200']);
  assert.deepEqual(it.purser.problems(), []);
});

test('the page of a lease shows what it reached and was refused, and the agent’s list', async (t) => {
  const it = await openLease(t);
  const { purser } = it;
  const cells = async (browser: Awaited<ReturnType<typeof asOperator>>) => {
    const { html } = await browser.get(`/leases/${it.id}`);
    const card = html.slice(html.indexOf('Egress'));
    return card.replace(/<[^>]*>/g, ' ').replace(/\s+/g, ' ');
  };
  const browser = await asOperator(purser);
  assert.match(await cells(browser), /^Egress Nothing was reached or refused/);
  await it.narrow(['a.test']);
  for (const host of ['a.test', 'b.test', 'b.test']) await it.get(host);
  for (const viewer of [browser, await asAccount(purser)])
    assert.match(await cells(viewer), /^Egress Narrowed to a\.test .* Refused a\.test [1-9]\d+ 0 b\.test 0 2 /);
  const without = await purser.rent(it.token);
  assert.doesNotMatch((await browser.get(`/leases/${without.body.id}`)).html, /Egress/);
});

test('only the wallet’s own token sets a list, and only of a running lease with egress', async (t) => {
  const it = await openLease(t);
  const codeOf = async (answer: ReturnType<typeof it.narrow>) => (await answer).body.error?.code;
  const other = await it.purser.openWallet(LONG);
  assert.equal(await codeOf(it.narrow(['a.test'], other.token)), 'not_found');
  assert.equal(await codeOf(it.narrow(['a.test'], it.purser.accountKey)), 'wrong_token_scope');
  assert.equal(await codeOf(it.narrow(['a.test'], it.token, 'res_none')), 'not_found');

  const without = await it.purser.rent(it.token);
  const refused = await it.narrow([], it.token, without.body.id);
  assert.deepEqual([refused.status, refused.body.error.code], [400, 'invalid_request']);
  assert.match(refused.body.error.message, /no egress/);

  it.purser.memory.ready = false;
  const coming = await it.purser.ask('POST', '/v1/compute/create?wait_seconds=0', {
    token: it.token,
    key: 'coming',
    body: { provider: 'provider_one', spec: SPEC },
  });
  assert.equal(await codeOf(it.narrow(['a.test'], it.token, coming.body.id)), 'resource_not_active');

  const tunnel = await it.tunnel();
  await it.purser.closeWallet(it.walletId);
  assert.equal(await codeOf(it.narrow(['a.test'])), 'wallet_closed');
  await over(tunnel);
  await until('the program has ended', async () => it.programs.size === 0);
});

/** What is under way when the server dies: each an await of the way out. */
const DEATHS: [when: string, begin: (start: () => LineSession, die: () => Promise<never>) => Promise<LineSession>][] = [
  ['before the program starts', (_, die) => die()],
  [
    'when the program has started',
    (start, die) => {
      start();
      return die();
    },
  ],
  [
    'before the program listens',
    async (start, die) => {
      die().catch(() => {});
      return { ...start(), stdout: new PassThrough() };
    },
  ],
];
for (const [when, begin] of DEATHS)
  test(`a server that dies ${when} leaves one machine, one way out, and one charge`, async (t) => {
    const it = await openReaching(t);
    const { purser, token, programs } = it;
    const died = Promise.withResolvers<void>();
    const never = Promise.withResolvers<never>();
    it.beginBy(() =>
      begin(it.start, () => {
        died.resolve();
        return never.promise;
      }),
    );
    purser.lease(token, 'k').catch(() => {}); // Nobody hears of it.
    await waitFor('it dies', died.promise);
    // With a process the kernel closes the inputs of the programs that it has started; the next one has to find their port free.
    for (const { stdin } of programs.values()) stdin?.destroy();
    await until('the programs of the dead server have ended', async () => programs.size === 0);
    await purser.crash(() => never.reject(new Error('it is dead')));
    it.beginBy(async () => it.start());
    it.giveWaysOut();
    const again = await purser.lease(token, 'k');
    assert.deepEqual([again.status, again.body.status, again.body.charged_usd], [200, 'running', PRICE], again.text);
    assert.equal(await it.get('a.test'), '200');
    assert.deepEqual([(await purser.machines()).length, programs.size], [1, 1]);
    assert.equal((await purser.stop(token, again.body.id)).body.status, 'stopped');
    await until('its program has ended', async () => programs.size === 0);
    assert.deepEqual(
      [await purser.machines(), (await purser.budget(token)).held_usd, purser.problems()],
      [[], '0.00', []],
    );
  });

test('a lease that is stopped while its way out opens leaves no program, and is not charged', async (t) => {
  const it = await openReaching(t);
  const held = hold();
  it.beginBy(async () => {
    await held.wait();
    return it.start();
  });
  const creating = it.purser.lease(it.token);
  await waitFor('its way out opens', held.arrived);
  const [{ id }] = (await it.purser.ask('GET', '/v1/compute/list', { token: it.token })).body.resources;
  const stopping = it.purser.stop(it.token, id);
  await until('it has to end', async () => (await it.purser.status(it.token, id)).status === 'stopping');
  held.go();
  await creating;
  assert.equal((await stopping).body.charged_usd, '0.00');
  await until('its program has ended', async () => it.programs.size === 0);
  assert.deepEqual(await it.purser.machines(), []);
});
