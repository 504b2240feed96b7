import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { gate } from '../helper/upstream.ts';

/** A purser whose reaper runs only when the test says so. */
async function openStill(t: Parameters<typeof openTestServer>[0], options?: TestServerOptions): Promise<TestServer> {
  const purser = await openTestServer(t, { ...options, settings: { close_wait_seconds: 0, ...options?.settings } });
  await purser.app.reaper.stop();
  return purser;
}
const figures = async (purser: TestServer) => {
  const { body } = await purser.ask('GET', '/v1/account', { token: purser.accountKey });
  return [body.available_cents, body.reserved_cents, body.spent_cents];
};

test('a wallet expires at its very second, whether or not the reaper has come by', async (t) => {
  const purser = await openStill(t);
  const { id, token } = await purser.openWallet({ expires_in_seconds: 60 });
  purser.clock.advance(59);
  assert.equal((await purser.chat(token)).status, 200);
  purser.clock.advance(1);
  const refused = await purser.chat(token);
  assert.equal(refused.status, 409);
  assert.equal(refused.body.error.code, 'wallet_expired');
  assert.equal(purser.upstream.calls.length, 1);
  assert.equal(purser.wallet(id).status, 'active', 'nobody has tidied yet');

  const record = (await purser.ask('GET', `/v1/wallets/${id}`, { token: purser.accountKey })).body;
  assert.deepEqual([record.status, record.close_reason, record.cleanup.pending], ['expired', 'expired', true]);
  assert.equal((await purser.budget(token)).status, 'expired');
  const again = await purser.ask('GET', `/v1/wallets/${id}/token`, { token: purser.accountKey });
  assert.deepEqual([again.status, again.body.error.code], [409, 'wallet_expired']);
});

test('one pass closes what has expired and returns the credit, to the cent', async (t) => {
  const purser = await openStill(t, { creditCents: 1000 });
  const { id, token } = await purser.openWallet({ budget_cents: 400, expires_in_seconds: 60 });
  await purser.chat(token, { model: 'flat' });
  await purser.chat(token); // 0.0001 USD and some tokens: a fraction of a cent
  assert.deepEqual(await figures(purser), [600, 400, 0]);
  purser.clock.advance(100);
  const { expired, closed, failed } = await purser.app.reaper.runOnce();
  assert.deepEqual({ expired, closed, failed }, { expired: 1, closed: 1, failed: 0 });
  assert.deepEqual(await figures(purser), [998, 0, 2], 'a begun cent is spent');

  const record = (await purser.ask('GET', `/v1/wallets/${id}`, { token: purser.accountKey })).body;
  assert.deepEqual(
    [record.status, record.close_reason, record.returned_cents, record.used_cents],
    ['closed', 'expired', 398, 2],
  );
  assert.equal(record.closed_at, purser.app.clock.now());
  assert.equal(record.cleanup.pending, false);
  assert.equal((await purser.chat(token)).body.error.code, 'wallet_expired', 'closed, and still called expired');
  assert.deepEqual(purser.problems(), []);
});

test('a wallet that is told to close after its time was up is one that expired', async (t) => {
  const purser = await openStill(t);
  const { id } = await purser.openWallet({ expires_in_seconds: 60 });
  purser.clock.advance(60);
  const closed = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  assert.deepEqual([closed.status, closed.body.close_reason], [200, 'expired']);
});

test('a wallet that never expires is left alone for ten years', async (t) => {
  const purser = await openStill(t);
  const { token } = await purser.openWallet({ expires_in_seconds: 0 });
  purser.clock.advance(10 * 365 * 86_400);
  assert.equal((await purser.app.reaper.runOnce()).expired, 0);
  assert.equal((await purser.chat(token)).status, 200);
});

test('a pass with nothing due writes nothing', async (t) => {
  const purser = await openStill(t);
  await purser.openWallet({ expires_in_seconds: 61 });
  purser.clock.advance(60);
  await purser.app.reaper.runOnce(); // It notes which keys were used.
  const before = purser.app.ledger.commitCount();
  await purser.app.reaper.runOnce();
  assert.equal(purser.app.ledger.commitCount(), before);
});

test('a request that was accepted before the end is finished, paid and answered; then the wallet closes', async (t) => {
  const purser = await openStill(t);
  const { id, token } = await purser.openWallet({ expires_in_seconds: 60 });
  const { handler, open } = gate();
  purser.upstream.handle = handler;
  const answer = purser.chat(token, { model: 'flat' });
  await purser.upstream.arrived(1);
  purser.clock.advance(60);

  const first = await purser.app.reaper.runOnce();
  assert.deepEqual([first.expired, first.closed, first.pending], [1, 0, 1]);
  const waiting = purser.wallet(id);
  assert.deepEqual([waiting.status, waiting.held, waiting.cleanupAttempts], ['expired', 10_000_000n, 1]);
  assert.equal(waiting.cleanupError, 'requests are still in flight');

  open();
  assert.equal((await answer).status, 200);
  const second = await purser.app.reaper.runOnce();
  assert.deepEqual([second.closed, second.pending], [1, 0]);
  const closed = purser.wallet(id);
  assert.deepEqual([closed.status, closed.spent, closed.cleanupError], ['closed', 10_000_000n, null]);
  assert.deepEqual(purser.problems(), []);
});

test('three hundred wallets that expire at once are closed in one pass, and every cent is back', async (t) => {
  const purser = await openStill(t, { creditCents: 100_000 });
  const bodies = Array.from({ length: 300 }, (_, i) => ({ name: `w${i}`, budget_cents: 100, expires_in_seconds: 60 }));
  await Promise.all(bodies.map((body) => purser.openWallet(body)));
  assert.deepEqual(await figures(purser), [70_000, 30_000, 0]);
  purser.clock.advance(60);
  const { expired, closed, pending, failed } = await purser.app.reaper.runOnce();
  assert.deepEqual({ expired, closed, pending, failed }, { expired: 300, closed: 300, pending: 0, failed: 0 });
  assert.deepEqual(await figures(purser), [100_000, 0, 0]);
  assert.deepEqual(purser.problems(), []);
});

test('wallets that expire one after another are each closed at their own time', async (t) => {
  const purser = await openStill(t);
  const ids: string[] = [];
  for (const seconds of [60, 61, 62]) ids.push((await purser.openWallet({ expires_in_seconds: seconds })).id);
  const statuses = () => ids.map((id) => purser.wallet(id).status);
  purser.clock.advance(60);
  for (const expected of [
    ['closed', 'active', 'active'],
    ['closed', 'closed', 'active'],
    ['closed', 'closed', 'closed'],
  ]) {
    await purser.app.reaper.runOnce();
    assert.deepEqual(statuses(), expected);
    purser.clock.advance(1);
  }
});

/** Makes every write to these wallets fail until it is called back. */
function jam(purser: TestServer, ids: string[]): () => void {
  const list = ids.map((id) => `'${id}'`).join(', ');
  purser.tamper(
    `create trigger jam before update on wallet when old.id in (${list}) begin select raise(abort, 'jammed'); end`,
  );
  return () => purser.tamper('drop trigger jam');
}

test('wallets that cannot be closed hide no other, and are closed when they can be', async (t) => {
  const purser = await openStill(t);
  const wallets = await Promise.all(
    Array.from({ length: 250 }, () => purser.openWallet({ budget_cents: 100, expires_in_seconds: 60 })),
  );
  const ids = wallets.map((it) => it.id).sort();
  // The first page of a hundred is all of them, and the next page has one.
  const jammed = [...ids.slice(0, 100), ids[150] as string];
  const free = jam(purser, jammed);
  purser.clock.advance(60);
  const first = await purser.app.reaper.runOnce();
  assert.deepEqual([first.expired, first.closed, first.failed], [149, 149, 101]);
  for (const id of ids) assert.equal(purser.wallet(id).status, jammed.includes(id) ? 'active' : 'closed');
  assert(purser.log.some((line) => line.includes('"event":"reaper.failed"') && line.includes('jammed')));

  free();
  const second = await purser.app.reaper.runOnce();
  assert.deepEqual([second.expired, second.closed, second.failed], [101, 101, 0]);
  assert.deepEqual(purser.problems(), []);
});

test('an expired wallet that cannot be settled hides no other', async (t) => {
  const purser = await openStill(t);
  const wallets = await Promise.all([1, 2, 3].map(() => purser.openWallet({ expires_in_seconds: 60 })));
  const stuck = wallets[1]?.id as string;
  purser.clock.advance(60);
  purser.tamper(
    `create trigger jam before update on wallet when new.status = 'closed' and old.id = '${stuck}' begin select raise(abort, 'jammed'); end`,
  );
  const { expired, closed, failed } = await purser.app.reaper.runOnce();
  assert.deepEqual({ expired, closed, failed }, { expired: 3, closed: 2, failed: 1 });
  assert.equal(purser.wallet(stuck).status, 'expired');
  purser.tamper('drop trigger jam');
  assert.equal((await purser.app.reaper.runOnce()).closed, 1);
});

test('expiry and closing at the same moment close a wallet once', async (t) => {
  const purser = await openStill(t);
  const { id } = await purser.openWallet({ expires_in_seconds: 60 });
  purser.clock.advance(60);
  const close = () => purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  const [first, , second] = await Promise.all([
    close(),
    purser.app.reaper.runOnce(),
    close(),
    purser.app.reaper.runOnce(),
  ]);
  assert.deepEqual([first?.status, second?.status], [200, 200]);
  assert.deepEqual(first?.body, second?.body);
  assert.equal(purser.log.filter((line) => line.includes('"event":"wallet.closed"')).length, 1, 'told of once');
  assert.deepEqual(purser.problems(), []);
});

test('the replay of a wallet that has expired hands out no dead credential', async (t) => {
  const purser = await openStill(t);
  const asked = {
    token: purser.accountKey,
    key: randomUUID(),
    body: { name: 'w', budget_cents: 100, expires_in_seconds: 60 },
  };
  const { id } = (await purser.ask('POST', '/v1/wallets', asked)).body;
  purser.clock.advance(60);
  for (const _ of ['before the reaper', 'after it']) {
    const again = await purser.ask('POST', '/v1/wallets', asked);
    assert.deepEqual([again.status, again.body.error.code], [409, 'wallet_expired']);
    assert.match(again.body.error.message, new RegExp(id));
    await purser.app.reaper.runOnce();
  }
});
