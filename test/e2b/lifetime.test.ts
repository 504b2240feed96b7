import assert from 'node:assert/strict';
import test from 'node:test';
import { waitFor } from '../helper/waiting.ts';
import { inWrongFuture } from '../helper/wrong-future.ts';
import { hold } from '../lease/leases.ts';
import { inside, openE2b } from './shared.ts';

/** A sandbox that ends before its lease, which is paid for 60 s. */
async function openShort(...[t, options]: Parameters<typeof openE2b>) {
  const it = await openE2b(t, options);
  const made = (await it.create({ timeout: 10 })).body;
  const path = `/sandboxes/${made.sandboxID}`;
  const lengthen = (timeout: number) => it.api('POST', `${path}/timeout`, { body: { timeout } });
  const startedAt = it.purser.clock.wall() / 1000;
  /** Seconds from now to its end. */
  const left = async () => {
    const { endAt } = (await it.api('GET', path)).body;
    return Date.parse(endAt) / 1000 - Math.floor(it.purser.clock.wall() / 1000);
  };
  return { ...it, made, path, lengthen, startedAt, left };
}

test('a sandbox whose time runs out while more of it is being paid for lives on', async (t) => {
  const { purser, api, made, path, lengthen, left } = await openShort(t);
  const held = hold();
  purser.memory.before.extend = held.wait;
  const lengthened = lengthen(600);
  await waitFor('the lease is being extended', held.arrived);
  purser.clock.advance(15);
  await purser.app.reaper.runOnce();
  assert.equal((await api('GET', path)).status, 200, 'it is not over yet');
  const listed = (await api('GET', '/v2/sandboxes')).body.map((it: { sandboxID: string }) => it.sandboxID);
  assert.deepEqual(listed, [made.sandboxID], 'it is listed as it is read');
  held.go();
  assert.equal((await lengthened).status, 204);
  assert.equal(await left(), 585);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.machines()).length, 1);
  assert.deepEqual(purser.problems(), []);
});

test('a sandbox whose time runs out while its backend refuses more ends then, and is charged nothing for that', async (t) => {
  const { purser, wallet, lengthen } = await openShort(t);
  const held = hold();
  const spent = () => purser.wallet(wallet.id).spent;
  const before = spent();
  purser.memory.before.extend = held.wait;
  const lengthened = lengthen(600);
  await waitFor('the lease is being extended', held.arrived);
  purser.clock.advance(15);
  purser.memory.machines.clear(); // A machine that is gone is not extended.
  held.go();
  assert.notEqual((await lengthened).status, 204);
  await purser.app.reaper.runOnce();
  assert.deepEqual([await purser.machines(), spent()], [[], before]);
  assert.deepEqual(purser.problems(), []);
});

test('a lengthening whose outcome is found out later moves the end of its sandbox, over a restart as well', async (t) => {
  const { purser, wallet, lengthen, left } = await openShort(t);
  purser.memory.after.extend = () => {
    throw new Error('the connection was reset');
  };
  const unknown = await lengthen(600);
  assert.deepEqual([unknown.status, unknown.body.code], [504, 504]);
  purser.memory.after = {};
  await purser.reopen();
  purser.clock.advance(15);
  await purser.app.reaper.runOnce();
  assert.equal(await left(), 585);
  assert.equal(purser.wallet(wallet.id).spent, 60_000_000n, 'for 600 s');
  assert.equal((await lengthen(585)).status, 204);
  assert.equal(purser.wallet(wallet.id).spent, 60_000_000n);
});

test('a sandbox that is over is neither adopted, lengthened nor entered, though its lease has time left', async (t) => {
  const { purser, wallet, api, create, made, path, lengthen } = await openShort(t);
  purser.memory.after.create = () => {
    throw new Error('the connection was reset');
  };
  assert.equal((await create({ timeout: 10, metadata: { lost: '1' } })).status, 504);
  purser.memory.after = {};
  await purser.app.reaper.runOnce();
  purser.clock.advance(10);
  const spent = () => purser.wallet(wallet.id).spent;
  const before = spent();
  assert.equal((await lengthen(600)).status, 404);
  assert.equal((await api('POST', `${path}/connect`, { body: {} })).status, 404);
  assert.equal((await api('DELETE', path)).status, 404);
  assert.equal(spent(), before);
  const { headers } = inside(purser, made);
  assert.equal((await purser.ask('GET', '/v1/e2b/envd/health', { headers })).status, 502);
  assert.equal((await create({ timeout: 10, metadata: { lost: '1' } })).status, 201);
  assert.equal((await purser.machines()).length, 3);
  assert.deepEqual(purser.problems(), []);
});

test('time that Purser’s own interface sells of a sandbox moves its end as well', async (t) => {
  const { purser, wallet, made, left } = await openShort(t);
  const extended = await purser.extend(wallet.token, `res_${made.sandboxID}`, 600);
  assert.equal(extended.status, 200, extended.text);
  assert.equal(await left(), 660);
  purser.clock.advance(15);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.machines()).length, 1);
  purser.clock.advance(645);
  assert.equal((await purser.extend(wallet.token, `res_${made.sandboxID}`, 600)).status, 409);
  assert.deepEqual(purser.problems(), []);
});

for (const isSet of [false, true])
  test(`a sandbox of a wrong future ends when it was to end, ${isSet ? 'as set since' : 'as created'}, and not with its lease`, async (t) => {
    const { purser, create, api } = await openE2b(t, { wallet: { expires_in_seconds: 0 } });
    const path = await inWrongFuture(purser, async () => {
      const path = `/sandboxes/${(await create({ timeout: 10 })).body.sandboxID}`;
      if (isSet) await api('POST', `${path}/timeout`, { body: { timeout: 20 } });
      return path;
    });
    const shown = await api('GET', path);
    assert.equal(shown.status, 200, shown.text);
    const left = Date.parse(shown.body.endAt) / 1000 - purser.app.clock.now();
    assert.ok(left > 0 && left <= (isSet ? 20 : 10), `${left} s are left`);
    purser.clock.advance(20);
    await purser.app.reaper.runOnce();
    assert.deepEqual([await purser.machines(), purser.problems()], [[], []]);
  });
