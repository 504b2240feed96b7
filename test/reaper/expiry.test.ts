import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { gate } from '../helper/upstream.ts';

/** A house whose reaper runs only when the test says so. */
async function openStill(t: Parameters<typeof openTestServer>[0], options?: TestServerOptions): Promise<TestServer> {
  const house = await openTestServer(t, { ...options, settings: { close_wait_seconds: 0, ...options?.settings } });
  await house.app.reaper.stop();
  return house;
}
const figures = async (house: TestServer) => {
  const { body } = await house.ask('GET', '/v1/account', { token: house.accountKey });
  return [body.available_cents, body.reserved_cents, body.spent_cents];
};

test('a wallet expires at its very second, whether or not the reaper has come by', async (t) => {
  const house = await openStill(t);
  const { id, token } = await house.openWallet({ expires_in_seconds: 60 });
  house.clock.advance(59);
  assert.equal((await house.chat(token)).status, 200);
  house.clock.advance(1);
  const refused = await house.chat(token);
  assert.equal(refused.status, 409);
  assert.equal(refused.body.error.code, 'wallet_expired');
  assert.equal(house.upstream.calls.length, 1);
  assert.equal(house.wallet(id).status, 'active', 'nobody has tidied yet');

  const record = (await house.ask('GET', `/v1/wallets/${id}`, { token: house.accountKey })).body;
  assert.deepEqual([record.status, record.close_reason, record.cleanup.pending], ['expired', 'expired', true]);
  assert.equal((await house.budget(token)).status, 'expired');
  const again = await house.ask('GET', `/v1/wallets/${id}/token`, { token: house.accountKey });
  assert.deepEqual([again.status, again.body.error.code], [409, 'wallet_expired']);
});

test('one pass closes what has expired and returns the credit, to the cent', async (t) => {
  const house = await openStill(t, { creditCents: 1000 });
  const { id, token } = await house.openWallet({ budget_cents: 400, expires_in_seconds: 60 });
  await house.chat(token, { model: 'flat' });
  await house.chat(token); // 0.0001 USD and some tokens: a fraction of a cent
  assert.deepEqual(await figures(house), [600, 400, 0]);
  house.clock.advance(100);
  const { expired, closed, failed } = await house.app.reaper.runOnce();
  assert.deepEqual({ expired, closed, failed }, { expired: 1, closed: 1, failed: 0 });
  assert.deepEqual(await figures(house), [998, 0, 2], 'a begun cent is spent');

  const record = (await house.ask('GET', `/v1/wallets/${id}`, { token: house.accountKey })).body;
  assert.deepEqual(
    [record.status, record.close_reason, record.returned_cents, record.used_cents],
    ['closed', 'expired', 398, 2],
  );
  assert.equal(record.closed_at, house.app.clock.now());
  assert.equal(record.cleanup.pending, false);
  assert.equal((await house.chat(token)).body.error.code, 'wallet_expired', 'closed, and still called expired');
  assert.deepEqual(house.problems(), []);
});

test('a wallet that is told to close after its time was up is one that expired', async (t) => {
  const house = await openStill(t);
  const { id } = await house.openWallet({ expires_in_seconds: 60 });
  house.clock.advance(60);
  const closed = await house.ask('POST', `/v1/wallets/${id}/close`, { token: house.accountKey });
  assert.deepEqual([closed.status, closed.body.close_reason], [200, 'expired']);
});

test('a wallet that never expires is left alone for ten years', async (t) => {
  const house = await openStill(t);
  const { token } = await house.openWallet({ expires_in_seconds: 0 });
  house.clock.advance(10 * 365 * 86_400);
  assert.equal((await house.app.reaper.runOnce()).expired, 0);
  assert.equal((await house.chat(token)).status, 200);
});

test('a pass with nothing due writes nothing', async (t) => {
  const house = await openStill(t);
  await house.openWallet({ expires_in_seconds: 61 });
  house.clock.advance(60);
  await house.app.reaper.runOnce(); // It notes which keys were used.
  const before = house.app.ledger.commitCount();
  await house.app.reaper.runOnce();
  assert.equal(house.app.ledger.commitCount(), before);
});

test('a request that was accepted before the end is finished, paid and answered; then the wallet closes', async (t) => {
  const house = await openStill(t);
  const { id, token } = await house.openWallet({ expires_in_seconds: 60 });
  const { handler, open } = gate();
  house.upstream.handle = handler;
  const answer = house.chat(token, { model: 'flat' });
  await house.upstream.arrived(1);
  house.clock.advance(60);

  const first = await house.app.reaper.runOnce();
  assert.deepEqual([first.expired, first.closed, first.pending], [1, 0, 1]);
  const waiting = house.wallet(id);
  assert.deepEqual([waiting.status, waiting.held, waiting.cleanupAttempts], ['expired', 10_000_000n, 1]);
  assert.equal(waiting.cleanupError, 'requests are still in flight');

  open();
  assert.equal((await answer).status, 200);
  const second = await house.app.reaper.runOnce();
  assert.deepEqual([second.closed, second.pending], [1, 0]);
  const closed = house.wallet(id);
  assert.deepEqual([closed.status, closed.spent, closed.cleanupError], ['closed', 10_000_000n, null]);
  assert.deepEqual(house.problems(), []);
});

test('three hundred wallets that expire at once are closed in one pass, and every cent is back', async (t) => {
  const house = await openStill(t, { creditCents: 100_000 });
  const bodies = Array.from({ length: 300 }, (_, i) => ({ name: `w${i}`, budget_cents: 100, expires_in_seconds: 60 }));
  await Promise.all(bodies.map((body) => house.openWallet(body)));
  assert.deepEqual(await figures(house), [70_000, 30_000, 0]);
  house.clock.advance(60);
  const { expired, closed, pending, failed } = await house.app.reaper.runOnce();
  assert.deepEqual({ expired, closed, pending, failed }, { expired: 300, closed: 300, pending: 0, failed: 0 });
  assert.deepEqual(await figures(house), [100_000, 0, 0]);
  assert.deepEqual(house.problems(), []);
});

test('wallets that expire one after another are each closed at their own time', async (t) => {
  const house = await openStill(t);
  const ids: string[] = [];
  for (const seconds of [60, 61, 62]) ids.push((await house.openWallet({ expires_in_seconds: seconds })).id);
  const statuses = () => ids.map((id) => house.wallet(id).status);
  house.clock.advance(60);
  for (const expected of [
    ['closed', 'active', 'active'],
    ['closed', 'closed', 'active'],
    ['closed', 'closed', 'closed'],
  ]) {
    await house.app.reaper.runOnce();
    assert.deepEqual(statuses(), expected);
    house.clock.advance(1);
  }
});

/** Makes every write to these wallets fail until it is called back. */
function jam(house: TestServer, ids: string[]): () => void {
  const { client } = house.app.ledger;
  const list = ids.map((id) => `'${id}'`).join(', ');
  client.exec(
    `create trigger jam before update on wallet when old.id in (${list}) begin select raise(abort, 'jammed'); end`,
  );
  return () => client.exec('drop trigger jam');
}

test('wallets that cannot be closed hide no other, and are closed when they can be', async (t) => {
  const house = await openStill(t);
  const wallets = await Promise.all(
    Array.from({ length: 250 }, () => house.openWallet({ budget_cents: 100, expires_in_seconds: 60 })),
  );
  const ids = wallets.map((it) => it.id).sort();
  // The first page of a hundred is all of them, and the next page has one.
  const jammed = [...ids.slice(0, 100), ids[150] as string];
  const free = jam(house, jammed);
  house.clock.advance(60);
  const first = await house.app.reaper.runOnce();
  assert.deepEqual([first.expired, first.closed, first.failed], [149, 149, 101]);
  for (const id of ids) assert.equal(house.wallet(id).status, jammed.includes(id) ? 'active' : 'closed');
  assert(house.log.some((line) => line.includes('"event":"reaper.failed"') && line.includes('jammed')));

  free();
  const second = await house.app.reaper.runOnce();
  assert.deepEqual([second.expired, second.closed, second.failed], [101, 101, 0]);
  assert.deepEqual(house.problems(), []);
});

test('a frozen wallet that cannot be settled hides no other', async (t) => {
  const house = await openStill(t);
  const wallets = await Promise.all([1, 2, 3].map(() => house.openWallet({ expires_in_seconds: 60 })));
  const stuck = wallets[1]?.id as string;
  house.clock.advance(60);
  const { client } = house.app.ledger;
  client.exec(
    `create trigger jam before update on wallet when new.status = 'closed' and old.id = '${stuck}' begin select raise(abort, 'jammed'); end`,
  );
  const { expired, closed, failed } = await house.app.reaper.runOnce();
  assert.deepEqual({ expired, closed, failed }, { expired: 3, closed: 2, failed: 1 });
  assert.equal(house.wallet(stuck).status, 'expired');
  client.exec('drop trigger jam');
  assert.equal((await house.app.reaper.runOnce()).closed, 1);
});

test('expiry and closing at the same moment close a wallet once', async (t) => {
  const house = await openStill(t);
  const { id } = await house.openWallet({ expires_in_seconds: 60 });
  house.clock.advance(60);
  const close = () => house.ask('POST', `/v1/wallets/${id}/close`, { token: house.accountKey });
  const [first, , second] = await Promise.all([
    close(),
    house.app.reaper.runOnce(),
    close(),
    house.app.reaper.runOnce(),
  ]);
  assert.deepEqual([first?.status, second?.status], [200, 200]);
  assert.deepEqual(first?.body, second?.body);
  assert.equal(house.log.filter((line) => line.includes('"event":"wallet.closed"')).length, 1, 'told of once');
  assert.deepEqual(house.problems(), []);
});

test('the replay of a wallet that has expired hands out no dead credential', async (t) => {
  const house = await openStill(t);
  const asked = {
    token: house.accountKey,
    key: randomUUID(),
    body: { name: 'w', budget_cents: 100, expires_in_seconds: 60 },
  };
  const { id } = (await house.ask('POST', '/v1/wallets', asked)).body;
  house.clock.advance(60);
  for (const _ of ['before the reaper', 'after it']) {
    const again = await house.ask('POST', '/v1/wallets', asked);
    assert.deepEqual([again.status, again.body.error.code], [409, 'wallet_expired']);
    assert.match(again.body.error.message, new RegExp(id));
    await house.app.reaper.runOnce();
  }
});
