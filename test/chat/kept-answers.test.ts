import assert from 'node:assert/strict';
import test from 'node:test';
import { createKeptAnswers } from '../../src/chat/kept-answers.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer } from '../helper/server.ts';
import { completionStream } from '../helper/sse.ts';
import { completion, gate } from '../helper/upstream.ts';
import { call, vacant } from './retry-shared.ts';

// Answers cost their wallet next to nothing for their bytes, and are stored on the disk of all.

const MIB = 1024 * 1024;
const DAYS_3 = 72 * 3600;

test('a tree has an eighth of what would be free without it, until its answers are deleted', () => {
  let now = 1_800_000_000;
  let free = 8000 * MIB;
  const kept = createKeptAnswers(
    () => now,
    () => free,
  );
  const keep = (owner: string, seconds: number) => {
    const isKept = kept.tryKeep({ treeId: owner, accountId: `of ${owner}` }, 10 * MIB, seconds);
    if (isKept) free -= 10 * MIB;
    return isKept;
  };
  const fill = (owner: string, seconds = DAYS_3) => {
    let count = 0;
    while (keep(owner, seconds)) count++;
    return count;
  };
  assert.equal(fill('attacker', 600), 100);
  assert.deepEqual([fill('second'), fill('third')], [87, 76]);
  assert.equal(keep('attacker', 600), false);
  now += 2 * 600;
  free += 1000 * MIB;
  assert.equal(fill('attacker'), 79);
  now += DAYS_3 - 600;
  assert.equal(keep('attacker', DAYS_3), false);
  now += 2 * 600;
  assert.equal(keep('attacker', DAYS_3), true);
});

test('on a disk without room, ordinary answers are stored all the same', () => {
  const kept = createKeptAnswers(
    () => 1,
    () => 0,
  );
  const keep = (treeId: string, bytes: number) => kept.tryKeep({ treeId, accountId: `of ${treeId}` }, bytes, DAYS_3);
  for (let i = 0; i < 16; i++) assert.equal(keep('a', MIB), true);
  assert.equal(keep('a', 1), false);
  assert.equal(keep('b', MIB), true);
  for (let i = 0; i < 1200; i++) assert.equal(keep(`${i}`, 1), true);
  assert.equal(keep('a', 1), false);
});

test('an account has a quarter of what would be free without it, in however many wallets', () => {
  let free = 8000 * MIB;
  const kept = createKeptAnswers(
    () => 1,
    () => free,
  );
  const fill = (accountId: string) => {
    let count = 0;
    for (let i = 0; i < 1000; i++) {
      if (!kept.tryKeep({ treeId: `${accountId}, wallet ${i}`, accountId }, 10 * MIB, DAYS_3)) continue;
      free -= 10 * MIB;
      count++;
    }
    return count;
  };
  assert.equal(fill('attacker'), 200);
  assert.equal(fill('other'), 150);
  free = 0;
  assert.equal(fill('attacker'), 0);
  assert.equal(fill('third'), 1); // 16 MiB have room for one.
});

test('who else has stored answers does not make it dearer to store one', () => {
  let now = 1_800_000_000;
  let askedCount = 0;
  const kept = createKeptAnswers(
    () => {
      askedCount++;
      return now;
    },
    () => 1e12,
  );
  const keep = (i: number) => kept.tryKeep({ treeId: `tree ${i}`, accountId: 'all' }, 1, DAYS_3);
  for (let i = 0; i < 3000; i++) keep(i);
  now += 600;
  askedCount = 0;
  for (let i = 0; i < 1000; i++) keep(i);
  assert(askedCount < 10_000, `the counts of ${askedCount} owners were looked at`);
});

test('an answer that is not stored is charged once: those who wait for it get it, whoever comes later a 409', async (t) => {
  const purser = await openTestServer(t);
  const full = await openGateway(purser);
  const other = await openGateway(purser);
  purser.app.keptAnswers = { tryKeep: ({ treeId }) => treeId !== full.walletId };
  for (const ask of ['chat', 'streamed'] as const) {
    const { handler, open } = gate(ask === 'chat' ? completion() : completionStream());
    purser.upstream.handle = handler;
    const before = purser.upstream.calls.length;
    const first = full[ask]({}, ask);
    await purser.upstream.arrived(before + 1);
    const second = full[ask]({}, ask);
    const others = other[ask]({}, ask);
    await purser.upstream.arrived(before + 2);
    open();
    assert.deepEqual([(await first).status, (await second).status, (await others).status], [200, 200, 200]);
    assert.equal((await second).text, (await first).text);
    await full.quiet();
    const late = await full[ask]({}, ask);
    assert.deepEqual([late.status, late.body?.error?.code], [409, 'idempotency_key_expired'], late.text);
    assert.equal((await other[ask]({}, ask)).status, 200);
    assert.equal(purser.upstream.calls.length, before + 2);
  }
  assert.deepEqual(purser.problems(), []);
});

for (const stream of [false, true])
  test(`an answer whose client left before it came is counted once, ${stream ? 'streamed' : 'whole'}`, async (t) => {
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser);
    const { tryKeep } = purser.app.keptAnswers;
    let countedBytes = 0;
    purser.app.keptAnswers.tryKeep = (owner, bytes, seconds) => {
      countedBytes += bytes;
      return tryKeep(owner, bytes, seconds);
    };
    const late = gate(stream ? completionStream() : completion());
    purser.upstream.handle = late.handler;
    const gone = call(purser, gateway, { stream });
    await purser.upstream.arrived(1);
    gone.leave();
    await vacant(purser);
    late.open();
    await gateway.quiet();
    const stored = purser.app.ledger.client.prepare('select sum(length(body)) from answer').pluck().get();
    assert.equal((await call(purser, gateway, { stream }).answer)?.headers['idempotent-replayed'], 'true');
    assert.equal(countedBytes, Number(stored));
    assert(countedBytes > 0);
    assert.equal(purser.upstream.calls.length, 1);
    assert.deepEqual(purser.problems(), []);
  });
