import assert from 'node:assert/strict';
import test from 'node:test';
import { hundredthsOf, priceOfDay } from '../../src/ledger/snapshot.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { openMemoryServer } from './leases.ts';
import { DAY, GIB, snapshotting } from './snapshot-shared.ts';

const WALK_COUNT = length(3, 20);
const STEP_COUNT = 50;
/** 0.10 USD for a GiB and a day. */
const PRICE = 100_000_000n;

test('a size is rounded up to a hundredth of a GiB, and its price to a nano-dollar', () => {
  const hundredth = GIB / 100;
  assert.deepEqual(
    [0, 1, Math.floor(hundredth), Math.ceil(hundredth), GIB, GIB + 1].map(hundredthsOf),
    [0, 1, 1, 2, 100, 101],
  );
  assert.deepEqual(
    [0, 1, 99, 100].map((it) => Number(priceOfDay(1n, it))),
    [0, 1, 1, 1],
  );
  assert.equal(priceOfDay(PRICE, 25), 25_000_000n);
});

for (let walk = 0; walk < WALK_COUNT; walk++)
  test(`snapshots cost what their days cost, whatever fails (PURSER_TEST_SEED=${SEED + walk})`, async (t) => {
    const random = createRandom(SEED + walk);
    const limits = { wallet_requests_per_minute: 0, account_requests_per_minute: 0, released_per_minute: 0 };
    const purser = snapshotting(await openMemoryServer(t, { settings: { limits } }));
    const { clock, memory } = purser;
    const wallet = await purser.openWallet({ budget_cents: 200, expires_in_seconds: 0 });
    const { token } = wallet;
    let id = (await purser.lease(token)).body.id;
    const fail = () => {
      throw new Error('the connection was reset');
    };
    for (let step = 0; step < STEP_COUNT; step++) {
      memory.before = {};
      memory.after = {};
      const call = random.pick(['snapshots.take', 'snapshots.find', 'snapshots.remove'] as const);
      if (random.whole(0, 3) === 0) memory[random.pick(['before', 'after'] as const)][call] = fail;
      const existing = (await purser.snapshots(token)).filter((it) => it.status === 'ready');
      const what = random.weighted({ take: 3, forget: 1, pass: 3, days: 2, lose: 1, lease: 1, reopen: 1 });
      if (what === 'take') {
        memory.snapshotBytes = random.whole(0, GIB);
        if ((await purser.status(token, id)).status !== 'running') id = (await purser.lease(token)).body.id ?? id;
        await purser.snapshot(token, id);
      } else if (what === 'pass') clock.advance(random.whole(1, 100));
      else if (what === 'days') clock.advance(random.whole(1, 3 * DAY));
      else if (what === 'reopen') await purser.reopen();
      else if (existing.length && what === 'forget') await purser.forget(token, random.pick(existing).snapshot_id);
      else if (existing.length && what === 'lease') await purser.leaseFrom(token, random.pick(existing).snapshot_id);
      else if (what === 'lose') memory.snapshots.delete(random.pick([...memory.snapshots.keys(), '']));
      await purser.app.reaper.runOnce();
      assert.deepEqual(purser.problems(), []);
    }
    memory.before = {};
    memory.after = {};
    for (let i = 0; i < 4; i++) {
      clock.advance(301);
      await purser.app.reaper.runOnce();
    }
    const { client } = purser.app.ledger;
    const rows = client.prepare('select * from snapshot').all() as Record<string, bigint | string | null>[];
    const paid = client
      .prepare(
        "select key, count(*) as days, sum(charge) as charge from (select case when route = 'compute/snapshot' then id else idempotency_key end as key, charge_nanos as charge from operation where kind = 'snapshot' and outcome = 'charged') group by key",
      )
      .all() as { key: string; days: bigint; charge: bigint }[];
    const expected = rows.reduce(
      (sum, it) => sum + Number(it.days) * Number(priceOfDay(PRICE, Number(it.size_hundredths ?? 0))),
      0,
    );
    assert.equal(
      paid.reduce((sum, it) => sum + Number(it.charge), 0),
      expected,
      'each snapshot has cost its days',
    );
    assert.ok(
      paid.every((it) => Number(it.days) === 1),
      'no day was charged twice',
    );
    for (const it of rows) {
      const begun = Math.ceil(
        (Number(it.ended_at ?? Math.floor(clock.wall() / 1000)) - Number(it.created_at) + 1) / DAY,
      );
      assert.ok(Number(it.days) <= begun, `${it.id} was charged ${it.days} days of ${begun}`);
    }
    const live = rows.filter((it) => it.ended_at === null).map((it) => it.tag);
    assert.deepEqual(
      [...memory.snapshots.keys()].filter((it) => !live.includes(it)),
      [],
      'nothing is forgotten',
    );
    await purser.closeWallet(wallet.id);
    clock.advance(700);
    for (let i = 0; i < 3; i++) await purser.app.reaper.runOnce();
    assert.equal(memory.snapshots.size, 0);
    assert.deepEqual(purser.problems(), []);
  });
