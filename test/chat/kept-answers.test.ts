import assert from 'node:assert/strict';
import test from 'node:test';
import { createKeptAnswers } from '../../src/chat/kept-answers.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer } from '../helper/server.ts';
import { completionStream } from '../helper/sse.ts';
import { completion, gate } from '../helper/upstream.ts';

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
    const isKept = kept.tryKeep(owner, 10 * MIB, seconds);
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
  for (let i = 0; i < 16; i++) assert.equal(kept.tryKeep('a', MIB, DAYS_3), true);
  assert.equal(kept.tryKeep('a', 1, DAYS_3), false);
  assert.equal(kept.tryKeep('b', MIB, DAYS_3), true);
  for (let i = 0; i < 1200; i++) assert.equal(kept.tryKeep(`${i}`, 1, 600), true);
  assert.equal(kept.tryKeep('a', 1, DAYS_3), false);
});

test('an answer that is not stored is charged once: those who wait for it get it, whoever comes later a 409', async (t) => {
  const purser = await openTestServer(t);
  const full = await openGateway(purser);
  const other = await openGateway(purser);
  purser.app.keptAnswers = { tryKeep: (owner) => owner !== full.walletId };
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
