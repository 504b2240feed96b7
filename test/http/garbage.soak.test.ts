import assert from 'node:assert/strict';
import { type HeapProfiler, Session } from 'node:inspector/promises';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';

// What is allocated for a small keyed chat goes through the caches of the processor, and counts twice: once when it is written and
// once when it is collected. Counted are the bytes that Purser's own code allocates on the main thread, with what built-in
// functions allocate for it, with the log level debug of the tests. It was 70. The count depends on how much of the code V8 has optimized, not on how busy the machine is.

const COUNT = 4000;
const KILOBYTES_MAX = 80;

type Node = HeapProfiler.SamplingHeapProfileNode;

/** Sums what the functions of src allocated. */
function ownBytes({ callFrame: { url }, selfSize, children }: Node, isOwn = false): number {
  const own = url ? url.includes('/src/') : isOwn;
  return (own ? selfSize : 0) + children.reduce((sum, it) => sum + ownBytes(it, own), 0);
}

test(`a small keyed chat allocates at most ${KILOBYTES_MAX} KB in the code of Purser`, async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ budget_cents: 100_000 });
  const chats = async (name: string) => {
    for (let i = 0; i < COUNT; i += 20)
      await Promise.all(
        Array.from({ length: 20 }, async (_, k) => {
          const { status } = await purser.chat(token, {}, `${name}-${i + k}`);
          assert.equal(status, 200);
        }),
      );
  };
  await chats('warm');
  const session = new Session();
  session.connect();
  t.after(() => session.disconnect());
  await session.post('HeapProfiler.startSampling', {
    samplingInterval: 16_384,
    includeObjectsCollectedByMajorGC: true,
    includeObjectsCollectedByMinorGC: true,
  });
  await chats('counted');
  const { profile } = await session.post('HeapProfiler.stopSampling');
  const kilobytes = ownBytes(profile.head) / 1024 / COUNT;
  t.diagnostic(`${kilobytes.toFixed(1)} KB a chat`);
  assert(kilobytes > 1, 'nothing was counted');
  assert(kilobytes <= KILOBYTES_MAX, `${kilobytes.toFixed(1)} KB`);
});
